"""Reads the register histories of a real etcd under faults: one line per event of a process.

    INFO  jepsen.util - 4   :invoke :cas   [3 0]

`:ok` and `:fail` end an operation, `:info` says that its outcome is unknown. A read that fails has seen nothing and
is left out. A compare-and-swap that fails never took effect; that it saw another value than the expected one is a
result like any other, unless `failed_swaps=False` asks for the weaker reading that it never happened at all.
Operations that never end are unknown, and a process that invokes again while one of its operations is open has given
that one up.
"""

from __future__ import annotations

import re
from pathlib import Path

from trimtab.sim.linearizability import UNKNOWN_RESULT, Operation
from trimtab.sim.models import Read, Swap, Write

_LINE = re.compile(r"^INFO\s+jepsen\.util\s+-\s+(\S+)\s+:(invoke|ok|fail|info)\s+:(read|write|cas)\s+(.*?)\s*$")


def _value(text: str) -> int | None:
    return None if text == "nil" else int(text)


def _operation(kind: str, text: str) -> Read | Write | Swap:
    if kind == "read":
        return Read()
    if kind == "write":
        return Write(_value(text))
    expected, value = text.strip("[]").split()
    return Swap(_value(expected), _value(value))


def parse(text: str, *, failed_swaps: bool = True) -> list[Operation]:
    history: list[Operation] = []
    open_operations: dict[str, tuple[int, Read | Write | Swap]] = {}

    def give_up(process: str) -> None:
        called, op = open_operations.pop(process)
        history.append(Operation(process, called, None, op, UNKNOWN_RESULT))

    for number, line in enumerate(text.splitlines()):
        found = _LINE.match(line)
        if found is None:
            if ":invoke" in line:
                raise ValueError(f"line {number + 1} invokes something unknown: {line!r}")
            continue
        process, event, kind, rest = found.groups()
        if event == "invoke":
            if process in open_operations:
                give_up(process)
            open_operations[process] = (number, _operation(kind, rest))
        elif process not in open_operations:
            raise ValueError(f"line {number + 1} ends an operation that never began: {line!r}")
        elif event == "info":
            give_up(process)
        else:
            called, op = open_operations.pop(process)
            if event == "ok":
                result = _value(rest) if kind == "read" else True
            elif kind == "cas" and failed_swaps and ":timed-out" not in rest:
                result = False
            else:
                continue  # it never happened
            history.append(Operation(process, called, number, op, result))
    for process in list(open_operations):
        give_up(process)
    return history


def read(path: Path, *, failed_swaps: bool = True) -> list[Operation]:
    return parse(path.read_text(), failed_swaps=failed_swaps)
