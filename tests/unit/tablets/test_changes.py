"""A change of the schema as one write: what is in it, what it depends on, and what is refused."""

from __future__ import annotations

import pytest
from tests.unit.topology.clusters import member, view_of

from trimtab.catalog import keys, updates
from trimtab.catalog.commands import (
    AlterKeyspace,
    Bulk,
    ColumnSpec,
    Command,
    CreateKeyspace,
    CreateTable,
    DropKeyspace,
    DropTable,
)
from trimtab.catalog.errors import SchemaError
from trimtab.tablets.changes import PlannedChange, plan_change
from trimtab.tablets.records import chunk_key
from trimtab.tablets.tablet_map import TabletMap
from trimtab.tablets.transitions import (
    RebalanceRecord,
    RebalanceState,
    TabletTransition,
    TransitionKind,
    encode,
    rebalance_key,
    transition_key,
)
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import RequestKind, RequestRecord, instance_key, job_key, request_key
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

NOW_MS = 1_700_000_000_000
DOWN = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.OFFLINE, 1))


def cluster(size: int, **requests: RequestRecord) -> View:
    return view_of(
        *(member(number) for number in range(1, size + 1)),
        requests={int(number[1:]): request for number, request in requests.items()},
    )


def created(name: str = "users", tablets: int = 8, **fields: object) -> CreateTable:
    return CreateTable("shop", name, [ColumnSpec("id", "bigint")], ["id"], tablets=tablets, **fields)  # type: ignore[arg-type]


def take(tables: TableView, planned: PlannedChange) -> None:
    for key, value in planned.puts.items():
        tables.change(key, value, planned.version)
    for key in planned.deletes:
        tables.change(key, None, planned.version)


def shop(view: View, *more: Command, replication: int = 3) -> TableView:
    tables = TableView()
    for number, command in enumerate((CreateKeyspace("shop", replication), *more)):
        take(tables, plan_change(view, tables, command, f"request {number}", NOW_MS))
    return tables


def refusal(view: View, tables: TableView, command: Command) -> str:
    with pytest.raises(SchemaError) as refused:
        plan_change(view, tables, command, "r", NOW_MS)
    return str(refused.value)


def replicas(planned: PlannedChange, table: int = 1) -> list[tuple[int, ...]]:
    return [found for _, found in TabletMap.unpacked([planned.puts[chunk_key(table, 0)]])]


def test_a_table_is_its_update_its_version_and_its_replicas() -> None:
    view = cluster(3)
    tables = shop(view)
    planned = plan_change(view, tables, created(), "some id", NOW_MS)
    assert planned.version == 2
    assert set(planned.puts) == {keys.VERSION_KEY, keys.update_key(2), chunk_key(1, 0)}
    assert planned.puts[keys.VERSION_KEY] == b"2" and planned.deletes == ()
    assert updates.decode(planned.puts[keys.update_key(2)]).request == "some id"
    assert all(sorted(each) == [1, 2, 3] for each in replicas(planned))
    assert planned.depends == {
        keys.VERSION_KEY,
        keys.update_key(2),
        request_key(1),
        job_key(1),
        *map(instance_key, (1, 2, 3)),
    }
    assert planned.texts == ("table shop.users created (8 tablets, 3 replicas) at version 2",)


def test_only_those_who_get_replicas_are_depended_on() -> None:
    view = cluster(9)
    planned = plan_change(view, shop(view, replication=1), created(tablets=1), "r", NOW_MS)
    holders = {raft_id for each in replicas(planned) for raft_id in each}
    assert {key for key in planned.depends if key.startswith(b"instances/")} == set(map(instance_key, holders))
    assert planned.texts == ("table shop.users created (1 tablet, 1 replica) at version 2",)


def test_a_keyspace_depends_on_nobody() -> None:
    planned = plan_change(cluster(1), TableView(), CreateKeyspace("shop", 3), "r", NOW_MS)
    assert planned.depends == {keys.VERSION_KEY, keys.update_key(1)}
    assert planned.texts == ("keyspace shop created (dc1: 3) at version 1",)


def test_what_is_so_already_writes_nothing() -> None:
    view = cluster(3)
    tables = shop(view, created())
    planned = plan_change(view, tables, created(if_not_exists=True), "r", NOW_MS)
    assert planned == PlannedChange(2)


