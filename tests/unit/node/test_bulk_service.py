"""The node's word about files: to its own bulk child alone, of replicas that may be read, for open sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.node.replicas.load_stage import OWN, STAMP, TABLE, Stage
from tests.unit.node.replicas.shelves import model_disk, until, written
from tests.unit.topology.clusters import member, view_of

from trimtab.bulk import tickets
from trimtab.bulk.tickets import Claims, Right
from trimtab.loads import protocol
from trimtab.loads.bulk_settings import RATE_KEY, SECRET_KEY, BulkSettings
from trimtab.loads.protocol import BulkReport, BulkState, LimitRequest, SnapshotReply, SnapshotRequest, TicketRequest
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.bulk_service import BulkService
from trimtab.node.leader_door import Decision
from trimtab.node.replicas.snapshots import ReplicaSnapshots
from trimtab.node.settings import Settings
from trimtab.storage.port import Disk
from trimtab.storage.rocks import RocksDisk
from trimtab.tablets.clock import HybridClock
from trimtab.topology.records import encode as encode_record
from trimtab.topology.records import instance_key

TOKEN = b"t" * 32
NOW_MS = 1_000_000_000


class Node:
    """An instance that leads, as far as files are concerned."""

    def __init__(self, disk: Disk) -> None:
        self.stage = Stage(disk)
        self.settings = BulkSettings()
        self.view: Any = view_of(member(1), member(2))
        self.online = True
        self.events: list[str] = []
        self.written: list[bytes] = []
        self.leader_answers: bytes | None = None
        self.clock = HybridClock(max_skew_ms=500)

    async def start(self) -> Node:
        await self.stage.start()
        self.loads = self.stage.loads
        clock: Callable[[], int] = lambda: NOW_MS  # noqa: E731
        said = self.stage.said.append
        self.snapshots = ReplicaSnapshots(self.stage.disk, wall_ms=clock, complain=said, defect=lambda e: said(str(e)))
        self.snapshots.start()
        tables = SimpleNamespace(catalog=SimpleNamespace(tables={TABLE: None}), held_by=self.stage.tables.held_by)
        instance: Any = SimpleNamespace(
            raft_id=OWN,
            settings=Settings("i1", "127.0.0.1:1", ("a:1",), bulk="127.0.0.1:4", bulk_token=TOKEN),
            disk=self.stage.disk,
            rng=random.Random(1),
            wall_ms=clock,
            hello=Hello(instance_id="i1", raft_id=OWN),
            watching=SimpleNamespace(bulk=self.settings, loads=self.loads, tables=tables, view=self.view),
            holdings=SimpleNamespace(shelf=self.stage.shelf, snapshots=self.snapshots),
        )
        control: Any = SimpleNamespace(
            online=True,
            lease_left_ms=lambda: 1_000 if self.online else 0,
            read_barrier=self._barrier,
            router=SimpleNamespace(clock=self.clock),
            clock_watch=SimpleNamespace(judged_ms=clock),
        )
        self.service = BulkService(instance, control, self, self.stage.waits)  # type: ignore[arg-type]
        return self

    def stop(self) -> None:
        self.snapshots.stop()
        self.stage.stop()

    async def _barrier(self, _timeout_s: float) -> None:
        pass

    async def pass_on(self, _method: str, _body: bytes, _deadline: float, *, forwarded: bool) -> bytes | None:
        return None if forwarded else self.leader_answers

    async def decide(self, look: Callable[[], Decision], _kind: str, _names: object) -> None:
        decided = look()
        if decided is None:
            return
        write, texts = decided
        assert all(self.view.revisions.get(key, 0) == at for key, at in write.expect.items())
        self.events += texts
        for key, value in write.puts.items():
            self.written.append(key)
            self.view.revisions[key] = len(self.written)
            self.settings.change(key, value, len(self.written))
        self.stage.waits.look()

    async def ask(self, method: str, request: Any, within_s: float = 5.0) -> bytes:
        deadline = asyncio.get_running_loop().time() + within_s
        return await self.service.methods()[method](Asked(protocol.encode(request), deadline, Hello()))

    async def state(self, token: bytes = TOKEN) -> BulkState:
        found: BulkState = protocol.decode_bulk_state(await self.ask(protocol.BULK_STATE, BulkReport(token, 7, 10, 20)))
        return found

    async def snapshot(
        self,
        *tablets: int,
        epoch: int = 0,
        name: str = "",
        table: int = TABLE,
        within_s: float = 5.0,
        as_of_us: int = 0,
    ) -> SnapshotReply:
        request = SnapshotRequest(table, list(tablets), epoch, name=name, as_of_us=as_of_us)
        found: SnapshotReply = protocol.decode_snapshot_reply(await self.ask(protocol.SNAPSHOT, request, within_s))
        return found

    def claims(self, ticket: bytes) -> Claims:
        return tickets.read(self.settings.key, ticket, NOW_MS)


def tell(story: Callable[[Node], Coroutine[Any, Any, None]], disk: Disk | None = None) -> None:
    async def run() -> None:
        node = await Node(disk or model_disk()).start()
        try:
            await story(node)
            assert node.stage.life.failures == []
        finally:
            node.stop()

    asyncio.run(run())


async def refused(work: Coroutine[Any, Any, Any]) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        await work
    return caught.value.code, caught.value.text


def test_only_the_own_bulk_child_is_told_the_key() -> None:
    async def story(node: Node) -> None:
        for token in (b"", b"t", TOKEN[:-1] + b"u", TOKEN + b"t"):
            assert (await refused(node.state(token)))[0] == "forbidden"
        node.stage.begin("load-1")
        state = await node.state()
        assert (state.instance_id, state.sessions, state.now_ms) == ("i1", ["load-1"], NOW_MS)
        assert len(state.key) == 32 and state.rate_bytes_s == 0
        assert (await node.state()).key == state.key
        assert node.written == [SECRET_KEY] and node.events == [], "made once, and no event tells of it"
        samples = {(each.name, *each.labels): each.value for each in node.service.figures()}
        assert samples["bulk_running",] == 1
        assert samples["bulk_bytes", ("direction", "in")] == 10 and samples["bulk_bytes", ("direction", "out")] == 20

    tell(story)


def test_a_member_that_does_not_lead_waits_for_the_key_that_the_leader_makes() -> None:
    async def story(node: Node) -> None:
        node.leader_answers = b""
        asking = asyncio.ensure_future(node.state())
        await asyncio.sleep(0.01)
        assert not asking.done() and node.written == []
        await node.ask(protocol.BULK_KEY, protocol.KeyCall(forwarded=True))
        assert len((await asking).key) == 32

    tell(story)


def test_a_snapshot_names_its_files_and_comes_with_a_ticket_for_itself(tmp_path: Path) -> None:
    async def story(node: Node) -> None:
        await written(await node.stage.life.replica(TABLE, 1), 5, 6)
        taken = await node.snapshot(1, 2)
        assert (
            taken.directory == str(tmp_path / "disk") and taken.bulk_address == "127.0.0.1:4" and taken.generation == 1
        )
        assert [each.tablet for each in taken.tablets] == [1, 2]
        for each in taken.tablets:
            held = {path.name: path.stat().st_size for path in (tmp_path / "disk" / each.path).iterdir()}
            assert dict(each.files) == held
        assert (tmp_path / "disk/snapshots" / taken.name / "proof").read_text() == taken.proof != ""
        claims = node.claims(taken.ticket)
        assert (claims.right, claims.subject, claims.instance_id) == (Right.FETCH, taken.name, "i1")
        again = await node.snapshot(1, 2, name=taken.name)
        assert (again.proof, again.tablets) == (taken.proof, taken.tablets)
        assert (await refused(node.snapshot(1, name=taken.name)))[0] == "exists"
        await node.ask(protocol.SNAPSHOT_RENEW, protocol.RenewSnapshot(taken.name, 100_000))
        await node.ask(protocol.SNAPSHOT_RELEASE, protocol.ReleaseSnapshot(taken.name))
        assert not (tmp_path / "disk/snapshots" / taken.name).exists()
        assert (await refused(node.ask(protocol.SNAPSHOT_RENEW, protocol.RenewSnapshot(taken.name))))[0] == "not_found"

    tell(story, RocksDisk(tmp_path / "disk", reserve_bytes=0))


def test_two_who_ask_at_once_for_one_name_get_one_snapshot() -> None:
    async def story(node: Node) -> None:
        first, second = await asyncio.gather(node.snapshot(0, name="n"), node.snapshot(0, name="n"))
        assert first.proof == second.proof != "" and node.snapshots.taken == 1

    tell(story)


def test_replicas_that_may_not_be_read_are_not_given_away() -> None:
    async def story(node: Node) -> None:
        assert (await refused(node.snapshot(0, table=99)))[0] == "not_found"
        assert (await refused(node.snapshot()))[0] == "invalid"
        assert await refused(node.snapshot(9)) == ("not_ready", "no replica of tablet 9 of table 1 is here")
        assert (await refused(node.snapshot(0, name="../x")))[0] == "invalid"
        node.online = False
        assert "is not Online" in (await refused(node.snapshot(0)))[1]

    tell(story)


def test_a_time_whose_versions_were_folded_is_refused_and_leaves_no_snapshot() -> None:
    async def story(node: Node) -> None:
        replica = await node.stage.life.replica(TABLE, 0)
        assert replica.rewrite([], [], forgot_us=5_000)
        code, text = await refused(node.snapshot(0, as_of_us=4_000))
        assert code == "forgotten" and "ask for a later time" in text
        assert node.snapshots.known() == []
        assert (await node.snapshot(0, as_of_us=6_000)).tablets

    tell(story)


def test_a_reader_waits_for_its_epoch_and_is_told_what_to_leave_out() -> None:
    async def story(node: Node) -> None:
        stage = node.stage
        code, text = await refused(node.snapshot(0, epoch=1, within_s=0.3))
        assert code == "not_ready" and "epoch 1 of table 1" in text
        load = stage.commit(stage.begin("load-1"))
        assert (await node.snapshot(0)).hidden == [STAMP], "it may be on disk already, and is not visible yet"
        stage.publish(load)
        code, text = await refused(node.snapshot(0, epoch=1))
        assert code == "not_ready" and "epoch 0 only" in text
        replica = await stage.life.replica(TABLE, 0)
        done: list[object] = []
        replica.set_adopted(1, done.append)
        await until(lambda: bool(done))
        assert (await node.snapshot(0, epoch=1)).hidden == []

    tell(story)


def copying(*tablets: int, epoch: int = 0, name: str = "c", **fields: Any) -> SnapshotRequest:
    return SnapshotRequest(TABLE, list(tablets), epoch, name=name, copying=True, **({"partial": True} | fields))


def test_who_copies_gets_those_that_are_ready_and_hears_of_the_others() -> None:
    async def story(node: Node) -> None:
        async def ask(request: SnapshotRequest) -> SnapshotReply:
            found: SnapshotReply = protocol.decode_snapshot_reply(await node.ask(protocol.SNAPSHOT, request))
            return found

        reply = await ask(copying(0, 9, 1))
        assert [each.tablet for each in reply.tablets] == [0, 1] and not reply.found
        assert [(tablet, code) for tablet, code, _ in reply.refused] == [(9, "gone")]
        again = await ask(copying(0, 9, 1))
        assert again.found and (again.proof, again.tablets) == (reply.proof, reply.tablets)
        assert [tablet for tablet, _, _ in again.refused] == [9]
        assert (await refused(ask(copying(0))))[0] == "exists", "it has more than was asked for"
        nothing = await ask(copying(9, name="d"))
        assert (nothing.tablets, nothing.found) == ([], False) and node.snapshots.get("d") is None

    tell(story)


def test_a_copy_has_all_committed_loads_though_nobody_may_see_them_yet() -> None:
    async def story(node: Node) -> None:
        stage = node.stage
        stage.commit(stage.begin("load-1"))
        replica = await stage.life.replica(TABLE, 0)
        request = copying(0, 1, epoch=1)
        reply: SnapshotReply = protocol.decode_snapshot_reply(await node.ask(protocol.SNAPSHOT, request))
        assert reply.tablets == [] and {code for _, code, _ in reply.refused} == {"not_ready"}
        adopted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        replica.set_adopted(1, lambda error: adopted.set_result(None))
        await adopted
        reply = protocol.decode_snapshot_reply(await node.ask(protocol.SNAPSHOT, request))
        assert [(each.tablet, each.adopted) for each in reply.tablets] == [(0, 1)]
        assert [tablet for tablet, _, _ in reply.refused] == [1]

    tell(story)


def test_a_replica_that_was_repaired_since_it_was_looked_at_is_not_copied_for_a_merge() -> None:
    async def story(node: Node) -> None:
        replica = await node.stage.life.replica(TABLE, 0)
        told: SnapshotReply = protocol.decode_snapshot_reply(
            await node.ask(protocol.SNAPSHOT, copying(0, 1, only_tell=True))
        )
        assert [(each.tablet, each.repaired_through_ms) for each in told.tablets] == [(0, 0), (1, 0)]
        assert node.snapshots.known() == []
        assert replica.change_meta(repaired_through_ms=77)
        request = copying(0, 1, through=[each.repaired_through_ms for each in told.tablets])
        reply: SnapshotReply = protocol.decode_snapshot_reply(await node.ask(protocol.SNAPSHOT, request))
        assert [each.tablet for each in reply.tablets] == [1]
        assert [(tablet, code) for tablet, code, _ in reply.refused] == [(0, "repaired")]
        request = copying(0, name="d", through=[77])
        reply = protocol.decode_snapshot_reply(await node.ask(protocol.SNAPSHOT, request))
        assert [each.repaired_through_ms for each in reply.tablets] == [77]

    tell(story)


def test_tickets_are_given_for_many_sessions_at_once() -> None:
    async def story(node: Node) -> None:
        node.stage.begin("one")
        node.stage.begin("two")
        request = protocol.TicketsRequest(["one", "none", "two", "one"])
        reply: protocol.TicketsReply = protocol.decode_tickets_reply(await node.ask(protocol.TICKETS, request))
        assert {session: node.claims(ticket).subject for session, ticket in reply.tickets.items()} == {
            "one": "one",
            "two": "two",
        }
        many = protocol.TicketsRequest(["x"] * 1_001)
        assert (await refused(node.ask(protocol.TICKETS, many)))[0] == "invalid"

    tell(story)


def test_tickets_for_staging_are_for_open_sessions() -> None:
    async def story(node: Node) -> None:
        assert (await refused(node.ask(protocol.TICKET, TicketRequest("load-1"))))[0] == "unknown_session"
        node.stage.begin("load-1")
        for life_ms in (0, -1, 10**12):
            assert (await refused(node.ask(protocol.TICKET, TicketRequest("load-1", life_ms))))[0] == "invalid"
        row = member(2, bulk_address="b:4")
        node.view.change(instance_key(2), encode_record(row), 9)
        reply = protocol.decode_ticket_reply(await node.ask(protocol.TICKET, TicketRequest("load-1", 5_000)))
        assert reply.expires_ms == NOW_MS + 5_000 and reply.bulk == {2: "b:4"}
        assert node.claims(reply.ticket) == Claims(Right.STAGE, "load-1", NOW_MS + 5_000)
        node.stage.close_session("load-1")
        assert (await refused(node.ask(protocol.TICKET, TicketRequest("load-1"))))[0] == "unknown_session"

    tell(story)


def test_the_limit_is_set_once_for_all_and_each_gets_its_share() -> None:
    async def story(node: Node) -> None:
        async def limit(rate: int) -> Any:
            return protocol.decode_limit_reply(await node.ask(protocol.LIMIT, LimitRequest(rate)))

        assert (await limit(-1)).rate_bytes_s == 0
        assert (await refused(limit(5)))[0] == "invalid"
        reply = await limit(10_000_000)
        assert (reply.rate_bytes_s, reply.share_bytes_s, reply.instances) == (10_000_000, 5_000_000, 2)
        assert (await node.state()).rate_bytes_s == 5_000_000
        await limit(10_000_000)
        await limit(0)
        assert [key for key in node.written if key == RATE_KEY] == [RATE_KEY] * 2
        assert node.events == [
            "the limit of bulk transfers was changed from off to 10 MB/s",
            "the limit of bulk transfers was changed from 10 MB/s to off",
        ]

    tell(story)


def test_the_time_is_no_earlier_than_what_was_stamped_or_taken_here() -> None:
    async def story(node: Node) -> None:
        async def ahead_us() -> int:
            reply = protocol.decode_time_reply(await node.ask(protocol.TIME, None))
            return int(reply.now_us) - NOW_MS * 1000

        assert await ahead_us() == 0
        node.clock.observe(NOW_MS * 1000 + 300_000, NOW_MS * 1000)
        assert await ahead_us() == 300_000
        # A clock that was set back, or had been wrong: others took nothing of what it stamped then.
        node.clock.last_us = (NOW_MS + 3_600_000) * 1000
        assert await ahead_us() == 500_000

    tell(story)
