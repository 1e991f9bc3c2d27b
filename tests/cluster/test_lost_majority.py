"""The majority of a real cluster is lost for good: what `trimtab recover` refuses, what it saves, and what follows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.instances import BRISK, Instances, loopback, number_of
from tests.cluster.watching import run
from tests.conftest import Processes

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def recover(*arguments: str | Path) -> tuple[int, str]:
    """The exit code, and what was said."""
    command = [sys.executable, "-m", "trimtab", "recover", "--data-dir", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_cluster_that_lost_its_majority_goes_on_from_the_survivor_with_the_highest_log(
    processes: Processes, tmp_path: Path
) -> None:
    cluster = Instances(processes, tmp_path, loopback(7), options=BRISK)
    one, two, three = (cluster.data_dir(number) for number in (1, 2, 3))

    async def put(key: bytes) -> None:
        async with cluster.client() as client:
            await client.metastore.put(key, b"here")
        # A majority has it; the one that will survive need not be of that.
        async with cluster.client(1, follow_leader=False) as survivor:

            async def there() -> bool:
                return await survivor.metastore.get(key, linearizable=False) is not None

            await cluster.wait_for(there, f"i1 has {key!r}")

    async def story() -> None:
        cluster.start(1, 2, 3, 4, 5)
        await cluster.online()
        await cluster.vote(1, 2, 3, 4, 5)
        await put(b"early")
        before = await cluster.view()

        code, said = recover(one)
        assert code == 1 and "is in use by process" in said, "a running instance must be left alone"

        cluster.kill(3)
        code, said = recover(three)
        assert code == 1 and "of 5 voters are there, which is a majority; just start i3" in said
        await put(b"late")
        cluster.kill(2, 4, 5)
        code, said = recover(three)
        assert code == 1 and "i1 has more in its log" in said and "stop it, and recover from its directory" in said
        cluster.kill(1)
        code, said = recover(three, "--compare", one)
        assert code == 1 and "i1 has more in its log" in said and f"recover from {one}" in said
        code, said = recover(one, "--compare", three, "--json")
        assert code == 0 and json.loads(said)["recovered"] is False, "without --confirm it only looks"
        code, said = recover(one, "--compare", three, "--confirm", "another")
        assert code == 2 and "--confirm must name the cluster, which is 'trimtab', not 'another'" in said

        shutil.rmtree(two)
        code, said = recover(one, "--compare", three, "--confirm", "trimtab")
        assert code == 0, said
        cluster.start(1)
        await cluster.online()
        cluster.start(6, 7, peers=[1])
        await cluster.online()
        after = await cluster.view()
        assert after.genesis != before.genesis
        await cluster.vote(1, 6, 7)
        assert min(each.raft_id for each in after.instances if each.record.instance_id in ("i6", "i7")) > 5
        async with cluster.client() as client:
            for key in (b"early", b"late"):
                entry = await client.metastore.get(key)
                assert entry is not None and entry.value == b"here"

        # One of the lost comes back after all.
        cluster.start(3)
        cluster.until(lambda: "if one was recovered (`trimtab recover`), start the others" in cluster.output(3), "told")
        assert cluster.stop(3) == 0
        assert (await cluster.row(3)).record == next(each.record for each in after.instances if number_of(each) == 3)

    run(story())
