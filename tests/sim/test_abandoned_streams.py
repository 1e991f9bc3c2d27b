"""Document 004's topology guards: a stream that was given up goes on when all has changed, and brings nothing back.

The stream has read what it is to bring and stands still before it sends any of it. Meanwhile its move is undone, or is
done by another attempt; what it read is deleted, and the deletion forgotten, or the table is emptied. Then it goes on.
The bulk server of its target refuses it; or that has not heard yet that the session is over and takes all of it, and
then nobody adopts it, and it is swept.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.sim.move_stories import at
from tests.sim.moving_world import MovingCluster, Place, moving
from trimtab.loads import protocol as loads
from trimtab.loads.protocol import BeginRequest, CommitRequest, SealRequest, ShowRequest
from trimtab.loads.records import LoadKind, LoadState
from trimtab.rows.keys import row_key
from trimtab.rows.layout import RowLayout
from trimtab.sim.machines import Machine
from trimtab.sim.moves_streams import CopyFailed, Copying
from trimtab.sim.tables_workload import cell
from trimtab.tablets.consistency import Level
from trimtab.tablets.rebalance_settings import RebalanceSettings

ROW, STAYS = 5, 6
DOORS = ["refuses", "takes"]


class Abandoned:
    """The first stream of a story; nobody ends it. `door`: whether a bulk server takes what it brings at last."""

    def __init__(self, world: MovingCluster, door: str) -> None:
        self.copying: Copying | None = None
        self.read = False
        self.brought: list[str] = []
        self.refused: list[str] = []  # for which reasons
        self.task: asyncio.Task[dict[str, Any]] | None = None
        self._world, self._door = world, door
        self._going_on = asyncio.Event()
        streams = self._streams = world.run.streams
        self._begin, self._stage, self._arrive = streams.begin, streams._stage, streams.bulk.arrive
        streams.begin, streams._stage = self._begun, self._staged  # type: ignore[method-assign]
        streams.abandon = lambda task: None  # type: ignore[method-assign]
        streams.bulk.arrive = self._arrived  # type: ignore[method-assign]

    def goes_on(self) -> None:
        """It sends what it has read, and comes to its end."""
        task = self.task
        assert task is not None and self.read and not task.done()
        self._going_on.set()
        self._world.until(task.done, "the old stream has come to its end")
        if self._door == "takes":
            assert task.exception() is None and self.brought[-1].endswith("manifest.json"), self.brought
        else:
            assert not self.brought and "no_session" in self.refused, (self.brought, self.refused)

    @property
    def session(self) -> str:
        assert self.copying is not None
        return self.copying.session

    def _begun(self, copying: Copying, epoch: int) -> asyncio.Task[dict[str, Any]]:
        task = self._begin(copying, epoch)
        if self.copying is None:
            self.copying, self.task = copying, task
        return task

    async def _staged(self, copying: Copying, name: str, data: bytes, *, whole: bool = False) -> None:
        if copying is self.copying:
            self.read = True
            await self._going_on.wait()
        try:
            await self._stage(copying, name, data, whole=whole)
        except CopyFailed as failed:
            self.refused += [failed.code] * (copying is self.copying)
            raise
        self.brought += [name] * (copying is self.copying)

    async def _arrived(self, machine: Machine, session: str, rng: Any) -> None:
        if self._door == "refuses" or session != self.session:
            await self._arrive(machine, session, rng)


class Story:
    """A tablet with a row, whose stream from `source` to `target` has read it."""

    def __init__(self, world: MovingCluster, door: str) -> None:
        self.world = world
        world.balancing(RebalanceSettings(enabled=False))
        self.place: Place = world.place_of(ROW)
        world.put(ROW, "v")
        world.put(STAYS, "stays")
        self.stream = Abandoned(world, door)
        self.source, self.target = world.tablets[self.place].stable[0], world.somebody_else(self.place)
        world.move(self.place, self.source, self.target)
        world.until(lambda: self.stream.read, "the stream has read what it is to bring")
        assert world.stage_of(self.place) == "streaming"

    def undone(self) -> None:
        self.world.move(self.place, 0, 0)
        self.world.until(lambda: self.place not in self.world.moving, "the move is undone")
        assert self.source in self.world.tablets[self.place].stable

    def again(self) -> None:
        self.world.move(self.place, self.source, self.target)

    def done(self) -> None:
        world, place = self.world, self.place
        world.until(
            lambda: self.target in world.tablets[place].stable and place not in world.moving, "the move is done"
        )

    def forgotten(self) -> None:
        """The row is deleted everywhere, the tablet repaired, and the deletion gone."""
        world = self.world
        deleted_ms = world.leader().process.wall_ms()
        world.delete(ROW)
        world.until(lambda: not self.mentioned(), "everybody has forgotten the deletion", 120.0)
        stable = world.tablets[self.place].stable
        assert all(self.replica(world.of(raft_id)).repaired_through_ms >= deleted_ms for raft_id in stable)

    def emptied(self) -> None:
        """The table is overwritten with nothing."""
        world, table = self.world, self.world.table
        begin = BeginRequest("empty", table.id, table.version, LoadKind.OVERWRITE)
        world._tell(loads.BEGIN, loads.encode(begin))
        sealed = []
        for machine in world.cluster.running():
            request = loads.encode(SealRequest("empty", table.id, []))
            world.cluster.do(world.cluster.ask(machine, loads.SEAL, request, world.world.rng(machine.name), 3.0))
            sealed.append(machine.raft_id)
        world._tell(loads.COMMIT, loads.encode(CommitRequest(table.id, "empty", tuple(sealed))))
        show = loads.encode(ShowRequest(table.id, "empty", wait_ms=2_000))

        def published() -> bool:
            reply = loads.decode_loads_reply(world._tell(loads.SHOW, show))
            return bool(reply.loads) and reply.loads[0].state is LoadState.PUBLISHED

        assert published()

    def nothing_is_back(self) -> None:
        """Nor anything left of what the stream brought."""
        world = self.world
        world.until(lambda: world.run.watch.left_behind() is None, "what was staged too late is swept")
        world.pass_time(1.0)
        assert world.get(ROW) is None and world.get(ROW, Level.ALL) is None
        assert not self.mentioned()

    def mentioned(self) -> bool:
        """Whether any replica has the row, or a deletion of it."""
        key = row_key(RowLayout(self.world.table), [cell(ROW)])
        found = [self.replica(machine) for machine in self.world.cluster.running()]
        return any(
            pair[0].startswith(key) for replica in found if replica is not None for pair in replica.scan(bytes(8), None)
        )

    def replica(self, machine: Machine) -> Any:
        assert machine.instance is not None
        return machine.instance.holdings.shelf.get(*self.place)


@pytest.mark.parametrize("door", DOORS)
def test_a_stream_that_goes_on_while_its_move_is_tried_again_brings_nothing_back(door: str) -> None:
    with moving(4, 3, tablets=1, forgetful=True) as world:
        story = Story(world, door)
        story.undone()
        story.forgotten()
        story.again()
        at(world, story.place, "streaming", "write_both_read_new", "use_new", "cleanup", "end_migration", "")
        story.stream.goes_on()
        story.done()
        story.nothing_is_back()
        assert world.get(STAYS, Level.ALL) == "stays"


@pytest.mark.parametrize("door", DOORS)
def test_a_stream_that_goes_on_when_the_deletion_is_forgotten_where_its_move_went_brings_nothing_back(
    door: str,
) -> None:
    """004's example, step by step: retried and completed, deleted, repaired, the tombstone collected; then s1."""
    with moving(4, 3, tablets=1, forgetful=True) as world:
        story = Story(world, door)
        story.undone()
        story.again()
        story.done()
        story.forgotten()
        story.stream.goes_on()
        story.nothing_is_back()
        assert world.get(STAYS, Level.ALL) == "stays"


@pytest.mark.parametrize("moment", ["its move waits for it", "its move is undone", "another attempt has done its move"])
def test_a_stream_that_goes_on_when_the_table_was_emptied_brings_nothing_back(moment: str) -> None:
    """004's "abandoned stream released after truncate": to empty a table is to overwrite it with nothing."""
    with moving(4, 3, tablets=1, forgetful=True) as world:
        story = Story(world, "takes")
        if moment != "its move waits for it":
            story.undone()
        story.emptied()
        assert world.get(ROW) is None
        world.put(STAYS, "since")
        if moment == "another attempt has done its move":
            story.again()
            story.done()
        story.stream.goes_on()
        if moment == "its move waits for it":
            story.done()
        story.nothing_is_back()
        assert world.get(STAYS, Level.ALL) == "since"
