"""Processes are known by more than their number, and end completely."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from tests.conftest import Processes

from trimtab.playground import processes as known_processes
from trimtab.playground.processes import Known, await_end, find_leader, known, lives, send, session_of, uptime_s

# A leader with a child; it says when both are there.
PAIR = "import os, time; os.fork() or time.sleep(60); print('up', flush=True); time.sleep(60)"


def until(holds: Callable[[], bool], timeout_s: float = 50) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def pair(processes: Processes) -> Known:
    started = processes.start([sys.executable, "-c", PAIR, "trimtab-test-pair", str(os.getpid())])
    found = known(started.pid)
    assert found is not None
    until(lambda: len(session_of(found)) == 2)
    return found


def test_a_process_is_known_again(pair: Known) -> None:
    assert lives(pair) and known(pair.pid) == pair
    assert 0 <= uptime_s(pair) < 60


def test_another_process_with_the_same_number_is_never_signalled(pair: Known) -> None:
    for other in (dataclasses.replace(pair, started=pair.started - 1), dataclasses.replace(pair, boot="another")):
        assert not lives(other)
        assert not send(other, signal.SIGKILL)
    assert lives(pair)


def test_a_session_ends_only_with_its_last_process(pair: Known) -> None:
    leader, child = session_of(pair)
    assert leader == pair
    assert send(leader, signal.SIGKILL)
    until(lambda: not lives(leader))
    assert await_end(pair, 0.2) == [child], "this child does not end with its parent"
    assert send(child, signal.SIGKILL)
    assert await_end(pair, 50) == []
    assert not send(leader, signal.SIGKILL)


def test_a_leader_is_found_by_its_command_line_and_its_child_is_not_taken_for_it(pair: Known) -> None:
    mark = ("trimtab-test-pair", str(os.getpid()))
    assert find_leader(*mark) == pair
    assert find_leader("trimtab-test-pair", "0") is None
    assert find_leader(mark[0], mark[1] + "0") is None


def test_what_is_left_of_a_dead_process_counts_as_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    found = known(process.pid)
    assert found is not None
    # Not waited for yet, so the kernel still has an entry for it.
    until(lambda: not lives(found))
    assert known(process.pid) is None
    process.wait()


def test_without_handles_the_signal_comes_right_after_the_comparison(
    pair: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(known_processes.os, "pidfd_open", refuse)
    assert not send(dataclasses.replace(pair, started=1), signal.SIGKILL)
    for each in session_of(pair):
        assert send(each, signal.SIGKILL)
    until(lambda: not session_of(pair))


def test_all_descendants_are_found_but_for_the_sessions_that_are_spared(pair: Known) -> None:
    found = {each.pid for each in known_processes.descendants(os.getpid())}
    children = {each.pid for each in session_of(pair)}
    assert len(children) == 2 and children <= found
    assert not children & {each.pid for each in known_processes.descendants(os.getpid(), spared=[pair.pid])}
