"""The log of mutations in the node log's store, on RocksDB and on the model."""

import asyncio

import pytest

from tests.unit.node.replicas.shelves import model_disk
from trimtab.raft.messages import ConfState, HardState
from trimtab.storage import mutation_log
from trimtab.storage.mutation_log import LogBusy, MutationLog
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Corrupt, DiskFull, StorageError


class Writer:
    """A replica that only remembers what it was given."""

    def __init__(self, incarnation):
        self.incarnation = incarnation
        self.applied = []

    def apply(self, mutations):
        for mutation in mutations:
            self.applied.append((mutation.position, mutation.pairs))
            mutation.done(None)


class Node:
    def __init__(self, machine):
        self.failures = []
        self.log = NodeLog.open(machine.disk(), "log")
        self.mutations = MutationLog.open(
            self.log, new_id=lambda: 77, call_soon=asyncio.get_running_loop().call_soon, fatal=self.failures.append
        )

    async def append(self, writer, *pairs):
        done = asyncio.get_running_loop().create_future()
        self.mutations.append(writer, list(pairs), done.set_result)
        return await asyncio.wait_for(done, 10)

    def restart(self, machine):
        self.mutations.close()
        self.log.close()
        machine.restart()
        return Node(machine)


def replayed(node, positions):
    return [each for each in node.mutations.entries(positions) if each[2] is not None]


def test_what_was_appended_is_applied_in_order_and_replayed_by_incarnation_and_position(machine):
    async def story():
        node = Node(machine)
        first, second = Writer(node.mutations.next_incarnation()), Writer(node.mutations.next_incarnation())
        assert (first.incarnation, second.incarnation) == (1, 2)
        outcomes = await asyncio.gather(node.append(first, b"a", b"1"), node.append(second, b"b", b"2"))
        outcomes.append(await node.append(first, b"c", b"3", b"d", b""))
        assert outcomes == [None] * 3
        assert first.applied == [(1, [b"a", b"1"]), (3, [b"c", b"3", b"d", b""])]
        node = node.restart(machine)
        assert (node.mutations.id, node.mutations.newest_position, node.mutations.incarnation) == (77, 3, 2)
        assert replayed(node, {1: 0}) == [(1, 1, [b"a", b"1"]), (3, 1, [b"c", b"3", b"d", b""])]
        assert replayed(node, {1: 1, 2: 2}) == [(3, 1, [b"c", b"3", b"d", b""])]
        assert replayed(node, {9: 0}) == replayed(node, {}) == []

    asyncio.run(story())


def test_what_comes_for_one_replica_before_a_batch_leaves_is_one_mutation(machine):
    async def story():
        node = Node(machine)
        first, second = Writer(node.mutations.next_incarnation()), Writer(node.mutations.next_incarnation())
        own = [b"a", b"1"]
        outcomes = []
        node.mutations.append(first, own, outcomes.append)
        node.mutations.append(second, [b"b", b"2"], outcomes.append)
        assert await node.append(first, b"c", b"3", b"d", b"") is None
        assert (own, outcomes) == ([b"a", b"1"], [None, None])
        assert first.applied == [(1, [b"a", b"1", b"c", b"3", b"d", b""])]
        assert second.applied == [(2, [b"b", b"2"])]
        assert (node.mutations.newest_position, node.mutations.appended) == (2, 3)
        node = node.restart(machine)
        assert replayed(node, {1: 0}) == [(1, 1, [b"a", b"1", b"c", b"3", b"d", b""])]

    asyncio.run(story())


def test_mutations_share_batches_and_syncs_with_raft(machine):
    async def story():
        node = Node(machine)
        writer = Writer(node.mutations.next_incarnation())
        await node.append(writer, b"k", b"v")
        batches, syncs = node.log.metrics.batches, node.log.metrics.syncs
        node.log.group(7).bootstrap(ConfState(voters=(1,)))
        done = asyncio.gather(*(node.append(writer, b"%d" % number, b"v") for number in range(50)))
        await asyncio.sleep(0)
        node.log.write()
        raft = asyncio.get_running_loop().create_future()
        node.log.sync(raft.set_result)
        assert await done == [None] * 50
        assert await raft is None
        assert node.log.metrics.batches - batches == 1
        assert node.log.metrics.syncs - syncs <= 2
        assert node.log.group(7).exists

    asyncio.run(story())


def test_a_cut_drops_what_lies_below_and_positions_go_on_above_it(machine):
    async def story():
        node = Node(machine)
        writer = Writer(node.mutations.next_incarnation())
        for number in range(10):
            await node.append(writer, b"%d" % number, b"v")
        assert node.mutations.cut(7)
        assert not node.mutations.cut(7)
        node.mutations.settle()
        assert [position for position, _, _ in replayed(node, {1: 0})] == [8, 9, 10]
        assert node.mutations.cut(1000)
        assert node.mutations.cut_position == 10
        node.mutations.settle()
        node = node.restart(machine)
        assert (node.mutations.newest_position, node.mutations.cut_position) == (10, 10)
        assert replayed(node, {1: 0}) == []
        writer = Writer(1)
        await node.append(writer, b"k", b"v")
        assert writer.applied == [(11, [b"k", b"v"])]

    asyncio.run(story())


def test_what_is_not_synced_is_not_replayed(machine):
    async def story():
        node = Node(machine)
        writer = Writer(node.mutations.next_incarnation())
        await node.append(writer, b"a", b"1")
        node.mutations.append(writer, [b"b", b"2"], lambda error: None)
        node.log.write()
        assert len(replayed(node, {1: 0})) == 1

    asyncio.run(story())


