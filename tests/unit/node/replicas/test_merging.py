"""When the files that loads brought are merged: not while a load is open, and of what is served only."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.unit.node.replicas.shelves import Life, key, resting, rows, until, write_run

from trimtab.node.replicas.ingesting import ingest
from trimtab.node.replicas.merging import MergePace, Merging
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.replica_files import Filling
from trimtab.storage.port import StorageError
from trimtab.storage.rocks import RocksDisk
from trimtab.storage.rocks_options import MOST_LOOSE_FILES
from trimtab.storage.rocks_options import SMALL_MERGED_FROM as TRIGGER
from trimtab.storage.rocks_store import RocksStore

TWO = {(1, 0): 1, (1, 1): 1}
SOON = MergePace(look_every_s=0.01, quiet_s=0.02, longest_s=30.0, again_s=0.05)


class Node:
    """A shelf with two replicas on a real disk, and loads that are open or not."""

    def __init__(self, life: Life, disk: RocksDisk, pace: MergePace) -> None:
        self.life, self.disk = life, disk
        self.served = life.shelf.held()
        self.loading = True
        self.told: list[str] = []
        self.defects: list[BaseException] = []
        self.merging = Merging(
            disk,
            lambda: self.served,
            lambda: self.loading,
            pace=pace,
            complain=self.told.append,
            defect=self.defects.append,
        )
        self._files = 0

    async def load(self, replica: Replica, files: int = 1) -> None:
        """Take over files that all have the same keys."""
        names = []
        for _ in range(files):
            self._files += 1
            names.append(f"staging/{self._files}")
            self.disk.write_table(names[-1], [(key(number), b"%d" % self._files) for number in range(50)])
        await ingest(self.disk, replica, names, merging=self.merging)

    def files(self, replica: Replica) -> int:
        return len(list((self.disk.path / replica.name).glob("*.sst")))

    def live(self, replica: Replica) -> int:
        """Those that are read."""
        store = replica.store
        assert isinstance(store, RocksStore)
        return len(store._db.live_files())


def on_node(
    path: Path, story: Callable[[Node, Replica, Replica], Coroutine[Any, Any, None]], pace: MergePace = SOON
) -> None:
    async def tell() -> None:
        disk = RocksDisk(path / "disk", reserve_bytes=0)
        life = await (await Life(disk, TWO).start()).ready()
        node = Node(life, disk, pace)
        try:
            await story(node, *node.served)
            assert node.defects == []
        finally:
            node.merging.stop()
            life.stop()
            disk.close()

    asyncio.run(tell())


def test_nothing_is_merged_while_a_load_is_open_and_soon_after_the_last_one(tmp_path: Path) -> None:
    async def story(node: Node, one: Replica, other: Replica) -> None:
        for _ in range(2 * TRIGGER):
            await node.load(one)
        await node.load(other)
        await asyncio.sleep(10 * SOON.quiet_s)
        assert node.files(one) > 2 * TRIGGER and node.merging.put_off == 2
        node.loading = False
        await until(lambda: node.live(one) <= TRIGGER and not node.merging.put_off, "its files are merged")
        assert rows(one) == list(range(50))
        assert {value for _, value in one.scan(b"", None)} == {b"%d" % (2 * TRIGGER)}, "the newest"
        # And so it is once more with the next one.
        node.loading = True
        await node.load(one, 3 * TRIGGER)
        assert node.merging.put_off == 1
        node.loading = False
        await until(lambda: node.live(one) <= TRIGGER, "its files are merged again")

    on_node(tmp_path, story)


def test_one_that_comes_when_the_last_was_just_merged_is_merged_too(tmp_path: Path) -> None:
    """Whoever merges has nothing left to do then, and is about to end: that was the last that anybody did."""

    async def story(node: Node, one: Replica, other: Replica) -> None:
        node.loading = False
        merge = node.merging._merge

        async def merged(replica: Replica) -> None:
            await merge(replica)
            if replica is one:
                # In the turn in which it ends: after its last look, and before anybody has heard of its end.
                asyncio.get_running_loop().call_soon(node.merging.wait, other)

        node.merging._merge = merged  # type: ignore[method-assign]
        node.merging.wait(one)
        await until(lambda: not node.merging.put_off and node.merging._task is None, "both are merged")

    on_node(tmp_path, story)


def test_loads_that_never_end_put_it_off_for_a_while_only(tmp_path: Path) -> None:
    async def story(node: Node, one: Replica, _other: Replica) -> None:
        await node.load(one, 2 * TRIGGER)
        await until(lambda: node.live(one) <= TRIGGER, "its files are merged")

    on_node(tmp_path, story, MergePace(0.01, 0.02, longest_s=0.1))


def test_a_store_with_too_many_files_merges_them_whatever_happens(tmp_path: Path) -> None:
    async def story(node: Node, one: Replica, other: Replica) -> None:
        # They are held back: of these one has nothing below it and is not loose, and its own record is another file.
        await node.load(one, MOST_LOOSE_FILES - 1)
        assert node.files(one) == MOST_LOOSE_FILES
        await node.load(one, 2)
        await node.load(other, MOST_LOOSE_FILES + 1)
        for replica in (one, other):
            # Those that were merged while others were taken over are removed from the disk later.
            await until(lambda replica=replica: node.live(replica) <= 2 * TRIGGER, "its files are merged")
        assert node.loading

    on_node(tmp_path, story)


def test_of_a_generation_that_is_not_served_nothing_is_merged_until_it_is_again(tmp_path: Path) -> None:
    async def story(node: Node, one: Replica, other: Replica) -> None:
        await node.load(one, 2 * TRIGGER)
        await node.load(other, 2 * TRIGGER)
        node.served = [other]
        node.loading = False
        await until(lambda: node.files(other) <= TRIGGER, "the one that is served is merged")
        assert node.files(one) >= 2 * TRIGGER and node.merging.put_off == 1
        node.served = [one, other]
        await until(lambda: node.files(one) <= TRIGGER, "it is served again")

    on_node(tmp_path, story)


def test_one_that_is_closed_is_noted_no_more(tmp_path: Path) -> None:
    async def story(node: Node, one: Replica, _other: Replica) -> None:
        await node.load(one)
        one.close()
        await until(lambda: not node.merging.put_off, "it is noted no more")
        assert node.told == []

    on_node(tmp_path, story)


def test_what_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: Node, one: Replica, _other: Replica) -> None:
        await node.load(one, 2 * TRIGGER)

        def refused() -> None:
            raise StorageError("it can't be")

        with monkeypatch.context() as patched:
            patched.setattr(one.store, "merge", refused)
            node.loading = False
            await until(lambda: len(node.told) == 2, "it is tried twice")
        assert set(node.told) == {f"the files of {one.title} are not merged: it can't be; it is tried again"}
        await until(lambda: node.files(one) <= TRIGGER, "it is merged at last")

    on_node(tmp_path, story)


def test_one_that_is_just_taking_files_over_is_left_alone(tmp_path: Path) -> None:
    async def story(node: Node, one: Replica, _other: Replica) -> None:
        await node.load(one, 2 * TRIGGER)
        one.hold()
        node.loading = False
        await asyncio.sleep(10 * SOON.quiet_s)
        assert node.merging.put_off == 1
        one.release()
        await until(lambda: not node.merging.put_off, "it is free")

    on_node(tmp_path, story)


def test_no_space_to_put_it_off_is_no_reason_to_refuse_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(node: Node, one: Replica, _other: Replica) -> None:
        class Full:
            def __getattr__(self, name: str) -> Any:
                return getattr(database, name)

            def set_options(self, _options: object) -> None:
                database.set_options({"disable_auto_compactions": "true"})  # that much is done all the same
                raise Exception("IO error: No space left on device: Unable to persist options")

        store: Any = one.store
        database = store._db
        monkeypatch.setattr(store, "_db", Full())
        await node.load(one, 2 * TRIGGER)
        assert rows(one) == list(range(50)) and one.stalled is None
        monkeypatch.setattr(store, "_db", database)
        node.loading = False
        await until(lambda: node.files(one) <= TRIGGER, "it is merged when there is space again")

    on_node(tmp_path, story)


def test_one_that_is_prepared_for_a_load_merges_nothing_until_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options are not changed for that: RocksDB writes and syncs them, and keeps the interpreter meanwhile."""

    async def story(node: Node, _one: Replica, _other: Replica) -> None:
        # There are no such files, so it is made without them.
        filling = Filling([f"staging/{number}" for number in range(2 * TRIGGER)], 1, lambda: None)
        prepared = await node.life.shelf.prepare(1, 0, 2, asyncio.get_running_loop().time() + 10, filling)
        assert not filling.done
        node.merging.wait(prepared)
        changed: list[bool] = []
        store = prepared.store
        assert isinstance(store, RocksStore)
        really = store._set_merging

        def set_merging(on: bool) -> None:
            if on != store._merging:
                changed.append(on)
            really(on)

        monkeypatch.setattr(store, "_set_merging", set_merging)
        await node.load(prepared, 2 * TRIGGER)
        node.loading = False
        await asyncio.sleep(10 * SOON.quiet_s)
        assert changed == [] and node.files(prepared) > 2 * TRIGGER, "it is not served"
        node.served.append(prepared)
        await until(lambda: node.files(prepared) <= TRIGGER and not node.merging.put_off, "its files are merged")
        assert changed == [True]
        assert rows(prepared) == list(range(50))

    on_node(tmp_path, story)


