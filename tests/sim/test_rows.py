"""Rows in a whole cluster: written, read, repaired, fenced, while machines come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from tests.sim.governed_world import TIMING, cut, governed, leader, others
from trimtab.catalog import commands
from trimtab.catalog.commands import ColumnSpec, Command, CreateKeyspace, CreateTable
from trimtab.catalog.schema import Table
from trimtab.net.errors import RpcError
from trimtab.node import failpoints
from trimtab.node.instance import Instance
from trimtab.node.settings import Limits
from trimtab.rows import protocol
from trimtab.rows.keys import row_key
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import (
    BatchRequest,
    Bound,
    ChangeRequest,
    DeleteRequest,
    GetRequest,
    PutRequest,
    ReplicaRead,
    ReplicaWrite,
    ReplicaWrites,
    RowsReply,
    ScanRequest,
    SliceRequest,
    WriteReply,
)
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.world import World
from trimtab.storage.port import SyncDone
from trimtab.tablets.consistency import Level


def big(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


class Shop:
    """A cluster with tables shop.users (id bigint, name text) and shop.events (id bigint, at bigint, what text)."""

    def __init__(self, cluster: GovernedCluster, replication: int | dict[str, int], tablets: int) -> None:
        self.cluster = cluster
        self.machines = list(cluster.machines.values())
        self.changes = 0
        self.change(CreateKeyspace("shop", replication))
        columns = [ColumnSpec("id", "bigint"), ColumnSpec("name", "text")]
        self.change(CreateTable("shop", "users", columns, ["id"], tablets=tablets))
        columns = [ColumnSpec("id", "bigint"), ColumnSpec("at", "bigint"), ColumnSpec("what", "text")]
        self.change(CreateTable("shop", "events", columns, ["id"], [("at", False)], tablets=tablets))
        self.users, self.events = self.table("shop.users"), self.table("shop.events")

    def change(self, command: Command) -> None:
        self.changes += 1
        body = protocol.encode(ChangeRequest(commands.encode(command), f"c{self.changes}"))
        protocol.decode_change_reply(self.ask(self.machines[0], protocol.CHANGE, body))

    def table(self, name: str) -> Table:
        return instance(self.machines[0]).watching.tables.catalog.table(name)

    # Asking

    def ask(self, machine: Machine, method: str, body: bytes, timeout_s: float = 3.0) -> bytes:
        return self.cluster.do(self.asking(machine, method, body, timeout_s))  # type: ignore[no-any-return]

    async def asking(self, machine: Machine, method: str, body: bytes, timeout_s: float = 3.0) -> bytes:
        rng = self.cluster.world.rng(f"client/{self.cluster.world.events}")
        return await self.cluster.ask(machine, method, body, rng, timeout_s)

    def user(self, id: int, name: str | None, level: Level = Level.QUORUM, **more: Any) -> PutRequest:
        cells = [[big(id), name.encode() if name is not None else None]]
        return PutRequest(self.users.id, self.users.version, [1, 2], cells, level, **more)

    def event(self, id: int, at: int, what: str, level: Level = Level.QUORUM) -> PutRequest:
        cells: list[list[bytes | None]] = [[big(id), big(at), what.encode()]]
        return PutRequest(self.events.id, self.events.version, [1, 2, 3], cells, level)

    def write(self, machine: Machine, request: PutRequest | DeleteRequest | BatchRequest) -> WriteReply:
        methods = {PutRequest: protocol.PUT, DeleteRequest: protocol.DELETE, BatchRequest: protocol.BATCH}
        reply: WriteReply = protocol.decode_write_reply(
            self.ask(machine, methods[type(request)], protocol.encode(request))
        )
        return reply

    def put(self, machine: Machine, id: int, name: str | None, level: Level = Level.QUORUM, **more: Any) -> WriteReply:
        return self.write(machine, self.user(id, name, level, **more))

    def get_many(self, machine: Machine, ids: list[int], level: Level = Level.QUORUM) -> RowsReply:
        request = GetRequest(self.users.id, self.users.version, [[big(id)] for id in ids], [2], level)
        reply: RowsReply = protocol.decode_rows(self.ask(machine, protocol.GET, protocol.encode(request)))
        return reply

    def get(self, machine: Machine, id: int, level: Level = Level.QUORUM) -> str | None:
        row = self.get_many(machine, [id], level).rows[0]
        return row[0].decode() if row is not None and row[0] is not None else None

    def pages(self, machine: Machine, request: SliceRequest | ScanRequest) -> list[list[bytes | None]]:
        """All rows, page by page."""
        found: list[Any] = []
        method = protocol.SLICE if isinstance(request, SliceRequest) else protocol.SCAN
        for _ in range(200):
            reply = protocol.decode_rows(self.ask(machine, method, protocol.encode(request)))
            found += reply.rows
            if not reply.page:
                return found
            request = msgspec.structs.replace(request, page=reply.page)
        raise AssertionError("the pages don't end")

    def whats(self, machine: Machine, id: int, level: Level = Level.QUORUM, **more: Any) -> list[str]:
        """The events of a partition."""
        request = SliceRequest(self.events.id, self.events.version, [big(id)], [3], level=level, **more)
        return [row[0].decode() for row in self.pages(machine, request) if row[0] is not None]

    def refusal(self, call: Any, *args: Any, **more: Any) -> tuple[str, dict[str, Any]]:
        with pytest.raises(RpcError) as refused:
            call(*args, **more)
        details = refused.value.details
        return refused.value.code, msgspec.msgpack.decode(details) if details else {}

    # Past the routers

    def tablet(self, table: Table, id: int) -> int:
        return int.from_bytes(
            row_key(RowLayout(table), [big(id), *([big(0)] if table is self.events else [])])[:8]
        ) >> (65 - table.tablets.bit_length())

    def plant(self, machine: Machine, request: PutRequest, id: int, stamp_us: int) -> None:
        """A write that reached one replica, and nobody else."""
        table = self.users if request.table == self.users.id else self.events
        shelf, tablet = instance(machine).holdings.shelf, self.tablet(table, id)
        replica = self.cluster.until(lambda: shelf.get(table.id, tablet), 5.0, "the replica is open")
        (pairs,) = pairs_of_put(RowLayout(table), request, stamp_us, machine.process.wall_ms()).values()
        done: list[BaseException | None] = []

        async def write() -> None:
            taken: SyncDone = done.append
            replica.write(pairs, taken)

        machine.process.spawn(write())
        self.cluster.until(lambda: done, 5.0, "the write is synced")
        assert done == [None]

    def holding(self, request: PutRequest, id: int) -> list[str]:
        """The machines whose own replicas hold a row with these cells."""
        table = self.users if request.table == self.users.id else self.events
        found = []
        for machine in self.machines:
            if machine.instance is None:
                continue
            replica = instance(machine).holdings.shelf.get(table.id, self.tablet(table, id))
            wanted = [cell for cell in request.rows[0] if cell is not None][-1]
            if replica is not None and any(wanted in value for _, value in replica.scan(bytes(8), None)):
                found.append(machine.name)
        return found

    def now_us(self) -> int:
        return self.machines[0].process.wall_ms() * 1000


def instance(machine: Machine) -> Instance:
    assert machine.instance is not None
    return machine.instance


@contextmanager
def shop(
    machines: int = 3, replication: int | dict[str, int] = 3, *, tablets: int = 8, seed: int = 1
) -> Iterator[Shop]:
    with governed(machines, seed=seed) as cluster:
        yield Shop(cluster, replication, tablets)


@contextmanager
def two_centres() -> Iterator[Shop]:
    """Three machines in dc1, two in dc2."""
    failpoints.disarm()
    with World(1) as world:
        cluster = GovernedCluster(world, TIMING, Limits(disk_reserve_bytes=0))
        for number in range(5):
            cluster.add(list(range(5)), failure_domain={"dc": "dc1" if number < 3 else "dc2"}).start()
        cluster.settle()
        yield Shop(cluster, {"dc1": 3, "dc2": 2}, 4)


def test_what_is_written_through_one_is_read_through_another() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        for id in range(20):
            rows.put(a, id, f"name {id}")
        for id in range(20):
            assert rows.get(b, id) == f"name {id}"
            assert rows.get(c, id, Level.ALL) == f"name {id}"
            assert rows.get(c, id, Level.ONE) == f"name {id}"
        many = rows.get_many(b, [5, 99, 3, 5])
        assert [row and row[0] for row in many.rows] == [b"name 5", None, b"name 3", b"name 5"]
        first = rows.put(b, 3, None)
        assert rows.get(a, 3) is None
        assert rows.put(c, 3, "again", after_us=first.timestamp_us + 50_000).timestamp_us > first.timestamp_us + 50_000
        assert rows.get(a, 3) == "again"
        rows.write(a, DeleteRequest(rows.users.id, rows.users.version, [big(5)]))
        assert rows.get_many(b, [5]).rows == [None]


def test_slices_and_scans_page_through_everything_once_and_in_order() -> None:
    with shop() as rows:
        a, b, _ = rows.machines
        for at in range(30):
            rows.write(a, rows.event(7, at, f"e{at}"))
        assert rows.whats(b, 7, start=Bound([big(5)]), end=Bound([big(25)], False), limit=7) == [
            f"e{at}" for at in range(5, 25)
        ]
        assert rows.whats(b, 7, reverse=True, limit=4) == [f"e{at}" for at in range(29, -1, -1)]
        assert rows.whats(b, 8) == []
        for id in range(50):
            rows.put(a, id, f"n{id}")
        scan = ScanRequest(rows.users.id, rows.users.version, [1], limit=9)
        found = [int.from_bytes(row[0] or b"") for row in rows.pages(b, scan)]
        assert sorted(found) == list(range(50))
        assert rows.refusal(rows.pages, b, msgspec.structs.replace(scan, page=b"not one of ours"))[0] == "invalid"


def test_a_range_that_was_deleted_stays_so_and_a_page_gets_past_it() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        for at in range(20):
            rows.write(a, rows.event(7, at, f"e{at}"))
        start, end = Bound([big(3)]), Bound([big(17)], False)
        rows.write(b, DeleteRequest(rows.events.id, rows.events.version, [big(7)], start=start, end=end))
        left = ["e0", "e1", "e2", "e17", "e18", "e19"]
        assert rows.whats(c, 7, limit=2) == left
        assert rows.whats(c, 7, limit=2, reverse=True) == left[::-1]
        assert rows.whats(c, 7, Level.ALL) == left


def test_with_one_machine_cut_off_quorum_works_and_all_is_unavailable() -> None:
    with shop() as rows:
        follower, *_ = others(rows.cluster, leader(rows.cluster))
        rest = [machine for machine in rows.machines if machine is not follower]
        cut(rows.cluster, follower)
        rows.put(rest[0], 1, "one")
        assert rows.get(rest[1], 1) == "one"
        rows.cluster.until(lambda: not instance(rest[0]).control.router.parcels.connected(instance(follower).raft_id))  # type: ignore[union-attr]
        code, numbers = rows.refusal(rows.put, rest[0], 1, "two", Level.ALL)
        assert (code, numbers) == ("unavailable", {"consistency": "ALL", "required": 3, "alive": 2})
        code, numbers = rows.refusal(rows.get, rest[0], 1, Level.ALL)
        assert (code, numbers) == ("unavailable", {"consistency": "ALL", "required": 3, "alive": 2})


def test_a_value_that_reached_one_replica_is_on_a_quorum_when_a_quorum_read_has_shown_it() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        rows.put(a, 1, "old")
        fresh = rows.user(1, "fresh")
        rows.plant(b, fresh, 1, rows.now_us() + 1_000)
        assert rows.holding(fresh, 1) == [b.name]
        assert rows.get(b, 1) == "fresh"
        assert len(rows.holding(fresh, 1)) >= 2
        for machine in (a, c):
            assert rows.get(machine, 1) == "fresh"


def test_a_slice_over_replicas_that_each_miss_something_is_whole_and_repairs_them() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        for at in range(30):
            target = (a, b, c)[at % 3]
            rows.plant(target, rows.event(7, at, f"[e{at}]"), 7, rows.now_us())
        assert rows.whats(a, 7, Level.ALL, limit=4) == [f"[e{at}]" for at in range(30)]
        for machine in (a, b, c):
            assert rows.whats(machine, 7, Level.ONE) == [f"[e{at}]" for at in range(30)]


def test_a_request_that_was_routed_by_an_older_topology_than_the_fence_is_refused() -> None:
    with shop() as rows:
        a, b, _ = rows.machines
        instance(b).watching.view.fence = instance(b).watching.view.version + 1
        tablet = rows.tablet(rows.users, 1)
        catalog = instance(a).watching.tables.catalog.version
        version = instance(a).watching.view.version
        (pairs,) = pairs_of_put(RowLayout(rows.users), rows.user(1, "x"), rows.now_us(), 1).values()
        write = ReplicaWrite(rows.users.id, tablet, pairs, a.process.wall_ms())
        bodies = {
            protocol.REPLICA_WRITE: protocol.encode(ReplicaWrites(version, catalog, [write])),
            protocol.REPLICA_READ: protocol.encode(ReplicaRead(version, catalog, rows.users.id, tablet, Level.ONE, [])),
        }
        for method, body in bodies.items():
            link = instance(a).host.links[instance(b).raft_id]

            async def ask(method: str = method, body: bytes = body, link: Any = link) -> str:
                try:
                    await link.channel.call(method, body, 1.0)
                except RpcError as error:
                    return error.code
                return "done"

            assert rows.cluster.world.run_until_done(a.process.spawn(ask()), rows.cluster.world.now + 5) == "fenced"
            # And a client has no say in it at all.
            assert rows.refusal(rows.ask, b, method, body)[0] == "not_member"


def test_a_replica_refuses_stamps_from_the_future_and_writes_that_are_too_old() -> None:
    with shop() as rows:
        a, b, _ = rows.machines
        tablet = rows.tablet(rows.users, 1)
        catalog, version = instance(a).watching.tables.catalog.version, instance(a).watching.view.version
        now_ms = a.process.wall_ms()

        def write(stamp_us: int, written_ms: int) -> ReplicaWrite:
            (pairs,) = pairs_of_put(RowLayout(rows.users), rows.user(1, "x"), stamp_us, 1).values()
            return ReplicaWrite(rows.users.id, tablet, pairs, written_ms)

        ages = [write(now_ms * 1000 + 5_000_000, now_ms), write(now_ms * 1000, now_ms - 24 * 3_600_000)]
        ages += [write(now_ms * 1000, now_ms), ReplicaWrite(99, 0, ages[0].pairs, now_ms)]
        body = protocol.encode(ReplicaWrites(version, catalog, ages))

        async def ask() -> Any:
            link = instance(a).host.links[instance(b).raft_id]
            return protocol.decode_replica_written(await link.channel.call(protocol.REPLICA_WRITE, body, 1.0))

        answer = rows.cluster.world.run_until_done(a.process.spawn(ask()), rows.cluster.world.now + 5)
        # The fourth write names the future too; its table does not matter any more.
        assert [each and each.code for each in answer.results] == ["skew", "too_late", None, "skew"]


def test_each_quorum_and_local_quorum_over_two_data_centres() -> None:
    with two_centres() as rows:
        a, _, _, d, e = rows.machines
        assert rows.put(a, 1, "x", Level.EACH_QUORUM).acknowledged >= 4
        assert rows.get(d, 1, Level.LOCAL_QUORUM) == "x"
        assert rows.get(d, 1, Level.EACH_QUORUM) == "x"
        cut(rows.cluster, e)
        gone = instance(e).raft_id
        for machine in (a, d):
            rows.cluster.until(lambda m=machine: not instance(m).control.router.parcels.connected(gone))  # type: ignore[misc,union-attr]
        code, numbers = rows.refusal(rows.put, a, 1, "y", Level.EACH_QUORUM)
        assert (code, numbers) == ("unavailable", {"consistency": "EACH_QUORUM", "required": 2, "alive": 1})
        assert rows.refusal(rows.put, d, 1, "y", Level.LOCAL_QUORUM)[0] == "unavailable"
        rows.put(a, 1, "z", Level.LOCAL_QUORUM)
        assert rows.get(a, 1, Level.LOCAL_QUORUM) == "z"
        assert rows.get(d, 1, Level.LOCAL_ONE) in ("x", "z")


def test_a_batch_of_one_partition_is_taken_as_one() -> None:
    with shop() as rows:
        a, b, _ = rows.machines
        events = [rows.event(7, at, f"e{at}") for at in range(5)]
        stamp = rows.write(a, BatchRequest(list(events))).timestamp_us
        assert stamp > 0
        assert rows.whats(b, 7) == [f"e{at}" for at in range(5)]
        assert all(instance(machine).control.router.batches.held == 0 for machine in rows.machines)  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["batch.stored", "batch.written"])
def test_a_logged_batch_happens_though_its_coordinator_dies(place: str) -> None:
    with shop() as rows:
        coordinator, *rest = others(rows.cluster, leader(rows.cluster))
        rest.append(leader(rows.cluster))
        batch = BatchRequest([rows.user(id, f"batch {id}") for id in range(10)])
        fallen = rows.cluster.kill_at(place, coordinator)
        with pytest.raises(Exception):  # noqa: B017 - whatever a dying process leaves its client with
            rows.write(coordinator, batch)
        assert fallen == [coordinator]
        failpoints.disarm()

        def done() -> bool:
            return all(instance(machine).control.router.batches.held == 0 for machine in rest)  # type: ignore[union-attr]

        if place == "batch.stored":
            assert not done()
        rows.cluster.until(done, 60.0, "the holders have carried the batch out")
        found = rows.get_many(rest[0], list(range(10)))
        assert [row and row[0] for row in found.rows] == [b"batch %d" % id for id in range(10)]


def test_a_logged_batch_is_forgotten_when_it_is_done() -> None:
    with shop() as rows:
        a, b, _ = rows.machines
        batch = BatchRequest([rows.user(id, f"batch {id}") for id in range(10)])
        assert rows.write(a, batch).acknowledged >= 2
        assert [row and row[0] for row in rows.get_many(b, [0, 9]).rows] == [b"batch 0", b"batch 9"]
        rows.cluster.until(
            lambda: all(instance(each).control.router.batches.held == 0 for each in rows.machines),  # type: ignore[union-attr]
            5.0,
        )


def test_bad_requests_are_refused_with_what_is_wrong() -> None:
    with shop() as rows:
        a, *_ = rows.machines
        good = rows.user(1, "x")
        wrong: list[tuple[str, PutRequest]] = [
            ("not_found", msgspec.structs.replace(good, table=99)),
            ("version_mismatch", msgspec.structs.replace(good, version=1)),
            ("version_mismatch", msgspec.structs.replace(good, version=99)),
            ("invalid", msgspec.structs.replace(good, columns=[1, 9])),
            ("invalid", msgspec.structs.replace(good, rows=[[b"short", b"x"]])),
            ("invalid", msgspec.structs.replace(good, rows=[[big(1), b"\xff\xfe"]])),
            ("invalid", msgspec.structs.replace(good, timestamp_us=rows.now_us() + 3_600_000_000)),
            ("invalid", msgspec.structs.replace(good, rows=[[big(1), b"x"]] * 1001)),
        ]
        for code, request in wrong:
            assert rows.refusal(rows.write, a, request)[0] == code, request
        assert rows.refusal(rows.ask, a, protocol.PUT, b"\x00garbage")[0] == "invalid"
        assert rows.refusal(rows.get, a, 1, Level.ANY)[0] == "invalid"
        keys = [[big(id)] for id in range(501)]
        request = GetRequest(rows.users.id, rows.users.version, keys, [2])
        assert rows.refusal(rows.ask, a, protocol.GET, protocol.encode(request))[0] == "invalid"
        assert rows.get(a, 1) is None


def test_a_large_put_is_taken_apart_by_tablet_and_a_partition_that_is_too_large_for_one_message_is_refused() -> None:
    with shop() as rows:
        a, b, _ = rows.machines
        body = b"x" * 1_000
        cells: list[list[bytes | None]] = [[big(id), body] for id in range(900)]
        rows.write(a, PutRequest(rows.users.id, rows.users.version, [1, 2], cells))
        found = rows.get_many(b, list(range(0, 900, 3)))
        assert all(row == [body] for row in found.rows)
        scan = ScanRequest(rows.users.id, rows.users.version, [1])
        assert len(rows.pages(b, scan)) == 900
        cells = [[big(7), big(at), body] for at in range(900)]
        request = PutRequest(rows.events.id, rows.events.version, [1, 2, 3], cells)
        assert rows.refusal(rows.write, a, request)[0] == "invalid"
        assert rows.whats(b, 7) == []


def test_a_machine_that_stands_still_delays_no_quorum_for_long() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        still = next(each for each in (b, c) if each is not leader(rows.cluster))
        for id in range(5):
            rows.put(a, id, f"n{id}")
        still.process.pause()
        began = rows.cluster.world.now
        for id in range(5):
            assert rows.get(a, id) == f"n{id}"
            rows.put(a, id, f"m{id}")
        assert rows.cluster.world.now - began < 1.5
        still.process.resume()
        rows.cluster.settle()
        for id in range(5):
            assert rows.get(still, id) == f"m{id}"


def test_many_writers_at_once_all_find_their_rows_again() -> None:
    with shop() as rows:

        async def write(number: int) -> None:
            machine = rows.machines[number % 3]
            body = protocol.encode(rows.user(number, f"n{number}"))
            await rows.asking(machine, protocol.PUT, body)

        async def all_of_them() -> None:
            await asyncio.gather(*(write(number) for number in range(200)))

        rows.cluster.do(all_of_them())
        found = rows.get_many(rows.machines[1], list(range(200)))
        assert [row and row[0] for row in found.rows] == [b"n%d" % number for number in range(200)]
