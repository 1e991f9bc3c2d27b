"""Clusters of real processes whose HTTP doors are open."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.instances import STEADY
from tests.conftest import Processes

WAIT_S = 90.0


class Doors:
    """`trimtab run` processes i1, i2, …, each with an HTTP port of its own."""

    def __init__(self, processes: Processes, folder: Path, ports: Sequence[int]) -> None:
        half = len(ports) // 2
        self._processes = processes
        self._folder = folder
        self.listen = [f"127.0.0.1:{port}" for port in ports[:half]]
        self.http = [f"127.0.0.1:{port}" for port in ports[half:]]
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def output(self, number: int) -> str:
        return (self._folder / f"i{number}.log").read_text()

    def start(self, *numbers: int, options: Sequence[str] = ()) -> None:
        """Start instances; does not wait."""
        for number in numbers:
            command = [sys.executable, "-m", "trimtab", "run", "--instance-id", f"i{number}"]
            command += ["--listen", self.listen[number - 1], "--http", self.http[number - 1]]
            command += ["--bulk", "off"]
            command += ["--data-dir", str(self._folder / f"i{number}"), "--failure-domain", f"host=h{number}"]
            for address in self.listen:
                command += ["--peer", address]
            self.running[number] = self._processes.start(
                [*command, *STEADY, *options], output=self._folder / f"i{number}.log"
            )

    def form(self) -> None:
        """Start all that do not run, and wait until every one is ready."""
        numbers = range(1, len(self.listen) + 1)
        self.start(*(number for number in numbers if number not in self.running))
        for number in numbers:
            self.until(lambda number=number: self.ready(number), f"i{number} is ready")

    def ready(self, number: int) -> bool:
        try:
            return self.get(number, "/ready").status_code == 200
        except httpx.TransportError:
            return False

    def get(self, number: int, path: str, **options: Any) -> httpx.Response:
        return httpx.get(f"http://{self.http[number - 1]}{path}", timeout=60, **options)

    def post(self, number: int, path: str, body: Any) -> httpx.Response:
        return httpx.post(f"http://{self.http[number - 1]}{path}", json=body, timeout=60)

    def ok(self, number: int, path: str) -> Any:
        """What a page shows; asked again while the cluster is between leaders."""
        return self._served(lambda: self.get(number, path), 200, f"i{number} serves {path}").json()

    def taken(self, number: int, path: str, body: Any) -> httpx.Response:
        """The answer to a request that is taken down; the same, asked again, is one request while it is under way."""
        return self._served(lambda: self.post(number, path, body), 202, f"i{number} takes {path} down")

    def _served(self, ask: Callable[[], httpx.Response], code: int, what: str) -> httpx.Response:
        found: list[httpx.Response] = []

        def served() -> bool:
            found[:] = [ask()]
            assert found[0].status_code in (code, 503, 504), found[0].text
            return found[0].status_code == code

        self.until(served, what)
        return found[0]

    def any_leader(self) -> int:
        """The same as `leader`, once there is one."""
        found = 0

        def known() -> bool:
            nonlocal found
            found = self.leader()
            return found != 0

        self.until(known, "somebody leads")
        return found

    def leader(self) -> int:
        """The number of the leader, as any running instance sees it; 0 while there is none."""
        for number in self.running:
            try:
                name = self.get(number, "/health").json()["leader"]
            except httpx.TransportError:
                continue
            if name and int(name[1:]) in self.running:
                return int(name[1:])
        return 0

    def kill(self, number: int) -> None:
        self._processes.kill(self.running.pop(number))

    def stop(self, number: int) -> int:
        return self._processes.stop(self.running.pop(number))

    def until(self, happened: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not happened():
            if time.monotonic() > deadline:
                said = "\n".join(f"--- i{number}\n{self.output(number)}" for number in self.running)
                raise AssertionError(f"never: {what}\n{said}")
            time.sleep(0.05)


def follow(url: str, after: int) -> Iterator[dict[str, Any]]:
    """Events of a stream; it ends when the other side does."""
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    with httpx.stream("GET", f"{url}/api/v1/events", headers=headers, timeout=WAIT_S) as stream:
        assert stream.status_code == 200
        try:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
        except httpx.TransportError:
            return
