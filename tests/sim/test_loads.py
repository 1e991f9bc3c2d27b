"""Loads in a whole cluster: what readers and writers meet while a table is loaded, overwritten, and set back."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.sim.governed_world import cut, leader, others
from tests.sim.test_rows import Shop, big, instance, shop
from trimtab.catalog.commands import ColumnSpec, CreateTable
from trimtab.catalog.schema import Table
from trimtab.loads import protocol as loads
from trimtab.loads.protocol import (
    BeginRequest,
    CommitRequest,
    RollbackRequest,
    SealRequest,
    ShowRequest,
    StagedFile,
)
from trimtab.loads.records import SCAN_LIFE_MS, LoadKind, LoadRecord, LoadState, encode, load_key
from trimtab.net.errors import RpcError
from trimtab.node import failpoints
from trimtab.rows import protocol
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import GetRequest, PutRequest, ReplicaWrite, ReplicaWrites, RowsReply, ScanRequest, WriteKind
from trimtab.sim.machines import Machine
from trimtab.tablets.consistency import Level


class Loads:
    """Loads of shop.users, or another table of an id and texts, staged straight onto the disks."""

    def __init__(self, rows: Shop, table: Table | None = None) -> None:
        self.rows = rows
        self.table = table or rows.users

    def ask(self, method: str, request: Any, machine: Machine | None = None) -> bytes:
        return self.rows.ask(machine or self.rows.machines[0], method, loads.encode(request), 10.0)

    def begin(self, id: str, kind: LoadKind = LoadKind.APPEND) -> LoadRecord:
        answer = self.ask(loads.BEGIN, BeginRequest(id, self.table.id, self.table.version, kind))
        record: LoadRecord = loads.decode_load_reply(answer).load
        return record

    def seal(self, load: LoadRecord, names: dict[int, str], *machines: Machine) -> tuple[int, ...]:
        """Stage rows on these machines (default: all) and let them confirm it."""
        columns = [column.id for column in self.table.columns]
        cells: list[list[bytes | None]] = [[big(i), *[n.encode()] * (len(columns) - 1)] for i, n in names.items()]
        request = PutRequest(self.table.id, self.table.version, columns, cells)
        parts = pairs_of_put(RowLayout(self.table), request, load.stamp_us, load.stamp_us // 1000)
        tablets: dict[int, dict[bytes, bytes]] = {}
        for prefix, pairs in parts.items():
            tablet = int.from_bytes(prefix[:8]) >> (65 - self.table.tablets.bit_length())
            tablets.setdefault(tablet, {}).update(zip(pairs[::2], pairs[1::2], strict=True))
        for machine in machines or self.rows.machines:
            disk, files = machine.disk.model, []
            for tablet, found in tablets.items():
                name = f"staging/{load.id}/{tablet}/run"
                disk.write_table(name, sorted(found.items()))
                told = disk.digest(name)
                assert told is not None
                files.append(StagedFile(tablet, "run", *told))
            reply = loads.decode_seal_reply(self.ask(loads.SEAL, SealRequest(load.id, self.table.id, files), machine))
            assert not reply.missing
        return tuple(instance(machine).raft_id for machine in machines or self.rows.machines)

    def commit(self, load: LoadRecord, sealed: tuple[int, ...]) -> None:
        self.ask(loads.COMMIT, CommitRequest(self.table.id, load.id, sealed))

    def run(self, id: str, names: dict[int, str], kind: LoadKind = LoadKind.APPEND) -> None:
        load = self.begin(id, kind)
        self.commit(load, self.seal(load, names))
        self.published(id)

    def published(self, id: str) -> None:
        """Wait until everybody knows that a load can be seen."""
        for machine in self.rows.machines:
            view = instance(machine).watching.loads
            self.rows.cluster.until(
                lambda view=view: view.loads[self.table.id, id].state is LoadState.PUBLISHED, 30.0, f"{id} is visible"
            )

    def state(self, id: str) -> LoadState:
        reply = loads.decode_loads_reply(self.ask(loads.SHOW, ShowRequest(self.table.id, id)))
        state: LoadState = reply.loads[0].state
        return state


def page(rows: Shop, machine: Machine, state: bytes = b"", limit: int = 10) -> RowsReply:
    request = ScanRequest(rows.users.id, rows.users.version, [1, 2], limit=limit, page=state)
    reply: RowsReply = protocol.decode_rows(rows.ask(machine, protocol.SCAN, protocol.encode(request)))
    return reply


def names_of(*replies: RowsReply) -> dict[int, str]:
    return {int.from_bytes(row[0]): row[1].decode() for reply in replies for row in reply.rows}


def all_names(rows: Shop, machine: Machine, level: Level = Level.QUORUM) -> dict[int, str]:
    request = ScanRequest(rows.users.id, rows.users.version, [1, 2], level=level)
    return {int.from_bytes(row[0]): row[1].decode() for row in rows.pages(machine, request)}


def test_all_pages_of_a_scan_are_of_one_epoch_whoever_gives_them_and_whatever_is_loaded_meanwhile() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        loader, old = Loads(rows), {id: f"old {id}" for id in range(40)}
        for id, name in old.items():
            rows.put(a, id, name)
        first = page(rows, a)
        loader.run("one", dict.fromkeys(range(20, 60), "new"))
        second = page(rows, b, first.page)
        # A row of the load that is changed is another's business, and comes as it is.
        rows.put(a, 39, "changed", Level.ALL)
        loader.run("two", dict.fromkeys(range(100), "newer"), LoadKind.OVERWRITE)
        third = page(rows, c, second.page)
        rest = page(rows, a, third.page, 1000)
        assert names_of(first, second, third, rest) in (old, {**old, 39: "changed"})
        assert not rest.page
        for machine in (a, b, c):
            assert all_names(rows, machine) == dict.fromkeys(range(100), "newer")


def test_a_page_at_an_epoch_that_was_over_too_long_ago_is_refused() -> None:
    with shop() as rows:
        a, b, _ = rows.machines
        for id in range(30):
            rows.put(a, id, "old")
        first = page(rows, a)
        Loads(rows).run("one", {1: "new"})
        page(rows, b, first.page)
        view, key = instance(b).watching.loads, load_key(rows.users.id, "one")
        load = view.loads[rows.users.id, "one"]
        view.change(key, encode(replace(load, published_ms=load.published_ms - SCAN_LIFE_MS)), 1)
        code, _ = rows.refusal(page, rows, b, first.page)
        assert code == "invalid" and all_names(rows, b)[1] == "new"


def test_rows_of_a_load_are_seen_by_nobody_until_all_who_hold_it_have_taken_it_over() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        loader = Loads(rows)
        rows.put(a, 1, "old", Level.ALL)
        load = loader.begin("one")
        sealed = loader.seal(load, {1: "new", 2: "new"})
        slow = instance(c).settings.instance_id

        def fail(_name: str, who: str) -> None:
            if who == slow:
                raise failpoints.FailpointError("its disk is slow today")

        failpoints.arm("load.adopt.rest", fail)
        loader.commit(load, sealed)
        rows.cluster.until(
            lambda: all(
                each.adopted == 1
                for m in (a, b)
                for each in instance(m).holdings.shelf.held()
                if each.table == rows.users.id
            ),
            20.0,
            "two of three have it",
        )
        for machine in (a, b, c):
            for level in (Level.ONE, Level.QUORUM, Level.ALL):
                assert (rows.get(machine, 1, level), rows.get(machine, 2, level)) == ("old", None)
        assert loader.state("one") is LoadState.COMMITTED
        failpoints.disarm("load.adopt.rest")
        loader.published("one")
        for machine in (a, b, c):
            for level in (Level.ONE, Level.QUORUM, Level.ALL):
                assert (rows.get(machine, 1, level), rows.get(machine, 2, level)) == ("new", "new")
                assert [row and row[0] for row in rows.get_many(machine, [1, 2, 3], level).rows] == [
                    b"new",
                    b"new",
                    None,
                ]


def replica_write(rows: Shop, to: Machine, write: ReplicaWrite) -> str:
    """The code with which a replica answers a write of another router; empty: done."""
    a = rows.machines[0]
    view, catalog = instance(a).watching.view.version, instance(a).watching.tables.catalog.version
    body = protocol.encode(ReplicaWrites(view, catalog, [write]))

    async def ask() -> str:
        link = instance(a).host.links[instance(to).raft_id]
        try:
            answer = protocol.decode_replica_written(await link.channel.call(protocol.REPLICA_WRITE, body, 2.0))
        except RpcError as error:
            return error.code
        return answer.results[0].code if answer.results[0] is not None else ""

    code: str = rows.cluster.world.run_until_done(a.process.spawn(ask()), rows.cluster.world.now + 10)
    return code


def test_writes_belong_to_a_generation() -> None:
    with shop() as rows:
        a, b, _ = rows.machines
        loader = Loads(rows)
        rows.put(a, 1, "old")
        loader.run("one", {2: "new"}, LoadKind.OVERWRITE)
        (pairs,) = pairs_of_put(RowLayout(rows.users), rows.user(1, "late"), rows.now_us(), 1).values()
        write = ReplicaWrite(rows.users.id, rows.tablet(rows.users, 1), pairs, a.process.wall_ms())
        assert replica_write(rows, b, write) == "version_mismatch"
        assert replica_write(rows, b, replace(write, kind=WriteKind.HINT)) == ""
        assert replica_write(rows, b, replace(write, kind=WriteKind.REPAIR)) == ""
        assert rows.get(a, 1) is None, "what is left of the generation before counts as done"
        # One that nobody has heard of is waited for.
        assert replica_write(rows, b, replace(write, generation=7)) == "no_answer"
        assert replica_write(rows, b, replace(write, generation=2)) == ""
        # Back: what was written since belongs to the generation that is gone.
        rows.put(b, 3, "since")
        loader.ask(loads.ROLLBACK, RollbackRequest(rows.users.id, "one", True))
        rows.cluster.until(
            lambda: all(instance(m).watching.loads.generation(rows.users.id) == 1 for m in rows.machines), 5.0, "back"
        )
        assert all_names(rows, a) == {1: "old"}
        assert replica_write(rows, b, replace(write, generation=2)) == "version_mismatch"
        assert replica_write(rows, b, replace(write, generation=2, kind=WriteKind.HINT)) == ""
        loader.run("two", {4: "again"})
        for machine in rows.machines:
            assert all_names(rows, machine, Level.ONE) == {1: "old", 4: "again"}


def test_a_coordinator_that_has_not_heard_of_an_overwrite_writes_to_the_new_generation_all_the_same() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        loader = Loads(rows)
        rows.put(a, 1, "old")
        loader.run("one", {2: "new"}, LoadKind.OVERWRITE)
        view = instance(c).watching.loads
        record = view.epochs[rows.users.id]
        # As if it were behind.
        view.epochs[rows.users.id] = replace(record, generations=((0, 1),), visible=0)

        async def hear_of_it() -> None:
            view.epochs[rows.users.id] = record
            instance(c).control.waits.look()  # type: ignore[union-attr]

        c.process.loop.call_later(0.5, lambda: c.process.spawn(hear_of_it()))
        rows.put(c, 3, "late", Level.QUORUM)
        assert all_names(rows, a) == {2: "new", 3: "late"}
        assert all_names(rows, b, Level.QUORUM) == {2: "new", 3: "late"}


def test_what_is_written_after_an_overwrite_was_done_is_in_it_though_a_majority_has_not_heard_of_it() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        loader = Loads(rows)
        rows.put(a, 1, "old")
        load = loader.begin("one", LoadKind.OVERWRITE)
        loader.commit(load, loader.seal(load, {2: "new"}))
        table, behind = rows.users.id, (b, c)

        def committed() -> bool:
            views = [instance(machine).watching.loads for machine in behind]
            return all((table, "one") in each.loads and each.swapping(table) for each in views)

        rows.cluster.until(committed, 5.0, "the commit to be known")
        before = [
            (instance(m).watching.loads.epochs[table], instance(m).watching.loads.loads[table, "one"]) for m in behind
        ]
        loader.published("one")
        for machine, (epochs, record) in zip(behind, before, strict=True):
            view, door = instance(machine).watching.loads, instance(machine).control.router.replica_door  # type: ignore[union-attr]
            now = view.epochs[table], view.loads[table, "one"]
            view.epochs[table] = epochs
            view.loads[table, "one"] = view._by_table[table]["one"] = record

            async def hear(_timeout_s: float, view: Any = view, now: Any = now) -> None:
                view.epochs[table] = now[0]
                view.loads[table, "one"] = view._by_table[table]["one"] = now[1]

            door._barrier = hear
        rows.put(c, 3, "after", Level.QUORUM)
        assert all_names(rows, a) == {2: "new", 3: "after"}


def test_a_replica_that_has_not_heard_of_a_rollback_neither_refuses_nor_drops_what_is_written_since() -> None:
    with shop() as rows:
        a, _, c = rows.machines
        loader = Loads(rows)
        rows.put(a, 1, "old")
        loader.run("one", {2: "new"}, LoadKind.OVERWRITE)
        view = instance(c).watching.loads
        before = view.epochs[rows.users.id]
        loader.ask(loads.ROLLBACK, RollbackRequest(rows.users.id, "one", True))
        rows.cluster.until(
            lambda: all(instance(m).watching.loads.generation(rows.users.id) == 1 for m in rows.machines), 5.0, "back"
        )
        # As if it were behind.
        record, view.epochs[rows.users.id] = view.epochs[rows.users.id], before
        (pairs,) = pairs_of_put(RowLayout(rows.users), rows.user(4, "hint"), rows.now_us(), 1).values()
        hint = ReplicaWrite(rows.users.id, rows.tablet(rows.users, 4), pairs, a.process.wall_ms(), WriteKind.HINT, 1)
        assert replica_write(rows, c, replace(hint, epoch=record.visible)) == "no_answer"

        async def hear_of_it() -> None:
            view.epochs[rows.users.id] = record
            instance(c).control.waits.look()  # type: ignore[union-attr]

        c.process.loop.call_later(0.5, lambda: c.process.spawn(hear_of_it()))
        rows.put(a, 3, "since", Level.ALL)
        assert all_names(rows, c, Level.ONE) == {1: "old", 3: "since"}


def test_a_reader_that_is_ahead_is_waited_for_by_a_replica_that_is_behind() -> None:
    with shop() as rows:
        a, _, c = rows.machines
        loader = Loads(rows)
        loader.run("one", {2: "new"})
        view = instance(c).watching.loads
        record = view.epochs[rows.users.id]
        view.epochs[rows.users.id] = replace(record, visible=0)

        async def hear_of_it() -> None:
            view.epochs[rows.users.id] = record
            instance(c).control.waits.look()  # type: ignore[union-attr]

        c.process.loop.call_later(0.5, lambda: c.process.spawn(hear_of_it()))
        began = rows.cluster.world.now
        assert rows.get(a, 2, Level.ALL) == "new"
        assert rows.cluster.world.now - began >= 0.4


def test_a_replica_that_missed_a_load_answers_only_when_it_has_it() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        loader = Loads(rows)
        rows.put(a, 1, "old", Level.ALL)
        cut(rows.cluster, c)
        down = instance(c).raft_id
        rows.cluster.until(
            lambda: instance(a).watching.view.instances[down].grades.current.grade.value == "Offline", 60.0, "c is down"
        )
        load = loader.begin("one")
        loader.commit(load, loader.seal(load, {1: "new", 2: "new"}, a, b))
        for machine in (a, b):
            view = instance(machine).watching.loads
            rows.cluster.until(
                lambda view=view: view.loads[rows.users.id, "one"].state is LoadState.PUBLISHED, 30.0, "it is visible"
            )
        rows.cluster.world.network.heal()
        rows.cluster.settle()
        for level in (Level.ONE, Level.ALL):
            assert (rows.get(c, 1, level), rows.get(c, 2, level)) == ("new", "new")
        marks = {each.adopted for each in instance(c).holdings.shelf.held() if each.table == rows.users.id}
        assert marks == {1}


def test_a_read_that_repairs_does_not_mix_rows_of_a_load_into_those_that_earlier_scans_still_see() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        columns = [ColumnSpec("id", "bigint"), ColumnSpec("one", "text"), ColumnSpec("two", "text")]
        rows.change(CreateTable("shop", "wide", columns, ["id"], tablets=1))
        table = rows.table("shop.wide")
        loader = Loads(rows, table)

        def put(id: int, **cells: str) -> PutRequest:
            numbers = {"one": 2, "two": 3}
            values: list[list[bytes | None]] = [[big(id), *(cell.encode() for cell in cells.values())]]
            return PutRequest(table.id, table.version, [1, *(numbers[name] for name in cells)], values, Level.ALL)

        def ask(machine: Machine, state: bytes, level: Level) -> RowsReply:
            request = ScanRequest(table.id, table.version, [1, 2, 3], limit=1, page=state, level=level)
            reply: RowsReply = protocol.decode_rows(rows.ask(machine, protocol.SCAN, protocol.encode(request)))
            return reply

        for id in (1, 2):
            rows.write(a, put(id, one="old", two="old"))
        first = ask(a, b"", Level.QUORUM)
        load = loader.begin("one")
        loader.commit(load, loader.seal(load, {1: "new", 2: "new"}))
        loader.published("one")
        # A later write of one column reached one replica only, and a read brings it to the others.
        shelf = instance(a).holdings.shelf
        replica, done = shelf.get(table.id, 0), []
        assert replica is not None
        for id in (1, 2):
            request = replace(put(id, one="later"), update=True)
            (pairs,) = pairs_of_put(RowLayout(table), request, rows.now_us(), a.process.wall_ms()).values()

            async def write(pairs: list[bytes] = pairs) -> None:
                replica.write(pairs, done.append)

            a.process.spawn(write())
        rows.cluster.until(lambda: len(done) == 2, 5.0, "they are written")
        request = GetRequest(table.id, table.version, [[big(1)], [big(2)]], [2, 3], Level.ALL)
        for machine in (b, c):
            found = protocol.decode_rows(rows.ask(machine, protocol.GET, protocol.encode(request))).rows
            assert [list(row) for row in found] == [[b"later", b"new"]] * 2
        # The rest of the scan that began before: on each replica by itself the load is left out, the write is not.
        for machine in (b, c):
            (row,) = ask(machine, first.page, Level.ONE).rows
            assert row[1:] == [b"later", b"old"]


def test_a_replica_that_is_rebuilt_has_the_loads_too_before_it_answers() -> None:
    with shop(tablets=1) as rows:
        a, _, c = rows.machines
        loader = Loads(rows)
        rows.put(a, 1, "old", Level.ALL)
        loader.run("one", {2: "new"})
        shelf = instance(c).holdings.shelf
        replica = shelf.get(rows.users.id, 0)
        assert replica is not None and replica.adopted == 1
        key = next(iter(replica.scan(bytes(8), None)))[0]
        c.disk.model.damage(replica.name, key)
        assert (rows.get(c, 1), rows.get(c, 2)) == ("old", "new")
        fresh = rows.cluster.until(
            lambda: next(
                (
                    each
                    for each in shelf.held()
                    if each.table == rows.users.id and each.readable and each is not replica
                ),
                None,
            ),
            30.0,
            "it is rebuilt",
        )
        assert fresh.adopted == 1
        assert (rows.get(c, 1, Level.ONE), rows.get(c, 2, Level.ONE)) == ("old", "new")


def test_files_that_were_lost_after_they_were_sealed_come_from_the_others() -> None:
    with shop() as rows:
        c = rows.machines[2]
        loader = Loads(rows)
        load = loader.begin("one")
        sealed = loader.seal(load, dict.fromkeys(range(20), "new"))
        for name in c.disk.model.names(f"staging/{load.id}/"):
            if not name.endswith("sealed"):
                c.disk.model.remove(name)
        loader.commit(load, sealed)
        loader.published("one")
        assert all_names(rows, c, Level.ALL) == dict.fromkeys(range(20), "new")
        held = [each for each in instance(c).holdings.shelf.held() if each.table == rows.users.id]
        assert {each.adopted for each in held} == {1}


@pytest.mark.parametrize("away_s", [0.5, 20.0], ids=["back in time", "back when it is over"])
@pytest.mark.parametrize("place", ["load.adopt.before", "load.adopt.tablet", "load.adopt.ingested", "load.adopt.rest"])
def test_an_instance_that_dies_while_it_takes_a_load_over_has_all_of_it_in_the_end(place: str, away_s: float) -> None:
    with shop(tablets=4) as rows:
        a = rows.machines[0]
        victim = others(rows.cluster, a, leader(rows.cluster))[0]
        loader = Loads(rows)
        rows.put(a, 1, "old", Level.ALL)
        load = loader.begin("one")
        sealed = loader.seal(load, {1: "new", 2: "new"})
        died = rows.cluster.kill_at(place, victim)
        loader.commit(load, sealed)
        rows.cluster.until(lambda: died, 30.0, f"it died at {place}")
        rows.cluster.world.run(rows.cluster.world.now + away_s)
        if not victim.alive:
            victim.start()
        rows.cluster.settle()
        loader.published("one")
        for machine in rows.machines:
            for level in (Level.ONE, Level.ALL):
                assert all_names(rows, machine, level) == {1: "new", 2: "new"}
            rows.cluster.until(lambda machine=machine: not machine.disk.model.entries("staging"), 30.0, "it is swept")
