"""The driver with a real session of Spark: made once, shared by its jobs, made again when its Java died."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster.instances import Instances, loopback
from tests.conftest import Processes
from tests.spark.noise import without_sparks_own
from tests.spark.trio import STOP_S, WAIT_S
from trimtab.jobs.records import JobKind, JobState
from trimtab.pipeline.registry import VARIABLE
from trimtab.spark.sessions import PRIORITY_VARIABLE

pytestmark = pytest.mark.timeout(900)


def test_jobs_share_a_session_one_is_cancelled_alone_and_a_dead_java_is_replaced(
    processes: Processes, tmp_path: Path
) -> None:
    cluster = Instances(processes, tmp_path, loopback(1))
    log = tmp_path / "driver.log"

    async def tell() -> None:
        cluster.start(1, options=("--no-pipeline", "--bulk", "off"))
        await cluster.online()
        # Nobody else waits for its lease, so it need not lose it where the machine is busy.
        command = [sys.executable, "-m", "trimtab", "pipeline", "--spark-master", "local[2]"]
        command += ["--driver-lease-ms", "60000", "--peer"]
        env = {**os.environ, VARIABLE: "tests.spark.spark_jobs", PRIORITY_VARIABLE: "normal"}
        driver = processes.start([*command, cluster.listen[1]], output=log, env=env)
        async with cluster.client() as client:
            endless = await client.jobs.create(JobKind.VERIFY, max_attempts=1)
            first = await client.jobs.wait((await client.jobs.create(JobKind.COUNT)).number)
            assert (first.state, first.result["rows"]) == (JobState.SUCCEEDED, 1_000), log.read_text()

            job, progress = await client.jobs.get(endless.number)
            assert job.state is JobState.RUNNING
            async with asyncio.timeout(WAIT_S):
                while progress is None or progress.phase != "counting slowly":  # it is told with the next beat
                    await asyncio.sleep(0.1)
                    _, progress = await client.jobs.get(endless.number)
            await client.jobs.steer(endless.number, "cancel")
            cancelled = await asyncio.wait_for(client.jobs.wait(endless.number), WAIT_S)
            assert cancelled.state is JobState.CANCELLED

            # The session is the same, and the others' work was not touched.
            second = await client.jobs.wait((await client.jobs.create(JobKind.COUNT)).number)
            assert second.result["java"] == first.result["java"]
            assert second.result["group"] != first.result["group"]

            os.kill(first.result["java"], signal.SIGKILL)
            third = await client.jobs.wait((await client.jobs.create(JobKind.COUNT)).number)
            assert (third.state, third.result["rows"]) == (JobState.SUCCEEDED, 1_000), third.error
            assert third.result["java"] != first.result["java"]
        assert processes.stop(driver, timeout_s=STOP_S) == 0, log.read_text()
        assert "Traceback" not in without_sparks_own(log.read_text())

    asyncio.run(tell())
