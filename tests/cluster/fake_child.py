"""A supervisor with a child that does what a test wants: `python -m tests.cluster.fake_child DIR STORY`.

Stories are functions of this module. Each start of the child leaves a line with its phase and pid in DIR/../lives.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from trimtab.node.children import Say
from trimtab.node.logs import LogSettings, PlainLog
from trimtab.node.supervision import Fatal, Online, Patience, Phase, Ready, Rebootstrap
from trimtab.node.supervisor import supervise

# Stories whose child does not end by itself, or whose next one is not to be there soon.
PATIENCE = {
    "hangs": Patience(ending_s=1.0),
    "is_rejected": Patience(ending_s=1.0),
    "crashes": Patience(first_backoff_s=600.0, longest_backoff_s=600.0),
}


def lives(data_dir: Path) -> list[str]:
    path = data_dir.parent / "lives"
    return path.read_text().splitlines() if path.exists() else []


def serves(_data_dir: Path, _phase: Phase, say: Say) -> int:
    """Becomes ready, and ends well when told to."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    # Blocked, they are kept until they are waited for: none gets lost just before.
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    print("child can be told", file=sys.stderr, flush=True)
    say(Ready())
    say(Online())
    told = signal.sigwait(numbers)
    print(f"child told by {signal.Signals(told).name}", file=sys.stderr, flush=True)
    return 0


def crashes_three_times(data_dir: Path, phase: Phase, say: Say) -> int:
    life = len(lives(data_dir))
    if life == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if life == 2:
        raise RuntimeError("a defect")
    if life == 3:
        return 3
    return serves(data_dir, phase, say)


def crashes(_data_dir: Path, _phase: Phase, _say: Say) -> int:
    return 3


def bootstraps(data_dir: Path, phase: Phase, say: Say) -> int:
    if phase is Phase.DISCOVER:
        (data_dir / "instance.json").write_text(json.dumps({"instance_id": "i1"}))
        (data_dir / "log").mkdir()
        (data_dir / "log" / "temporary").write_text("")
        say(Rebootstrap(Phase.BOOT, drop=True))
        return 0
    return serves(data_dir, phase, say)


def bootstraps_without_what_is_loaded_ahead(data_dir: Path, phase: Phase, say: Say) -> int:
    return bootstraps(data_dir, phase, say)


def load_ahead(data_dir: Path, story: str) -> None:
    """Each time leaves a line with the pid in DIR/../ahead."""
    with (data_dir.parent / "ahead").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if story == "bootstraps_without_what_is_loaded_ahead":
        raise ImportError("there is no such module")


def drops_what_is_not_its_own(data_dir: Path, _phase: Phase, say: Say) -> int:
    (data_dir / "instance.json").write_text(json.dumps({"instance_id": "another"}))
    say(Rebootstrap(Phase.JOIN, drop=True))
    return 0


def is_rejected(_data_dir: Path, _phase: Phase, say: Say) -> int:
    say(Fatal("rejected: the key rack is missing in its failure domain", 1))
    # It does not even end by itself.
    while True:
        signal.pause()


def hangs(_data_dir: Path, _phase: Phase, say: Say) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(Ready())
    while True:
        signal.pause()


def babbles(data_dir: Path, phase: Phase, say: Say) -> int:
    """Writes what is no word where words belong."""
    (writer,) = {cell.cell_contents for cell in say.__closure__ or () if isinstance(cell.cell_contents, int)}
    os.write(writer, b"what?\n" + b"x" * 200_000 + b"\n")
    return serves(data_dir, phase, say)


def closes_its_mouth(_data_dir: Path, _phase: Phase, say: Say) -> int:
    """Ends the pipe and lives on: the supervisor has nothing to hear, and must not spin."""
    (writer,) = {cell.cell_contents for cell in say.__closure__ or () if isinstance(cell.cell_contents, int)}
    say(Ready())
    os.close(writer)
    print("closed", file=sys.stderr, flush=True)
    while True:
        signal.pause()


def main(data_dir: Path, story: str) -> int:
    def body(phase: Phase, say: Say) -> int:
        with (data_dir.parent / "lives").open("a") as file:
            file.write(f"{phase.value} {os.getpid()} {time.monotonic()}\n")
        result: int = globals()[story](data_dir, phase, say)
        return result

    log = PlainLog("i1", LogSettings("debug"))
    code = supervise(
        data_dir,
        body,
        instance_id="i1",
        log=log,
        patience=PATIENCE.get(story),
        load_ahead=lambda: load_ahead(data_dir, story),
    )
    forbidden = {"rocksdict", "uvloop", "msgspec", "structlog", "asyncio", "ctypes"} & set(sys.modules)
    assert not forbidden, f"the supervisor has loaded {forbidden}"
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