def test_what_is_too_much_for_a_batch_goes_with_the_next(machine, monkeypatch):
    monkeypatch.setattr(mutation_log, "MAX_BATCH_BYTES", 1_000)

    async def story():
        node = Node(machine)
        writer = Writer(node.mutations.next_incarnation())
        await node.append(writer, b"k", b"v")
        before = node.log.metrics.batches
        outcomes = await asyncio.gather(*(node.append(writer, b"%d" % number, bytes(300)) for number in range(20)))
        assert outcomes == [None] * 20
        assert node.log.metrics.batches - before >= 5
        assert [position for position, _ in writer.applied] == list(range(1, 22))

    asyncio.run(story())


def test_writers_are_refused_when_too_much_waits(machine, monkeypatch):
    monkeypatch.setattr(mutation_log, "MAX_WAITING_BYTES", 1_000)

    async def story():
        node = Node(machine)
        writer = Writer(node.mutations.next_incarnation())
        outcomes = await asyncio.gather(*(node.append(writer, b"%d" % number, bytes(300)) for number in range(10)))
        assert [type(each) for each in outcomes] == [type(None)] * 4 + [LogBusy] * 6
        assert await node.append(writer, b"k", b"v") is None
        assert node.mutations.refused == 6

    asyncio.run(story())


def test_records_of_others_are_visible_at_once_and_durable_when_told(machine):
    async def story():
        node = Node(machine)
        hints = node.mutations.records(b"n")
        done = asyncio.get_running_loop().create_future()
        for number in range(5):
            hints.put(b"%d" % number, b"value", done.set_result if number == 4 else None)
        assert [key for key, _ in hints.scan()] == [b"0", b"1", b"2", b"3", b"4"]
        assert await done is None
        hints.delete(b"0")
        hints.delete_range(b"3", b"5")
        assert (list(hints.scan()), hints.get(b"1"), hints.get(b"0")) == (
            [(b"1", b"value"), (b"2", b"value")],
            b"value",
            None,
        )
        assert list(hints.scan(b"2", b"9")) == [(b"2", b"value")]
        assert list(node.mutations.records(b"b").scan()) == []
        await asyncio.sleep(0)
        node = node.restart(machine)
        assert [key for key, _ in node.mutations.records(b"n").scan()] == [b"1", b"2"]
        for wrong in (b"m", b"e", b"", b"nn", b"\x00"):
            with pytest.raises(ValueError, match="no record prefix"):
                node.mutations.records(wrong)

    asyncio.run(story())


def test_a_closed_log_applies_and_acknowledges_nothing(machine):
    async def story():
        node = Node(machine)
        writer = Writer(node.mutations.next_incarnation())
        outcomes = []
        node.mutations.append(writer, [b"k", b"v"], outcomes.append)
        await asyncio.sleep(0)
        node.mutations.close()
        await asyncio.sleep(0.02)
        assert (outcomes, writer.applied) == ([], [])
        assert isinstance(await node.append(writer, b"k", b"v"), StorageError)

    asyncio.run(story())


def test_an_exhausted_disk_refuses_mutations_and_keeps_rafts_votes_staged():
    async def story():
        disk = model_disk()
        log = NodeLog.open(disk, "log")
        failures = []
        call_soon = asyncio.get_running_loop().call_soon
        mutations = MutationLog.open(log, new_id=lambda: 1, call_soon=call_soon, fatal=failures.append)
        writer = Writer(mutations.next_incarnation())
        log.group(7).bootstrap(ConfState(voters=(1,)))
        log.write()
        disk.full = True
        done = asyncio.get_running_loop().create_future()
        log.stage(7, hard_state=HardState(5, 1, 1))
        mutations.append(writer, [b"k", b"v"], done.set_result)
        assert isinstance(await done, DiskFull)
        assert writer.applied == []
        disk.full = False
        again = asyncio.get_running_loop().create_future()
        mutations.append(writer, [b"k", b"v"], again.set_result)
        assert await again is None
        assert log.group(7).hard_state == HardState(5, 1, 1)
        assert failures == []

    asyncio.run(story())


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (b"\x00mutations", b"\xc1", "can't be decoded"),
        (b"mshort", b"x" * 20, "no position"),
    ],
)
def test_a_damaged_log_is_named_when_it_is_opened(machine, key, value, why):
    async def story():
        node = Node(machine)
        writer = Writer(node.mutations.next_incarnation())
        await node.append(writer, b"k", b"v")
        batch = node.log.store.batch()
        batch.put(key, value)
        node.log.store.write(batch)
        with pytest.raises(Corrupt, match=f"the mutation log.*{why}"):
            node.restart(machine)

    asyncio.run(story())


@pytest.mark.parametrize("value", [b"\x00" * 7 + b"\x01" + b"\xc1", b"\x00" * 7 + b"\x01" + b"\x91\xc4\x01a"])
def test_a_damaged_mutation_is_named_by_its_position(machine, value):
    async def story():
        node = Node(machine)
        writer = Writer(node.mutations.next_incarnation())
        await node.append(writer, b"k", b"v")
        batch = node.log.store.batch()
        batch.put(b"m" + bytes(7) + b"\x01", value)
        node.log.store.write(batch)
        with pytest.raises(Corrupt, match="position 1"):
            replayed(node, {1: 0})

    asyncio.run(story())


def test_mutations_without_the_logs_own_record_are_refused(machine):
    async def story():
        node = Node(machine)
        await node.append(Writer(node.mutations.next_incarnation()), b"k", b"v")
        batch = node.log.store.batch()
        batch.delete(b"\x00mutations")
        node.log.store.write(batch)
        with pytest.raises(Corrupt, match="own record is missing"):
            node.restart(machine)

    asyncio.run(story())
