"""Getting in while everybody dies: joiners killed after each step of the handshake, and the leader as it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.instances import Instances, loopback
from tests.cluster.mines import Mines
from tests.cluster.watching import run
from tests.conftest import Processes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# Who dies where.
STEPS = {4: "join.requested", 5: "join.persisted", 6: "join.acknowledged", 7: "join.started"}


def test_joiners_killed_after_each_step_of_the_handshake_get_in_once_under_their_first_uuid(
    processes: Processes, tmp_path: Path
) -> None:
    mines = Mines(tmp_path / "mines", ["join.answered"])
    cluster = Instances(processes, tmp_path, loopback(7), env=mines.env)
    killed = {number: tmp_path / f"killed-{number}" for number in STEPS}
    attempts: dict[int, tuple[str, str]] = {}

    def attempt(number: int) -> tuple[str, str]:
        identity = cluster.identity(number)
        return identity["uuid"], identity["nonce"]

    async def all_were_killed() -> bool:
        for number, file in killed.items():
            if number not in attempts and file.exists():
                attempts[number] = attempt(number)
        return len(attempts) == len(STEPS) and not mines.armed

    async def story() -> None:
        cluster.start(1, 2, 3)
        await cluster.online()
        mines.arm("join.answered")
        for number, step in STEPS.items():
            cluster.start(number, env={"TRIMTAB_FAILPOINTS": f"{step}=kill:{killed[number]}"})
        await cluster.wait_for(all_were_killed, "everybody is killed once", 120)
        await cluster.online()
        for number in STEPS:
            (row,) = await cluster.rows(number)
            assert (row.record.uuid, row.record.nonce) == attempts[number] == attempt(number)
            assert cluster.identity(number)["raft_id"] == row.raft_id
        view = await cluster.view()
        assert sorted(each.raft_id for each in view.instances) == [1, 2, 3, 4, 5, 6, 7]
        assert all(request.state.final for _, request in view.requests)

    run(story())
