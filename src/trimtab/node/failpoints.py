"""Named places where a test can make an instance fail: killed, paused, or met with an error.

    TRIMTAB_FAILPOINTS="governor.sync.before=kill,join.persisted=pause:/tmp/held,boot.logged=error:/tmp/once"

    kill          SIGKILL of this process, every time the place is reached
    kill:FILE     the same, once: the file is made first, and where it exists nothing happens
    pause:FILE    make the file and wait until somebody removes it; nothing else of this process runs meanwhile
    hold:FILE     the same, but only the request that came there waits; everything else goes on (HOLDS)
    gate:FILE     where FILE exists, say in FILE.here who came, and wait until somebody removes FILE; else go on
    error         raise FailpointError, every time
    error:FILE    the same, once

The places are data (NAMES), so that a misspelt one is an error at the start instead of a test that tests nothing. Where
none is armed, `hit` costs one look at an empty dict. Tests and the simulator arm places with an action of their own; it
is told who came there, because many simulated instances share a process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

VARIABLE = "TRIMTAB_FAILPOINTS"
# The values of governor.steps.StepKind; written out because the supervisor checks names without loading the rules.
STEP_KINDS = (
    *("transfer", "voters", "down", "fence", "request", "answer", "sync", "replicate", "shard", "online"),
    *("move_prepare", "move_adopt", "move_clean", "move", "move_cross", "move_begin"),
    *("job", "adopt", "load", "load_end", "rebalance"),
)
# The values of tablets.selectors.Stage, likewise; a write that takes tablets there, and the one that ends their moves.
MOVE_STAGES = (
    *("allow_write_both_read_old", "write_both_read_old", "streaming", "write_both_read_new", "use_new", "cleanup"),
    *("end_migration", "cleanup_target", "revert_migration", "done"),
)
# Before the step; after its deed and before its write; after both.
STEP_PLACES = ("before", "after-deed", "after")
NAMES: tuple[str, ...] = (
    *(f"governor.{kind}.{place}" for kind in STEP_KINDS for place in STEP_PLACES),
    *(f"moves.{stage}.{place}" for stage in MOVE_STAGES for place in ("before", "after")),
    "join.requested",
    "join.answered",
    "join.persisted",
    "join.acknowledged",
    "join.started",
    "boot.persisted",
    "boot.logged",
    "boot.member",
    "serving.hold",
    "schema.planned",
    "schema.written",
    "batch.stored",
    "batch.written",
    "job.create",
    "job.note",
    "job.end",
    # Loads, as the leader decides on them, before and after each write; then what the holders of replicas do.
    "load.begin.before",
    "load.begin.after",
    "load.commit.before",
    "load.commit.after",
    "load.abort.before",
    "load.abort.after",
    "load.rollback.before",
    "load.rollback.after",
    "load.seal.before",
    "load.seal.checked",
    "load.seal.after",
    "load.adopt.before",
    "load.adopt.composed",
    "load.adopt.prepared",
    "load.adopt.tablet",
    "load.adopt.ingested",
    "load.adopt.rest",
    "load.adopt.after",
    "load.sweep",
    # Moves, as the instances that tablets come to or leave do their part.
    *(f"moves.{deed}.{place}" for deed in ("prepare", "adopt", "clean") for place in ("before", "after")),
    *(f"moves.adopt.{place}" for place in ("verified", "linked", "recorded", "swapped")),
    # In tasks of Spark that copy replicas: before a copy, when half of it is sent, when all of it is there.
    "stream.task.before",
    "stream.task.half",
    "stream.task.after",
)
# Places inside a request, which can be held alone.
HOLDS = ("serving.hold",)

_PAUSE_LIMIT_S = 120.0
_PAUSE_POLL_S = 0.01

# Called with the name of the place and who came there (an instance id, or "" where it was not said).
Action = Callable[[str, str], None]
_armed: dict[str, Action] = {}


class FailpointError(Exception):
    """The error that an armed failpoint raises."""


class BadFailpoints(ValueError):
    """What should be armed is misspelt; the text lists what there is."""


def hit(name: str, who: str = "") -> None:
    """The running code has come to this place."""
    if _armed and (action := _armed.get(name)) is not None:
        action(name, who)


async def hold(name: str, who: str = "") -> None:
    """A request has come to a place of HOLDS. Where that is armed to hold it, it waits; else this is `hit`."""
    action = _armed.get(name) if _armed else None
    if isinstance(action, _Hold):
        await action.wait(name)
    elif action is not None:
        action(name, who)


def arm(name: str, action: Action) -> None:
    """Run `action` whenever the place is reached. BadFailpoints: there is no such place."""
    if name not in NAMES:
        raise BadFailpoints(f"there is no failpoint {name!r}; there are: {', '.join(NAMES)}")
    _armed[name] = action


def disarm(*names: str) -> None:
    """Let the named places be again; all of them if none is named."""
    for name in names or tuple(_armed):
        _armed.pop(name, None)


def parse(text: str) -> dict[str, Action]:
    """The places and actions of TRIMTAB_FAILPOINTS. BadFailpoints on anything misspelt."""
    actions: dict[str, Action] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, what = part.partition("=")
        if name not in NAMES:
            raise BadFailpoints(f"{VARIABLE} names {name!r}, which is no failpoint; there are: {', '.join(NAMES)}")
        kind, _, file = what.partition(":")
        if kind == "kill":
            actions[name] = _once(file, _kill_self)
        elif kind == "error":
            actions[name] = _once(file, _raise)
        elif kind == "pause" and file:
            actions[name] = _pause_at(Path(file))
        elif kind == "gate" and file:
            actions[name] = _gate_at(Path(file))
        elif kind == "hold" and file and name in HOLDS:
            actions[name] = _Hold(Path(file))
        else:
            holds = ", hold:FILE" if name in HOLDS else ""
            raise BadFailpoints(
                f"{VARIABLE} wants {what!r} at {name}; write kill, kill:FILE, pause:FILE, gate:FILE{holds}, error "
                "or error:FILE"
            )
    return actions


def arm_from_environment() -> tuple[str, ...]:
    """Arm what the environment asks for; the names."""
    actions = parse(os.environ.get(VARIABLE, ""))
    _armed.update(actions)
    return tuple(actions)


def _kill_self(_name: str, _who: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise(name: str, _who: str) -> None:
    raise FailpointError(f"the failpoint {name} is armed to fail")


def _once(file: str, action: Action) -> Action:
    if not file:
        return action
    path = Path(file)

    def first_time(name: str, who: str) -> None:
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return
        action(name, who)

    return first_time


def _pause_at(path: Path) -> Action:
    def pause(name: str, _who: str) -> None:
        path.write_text(name)
        _await_gone(path, name)

    return pause


def _gate_at(path: Path) -> Action:
    def wait(name: str, who: str) -> None:
        if path.exists():
            aside = path.with_name(f"{path.name}.{os.getpid()}")
            aside.write_text(f"{name} {who} {os.getpid()}")
            aside.rename(path.with_name(f"{path.name}.here"))
            _await_gone(path, name)

    return wait


def _await_gone(path: Path, name: str) -> None:
    # Here, because this module is part of simulations too, and those must not see a clock.
    import time

    give_up_at = time.monotonic() + _PAUSE_LIMIT_S
    while path.exists():
        if time.monotonic() > give_up_at:
            raise FailpointError(f"paused at {name} for {_PAUSE_LIMIT_S:g} s; nobody removed {path}")
        time.sleep(_PAUSE_POLL_S)


class _Hold:
    """Makes the file and lets one request wait until somebody removes it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, name: str, _who: str) -> None:
        raise FailpointError(f"{name} was reached by something that can't be held")

    async def wait(self, name: str) -> None:
        # Here, because the command line, which checks names, does without it.
        import asyncio

        self._path.write_text(name)
        for _ in range(int(_PAUSE_LIMIT_S / _PAUSE_POLL_S)):
            if not self._path.exists():
                return
            await asyncio.sleep(_PAUSE_POLL_S)
        raise FailpointError(f"held at {name} for {_PAUSE_LIMIT_S:g} s; nobody removed {self._path}")