def test_the_number_of_tablets_is_chosen_by_the_data_centres_that_are_used() -> None:
    near = [member(number, failure_domain={"dc": "near"}) for number in range(1, 4)]
    far = [member(number, failure_domain={"dc": "far"}) for number in range(4, 14)]
    view = view_of(*near, *far)
    tables = TableView()
    take(tables, plan_change(view, tables, CreateKeyspace("shop", {"near": 3}), "r", NOW_MS))
    planned = plan_change(view, tables, created(tablets=0), "r", NOW_MS)
    assert len(replicas(planned)) == 16
    assert {raft_id for each in replicas(planned) for raft_id in each} == {1, 2, 3}


def test_a_dropped_table_takes_its_tablets_along() -> None:
    view = cluster(3)
    tables = shop(view, created(tablets=2048), created("orders"))
    planned = plan_change(view, tables, DropTable("shop", "users"), "r", NOW_MS)
    assert planned.deletes == (chunk_key(1, 0), chunk_key(1, 1))
    assert planned.texts == ("table shop.users dropped at version 4",)
    everything = plan_change(view, tables, DropKeyspace("shop"), "r", NOW_MS)
    assert set(everything.deletes) == {chunk_key(1, 0), chunk_key(1, 1), chunk_key(2, 0)}
    take(tables, everything)
    assert tables.maps == {} and tables.catalog.tables == {}


def test_a_bulk_spreads_its_tables_over_everybody() -> None:
    view = cluster(4)
    tables = shop(view, replication=1)
    planned = plan_change(view, tables, Bulk([created(f"t{n}", tablets=1) for n in range(8)]), "r", NOW_MS)
    take(tables, planned)
    assert planned.version == 2 and set(tables.loads().values()) == {2}


def test_many_changes_are_told_in_few_lines() -> None:
    view = cluster(3)
    planned = plan_change(view, shop(view), Bulk([created(f"t{n}", tablets=1) for n in range(50)]), "r", NOW_MS)
    assert len(planned.texts) == 20 and planned.texts[-1] == "and 31 more changes of the schema"


def test_nobody_who_is_to_go_gets_replicas() -> None:
    leaving = RequestRecord(RequestKind.LEAVE, raft_id=2)
    view = cluster(4, _5=leaving)
    planned = plan_change(view, shop(view), created(), "r", NOW_MS)
    assert {raft_id for each in replicas(planned) for raft_id in each} == {1, 3, 4}
    assert request_key(6) in planned.depends, "another request would change that"
    view = cluster(3, _5=leaving)
    text = refusal(view, shop(view), created())
    assert "needs 3 distinct hosts for 3 replicas and has 2: i1, i3" in text
    assert "(not counted, because they come or go: i2)" in text


def test_nobody_who_has_not_finished_joining_gets_replicas() -> None:
    view = view_of(member(1), member(2), member(3, state=NodeState.BOOTSTRAPPING))
    assert "has 2: i1, i2" in refusal(view, shop(view), created())


def test_one_that_is_down_gets_replicas_only_where_it_must() -> None:
    view = view_of(member(1), member(2), member(3), member(4, grades=DOWN))
    assert all(sorted(each) == [1, 2, 3] for each in replicas(plan_change(view, shop(view), created(), "r", NOW_MS)))
    wide = shop(view, replication=4)
    assert all(sorted(each) == [1, 2, 3, 4] for each in replicas(plan_change(view, wide, created(), "r", NOW_MS)))


def test_instances_of_one_host_are_one_host() -> None:
    view = view_of(*(member(number, failure_domain={"host": "box"}) for number in range(1, 4)))
    assert "needs 3 distinct hosts for 3 replicas and has 1: box (i1, i2, i3)" in refusal(view, shop(view), created())


@pytest.mark.parametrize("tablets", [12, 1 << 15])
def test_a_wrong_number_of_tablets_is_refused(tablets: int) -> None:
    view = cluster(3)
    assert "tablets" in refusal(view, shop(view), created(tablets=tablets))


def test_too_much_at_once_is_refused_with_the_numbers() -> None:
    view = cluster(3)
    tables = shop(view)
    many = Bulk([created(f"t{n}", tablets=1) for n in range(990)])
    assert "writes 992 records, and at most 960 go into one version" in refusal(view, tables, many)
    large = Bulk([created(f"t{n}", tablets=1 << 14) for n in range(3)])
    assert "places 147456 replicas of tablets, and at most 100000" in refusal(view, tables, large)
    assert plan_change(view, tables, Bulk([created(f"t{n}") for n in range(100)]), "r", NOW_MS).version == 2


