"""Rows that are kept ready are never older than what the store holds, whatever happens to it; and they are bounded."""

from __future__ import annotations

import asyncio
import gc

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.node.replicas.shelves import Life, model_disk
from tests.unit.rows.tables import add_column, table

from trimtab.node.replicas.ingesting import ingest
from trimtab.node.replicas.row_cache import CachedRows, RowCache
from trimtab.node.router.replica_reads import read_cells
from trimtab.rows.folding import FoldRule, fold_range
from trimtab.rows.keys import locate
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import DeleteRequest, PutRequest, Way

TABLE = table(["blob"], [], ["blob", "blob", "set<int>"])
LAYOUT = RowLayout(TABLE)
PLAIN = RowLayout(table(["blob"], [], ["blob", "blob"]))
WIDER = RowLayout(add_column(table(["blob"], [], ["blob", "blob"]), "int"))
KEY, ONE, TWO, SET = 1, 2, 3, 4
START_S = 1_700_000_000
FOLDED = FoldRule(forget_before_ms=10**15, history_from_us=10**18)


def in_a_life(story):
    async def live():
        life = await (await Life(model_disk(), {(TABLE.id, 0): 1}).start()).ready()
        try:
            await story(Rows(life, await life.replica(TABLE.id, 0)))
            assert life.failures == []
        finally:
            life.stop()

    asyncio.run(live())


class Bypass:
    """The same replica, read without what it keeps ready."""

    readable = True

    def __init__(self, replica):
        self._replica = replica
        self.rows = CachedRows(RowCache(0), replica.table)

    def read(self, low, high, limit):
        return self._replica.read(low, high, limit)


class Rows:
    """A replica, a clock, and what can be done to its rows."""

    def __init__(self, life, replica, layout=PLAIN):
        self.life, self.replica, self.layout = life, replica, layout
        self.cache = life.shelf.row_cache
        self.columns = list(layout.columns)
        self.now_s, self.stamp = START_S, 0

    async def put(self, key, cells, *, update=False, ttl_s=0, ways=(), wait=True):
        self.stamp += 1
        columns = [KEY, *cells]
        asked = PutRequest(TABLE.id, 1, columns, [[key, *cells.values()]], ttl_s=ttl_s, update=update, ways=list(ways))
        await self._write(pairs_of_put(self.layout, asked, self.stamp, self.now_s * 1000), wait)

    async def delete(self, key):
        self.stamp += 1
        asked = DeleteRequest(TABLE.id, 1, [key], [])
        await self._write(pairs_of_delete(self.layout, asked, self.stamp, self.now_s * 1000))

    async def _write(self, parts, wait=True):
        done = asyncio.get_running_loop().create_future()
        self.replica.write([part for pairs in parts.values() for part in pairs], done.set_result)
        if wait:
            assert await done is None

    def fold(self):
        for step in fold_range(self.layout, self.replica.scan(b"", None), FOLDED):
            if step is not None:
                self.replica.rewrite(step.deletes, step.puts)

    def read(self, *keys, layout=None, columns=None):
        """The rows; the test fails where they are not what the store holds."""
        layout = layout or self.layout
        wanted = [locate(layout, [key])[0] for key in keys]
        columns = columns or list(layout.columns)
        there = read_cells(Bypass(self.replica), layout, wanted, columns, self.now_s)
        assert read_cells(self.replica, layout, wanted, columns, self.now_s) == there
        # And once more, now that they may be kept.
        assert read_cells(self.replica, layout, wanted, columns, self.now_s) == there
        return [row and list(row) for row in there]


def test_a_row_that_is_read_again_comes_from_here_until_it_is_written():
    async def story(rows):
        await rows.put(b"a", {ONE: b"1", TWO: b"2"})
        assert rows.read(b"a") == [[b"a", b"1", b"2"]]
        assert rows.cache.hits == 1
        await rows.put(b"a", {ONE: b"new"}, update=True)
        assert rows.read(b"a") == [[b"a", b"new", b"2"]]
        await rows.delete(b"a")
        assert rows.read(b"a", b"never") == [None, None]
        assert len(rows.cache.entries) == 0 and rows.cache.bytes == 0

    in_a_life(story)


def test_rows_that_expire_are_read_from_the_store():
    async def story(rows):
        await rows.put(b"whole", {ONE: b"1", TWO: b"2"}, ttl_s=10)
        await rows.put(b"part", {ONE: b"1", TWO: b"2"})
        await rows.put(b"part", {TWO: b"brief"}, update=True, ttl_s=10)
        assert rows.read(b"whole", b"part") == [[b"whole", b"1", b"2"], [b"part", b"1", b"brief"]]
        rows.now_s += 10
        assert rows.read(b"whole", b"part") == [None, [b"part", b"1", None]]

    in_a_life(story)


def test_elements_that_expire_are_read_from_the_store():
    async def story(rows):
        rows.layout = LAYOUT
        element = (1).to_bytes(4, "big") + (4).to_bytes(4, "big") + (5).to_bytes(4, "big")
        await rows.put(b"a", {ONE: b"1", TWO: b"2"})
        await rows.put(b"a", {SET: element}, update=True, ttl_s=10, ways=[Way.WHOLE, Way.ADD])
        assert rows.read(b"a") == [[b"a", b"1", b"2", element]]
        rows.now_s += 10
        assert rows.read(b"a") == [[b"a", b"1", b"2", None]]

    in_a_life(story)


