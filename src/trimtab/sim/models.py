"""Sequential objects that histories are judged against: a register, and a key of the metastore with its revisions.

A model says what each operation may answer in which state. The key's model also knows two things that decide long
histories with many lost answers, where trying every order would never end. Both are consequences of what was answered,
so what has an order keeps it.

- Revisions only grow, so an answer that carries one names the last moment at which its operation can be placed.
- Who wrote a value that only one operation could have written, and that somebody read, did take effect: at the revision
  that was read, before that answer came. And of values nobody read, one is as good as another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from trimtab.sim.linearizability import NEVER_TOO_LATE, UNKNOWN_RESULT, Operation

NEVER_READ = b"(never read)"  # stands for any value that an operation of unknown outcome wrote and nobody read


class Read(NamedTuple):
    """Result: the value, None before any write."""

    key: Hashable = None


class Write(NamedTuple):
    """Result: anything."""

    value: Hashable
    key: Hashable = None


class Swap(NamedTuple):
    """Compare and swap. Result: whether the value was `expected`, and so was replaced."""

    expected: Hashable
    value: Hashable
    key: Hashable = None


class Register:
    """One value per key: read, write, compare and swap."""

    def __init__(self, initial: Hashable = None) -> None:
        self._initial = initial

    def partition(self, op: Read | Write | Swap) -> Hashable:
        return op.key

    def init(self) -> Hashable:
        return self._initial

    def step(self, state: Hashable, op: Read | Write | Swap, result: Any) -> tuple[bool, Hashable]:
        if type(op) is Read:
            return result is UNKNOWN_RESULT or result == state, state
        if type(op) is Write:
            return True, op.value
        assert type(op) is Swap
        swapped = state == op.expected
        return result is UNKNOWN_RESULT or result == swapped, op.value if swapped else state

    def observes(self, op: Read | Write | Swap, result: Any) -> bool:
        return type(op) is Read or (type(op) is Swap and (result is False or op.expected == op.value))

    def progress(self, state: Hashable) -> float:
        return 0

    def latest(self, op: Read | Write | Swap, result: Any) -> float:
        return NEVER_TOO_LATE

    def infer(self, part: Sequence[Operation]) -> Sequence[Operation]:
        return part


class Get(NamedTuple):
    """Result: (value, mod revision), or None for a key without a value."""

    key: bytes


class Put(NamedTuple):
    """Result: the revision it made."""

    key: bytes
    value: bytes


class Delete(NamedTuple):
    """Result: the revision after it; a new one if there was a value."""

    key: bytes


class PutIf(NamedTuple):
    """Put if the key's mod revision is `expected` (0: if it has no value). Result: the revision it made, or None."""

    key: bytes
    expected: int
    value: bytes


class KeyState(NamedTuple):
    """A key's value and its revision. Not exact: some put of unknown outcome made it, at a later revision than this."""

    value: bytes | None = None
    revision: int = 0
    exact: bool = True


class KeyValue:
    """A key of the metastore: put, delete, get and put-if, with revisions.

    Revisions are global, so of a single key's history only this is checked: each one is above the key's last, and what
    is read is what was written. After a put of unknown outcome its revision is learnt from the first answer that shows
    it; `infer` knows it from the beginning if the value was read and only this put can have written it.
    """

    def partition(self, op: Get | Put | Delete | PutIf) -> Hashable:
        return op.key

    def init(self) -> KeyState:
        return KeyState()

    def step(self, state: KeyState, op: Get | Put | Delete | PutIf, result: Any) -> tuple[bool, KeyState]:
        if type(op) is Get:
            return self._get(state, result)
        if type(op) is Put:
            return self._put(state, op.value, result)
        if type(op) is PutIf:
            return self._put_if(state, op, result)
        if state.value is None:
            return result is UNKNOWN_RESULT or result >= state.revision, state
        return self._put(state, None, result)

    def observes(self, op: Get | Put | Delete | PutIf, result: Any) -> bool:
        return type(op) is Get or (type(op) is PutIf and result is None)

    def progress(self, state: KeyState) -> float:
        return state.revision

    def latest(self, op: Get | Put | Delete | PutIf, result: Any) -> float:
        if result is None:
            return NEVER_TOO_LATE  # a key without a value, or of another revision: that may be so again
        revision: int = result[1] if type(op) is Get else result
        # A put made its revision, so it came after the one before. A delete may have found nothing and made none.
        return revision if type(op) is Get or type(op) is Delete else revision - 1

    def infer(self, part: Sequence[Operation]) -> Sequence[Operation]:
        writers = Counter(o.op.value for o in part if type(o.op) is Put or type(o.op) is PutIf)
        reads: dict[bytes, list[Operation]] = {}
        for operation in part:
            if type(operation.op) is Get and operation.known and operation.result is not None:
                reads.setdefault(operation.result[0], []).append(operation)
        inferred: list[Operation] = []
        for operation in part:
            op = operation.op
            if operation.known or not (type(op) is Put or type(op) is PutIf):
                inferred.append(operation)
            elif op.value not in reads and NEVER_READ not in reads:
                inferred.append(replace(operation, op=op._replace(value=NEVER_READ)))
            elif op.value in reads and writers[op.value] == 1:
                inferred.append(_read_back(operation, reads[op.value]))
            else:
                inferred.append(operation)
        return inferred

    def _get(self, state: KeyState, result: Any) -> tuple[bool, KeyState]:
        if result is UNKNOWN_RESULT:
            return True, state
        if result is None or state.value is None:
            return result is None and state.value is None, state
        value, revision = result
        if value != state.value:
            return False, state
        if state.exact:
            return revision == state.revision, state
        return revision > state.revision, KeyState(value, revision)

    def _put(self, state: KeyState, value: bytes | None, result: Any) -> tuple[bool, KeyState]:
        if result is UNKNOWN_RESULT:
            return True, KeyState(value, state.revision, exact=False)
        return result > state.revision, KeyState(value, result)

    def _put_if(self, state: KeyState, op: PutIf, result: Any) -> tuple[bool, KeyState]:
        if state.value is None:
            matches: bool | None = op.expected == 0
        elif state.exact:
            matches = op.expected == state.revision
        else:
            # Unknown revision: it may be the expected one if that is above what is known, and may always be another.
            matches = None if op.expected > state.revision else False
        if result is None:
            return matches is not True, state
        if matches is False:
            return result is UNKNOWN_RESULT, state
        return self._put(state, op.value, result)


def _read_back(write: Operation, reads: Sequence[Operation]) -> Operation:
    """A write of unknown outcome whose value these reads got from nobody else: as good as answered by the first."""
    revisions = {read.result[1] for read in reads}
    first = min(reads, key=lambda read: read.ret or 0.0)
    if len(revisions) > 1 or first.ret is None or first.ret <= write.call or first.ret == first.call:
        return write  # a contradiction, or no time in between: the search will tell
    return replace(write, ret=first.ret, result=revisions.pop())
