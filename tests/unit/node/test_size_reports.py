"""Instances report sizes to whoever leads; a leader that is new is told everything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.topology.clusters import member, view_of

from trimtab.net.errors import NotConnected
from trimtab.net.hello import Hello
from trimtab.node import size_reports
from trimtab.node.answering import Asked, Refused
from trimtab.node.errors import NotLeader
from trimtab.node.size_reports import SizeReports
from trimtab.tablets import sizes
from trimtab.tablets.records import chunk_key, pack
from trimtab.tablets.sizes import SizesReport, SizesRequest
from trimtab.tablets.view import TableView

TABLE = 5


@dataclass
class Replica:
    tablet: int
    held_bytes: int
    table: int = TABLE
    closed: bool = False


class Office:
    def __init__(self, leads: Callable[[], bool]) -> None:
        self._leads = leads

    @property
    def leads(self) -> bool:
        return self._leads()


class Member:
    """One instance with its replicas, in a cluster whose leader all members agree on."""

    def __init__(self, raft_id: int, world: World) -> None:
        self.raft_id = raft_id
        self.replicas: list[Replica] = []
        self.raft = world.raft
        tables = TableView()
        tables.change(chunk_key(TABLE, 0), pack([(1, 2)] * 4), 1)
        office: Any = Office(lambda: world.raft.lead == raft_id)
        door: Any = SimpleNamespace(pass_on=self._pass_on)
        calls: Any = SimpleNamespace(ask=lambda *asked: world.ask(raft_id, *asked))
        group: Any = SimpleNamespace(raw=SimpleNamespace(raft=world.raft))
        self.reports = SizeReports(
            raft_id,
            world.view.instances[raft_id].uuid,
            group,
            world.view,
            tables,
            office,
            door,
            calls,
            held=lambda: self.replicas,
            free_bytes=lambda: 1_000 * raft_id,
            defect=lambda error: pytest.fail(str(error)),
        )

    async def _pass_on(self, _method: str, _body: bytes, _deadline: float, *, forwarded: bool) -> bytes | None:
        if self.raft.lead == self.raft_id:
            return None
        raise NotLeader(self.raft.lead)


class World:
    def __init__(self) -> None:
        self.raft = SimpleNamespace(lead=1, term=1)
        self.view = view_of(member(1), member(2))
        self.sent: list[SizesReport] = []
        self.cut = False
        self.members = {raft_id: Member(raft_id, self) for raft_id in (1, 2)}

    async def ask(self, asker: int, raft_id: int, method: str, body: bytes, _timeout_s: float) -> bytes:
        if self.cut:
            raise NotConnected("cut off")
        self.sent.append(sizes.decode_report(body))
        return await self.members[raft_id].reports.methods()[method](Asked(body, 1e9, Hello(raft_id=asker)))

    async def shown(self, raft_id: int) -> dict[tuple[int, int], int]:
        body = sizes.encode(SizesRequest())
        answer = await self.members[raft_id].reports.show(Asked(body, 1e9, Hello()))
        return sizes.by_place(sizes.decode_reply(answer))


def story(told: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        await told(World())

    asyncio.run(run())


def test_what_changed_is_reported_and_everybody_knows_how_much_everybody_holds() -> None:
    async def told(world: World) -> None:
        one, two = world.members[1], world.members[2]
        one.replicas = [Replica(0, 10), Replica(1, 20)]
        two.replicas = [Replica(0, 11)]
        await one.reports.report()
        await two.reports.report()
        assert await world.shown(1) == {(TABLE, 0): 11, (TABLE, 1): 20}
        assert one.reports.totals() == two.reports.totals() == {1: 30, 2: 11}
        ledger = one.reports.ledger()
        assert (ledger.free(1), ledger.free(2)) == (1_000, 2_000), "what their disks have left is told, too"
        world.sent.clear()
        await two.reports.report()
        assert world.sent == [], "nothing changed"
        two.replicas = [Replica(3, 5), Replica(0, 11, closed=True)]
        await two.reports.report()
        assert world.sent[0].sizes == {TABLE: {0: sizes.GONE, 3: 5}} and not world.sent[0].anew
        assert two.reports.totals() == {1: 30, 2: 5}

    story(told)


def test_another_leader_is_told_everything() -> None:
    async def told(world: World) -> None:
        two = world.members[2]
        two.replicas = [Replica(0, 11)]
        await two.reports.report()
        world.raft.lead, world.raft.term = 2, 2
        assert await world.shown(2) == {}
        assert two.reports.totals() == {2: 11}, "what was known before is better than nothing"
        await two.reports.report()
        assert await world.shown(2) == {(TABLE, 0): 11}
        with pytest.raises(NotLeader):
            await world.shown(1)

    story(told)


def test_a_leader_that_knows_nothing_asks_for_everything() -> None:
    async def told(world: World) -> None:
        two = world.members[2]
        two.replicas = [Replica(0, 11), Replica(1, 1)]
        await two.reports.report()
        world.members[1] = Member(1, world)  # started anew, and elected again in a term that is not noticed here
        two.replicas[0].held_bytes = 12
        await two.reports.report()
        assert await world.shown(1) == {}
        await two.reports.report()
        assert await world.shown(1) == {(TABLE, 0): 12, (TABLE, 1): 1}

    story(told)


def test_a_report_that_got_lost_is_made_up_for() -> None:
    async def told(world: World) -> None:
        two = world.members[2]
        two.replicas = [Replica(0, 11)]
        world.cut = True
        await two.reports.report()
        world.cut = False
        await two.reports.report()
        assert await world.shown(1) == {(TABLE, 0): 11}

    story(told)


def test_many_replicas_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_reports, "MAX_LOOKED_AT", 3)

    async def told(world: World) -> None:
        two = world.members[2]
        two.replicas = [Replica(tablet, 10) for tablet in range(4)]
        await two.reports.report()
        assert len(await world.shown(1)) == 3
        await two.reports.report()
        assert len(await world.shown(1)) == 4

    story(told)


def test_a_report_of_an_older_term_or_in_anothers_name_is_refused() -> None:
    async def told(world: World) -> None:
        note = world.members[1].reports.note
        uuid = world.view.instances[2].uuid
        world.raft.term = 3
        for report, speaker, code in (
            (SizesReport(2, uuid, 2), 2, "stale_term"),
            (SizesReport(2, uuid, 3), 0, "invalid"),
            (SizesReport(2, "another directory", 3), 2, "invalid"),
            (SizesReport(9, uuid, 3), 9, "invalid"),
            (SizesReport(2, uuid, 3, {1: dict.fromkeys(range(sizes.MAX_REPORTED + 1), 1)}), 2, "invalid"),
        ):
            with pytest.raises(Refused) as refused:
                await note(Asked(sizes.encode(report), 1e9, Hello(raft_id=speaker)))
            assert refused.value.code == code
        world.raft.lead = 2
        with pytest.raises(NotLeader):
            await note(Asked(sizes.encode(SizesReport(2, uuid, 3)), 1e9, Hello(raft_id=2)))

    story(told)
