"""The processes that seeds are shared out to."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

from tests.conftest import Processes


def test_workers_end_with_the_process_that_shares_out_seeds(processes: Processes) -> None:
    parent = processes.start([sys.executable, "-m", "trimtab", "sim", "--seeds", "0:100000"])
    listed = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + 90
    workers: list[int] = []
    while len(workers) < 2:  # a process that keeps track of resources is among them
        assert parent.poll() is None and time.monotonic() < deadline, "no worker began"
        time.sleep(0.02)
        workers = [int(pid) for pid in listed.read_text().split()]
    watched = [os.pidfd_open(pid) for pid in workers]
    os.kill(parent.pid, signal.SIGKILL)
    for each in watched:
        assert select.select([each], [], [], 60)[0], "a worker lives on"
        os.close(each)
