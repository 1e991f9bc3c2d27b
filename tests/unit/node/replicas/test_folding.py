"""Folding in the background: short rows again, nothing visible changes, deletions go only when they may."""

from __future__ import annotations

import asyncio

from tests.unit.node.replicas.shelves import Life, model_disk, until
from tests.unit.rows.tables import table

from trimtab.node.answering import Refused
from trimtab.node.replicas import folding
from trimtab.node.replicas.folding import Folding, FoldPace
from trimtab.node.replicas.replica import HOT_WRITES, ReplicaState
from trimtab.rows.folding import FoldRule
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.protocol import DeleteRequest, PutRequest

ONE = {(7, 0): 1}
LAYOUT = RowLayout(table(["bigint"], ["int"], ["text", "int"]))
P, C, TEXT, NUMBER = 1, 2, 3, 4
WITH_STATIC = RowLayout(table(["bigint"], ["int"], ["text", "int"], ["text"]))
STATIC_TEXT = next(each.id for each in WITH_STATIC.static.columns)
EVERYTHING = FoldRule(forget_before_ms=10**15, history_from_us=10**18)
NOTHING_FORGOTTEN = FoldRule(forget_before_ms=0, history_from_us=10**18)
QUICK = FoldPace(rest_s=0.0, slice_steps=16, part_s=0.0, look_every_s=0.001)


def big(number):
    return number.to_bytes(8, "big", signed=True)


def small(number):
    return number.to_bytes(4, "big", signed=True)


class Table:
    """A replica of the table, with a stamp that grows."""

    def __init__(self, life, replica, rule=EVERYTHING, pace=QUICK, layout=LAYOUT):
        self.layout = layout
        columns = {each.name: each.id for each in layout.columns.values()}
        self.columns = [columns[name] for name in ("p0", "c0", "v0")]
        self.replica = replica
        self.rule = rule
        self.stamp = 0
        self.complaints = []
        self.folding = Folding(
            life.shelf.held,
            lambda table_id: layout if table_id == 7 else None,
            lambda _replica, _layout: self.rule,
            pace=pace,
            complain=self.complaints.append,
            defect=life.failures.append,
        )

    @classmethod
    async def open(cls, **options):
        life = await (await Life(model_disk(), ONE).start()).ready()
        return cls(life, await life.replica(7, 0), **options)

    async def write(self, pairs):
        done = asyncio.get_running_loop().create_future()
        self.replica.write(pairs, done.set_result)
        return await done

    async def put(self, partition, row, text, ttl_s=0, update=False):
        self.stamp += 1
        request = PutRequest(
            7, 1, self.columns, [[big(partition), small(row), text.encode()]], ttl_s=ttl_s, update=update
        )
        for pairs in pairs_of_put(self.layout, request, self.stamp, 1_000).values():
            outcome = await self.write(pairs)
        return outcome

    async def delete(self, partition, row=None):
        self.stamp += 1
        request = DeleteRequest(7, 1, [big(partition)], row=None if row is None else [small(row)])
        for pairs in pairs_of_delete(self.layout, request, self.stamp, 1_000).values():
            assert await self.write(pairs) is None

    @property
    def pairs(self):
        return list(self.replica.scan(b"", None))


def test_many_versions_of_many_rows_become_one_each():
    async def story():
        shop = await Table.open()
        for version in range(5):
            for row in range(40):
                assert await shop.put(row % 4, row, f"version {version}") is None
        assert len(shop.pairs) == 200
        assert await shop.folding.walk(shop.replica)
        assert len(shop.pairs) == 40
        assert all(b"version 4" in value for _, value in shop.pairs)
        assert (shop.folding.rows, shop.folding.removed, shop.folding.walks) == (40, 160, 1)
        before = shop.pairs
        assert await shop.folding.walk(shop.replica)
        assert shop.pairs == before

    asyncio.run(story())


def test_what_folding_left_is_what_a_crash_leaves_too():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        shop = Table(life, await life.replica(7, 0))
        for version in range(5):
            await shop.put(1, 1, f"version {version}")
        assert await shop.folding.walk(shop.replica)
        disk.abandon()
        life = await (await Life(disk, ONE).start()).ready()
        again = Table(life, await life.replica(7, 0))
        # Replay brought the versions back; they fold to the same.
        assert await again.folding.walk(again.replica)
        assert len(again.pairs) == 1
        assert b"version 4" in again.pairs[0][1]

    asyncio.run(story())