def test_another_replication_of_a_keyspace_with_tables_moves_nothing_by_itself() -> None:
    view = cluster(5)
    tables = shop(view, created(), replication=2)
    planned = plan_change(view, tables, AlterKeyspace("shop", 5), "r", NOW_MS)
    assert not any(key.startswith(b"tablets/") for key in (*planned.puts, *planned.deletes))
    assert planned.texts == ("keyspace shop has the replication dc1: 5 at version 3",)
    # Whoever is asked to go meanwhile was counted.
    assert {request_key(1), job_key(1)} <= planned.depends
    take(tables, planned)
    assert tables.catalog.keyspaces["shop"].replication == {"dc1": 5}
    assert len(tables.maps[1].replicas(0)) == 2


def test_a_replication_that_hosts_are_missing_for_is_refused_with_the_numbers() -> None:
    view = view_of(member(1), member(2, failure_domain={"host": "i1"}), member(3), member(4, grades=DOWN))
    tables = shop(view, created(), replication=1)
    assert refusal(view, tables, AlterKeyspace("shop", 4)) == (
        "the replication of shop can't be dc1: 4: data centre dc1 needs 4 distinct hosts for 4 replicas and has 3: i1 "
        "(i1, i2), i3, i4; add instances on other hosts, or lower the replication"
    )
    plan_change(view, tables, AlterKeyspace("shop", 3), "r", NOW_MS)  # i4 is down, and may come back
    leaving = view_of(*view.instances.values(), requests={1: RequestRecord(RequestKind.LEAVE, raft_id=3)})
    assert "has 2: i1 (i1, i2), i4" in refusal(leaving, tables, AlterKeyspace("shop", 3))
    assert "(not counted, because they come or go: i3)" in refusal(leaving, tables, AlterKeyspace("shop", 3))


def test_a_keyspace_without_tables_may_have_any_replication() -> None:
    view = cluster(2)
    planned = plan_change(view, shop(view, replication=1), AlterKeyspace("shop", 9), "r", NOW_MS)
    assert planned.puts


def test_a_tablet_has_a_limited_number_of_replicas_in_all_data_centres() -> None:
    view = view_of(*(member(number, failure_domain={"dc": f"dc{number % 5}"}) for number in range(1, 81)))
    tables = TableView()
    for command in (CreateKeyspace("shop", {"dc1": 1}), created()):
        take(tables, plan_change(view, tables, command, "", NOW_MS))
    asked = AlterKeyspace("shop", {f"dc{number}": 13 for number in range(5)})
    assert refusal(view, tables, asked) == "shop: a tablet has at most 64 replicas in all data centres"


def test_a_replication_may_name_another_data_centre() -> None:
    view = view_of(member(1), member(2, failure_domain={"dc": "dc2"}))
    tables = TableView()
    for command in (CreateKeyspace("shop", {"dc1": 1}), created()):
        take(tables, plan_change(view, tables, command, "", NOW_MS))
    take(tables, plan_change(view, tables, AlterKeyspace("shop", {"dc2": 1}), "", NOW_MS))
    assert tables.catalog.keyspaces["shop"].replication == {"dc2": 1}
    assert "data centre dc2 needs 2 distinct hosts" in refusal(view, tables, AlterKeyspace("shop", {"dc2": 2}))


def test_with_a_table_goes_what_was_under_way_with_its_tablets() -> None:
    view = cluster(4)
    tables = shop(view, created(), created("orders"), replication=3)
    moving = TabletTransition((1, 2, 4), TransitionKind.MIGRATION, session="move-1")
    for table in (1, 2):
        tables.change(transition_key(table, 3), encode(moving), 9)
        tables.change(rebalance_key(table), encode(RebalanceRecord(RebalanceState.RUNNING)), 9)
    planned = plan_change(view, tables, DropTable("shop", "users"), "r", NOW_MS)
    assert set(planned.deletes) == {chunk_key(1, 0), transition_key(1, 3), rebalance_key(1), b"sessions/move-1"}
    take(tables, planned)
    assert set(tables.transitions) == {2} and set(tables.rebalances) == {2}
