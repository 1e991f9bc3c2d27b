"""Fixtures that every ring of tests may use: where the vectors are, free ports, and processes that are always ended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import processes as processes_of_benchmarks
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
# Tests run in several processes side by side, and so may whole runs of them, in other checkouts; each process has ports
# of its own to hand out.
_SHARES = 16
_PORTS = 22_000 // _SHARES // 10 * 10
# Where Python is told to keep no compiled files, every process that a test starts compiles all of ours once more.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# And the lowest priority, which Spark would choose, would get nothing beside the others.
os.environ.setdefault("TRIMTAB_SPARK_PRIORITY", "normal")
# Sessions of tests are short and small: Java's better compiler would be at it for longer than they have use for what it
# makes, and so would threads that collect garbage side by side.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_options, QUICK_JAVA)


def _share_of_ports() -> int:
    """A share that no other process of tests has; any, where all are taken."""
    shares = random.sample(range(_SHARES), _SHARES)
    for share in shares:
        with contextlib.suppress(OSError):
            _claim.bind(f"\0trimtab tests, ports {share}")
            return share
    return shares[0]


# Its name is no file, belongs to the network that the ports belong to, and is free again when this process ends.
_claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
_SHARE = _share_of_ports()
os.environ["TRIMTAB_PORTS"] = f"{10_000 + _SHARE * _PORTS}-{10_000 + (_SHARE + 1) * _PORTS}"
# The cluster that whoever runs the tests has running is none of their business, nor is theirs anybody else's.
_state = tempfile.TemporaryDirectory(prefix="trimtab-tests-")
os.environ["XDG_STATE_HOME"] = _state.name
for _name in ("TRIMTAB_CONTACT", "TRIMTAB_LOCAL_DIR"):
    os.environ.pop(_name, None)
# A shell that starts a background job has it ignore SIGINT, and what ignores a signal hands that down to all that it
# starts: nobody whom a test interrupts would hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same examples each time, however slow the machine is today. What is new is looked for with a profile of one's own.
settings.register_profile(
    "same",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("same")
Report = Generator[None, pytest.TestReport, pytest.TestReport]


# What takes longest begins first, so that no process is left alone with it at the end.
_FIRST = ("tests/spark/", "tests/sim/test_planted_bugs.py", "tests/cluster/", "tests/sim/")
# These have a Spark of their own.
_APART = tuple(f"tests/spark/test_{name}.py" for name in ("killed", "standalone", "driver", "streams", "moves", "demo"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        return next((place for place, path in enumerate(_FIRST) if item.nodeid.startswith(path)), len(_FIRST))

    items.sort(key=turn)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file stay in one process; so do the tests of Spark that share a session and a cluster."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-not-found, import-untyped, unused-ignore]

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "spark" if path.startswith("tests/spark/") and path not in _APART else path

    return Together(config, log)


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


class FailuresAtOnce:
    """Tells of a failure when it happens: a run takes a quarter of an hour, and pytest keeps them for its end."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            last = report.longreprtext.rstrip().rpartition("\n")[2][:300]
            self._terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}): {last}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, pytest.TerminalReporter):
        config.pluginmanager.register(FailuresAtOnce(terminal), "failures-at-once")


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
        process.wait(60)

    def stop(self, process: subprocess.Popen[bytes], timeout_s: float = 60) -> int:
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
            elif group_exists(process.pid) and not group_ends(process.pid, timeout_s=20):
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
