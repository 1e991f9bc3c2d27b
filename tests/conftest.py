"""Fixtures that every ring of tests may use: where the vectors are, free ports, and processes that are always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import pytest
from benchmarks import processes as processes_of_benchmarks

ROOT = Path(__file__).resolve().parents[1]
Report = Generator[None, pytest.TestReport, pytest.TestReport]


@pytest.fixture(scope="session")
def project_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Path]:
    """The folder of a kind of public vectors: `vectors("raft/quorum")`.

    They are not part of the project. Where TRIMTAB_VECTORS points at them their absence is a failure; elsewhere it is a
    skip that says so.
    """
    named = os.environ.get("TRIMTAB_VECTORS")
    base = Path(named) if named else ROOT.parent / "shared" / "vectors"

    def find(kind: str) -> Path:
        folder = base / kind
        if folder.is_dir():
            return folder
        text = f"no vectors at {folder}; set TRIMTAB_VECTORS to where they are"
        if named:
            pytest.fail(text)
        pytest.skip(text)

    return find


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Report:
    """With TRIMTAB_VECTORS set, a skipped test that uses vectors has failed: silence must not look like success."""
    report = yield
    if os.environ.get("TRIMTAB_VECTORS") and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "vectors" in getattr(item, "fixturenames", ()) or "vector" in reason.lower():
            report.outcome = "failed"
            report.longrepr = f"skipped although TRIMTAB_VECTORS is set: {reason}"
    return report


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """Distinct loopback ports that nobody listens on at the moment of asking."""
    return processes_of_benchmarks.free_ports


class Processes:
    """Starts processes, each in a group of its own, and ends them by their ids."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str | Path],
        *,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        output: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command; its output goes to the file `output`, or nowhere."""
        with (output or Path(os.devnull)).open("ab") as stream:
            process = subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL to the process and whatever it started in its group; returns when it is gone."""
        signal_group(process.pid, signal.SIGKILL)
        process.wait(10)

    def stop(self, process: subprocess.Popen[bytes], timeout_s: float = 10) -> int:
        """SIGTERM, as an operator would; the exit code. A process that does not end in time fails the test."""
        process.terminate()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill(process)
            pytest.fail(f"process {process.pid} did not end within {timeout_s} s of SIGTERM")

    def end_all(self) -> list[int]:
        """End what still runs; the groups that outlived their leader, which a test must not leave behind."""
        left = []
        for process in self.started:
            running = process.poll() is None
            if running:
                self.kill(process)
            elif group_exists(process.pid) and not group_ends(process.pid, timeout_s=2):
                left.append(process.pid)
                signal_group(process.pid, signal.SIGKILL)
        return left


def signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def group_ends(group: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while group_exists(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Processes of one test. All are ended with it; children that outlive their parent fail it."""
    mine = Processes()
    yield mine
    left = mine.end_all()
    if left:
        pytest.fail(f"processes of the groups {left} outlived the process that started them")