def test_one_that_was_made_of_the_files_of_a_load_rests_until_it_is_merged(tmp_path: Path) -> None:
    async def story(node: Node, _one: Replica, _other: Replica) -> None:
        names = [f"staging/{number}" for number in range(2 * TRIGGER)]
        for number, name in enumerate(names):
            write_run(node.disk, name, [(key(each), b"%d" % number) for each in range(50)])
        filling = Filling(names, 1, lambda: None)
        made = await node.life.shelf.prepare(1, 0, 2, asyncio.get_running_loop().time() + 10, filling)
        assert filling.done and resting(made) and made.adopted == 1
        node.merging.wait(made)
        node.loading = False
        await asyncio.sleep(10 * SOON.quiet_s)
        assert resting(made) and node.live(made) == 2 * TRIGGER + 1, "it is not served"
        node.served.append(made)
        await until(lambda: node.live(made) <= TRIGGER and not node.merging.put_off, "its files are merged")
        assert not resting(made) and rows(made) == list(range(50)) and made.adopted == 1
        assert {value for _, value in made.scan(b"", None)} == {b"%d" % (2 * TRIGGER - 1)}, "the newest"

    on_node(tmp_path, story)


def test_one_that_was_made_of_a_single_file_is_never_written_again(tmp_path: Path) -> None:
    """Its own record lies in a table beside it, which is nothing to speak of."""

    async def story(node: Node, _one: Replica, _other: Replica) -> None:
        write_run(node.disk, "staging/a", [(key(each), random.Random(each).randbytes(1000)) for each in range(100)])
        filling = Filling(["staging/a"], 1, lambda: None)
        made = await node.life.shelf.prepare(1, 0, 2, asyncio.get_running_loop().time() + 10, filling)
        node.served.append(made)
        node.merging.wait(made)
        node.loading = False
        await until(lambda: not node.merging.put_off, "its turn has come")
        await asyncio.sleep(2 * SOON.quiet_s)
        assert resting(made) and rows(made) == list(range(100))

    on_node(tmp_path, story)