def test_deletions_stay_until_the_rule_lets_them_go_and_until_nothing_they_cover_is_left():
    async def story():
        shop = await Table.open(rule=NOTHING_FORGOTTEN)
        for row in range(10):
            await shop.put(1, row, "text")
        await shop.delete(1)
        await shop.put(2, 1, "text")
        await shop.delete(2, 1)
        assert await shop.folding.walk(shop.replica)
        assert len(shop.pairs) == 2  # the two deletions
        assert await shop.folding.walk(shop.replica)
        assert len(shop.pairs) == 2
        shop.rule = EVERYTHING
        assert await shop.folding.walk(shop.replica)
        assert shop.pairs == []

    asyncio.run(story())


def test_a_hot_row_is_folded_before_the_walk_comes_to_it():
    async def story():
        shop = await Table.open()
        for version in range(30):
            await shop.put(1, 1, f"version {version}")
            await shop.put(1, 2, f"version {version}")
        row_key = shop.pairs[0][0][:-17]
        assert len(shop.replica.get_row(row_key)) == 30
        assert list(shop.replica.hot) == [row_key]
        shop.folding.fold_hot(shop.replica)
        assert (len(shop.replica.get_row(row_key)), len(shop.pairs), shop.replica.hot) == (1, 31, {})

    asyncio.run(story())


def test_a_row_that_is_written_again_and_again_is_folded_though_nobody_reads_it():
    async def story():
        shop = await Table.open(rule=FoldRule(forget_before_ms=0, history_from_us=0))
        for version in range(HOT_WRITES - 1):
            await shop.put(1, 1, f"version {version}")
            await shop.put(2, version, "one of many")
        assert shop.replica.hot == {}
        await shop.put(1, 1, "the last")
        (row_key,) = shop.replica.hot
        shop.folding.fold_hot(shop.replica)
        assert [b"the last" in value for _, value in shop.replica.get_row(row_key)] == [True]

    asyncio.run(story())


def test_a_hot_static_row_is_folded_like_any_other():
    async def story():
        shop = await Table.open(rule=FoldRule(forget_before_ms=0, history_from_us=0), layout=WITH_STATIC)
        await shop.delete(1)
        await shop.put(1, 1, "a row")
        for version in range(HOT_WRITES):
            shop.stamp += 1
            request = PutRequest(7, 1, [P, STATIC_TEXT], [[big(1), f"version {version}".encode()]])
            for pairs in pairs_of_put(WITH_STATIC, request, shop.stamp, 1_000).values():
                assert await shop.write(pairs) is None
        (static_key,) = shop.replica.hot
        shop.folding.fold_hot(shop.replica)
        ((_, value),) = shop.replica.get_row(static_key)
        assert b"version 127" in value
        assert (len(shop.pairs), shop.replica.hot, shop.replica.forgot_us) == (3, {}, shop.stamp)

    asyncio.run(story())


def test_a_very_long_row_is_folded_in_parts_and_its_deletion_stays_until_all_of_it_was(monkeypatch):
    async def story():
        monkeypatch.setattr(folding, "_MOST_VERSIONS", 20)
        shop = await Table.open()
        for version in range(30):
            await shop.put(1, 1, f"version {version}", update=True)
        await shop.delete(1, 1)
        for version in range(10):
            await shop.put(1, 1, f"later {version}", update=True)
        row_key = shop.pairs[0][0][:-17]
        shop.replica.note_hot(row_key)
        left = []
        for _ in range(3):
            shop.folding.fold_hot(shop.replica)
            left.append(len(shop.pairs))
        # The newest twenty are a row and its deletion; then these with eighteen more; then all that is left.
        assert left == [2 + 21, 2 + 3, 1] and shop.replica.hot == {}
        assert b"later 9" in shop.pairs[0][1]

    asyncio.run(story())