def test_what_is_kept_is_for_the_columns_and_the_schema_it_was_read_with():
    async def story(rows):
        await rows.put(b"a", {ONE: b"1", TWO: b"2"})
        assert rows.read(b"a") == [[b"a", b"1", b"2"]]
        assert rows.read(b"a", columns=[TWO]) == [[b"2"]]
        assert rows.read(b"a", layout=WIDER) == [[b"a", b"1", b"2", None]]

    in_a_life(story)


def test_nothing_is_known_of_a_replica_whose_files_are_being_exchanged():
    async def story(rows):
        disk = rows.life.disk
        await rows.put(b"a", {ONE: b"old", TWO: b"2"})
        rows.read(b"a")
        rows.stamp += 1
        asked = PutRequest(TABLE.id, 1, [KEY, ONE, TWO], [[b"a", b"ingested", b"2"]])
        (pairs,) = pairs_of_put(PLAIN, asked, rows.stamp, START_S * 1000).values()
        disk.write_table("staging/a", [(pairs[0], pairs[1])])
        taking = asyncio.ensure_future(ingest(disk, rows.replica, ["staging/a"]))
        seen = []
        while not taking.done():
            (row,) = rows.read(b"a")
            seen.append(row[1])
            await asyncio.sleep(0)
        await taking
        assert rows.read(b"a") == [[b"a", b"ingested", b"2"]]
        assert seen == sorted(seen, reverse=True), "never back to the old row"

    in_a_life(story)


def test_a_replica_that_was_closed_or_opened_again_has_forgotten_everything():
    async def story(rows):
        await rows.put(b"a", {ONE: b"1", TWO: b"2"})
        rows.read(b"a")
        key, asked = locate(PLAIN, [b"a"])[0], -1
        kept = rows.replica.rows
        kept.keep(key, asked, (b"x",), 1)
        assert kept.find([key], asked) == [(b"x",)]
        rows.replica.recovered(rows.replica.position)
        assert kept.find([key], asked) == [None]
        rows.replica.close()
        rows.replica.release()
        kept.keep(key, asked, (b"x",), 1)
        assert kept.find([key], asked) == [None]

    in_a_life(story)


def test_the_garbage_collector_has_nothing_to_look_at():
    async def story(rows):
        await rows.put(b"a", {ONE: b"1", TWO: b"2"})
        rows.read(b"a")
        gc.collect()
        gc.collect()  # what is inside first
        (entry,) = rows.cache.entries.values()
        assert not gc.is_tracked(entry) and not gc.is_tracked(entry[2])

    in_a_life(story)


def test_the_least_recently_used_rows_go_first_and_large_ones_are_not_taken():
    cache = RowCache(18_000)
    one, other = CachedRows(cache, 1), CachedRows(cache, 2)
    asked = -1
    for number in range(10):
        one.keep(b"%d" % number, asked, (b"1",), 500)
        other.keep(b"%d" % number, asked, (b"2",), 500)
        assert one.find([b"0"], asked) == [(b"1",)]
    assert other.find([b"9"], asked) == [(b"2",)]
    assert one.find([b"1", b"2"], asked) == [None, (b"1",)] and other.find([b"0"], asked) == [None]
    assert 10_000 < cache.bytes <= 18_000
    other.keep(b"0", asked, (b"large",), 10_000)
    assert other.find([b"0"], asked) == [None]
    for number in range(10):
        one.drop(b"%d" % number)
        other.drop(b"%d" % number)
    assert (len(cache.entries), cache.bytes) == (0, 0)


KEYS = st.sampled_from([b"a", b"b", b"c"])
CELLS = st.dictionaries(st.sampled_from([ONE, TWO]), st.sampled_from([b"", b"x", b"yy", None]), min_size=1)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, CELLS, st.booleans(), st.sampled_from([0, 0, 3])),
    st.tuples(st.just("put whole"), KEYS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("write without waiting"), KEYS, CELLS),
    st.tuples(st.sampled_from(["fold", "hold", "release", "later", "turn"])),
)


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=25))
def test_whatever_happens_reads_are_those_of_the_store(steps):
    async def story(rows):
        for what, *given_ in steps:
            if what == "put" and not rows.replica.held:
                key, cells, update, ttl_s = given_
                await rows.put(key, cells, update=update, ttl_s=ttl_s)
            elif what == "put whole" and not rows.replica.held:
                await rows.put(given_[0], {ONE: b"%d" % rows.stamp, TWO: b"2"})
            elif what == "delete" and not rows.replica.held:
                await rows.delete(given_[0])
            elif what == "write without waiting":
                await rows.put(*given_, wait=False)
            elif what == "fold":
                rows.fold()
            elif what == "hold":
                rows.replica.hold()
            elif what == "release":
                rows.replica.release()
            elif what == "later":
                rows.now_s += 2
            else:
                await asyncio.sleep(0.001)
            rows.read(b"a", b"b", b"c", b"a")

    in_a_life(story)
