"""The demo as a user runs it, a small one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.operator import BRISK
from tests.conftest import signal_group

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = int(os.environ.get("TRIMTAB_TEST_ROWS", "5000"))
WAIT_S = 400.0
ENDS_S = 20.0  # its processes are killed, which may take half of that
ACTS = (
    "three instances form a cluster",
    f"Spark loads {ROWS:,} rows × 3",
    "i4 joins",
    r"\d+ tablets moved to i4",
    "kill -9 of i[1-4], the leader",
    r"\d+ replicas made anew",
    "requests at QUORUM meanwhile",
    "99 % of them answered within",
    "all replicas compared by Spark",
    "all rows checked by Spark",
)


@contextlib.contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A demo that does not outlive the block; its instances end with it, unless it is done and keeps them."""
    command = [sys.executable, "-m", "trimtab", "demo", "--quick", "--rows", str(ROWS), *options]
    demo = subprocess.Popen(
        command,
        env={**os.environ, **BRISK, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield demo
    finally:
        if demo.poll() is None:
            signal_group(demo.pid, signal.SIGKILL)
            demo.wait(60)


def left_of(folder: Path) -> list[str]:
    """Processes that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:
            found.append(command)
    return found


def test_the_demo_loses_nothing_and_what_it_keeps_can_be_used_as_it_says(tmp_path: Path) -> None:
    with started(tmp_path, "--keep", "--json", "--picture", str(tmp_path / "demo.svg")) as demo:
        said, told = demo.communicate(timeout=WAIT_S)
    assert demo.returncode == 0, told
    print(f"\n{told}")
    outcome = json.loads(said)
    assert outcome["good"] and outcome["replicas_equal"] and outcome["rows_equal"]
    assert (outcome["rows"], outcome["wrong"]) == (ROWS, 0)
    assert outcome["writes"] > 50 and outcome["reads"] > 50
    # What was done, as its final table has it.
    acts, (_, _, shown) = [act["what"] for act in outcome["acts"]], told.partition("what was done")
    assert len(acts) == len(ACTS) and all(map(re.fullmatch, ACTS, acts)), acts
    assert all(act in shown for act in acts), told
    assert "<svg" in (tmp_path / "demo.svg").read_text()
    environment = {**os.environ, **BRISK, "TRIMTAB_LOCAL_DIR": outcome["dir"]}

    def trimtab(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "trimtab", *arguments], env=environment, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(trimtab("get", "shop.orders", "id=1", "--json"))["customer"] == "customer 1"
    trimtab("local", "start", outcome["killed"], "--timeout", "150")
    trimtab("local", "down", "--purge")
    assert [path.name for path in tmp_path.iterdir()] == ["demo.svg"] and not left_of(tmp_path)


# At the first moment there is something to end, and in the middle of starting Spark; and when a tablet is on its way.
@pytest.mark.parametrize(
    ("number", "there"),
    [
        (signal.SIGTERM, "i3/data/instance.json"),
        (signal.SIGINT, "i3/data/instance.json"),
        (signal.SIGINT, "i4/data/staging/*/*"),
    ],
)
def test_whoever_ends_the_demo_in_the_middle_finds_nothing_of_it(
    tmp_path: Path, number: signal.Signals, there: str
) -> None:
    deadline = time.monotonic() + WAIT_S
    with started(tmp_path) as demo:
        while not list(tmp_path.glob(f"trimtab-demo-*/{there}")):
            assert demo.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        demo.send_signal(number)
        told_s = time.monotonic()
        _, told = demo.communicate(timeout=180)
        took_s = time.monotonic() - told_s
    assert demo.returncode == 130 and told == "trimtab: interrupted.\n"
    assert list(tmp_path.iterdir()) == [] and not left_of(tmp_path)
    assert took_s < ENDS_S, f"whoever has pressed Ctrl-C waited {took_s:.0f} s"
