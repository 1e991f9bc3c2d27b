"""Every replica of an instance has its turn to be folded, however many there are and however often others are due."""

from __future__ import annotations

from tests.sim.moving_world import moving
from trimtab.node.replicas.replica import Replica


def test_no_replica_waits_for_ever_because_those_before_it_are_due_again() -> None:
    """A walk takes its time. By when the first few are walked the first is due again; the last never had their turn.

    What was deleted in those was never forgotten, and what expired in them never went.
    """
    with moving(3, 3, tablets=4, forgetful=True) as world:
        folding = world.leader().instance.holdings.folding  # type: ignore[union-attr]
        walk, walked = folding.walk, set[str]()

        async def told(replica: Replica) -> bool:
            walked.add(replica.name)
            return await walk(replica)

        folding.walk = told  # type: ignore[method-assign]
        names = {replica.name for replica in folding._replicas()}
        world.pass_time(3 * len(names) * (folding.pace.look_every_s + folding.pace.rest_s))
        assert walked >= names, f"never walked: {sorted(names - walked)}"
