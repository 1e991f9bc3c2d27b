"""From the running cluster to the balancer, and back to proposals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from tests.unit.tablets.moving_tables import USERS, MovingTables
from tests.unit.topology.clusters import ONLINE

from trimtab.tablets.balancer.live import FLOOR_BYTES, cluster_of, proposals
from trimtab.tablets.balancer.model import Cluster
from trimtab.tablets.balancer.planning import plan
from trimtab.tablets.selectors import Stage
from trimtab.tablets.sizes import GONE
from trimtab.tablets.transitions import Cause, Proposal
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.states import NodeState

MIB = 1 << 20


class Sizes:
    """Every tablet has the same size, but for those in `others`."""

    def __init__(self, size: int = 100 * MIB, **others: int) -> None:
        self._size = size
        self._others = {int(name[1:]): size for name, size in others.items()}
        self.left: dict[int, int] = {}
        self.held: dict[int, int] = {}  # what somebody has of each tablet that is on its way there

    def size(self, table: int, tablet: int, replicas: Sequence[int]) -> int:
        assert table == USERS and replicas
        if len(replicas) == 1 and replicas[0] in self.held:
            return self.held[replicas[0]]
        return self._others.get(tablet, self._size)

    def free(self, raft_id: int) -> int:
        return self.left.get(raft_id, GONE)


def made(world: MovingTables, **options: object) -> Cluster:
    sizes = options.pop("sizes", Sizes())
    return cluster_of(world.view, world.tables, sizes, **options)  # type: ignore[arg-type]


def proposed(world: MovingTables, **options: object) -> tuple[Proposal, ...]:
    cluster = made(world, **options)
    return proposals(plan(cluster), cluster, world.tables, world.revision)


def states(cluster: Cluster) -> dict[str, str]:
    return {node.id: node.state.value for node in cluster.nodes}


def on(*replicas: tuple[int, ...], instances: int) -> MovingTables:
    return MovingTables(replicas, instances=instances)


OFFLINE = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.OFFLINE, 1))


def test_instances_are_what_their_records_and_requests_say() -> None:
    world = on((1, 2, 3), (1, 2, 3), instances=8)
    world.instance(4, grades=OFFLINE, weight=0.0)
    world.instance(5, state=NodeState.DECOMMISSIONING)
    world.instance(6, state=NodeState.REMOVING)
    world.instance(7, state=NodeState.BOOTSTRAPPING)
    world.instance(8, state=NodeState.LEFT)
    assert states(made(world, lost={1}, draining={2})) == {
        "i1": "dead",
        "i2": "draining",
        "i3": "normal",
        "i4": "down",
        "i5": "draining",
        "i6": "dead",
    }


def test_one_that_left_is_still_named_while_a_tablet_names_it() -> None:
    world = on((1, 2), (1, 2), instances=3)
    world.instance(1, state=NodeState.LEFT, instance_id="i9")
    world.instance(3, instance_id="i9", replaces=1)
    cluster = made(world)
    assert states(cluster) == {"i9 (1)": "dead", "i2": "normal", "i9": "normal"}
    assert cluster.nodes[2].replaces == "i9 (1)"
    found = proposed(world)
    assert [(each.target, each.cause) for each in found] == [((2, 3), Cause.HEAL)] * 2
    assert found[0].why == "i9 (1) is lost: 1 of 2 replicas are left in dc1" and found[0].was == (1, 2)


def test_a_new_instance_takes_replicas_over_one_at_a_time() -> None:
    world = on(*[(1, 2, 3)] * 8, instances=4)
    found = proposed(world)
    assert len(found) == 6 and len({each.tablet for each in found}) == 6
    for each in found:
        assert each.cause is Cause.BALANCE and len(each.target) == 3 and 4 in each.target
        assert each.was == (1, 2, 3) and each.trigger == world.revision and each.size_bytes == 100 * MIB
        # It takes the place of the one that leaves.
        assert all(old == new or new == 4 for old, new in zip(each.was, each.target, strict=True))


def test_a_tablet_moves_one_replica_in_a_transition_the_others_later() -> None:
    world = on(*[(1, 2)] * 6, instances=2)
    for raft_id in (3, 4, 5, 6):
        world.instance(raft_id)
    rounds = 0
    while found := proposed(world):
        rounds += 1
        assert rounds < 6
        for each in found:
            assert len(set(each.was) - set(each.target)) == 1
        replicas = {each.tablet: each.target for each in found}
        stable = [replicas.get(tablet, world.tables.maps[USERS].replicas(tablet)) for tablet in range(6)]
        world = on(*stable, instances=6)
    assert rounds == 2
    assert world.tables.loads() == dict.fromkeys(range(1, 7), 2)


def test_lost_and_drained_replicas_of_one_tablet_go_in_one_transition() -> None:
    world = on((1, 2, 3), (1, 2, 3), instances=5)
    found = proposed(world, lost={1}, draining={2})
    assert [sorted(each.target) for each in found] == [[3, 4, 5]] * 2
    assert {each.cause for each in found} == {Cause.HEAL}
    assert found[0].why == "i1 is lost: 2 of 3 replicas are left in dc1; i2 is being drained"


def test_tablets_under_way_count_as_done() -> None:
    world = on(*[(1, 2, 3)] * 8, instances=4)
    for tablet in range(6):
        leaves = tablet % 3 + 1
        world.under_way(tablet, tuple(4 if each == leaves else each for each in (1, 2, 3)), Stage.STREAMING)
    assert not proposed(world)


def test_what_is_undone_counts_as_not_begun_and_is_left_alone() -> None:
    world = on(*[(1, 2, 3)] * 8, instances=4)
    world.under_way(0, (4, 2, 3), Stage.CLEANUP_TARGET)
    found = proposed(world)
    assert len(found) == 6 and 0 not in {each.tablet for each in found}


def test_a_busy_tablet_is_left_alone() -> None:
    world = on(*[(1, 2, 3)] * 8, instances=4)
    found = proposed(world, busy={(USERS, tablet) for tablet in range(5)})
    assert {each.tablet for each in found} == {5, 6, 7}


@pytest.mark.parametrize(
    ("stage", "locked", "again"),
    [(Stage.STREAMING, False, True), (Stage.WRITE_BOTH_READ_NEW, True, False)],
)
def test_a_target_that_nobody_wants_any_more_is_planned_anew_until_it_is_locked(
    stage: Stage, locked: bool, again: bool
) -> None:
    world = on(*[(1, 2)] * 4, instances=4)
    world.under_way(0, (1, 4), stage, locked=locked)
    found = {each.tablet: each for each in proposed(world, lost={4})}
    assert (0 in found or not made(world, lost={4}).busy[0]) == again


def test_a_copy_to_an_instance_that_is_lost_gets_another_target() -> None:
    world = on((1, 2), (1, 2), instances=5)
    world.under_way(0, (1, 4), Stage.STREAMING)
    found = {each.tablet: each.target for each in proposed(world, lost={4}, draining={2})}
    assert found[0] in ((1, 3), (1, 5)) and found[1] in ((1, 3), (1, 5)) and found[0] != found[1]


def test_a_short_outage_moves_nothing() -> None:
    world = on((1, 2), (2, 3), (1, 3), instances=4)
    world.instance(4, grades=OFFLINE, weight=0.0)
    world.instance(3, grades=Grades(Standing(Grade.OFFLINE, 1), ONLINE.target), weight=0.0)
    assert not proposed(world)


def test_small_differences_of_what_disks_had_free_are_no_reason_to_move() -> None:
    world = on(*[(1, 2)] * 8, instances=3)
    for raft_id, size in ((1, 1000), (2, 950), (3, 800)):
        world.instance(raft_id, capacity_bytes=size << 30)
    assert {node.capacity_bytes for node in made(world).nodes} == {800 << 30}
    world.instance(3, capacity_bytes=300 << 30)
    assert [node.capacity_bytes >> 30 for node in made(world).nodes] == [950, 950, 300]


def test_weights_of_nothing_and_a_half_and_one_get_shares_of_nothing_and_one_and_two() -> None:
    """Who is not Online has no weight; of the others, the capacity is their weight."""
    world = on(*[(3,)] * 30, instances=3)
    world.instance(1, grades=OFFLINE, weight=0.0, capacity_bytes=100 << 30)
    world.instance(2, capacity_bytes=50 << 30)
    world.instance(3, capacity_bytes=100 << 30)
    found = plan(made(world))
    assert [int((found.replicas == node).sum()) for node in range(3)] == [0, 10, 20]


def test_nothing_goes_to_a_disk_that_others_have_filled() -> None:
    world, sizes = on(*[(1,)] * 12, instances=3), Sizes(100 * MIB)
    for raft_id in (1, 2, 3):
        world.instance(raft_id, capacity_bytes=100 << 30)
    sizes.left = {2: 250 * MIB, 3: 0}
    cluster = made(world, sizes=sizes)
    found = plan(cluster)
    assert [move.target for move in found.moves] == [1, 1], "there is room for two, and none on the third"
    sizes.left = {2: 50 << 30, 3: 50 << 30}
    assert len(plan(made(world, sizes=sizes)).moves) == 8


def test_what_is_on_its_way_needs_room_before_it_is_there() -> None:
    world, sizes = on(*[(1,)] * 12, instances=2), Sizes(100 * MIB)
    sizes.left = {2: 250 * MIB}
    assert [node.free_bytes for node in made(world, sizes=sizes).nodes] == [None, 250 * MIB]
    for tablet in (0, 1):
        world.under_way(tablet, (2,), Stage.STREAMING)
    sizes.held[2] = 0
    assert made(world, sizes=sizes).nodes[1].free_bytes == 50 * MIB
    sizes.held[2] = 60 * MIB
    assert made(world, sizes=sizes).nodes[1].free_bytes == 170 * MIB, "some of it has come"
    sizes.left[2] = 10 * MIB
    assert made(world, sizes=sizes).nodes[1].free_bytes == 0


def test_who_tells_no_capacity_counts_as_the_smallest() -> None:
    world = on((1, 2), (1, 2), instances=3)
    world.instance(1, capacity_bytes=100)
    assert [node.capacity_bytes for node in made(world).nodes] == [100, 100, 100]


def test_tablets_of_unknown_size_are_taken_for_as_large_as_the_others() -> None:
    world = on((1,), (1,), (1,), (1,), instances=2)
    cluster = made(world, sizes=Sizes(10 * MIB, t1=GONE, t2=30 * MIB))
    assert cluster.bytes.tolist() == [10 * MIB, 50 * MIB // 3, 30 * MIB, 10 * MIB]
    assert made(world, sizes=Sizes(GONE)).bytes.tolist() == [0] * 4


def test_nearly_empty_tablets_are_balanced_by_their_number() -> None:
    world = on(*[(1,)] * 8, instances=2)
    sizes = Sizes(100, **{f"t{tablet}": 50_000 * tablet for tablet in range(8)})
    assert made(world, sizes=sizes).floor_bytes == FLOOR_BYTES
    assert len(proposed(world, sizes=sizes)) == 4


def test_importing_it_does_not_import_numpy() -> None:
    code = "import sys, trimtab.tablets.balancer.live; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
