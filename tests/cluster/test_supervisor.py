"""A real supervisor and a child that does what the test wants: crashes, words, signals, and the end of both."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Processes

pytestmark = pytest.mark.cluster


class Supervised:
    """One supervisor with its directory, what it wrote, and the children it has had."""

    def __init__(self, processes: Processes, folder: Path, story: str) -> None:
        self.data_dir = folder / "data"
        self._log = folder / "log"
        self._lives = folder / "lives"
        self._processes = processes
        self.process = self.start(story)

    def start(self, story: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.cluster.fake_child", str(self.data_dir), story]
        return self._processes.start(command, output=self._log)

    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def lives(self) -> list[tuple[str, int, float]]:
        lines = self._lives.read_text().splitlines() if self._lives.exists() else []
        return [(phase, int(pid), float(at)) for phase, pid, at in (line.split() for line in lines)]

    def until(self, happened: Callable[[], bool], timeout_s: float = 90) -> None:
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < deadline and self.process.poll() is None, self.output()
            time.sleep(0.005)

    def lives_for(self, number: int) -> int:
        """Wait for the nth child; its pid."""
        self.until(lambda: len(self.lives()) >= number)
        return self.lives()[number - 1][1]

    def ended(self) -> int:
        return self.process.wait(60)


@pytest.fixture
def supervised(processes: Processes, tmp_path: Path) -> Callable[[str], Supervised]:
    return lambda story: Supervised(processes, tmp_path, story)


def test_a_crashed_child_is_started_again_later_each_time(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("crashes_three_times")
    it.lives_for(4)
    first, second, third, fourth = (at for _, _, at in it.lives())
    assert second - first >= 0.2 and third - second >= 0.4 and fourth - third >= 0.8
    for told in ("was ended by SIGKILL; starting it again in 0.2 s", "RuntimeError: a defect", "ended with code 3"):
        assert told in it.output()


@pytest.mark.parametrize("story", ["bootstraps", "bootstraps_without_what_is_loaded_ahead"])
def test_what_members_need_is_loaded_once_while_a_new_instance_is_none_yet(
    supervised: Callable[[str], Supervised], story: str
) -> None:
    it = supervised(story)
    it.until(lambda: "child can be told" in it.output())
    ahead = it.data_dir.parent / "ahead"
    assert ahead.read_text().split() == [str(it.process.pid)]
    assert [phase for phase, _, _ in it.lives()] == ["discover", "boot"]
    assert ("could not be loaded ahead" in it.output()) == (story != "bootstraps")
    it.process.terminate()
    assert it.ended() == 0
    it.process = it.start("serves")
    it.until(lambda: it.output().count("child can be told") == 2)
    assert len(ahead.read_text().split()) == 1, "an instance that was here before serves at once"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_passes_the_word_on_and_ends_with_code_zero(
    supervised: Callable[[str], Supervised], number: signal.Signals
) -> None:
    it = supervised("serves")
    it.until(lambda: "child can be told" in it.output())
    it.process.send_signal(number)
    assert it.ended() == 0 and f"child told by {number.name}" in it.output()


def test_a_child_that_has_no_handlers_yet_is_stopped_too(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("closes_its_mouth")
    it.lives_for(1)
    it.process.terminate()
    assert it.ended() == 0


def test_a_hang_up_ends_nobody(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("serves")
    child = it.lives_for(1)
    os.killpg(it.process.pid, signal.SIGHUP)
    it.process.terminate()
    assert it.ended() == 0 and [pid for _, pid, _ in it.lives()] == [child]


def test_a_killed_supervisor_takes_its_child_with_it(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("hangs")
    child = os.pidfd_open(it.lives_for(1))
    os.kill(it.process.pid, signal.SIGKILL)
    ended, _, _ = select.select([child], [], [], 60)
    os.close(child)
    assert ended, "the child lives on"
    assert it.ended() == -signal.SIGKILL


def test_a_supervisor_can_be_started_again_at_once_after_a_kill(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("hangs")
    it.lives_for(1)
    os.kill(it.process.pid, signal.SIGKILL)
    it.ended()
    it.process = it.start("serves")
    it.lives_for(2)
    assert "in use" not in it.output()


def test_a_rebootstrap_drops_the_database_and_keeps_the_identity(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("bootstraps")
    it.lives_for(2)
    assert [phase for phase, _, _ in it.lives()] == ["discover", "boot"]
    assert {entry.name for entry in it.data_dir.iterdir()} == {"instance.json", "lock"}


def test_a_directory_of_another_instance_is_never_dropped(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("drops_what_is_not_its_own")
    assert it.ended() == 1
    assert "holds the data of instance 'another', not of 'i1', so nothing in it is removed" in it.output()


def test_a_fatal_word_ends_it_with_the_reason_and_no_other_child(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("is_rejected")
    assert it.ended() == 1
    assert len(it.lives()) == 1
    assert it.output().splitlines()[-1].endswith("i1 error: rejected: the key rack is missing in its failure domain")


def test_a_child_that_does_not_end_is_killed_after_the_limit(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("hangs")
    it.until(lambda: _ignores(it.lives_for(1), signal.SIGTERM))
    it.process.terminate()
    assert it.ended() == 1
    assert "did not end within 1 s of being told to, and was killed" in it.output()


def test_a_second_supervisor_on_the_same_directory_is_refused(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("serves")
    it.lives_for(1)
    second = it.start("serves")
    assert second.wait(60) == 1
    assert f"is in use by process {it.process.pid}; stop that instance first" in it.output()
    assert it.process.poll() is None and len(it.lives()) == 1


def test_what_is_no_word_is_logged_and_harms_nothing(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("babbles")
    it.until(lambda: "more than 4096 bytes" in it.output())
    assert "something that is no word" in it.output()
    it.process.terminate()
    assert it.ended() == 0 and len(it.lives()) == 1


def test_told_to_stop_while_it_waits_to_start_again_it_ends_at_once(supervised: Callable[[str], Supervised]) -> None:
    it = supervised("crashes")
    it.until(lambda: "starting it again in 600 s" in it.output())
    it.process.terminate()
    assert it.ended() == 0 and len(it.lives()) == 1


@pytest.mark.parametrize("story", ["serves", "closes_its_mouth"])
def test_idle_it_does_nothing_and_is_small(supervised: Callable[[str], Supervised], story: str) -> None:
    it = supervised(story)
    child = it.lives_for(1)
    it.until(lambda: _state(child) == "S")
    if story == "closes_its_mouth":
        it.until(lambda: "closed" in it.output())

    def does_nothing() -> bool:
        before = _switches(it.process.pid)
        time.sleep(0.5)
        return _switches(it.process.pid) - before <= 2

    # What it begins with, and the end of the pipe, take their time on a busy machine.
    it.until(does_nothing)
    assert _pss_kb(it.process.pid) < 20_000


def _status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{field}:"))


def _state(pid: int) -> str:
    return _status(pid, "State")[0]


def _ignores(pid: int, number: int) -> bool:
    return bool(int(_status(pid, "SigIgn"), 16) >> (number - 1) & 1)


def _switches(pid: int) -> int:
    return int(_status(pid, "voluntary_ctxt_switches")) + int(_status(pid, "nonvoluntary_ctxt_switches"))


def _pss_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
