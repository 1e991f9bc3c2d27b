"""The leader is killed at every step of a load: before and after it writes, and while others take the load over.

Whoever leads next finishes what was committed and ends what nobody drives any more; a reader sees all of a load or
nothing of it, and the driver, which asks again, never notices more than a delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import trimtab
from tests.cluster.instances import BRISK, Instances, loopback
from tests.cluster.mines import Mines
from tests.cluster.patience import create_keyspace, create_table, put_rows
from tests.cluster.replica_reads import await_rows
from tests.cluster.staged_loads import Loader, Reader, Rows
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.loads.records import LoadKind, LoadState
from trimtab.node.failpoints import STEP_PLACES

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TABLE = "shop.users"
OLD: Rows = dict.fromkeys(range(200), "old")
# Each leader dies at the first armed place that it comes to, so in a load all of these take their turn.
OF_AN_APPEND = (
    *("load.begin.before", "load.commit.before"),
    *(f"governor.adopt.{place}" for place in STEP_PLACES),
)
OF_AN_OVERWRITE = (
    *("load.begin.after", "load.commit.after"),
    *(f"governor.load.{place}" for place in STEP_PLACES),
)
OF_AN_END = tuple(f"governor.load_end.{place}" for place in STEP_PLACES)
_MAX_LOADS = 6  # of a kind
_LAST_DEATH_S = 10


class Story:
    """A table of three instances, loads of it, and what each of them must leave behind."""

    def __init__(self, three: Instances, mines: Mines) -> None:
        self.three, self.mines = three, mines
        self.addresses = ",".join(three.listen.values())
        with trimtab.connect(self.addresses, timeout=60) as db:
            create_keyspace(db, "shop", replication=3)
            create_table(db, TABLE, {"id": "bigint", "value": "text"}, tablets=2)
            put_rows(db.table(TABLE, consistency="ALL"), [{"id": id, "value": value} for id, value in OLD.items()])
        self.loader = Loader(three, TABLE)
        self.ids: list[str] = []

    async def quiet(self) -> None:
        """All are up, and no leader is about to die: the last place may be come to after the load was seen."""
        for _ in range(_LAST_DEATH_S * 20):
            if not self.mines.armed:
                break
            await asyncio.sleep(0.05)
        await self.three.online()

    async def append(self, id: str, before: Rows) -> Rows:
        after = {**before, **dict.fromkeys(range(100, 500), id)}
        reader = Reader(self.addresses, TABLE, before, after)
        reader.await_state(0)
        self.loader.run(id, {key: after[key] for key in range(100, 500)})
        await self.seen_by_all(id, reader, after)
        return after

    async def overwrite(self, id: str, before: Rows) -> Rows:
        """One that sealed its files goes down before the commit: those who are left publish the load without it."""
        after = dict.fromkeys(range(300), id)
        reader = Reader(self.addresses, TABLE, before, after)
        reader.await_state(0)
        load = self.loader.begin(id, LoadKind.OVERWRITE)
        sealed = self.loader.seal(load, self.loader.stage(load, after, (1, 2, 3)))
        down = 1 + (await self.three.leader()) % 3
        self.three.kill(down)
        self.loader.commit(load, sealed)
        assert self.loader.ended(id, 120).state is LoadState.PUBLISHED
        self.three.start(down)
        await self.seen_by_all(id, reader, after)
        return after

    async def seen_by_all(self, id: str, reader: Reader, after: Rows) -> None:
        ended = self.loader.ended(id, 120)
        assert (ended.state, len(ended.sealed)) == (LoadState.PUBLISHED, 3)
        reader.await_state(1)
        await self.quiet()
        reader.stop()
        assert reader.seen == [0, 1]
        await self.everybody_has(after)

    async def abandon(self, id: str, before: Rows) -> Rows:
        """Stage a load that nobody drives any more; leaders die while they end it."""
        assert self.loader.abandon(id, dict.fromkeys(before, "never")).state is LoadState.ABORTED
        await self.quiet()
        await self.everybody_has(before)
        return before

    async def until_all_went_off(
        self, places: Sequence[str], load: Callable[[str, Rows], Awaitable[Rows]], rows: Rows
    ) -> Rows:
        """Loads of one kind until a leader died at each place: where one is still down that was killed before, the
        next leader may publish without it, and then passes a place by."""
        self.mines.arm(*places)
        for number in range(1, _MAX_LOADS + 1):
            self.ids.append(f"{load.__name__}-{number}")
            rows = await load(self.ids[-1], rows)
            if not self.mines.armed:
                return rows
        raise AssertionError(f"nobody died at {self.mines.armed} in {self.ids}\n{self.three.said()}")

    async def everybody_has(self, rows: Rows) -> None:
        for number in self.three.listen:
            await await_rows(self.three, number, TABLE, {id: {"id": id, "value": rows[id]} for id in rows})


def test_whoever_leads_next_finishes_a_load_or_ends_it_and_readers_see_all_or_nothing(
    processes: Processes, tmp_path: Path
) -> None:
    mines = Mines(tmp_path / "mines", [*OF_AN_APPEND, *OF_AN_OVERWRITE, *OF_AN_END])
    three = Instances(processes, tmp_path, loopback(3), options=BRISK, env=mines.env)

    async def tell() -> None:
        three.start(1, 2, 3)
        await three.online()
        story = Story(three, mines)
        rows = await story.until_all_went_off(OF_AN_APPEND, story.append, OLD)
        rows = await story.until_all_went_off(OF_AN_OVERWRITE, story.overwrite, rows)
        await story.until_all_went_off(OF_AN_END, story.abandon, rows)
        three.until(lambda: not story.loader.staged(), "nothing is left in staging")
        known = story.loader.client.show(story.loader.table.id).loads
        assert [each.id for each in known] == story.ids
        story.loader.close()

    run(tell())
