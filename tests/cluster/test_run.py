"""A real `trimtab run`: it comes back after crashes, ends when told to, and says in a sentence why it can not start."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Processes

pytestmark = pytest.mark.cluster


class One:
    """One instance that is a cluster by itself."""

    def __init__(self, processes: Processes, folder: Path, ports: list[int]) -> None:
        self._processes = processes
        self.listen, self.http = (f"127.0.0.1:{port}" for port in ports)
        self.data_dir = folder / "data"
        self._log = folder / "log"

    def start(self, *options: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "trimtab", "run", "--instance-id", "i1", "--listen", self.listen]
        command += ["--http", self.http, "--bulk", "off", "--data-dir", str(self.data_dir), *options]
        self.process = self._processes.start(command, output=self._log, env={**os.environ, **(env or {})})
        return self.process

    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def until(self, happened: Callable[[], bool], timeout_s: float = 90) -> None:
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < deadline and self.process.poll() is None, self.output()
            time.sleep(0.01)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.http}/ready", timeout=2) as answer:
                return bool(json.load(answer)["ready"])
        except (urllib.error.URLError, OSError):
            return False

    def child(self) -> int:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(text.split()[0]) if text.split() else 0

    def last_line(self) -> str:
        """What it ended with: one line, and no traceback before it."""
        assert "Traceback" not in self.output(), self.output()
        return self.output().splitlines()[-1]


@pytest.fixture
def one(processes: Processes, free_ports: Callable[[int], list[int]], tmp_path: Path) -> One:
    return One(processes, tmp_path, free_ports(2))


def identity(one: One) -> dict[str, object]:
    found: dict[str, object] = json.loads((one.data_dir / "instance.json").read_text())
    return found


def test_a_cluster_of_one_comes_up_and_ends_when_told_to(one: One) -> None:
    one.start()
    one.until(one.ready)
    one.process.terminate()
    assert one.process.wait(60) == 0
    assert one.last_line().endswith(" i1 stopped")
    assert identity(one)["raft_id"] == 1


def test_a_killed_node_is_started_again_and_keeps_who_it_is(one: One) -> None:
    one.start()
    one.until(one.ready)
    before, first = identity(one), one.child()
    os.kill(first, signal.SIGKILL)
    one.until(lambda: one.child() not in (0, first) and one.ready())
    assert identity(one) == before
    assert "the node ended: it was ended by SIGKILL; starting it again in 0.2 s" in one.output()


@pytest.mark.parametrize("place", ["boot.persisted", "boot.logged", "boot.member"])
def test_killed_at_any_step_of_founding_it_founds_one_cluster(one: One, tmp_path: Path, place: str) -> None:
    one.start(env={"TRIMTAB_FAILPOINTS": f"{place}=kill:{tmp_path / 'killed'}"})
    one.until(one.ready)
    assert (tmp_path / "killed").exists() and identity(one)["raft_id"] == 1


def test_a_killed_supervisor_takes_the_node_with_it(one: One) -> None:
    one.start()
    one.until(one.ready)
    node = os.pidfd_open(one.child())
    one.process.kill()
    ended, _, _ = select.select([node], [], [], 60)
    os.close(node)
    assert ended
    one.process.wait(60)
    one.start()
    one.until(one.ready)


@pytest.mark.parametrize("which", ["listen", "http"])
def test_a_port_that_is_taken_is_a_sentence_and_code_one(one: One, which: str) -> None:
    address = getattr(one, which)
    host, port = address.split(":")
    with socket.create_server((host, int(port))):
        one.start()
        assert one.process.wait(60) == 1
    assert "could not start: " in one.last_line() and port in one.last_line()


def test_data_of_another_cluster_instance_or_version_is_refused_and_kept(one: One) -> None:
    one.start()
    one.until(one.ready)
    one.process.terminate()
    one.process.wait(60)
    kept = (one.data_dir / "instance.json").read_bytes()
    for options, says in (
        (["--cluster-id", "other"], "belongs to cluster 'trimtab'"),
        (["--instance-id", "i7"], "belongs to instance 'i1'"),
    ):
        one.start(*options)
        assert one.process.wait(60) == 1
        assert says in one.last_line()
    newer = {**identity(one), "format": 99}
    (one.data_dir / "instance.json").write_text(json.dumps(newer))
    one.start()
    assert one.process.wait(60) == 1 and "made by a newer version" in one.last_line()
    (one.data_dir / "instance.json").write_bytes(kept)
    one.start()
    one.until(one.ready)


@pytest.fixture
def read_only(one: One) -> Iterator[None]:
    """The data directory on a file system that takes no writes."""
    one.data_dir.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount the read-only file system of this test")
    command = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(one.data_dir)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"a tmpfs can't be mounted here: {made.stderr.strip()}")
    yield
    subprocess.run(["umount", "--lazy", str(one.data_dir)], check=True)


@pytest.mark.usefixtures("read_only")
def test_a_read_only_disk_is_a_sentence_and_code_one(one: One) -> None:
    one.start()
    assert one.process.wait(60) == 1
    assert "can't be used: Read-only file system; give --data-dir a directory" in one.last_line()


def test_a_log_that_nobody_can_write_stops_nothing(one: One) -> None:
    """Standard error is a pipe whose reader is gone."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "trimtab", "run", "--instance-id", "i1", "--listen", one.listen]
    command += ["--http", one.http, "--bulk", "off", "--data-dir", str(one.data_dir)]
    one.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
    os.close(reader)
    os.close(writer)
    try:
        one.until(one.ready)
        one.process.terminate()
        assert one.process.wait(60) == 0
    finally:
        one.process.kill()
        one.process.wait()