def test_long_rows_are_folded_a_few_milliseconds_at_a_time():
    async def story():
        shop = await Table.open(pace=FoldPace(slice_s=0.0))
        for row in range(3):
            for version in range(20):
                await shop.put(1, row, f"version {version}")
        for row_key in {key[:-17] for key, _ in shop.pairs}:
            shop.replica.get_row(row_key)
        for left in (2, 1, 0):
            shop.folding.fold_hot(shop.replica)
            assert (len(shop.replica.hot), len(shop.pairs)) == (left, 3 + 19 * left)

    asyncio.run(story())


def test_a_row_with_too_many_young_versions_is_folded_and_it_is_known_what_was_forgotten():
    async def story():
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        shop = Table(
            life, await life.replica(7, 0), rule=FoldRule(forget_before_ms=0, history_from_us=5, max_versions=8)
        )
        for version in range(12):
            await shop.put(1, 1, f"version {version}")
        assert await shop.folding.walk(shop.replica)
        assert len(shop.pairs) == 1
        assert shop.replica.forgot_us == 12
        life.stop()
        life = await (await Life(disk, ONE).start()).ready()
        assert (await life.replica(7, 0)).forgot_us in (0, 12)  # as much as its files hold

    asyncio.run(story())


def test_partitions_are_measured_and_too_large_ones_take_no_more_rows():
    async def story():
        shop = await Table.open(pace=FoldPace(rest_s=0.0, part_s=0.0, look_every_s=0.001, partition_bytes=8_000))
        for row in range(20):
            await shop.put(1, row, "x" * 500)
            await shop.put(2, row, "x")
        assert await shop.folding.walk(shop.replica)
        assert shop.folding.largest_partition_bytes > 8_000
        refused = await shop.put(1, 99, "x")
        assert isinstance(refused, Refused)
        assert refused.code == "too_large"
        assert await shop.put(2, 99, "x") is None
        await shop.delete(1)
        assert await shop.folding.walk(shop.replica)
        # What the walk removed is measured by the next one.
        assert await shop.folding.walk(shop.replica)
        assert await shop.put(1, 99, "x") is None
        assert shop.replica.state is ReplicaState.OPEN

    asyncio.run(story())


def test_replicas_are_walked_by_themselves_when_enough_was_written():
    async def story():
        pace = FoldPace(rest_s=0.0, look_every_s=0.001, every_s=0.05, written_bytes=1)
        shop = await Table.open(pace=pace)
        shop.folding.start()
        for version in range(5):
            await shop.put(1, 1, f"version {version}")
        await until(lambda: len(shop.pairs) == 1, "the walk")
        shop.folding.stop()
        assert shop.complaints == []

    asyncio.run(story())


def test_the_longest_unwalked_replica_is_walked_next_though_those_before_it_are_due_again():
    """The first that was due was walked: where a round took longer than an interval, the last never had their turn."""

    async def story():
        life = await (await Life(model_disk(), {(7, tablet): 1 for tablet in range(3)}).start()).ready()
        shop = Table(life, await life.replica(7, 0), pace=FoldPace(rest_s=0.0, look_every_s=0.001, anyway_s=0.0))
        walk, walked = shop.folding.walk, []

        async def told(replica):
            walked.append(replica.name)
            return await walk(replica)

        shop.folding.walk = told
        shop.folding.start()
        await until(lambda: len(walked) >= 9, "three rounds")
        shop.folding.stop()
        assert len(set(walked[:3])) == 3 and walked[:3] == walked[3:6] == walked[6:9]

    asyncio.run(story())


def test_a_walk_over_rows_of_an_unknown_layout_is_given_up_and_told():
    async def story():
        shop = await Table.open()
        await shop.put(1, 1, "text")
        await shop.put(1, 1, "text")
        (key, value), *_ = shop.pairs
        await shop.write([key[:-1] + b"\x07", value[:1] + b"\x00\x63" + value[3:]])
        assert not await shop.folding.walk(shop.replica)
        assert "layout 99" in shop.complaints[0]

    asyncio.run(story())


def test_a_walk_ends_when_its_replica_is_closed_under_it():
    async def story():
        shop = await Table.open()
        for row in range(100):
            await shop.put(1, row, "text")
            await shop.put(1, row, "text")
        walk = asyncio.ensure_future(shop.folding.walk(shop.replica))
        await asyncio.sleep(0)
        shop.replica.close()
        shop.replica.store.close()
        assert await walk is False

    asyncio.run(story())
