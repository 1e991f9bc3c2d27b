"""Conditions on keys: what an invoke may ask before it acts.

A condition is a small tree of frozen values, evaluated against the state at one point of the log, so every member
gets the same answer. What counts as "there":

- `Exists` / `NotExists`: the key has / has no live value. A deleted key does not exist.
- `Tombstone`: the key was deleted and compaction has not forgotten it yet. By the *logical* compaction revision:
  whether this member has physically removed the tombstone makes no difference.
- `Value`: compares bytes. A key without a value equals nothing and is neither below nor above anything: only NE holds.
- `Revision`: compares the revision of the last put. A key without a value has revision 0, so `EQ 0` reads "I saw
  nothing there" after a get that found nothing, deleted or never written.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Annotated, Any, Union

from msgspec import Meta, Struct

from trimtab.metastore.layout import LIVE, RECORD, RECORD_BYTES
from trimtab.metastore.limits import MAX_CONDITIONS, MAX_INTEGER


class Compare(enum.IntEnum):
    EQ = 0
    NE = 1
    LT = 2
    LE = 3
    GT = 4
    GE = 5


COMPARE: dict[Compare, Callable[[Any, Any], bool]] = {
    Compare.EQ: operator.eq,
    Compare.NE: operator.ne,
    Compare.LT: operator.lt,
    Compare.LE: operator.le,
    Compare.GT: operator.gt,
    Compare.GE: operator.ge,
}


class Exists(Struct, frozen=True, array_like=True, tag=1):
    key: bytes


class NotExists(Struct, frozen=True, array_like=True, tag=2):
    key: bytes


class Tombstone(Struct, frozen=True, array_like=True, tag=3):
    key: bytes


class Value(Struct, frozen=True, array_like=True, tag=4):
    key: bytes
    compare: Compare
    value: bytes


class Revision(Struct, frozen=True, array_like=True, tag=5):
    key: bytes
    compare: Compare
    revision: Annotated[int, Meta(ge=0, le=MAX_INTEGER)]


# The lengths are checked before anything is allocated: a few bytes that announce a billion conditions cost nothing.
class And(Struct, frozen=True, array_like=True, tag=6):
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=MAX_CONDITIONS)]


class Or(Struct, frozen=True, array_like=True, tag=7):
    conditions: Annotated[tuple[Condition, ...], Meta(max_length=MAX_CONDITIONS)]


class Not(Struct, frozen=True, array_like=True, tag=8):
    condition: Condition


Condition = Union[Exists, NotExists, Tombstone, Value, Revision, And, Or, Not]  # noqa: UP007 (resolved at run time)

Lookup = Callable[[bytes], bytes | None]


def holds(condition: Condition, lookup: Lookup) -> bool:
    """Whether the condition is true. `lookup` gives a key's newest record, None where there is nothing to know.

    Recursion is safe: no condition gets here that is deeper than MAX_DEPTH. An empty And is true, an empty Or false.
    """
    match condition:
        case And(conditions=conditions):
            return all(holds(part, lookup) for part in conditions)
        case Or(conditions=conditions):
            return any(holds(part, lookup) for part in conditions)
        case Not(condition=inner):
            return not holds(inner, lookup)
    record = lookup(condition.key)
    if record is None:
        live, mod_revision = False, 0
    else:
        _, mod_revision, _, kind = RECORD.unpack_from(record)
        live = kind == LIVE
    match condition:
        case Exists():
            return live
        case NotExists():
            return not live
        case Tombstone():
            return record is not None and not live
        case Value(compare=compare, value=value):
            if record is None or not live:
                return compare is Compare.NE
            return COMPARE[compare](record[RECORD_BYTES:], value)
        case Revision(compare=compare, revision=revision):
            return COMPARE[compare](mod_revision if live else 0, revision)
