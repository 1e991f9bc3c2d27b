"""A rollback while some are cut off: nobody acknowledges writes into what was dropped, once that is called done."""

from __future__ import annotations

import pytest

from tests.sim.governed_world import cut, leader, others
from tests.sim.test_loads import Loads, all_names
from tests.sim.test_rows import instance, shop
from trimtab.loads import protocol as loads
from trimtab.loads.protocol import RollbackRequest
from trimtab.loads.records import LoadKind
from trimtab.net.errors import RpcError
from trimtab.node import failpoints
from trimtab.tablets.consistency import Level


def test_a_rollback_is_not_done_while_somebody_who_has_not_heard_of_it_may_take_writes() -> None:
    with shop() as rows:
        chief = leader(rows.cluster)
        apart = others(rows.cluster, chief)[0]
        loader = Loads(rows)
        rows.put(chief, 1, "old", Level.ALL)
        loader.run("one", {2: "new"}, LoadKind.OVERWRITE)
        cut(rows.cluster, apart)
        rows.put(apart, 4, "taken: it has a lease for a while", Level.ONE)
        rollback = RollbackRequest(rows.users.id, "one", True)
        with pytest.raises(RpcError, match="could not be told") as refused:
            loader.ask(loads.ROLLBACK, rollback, chief)
        assert refused.value.code == "not_ready"
        down = instance(apart).raft_id
        rows.cluster.until(
            lambda: instance(chief).watching.view.instances[down].grades.current.grade.value == "Offline", 60.0, "down"
        )
        reply = loads.decode_rollback_reply(loader.ask(loads.ROLLBACK, rollback, chief))
        assert reply.applied and reply.generation == 1
        # It does not know of it; but it may not take anything any more.
        assert instance(apart).watching.loads.generation(rows.users.id) == 2
        with pytest.raises(RpcError):
            rows.put(apart, 3, "lost", Level.ONE)
        assert all_names(rows, chief) == {1: "old"}


def test_who_has_heard_that_a_rollback_is_coming_takes_no_write_that_no_majority_confirms() -> None:
    with shop() as rows:
        chief = leader(rows.cluster)
        apart = others(rows.cluster, chief)[0]
        loader = Loads(rows)
        loader.run("one", {2: "new"}, LoadKind.OVERWRITE)
        rollback = RollbackRequest(rows.users.id, "one", True)
        # Between the announcement and the rollback.
        failpoints.arm("load.rollback.before", failpoints._raise)
        with pytest.raises(RpcError):
            loader.ask(loads.ROLLBACK, rollback, chief)
        failpoints.disarm()
        assert all(instance(machine).watching.loads.swapping(rows.users.id) for machine in rows.machines)
        rows.put(apart, 3, "confirmed", Level.ONE)
        cut(rows.cluster, apart)
        with pytest.raises(RpcError, match="0 answered"):
            rows.put(apart, 4, "not confirmed", Level.ONE)
        # Whoever leads withdraws what came to nothing.
        rows.cluster.until(lambda: not instance(chief).watching.loads.swapping(rows.users.id), 90.0, "withdrawn")
        assert all_names(rows, chief) == {2: "new", 3: "confirmed"}
