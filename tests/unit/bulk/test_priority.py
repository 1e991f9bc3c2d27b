"""What works in bulk gives way to everybody, in a session of its own where sessions share the processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trimtab.bulk.priority import NICE, SESSION_NICE, session_nice

_GIVE_WAY = """
import os
from trimtab.bulk.priority import give_way
give_way(leave={leave})
print(os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0) == os.getpid(), flush=True)
input()
"""


@pytest.mark.parametrize("leave", [True, False])
def test_a_process_that_gives_way_leaves_its_session_only_if_it_may(leave: bool) -> None:
    before = session_nice(os.getpid())
    command = [sys.executable, "-c", _GIVE_WAY.format(leave=leave)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == [str(NICE), str(leave)]
        found = session_nice(process.pid)
        process.communicate("\n", timeout=60)
    if before is None:
        pytest.skip("sessions have no priority on this machine")
    assert found == (SESSION_NICE if leave else before)
    assert session_nice(os.getpid()) == before, "those who started it are as they were"
