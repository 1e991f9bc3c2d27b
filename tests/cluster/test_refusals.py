"""What a real cluster does not let in: each is told why in one line, ends with code 1, and changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.instances import Instances, loopback
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.topology.grades import Grade

pytestmark = pytest.mark.cluster


def test_whoever_does_not_belong_is_told_why_and_ends(processes: Processes, tmp_path: Path) -> None:
    cluster = Instances(processes, tmp_path, loopback(4))
    refused = {
        2: (
            ["--cluster-id", "other"],
            "belongs to the cluster 'trimtab', not to 'other'; correct --cluster-id or --peer",
        ),
        3: (["--failure-domain", "rack=r1", "--instance-id", "i1"], "instance id 'i1' is in use"),
        4: ([], "its failure domain lacks rack, which members have (such as i1); add --failure-domain rack="),
    }

    async def story() -> None:
        cluster.start(1, peers=[1], options=["--failure-domain", "rack=r1"])
        await cluster.online()
        before = await cluster.view()
        for number, (options, _) in refused.items():
            cluster.start(number, peers=[1], options=options)
        for number, (_, why) in refused.items():
            assert cluster.ended(number) == 1
            assert why in cluster.last_line(number)
        after = await cluster.view()
        assert after.instances[0].record == before.instances[0].record and len(after.instances) == 1
        assert after.version == before.version
        assert all(request.state.final for _, request in after.requests)
        assert await cluster.is_now(1, Grade.ONLINE)

    run(story())


def test_the_last_member_is_not_expelled_and_a_stranger_is_not_found(processes: Processes, tmp_path: Path) -> None:
    cluster = Instances(processes, tmp_path, loopback(1))

    def expel(name: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "trimtab", "expel", name, "--peer", cluster.listen[1]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    cluster.start(1)
    run(cluster.online())
    code, said = expel("i1")
    assert code == 1 and "i1 is the last" in said
    code, said = expel("i9")
    assert code == 1 and "i9" in said
    assert run(cluster.is_now(1, Grade.ONLINE)) and run(cluster.view()).requests == []
