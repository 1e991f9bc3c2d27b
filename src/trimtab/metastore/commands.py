"""Commands: what a client may ask the replicated state to do, and how that lies in a log entry.

A command is an id (see `command_ids`; empty: no protection against being applied twice), the proposer's time, and a
body: a tree of if-then-else whose leaves hold operations and the value to answer with, or a compaction. A plain put
or delete is a tree of one leaf. All operations of the leaf that is reached are one revision.

Encoding: version byte, time in ms (8 bytes, big-endian), then msgpack of [id, body]. The time has a fixed place so
that the proposer can stamp an encoded command without taking it apart.

Every command passes `encode` or `decode` at the door, where it is refused with a reason, and `decode` again when it
is applied, because a log may hold anything. Decoding trusts nothing: size before parsing, lengths before allocating,
depth before descending.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Union

import msgspec
from msgspec import Meta, Struct

from trimtab.metastore.conditions import And, Condition, Not, Or, Value
from trimtab.metastore.errors import InvalidCommand
from trimtab.metastore.layout import ID_BYTES, NUMBER, check_key
from trimtab.metastore.limits import (
    MAX_COMMAND_BYTES,
    MAX_CONDITIONS,
    MAX_DEPTH,
    MAX_INTEGER,
    MAX_KEY_BYTES,
    MAX_OPERATIONS,
    MAX_VALUE_BYTES,
    MAX_YIELD_BYTES,
)

VERSION = 1
_VERSION = bytes((VERSION,))
_HEADER_BYTES = 1 + NUMBER.size


class Put(Struct, frozen=True, array_like=True, tag=1):
    key: bytes
    value: bytes


class Delete(Struct, frozen=True, array_like=True, tag=2):
    """Deleting a key that has no value changes nothing, not even the revision."""

    key: bytes


Operation = Union[Put, Delete]  # noqa: UP007 (resolved at run time)


class Actions(Struct, frozen=True, array_like=True, tag=1):
    """A leaf: what to do, and what to answer so that the caller knows which leaf it was."""

    operations: Annotated[tuple[Operation, ...], Meta(max_length=MAX_OPERATIONS)] = ()
    yields: bytes | bool = True


class Branch(Struct, frozen=True, array_like=True, tag=2):
    """If the condition holds, `then`; else `otherwise`."""

    condition: Condition
    then: Tree
    otherwise: Tree


class Compact(Struct, frozen=True, array_like=True, tag=3):
    """Forget history below `revision`. Reads at that revision and watches from the one after it still work."""

    revision: Annotated[int, Meta(ge=0, le=MAX_INTEGER)]


Tree = Union[Actions, Branch]  # noqa: UP007
Body = Union[Actions, Branch, Compact]  # noqa: UP007


class Command(Struct, frozen=True):
    id: bytes
    body: Body
    now_ms: int = 0


class _Wire(Struct, frozen=True, array_like=True):
    id: Annotated[bytes, Meta(max_length=ID_BYTES)]
    body: Body


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire)
_TOO_DEEP = f"branches or conditions are nested deeper than {MAX_DEPTH}"
_FLATTEN = "use fewer levels: And and Or take many conditions"


def put(key: bytes, value: bytes, *, id: bytes = b"") -> Command:
    return Command(id, Actions((Put(key, value),)))


def delete(key: bytes, *, id: bytes = b"") -> Command:
    return Command(id, Actions((Delete(key),)))


def put_all(values: Mapping[bytes, bytes], *, id: bytes = b"") -> Command:
    return Command(id, Actions(tuple(Put(key, value) for key, value in values.items())))


def invoke(
    condition: Condition,
    then: list[Operation] | Branch | Actions,
    otherwise: list[Operation] | Branch | Actions | None = None,
    *,
    id: bytes = b"",
) -> Command:
    """If-then-else. A list of operations yields True in the `then` place and False in the other."""
    yes = Actions(tuple(then), True) if isinstance(then, list) else then
    no = Actions(tuple(otherwise or ()), False) if otherwise is None or isinstance(otherwise, list) else otherwise
    return Command(id, Branch(condition, yes, no))


def compact(revision: int, *, id: bytes = b"") -> Command:
    return Command(id, Compact(revision))


def encode(command: Command) -> bytes:
    """The bytes of a log entry. Raises InvalidCommand for anything `decode` would refuse."""
    try:
        if not 0 <= command.now_ms <= MAX_INTEGER:
            raise InvalidCommand(f"{command.now_ms} is not a time in ms since 1970", "now_ms", "check the clock")
        data = _VERSION + NUMBER.pack(command.now_ms) + _encoder.encode(_Wire(command.id, command.body))
    except (TypeError, AttributeError, OverflowError, RecursionError) as reason:
        raise InvalidCommand(f"this can't be encoded: {reason}", "command", "use this module's types") from None
    decode(data)
    return data


def stamp(data: bytes, now_ms: int) -> bytes:
    """The same encoded command with the proposer's time."""
    if data[:1] != _VERSION or len(data) <= _HEADER_BYTES:
        raise InvalidCommand("these bytes are no command of a known version", "version", "encode it with this version")
    if not 0 <= now_ms <= MAX_INTEGER:
        raise InvalidCommand(f"{now_ms} is not a time in ms since 1970", "now_ms", "check the clock")
    return _VERSION + NUMBER.pack(now_ms) + data[_HEADER_BYTES:]


def decode(data: bytes) -> Command:
    """The command in these bytes. InvalidCommand for everything else; no input raises anything else."""
    if len(data) > MAX_COMMAND_BYTES:
        raise InvalidCommand(
            f"{len(data)} bytes are over the limit of {MAX_COMMAND_BYTES}", "command", "split it into several commands"
        )
    if len(data) <= _HEADER_BYTES:
        raise InvalidCommand(f"{len(data)} bytes are too short", "command", "send a whole encoded command")
    if data[0] != VERSION:
        raise InvalidCommand(
            f"version {data[0]} is unknown, this member knows {VERSION}", "version", "update members first"
        )
    (now_ms,) = NUMBER.unpack_from(data, 1)
    if now_ms > MAX_INTEGER:
        raise InvalidCommand(f"{now_ms} is not a time in ms since 1970", "now_ms", "check the proposer's clock")
    try:
        wire = _decoder.decode(memoryview(data)[_HEADER_BYTES:])
    except RecursionError:
        # The same words as for a tree that could be decoded: how deep the decoder gets depends on the caller's stack.
        raise InvalidCommand(_TOO_DEEP, "body", _FLATTEN) from None
    except (msgspec.DecodeError, ValueError, MemoryError) as reason:
        raise InvalidCommand(str(reason), "body", "encode it with this module") from None
    id, body = wire.id, wire.body
    if id and len(id) != ID_BYTES:
        raise InvalidCommand(f"an id has {ID_BYTES} bytes or none, not {len(id)}", "id", "make ids with CommandIds")
    if type(body) is Actions and len(body.operations) == 1 and body.yields is True:
        # The common case, without the walk.
        operation = body.operations[0]
        key_bytes = len(operation.key)
        if 0 < key_bytes <= MAX_KEY_BYTES and (type(operation) is not Put or len(operation.value) <= MAX_VALUE_BYTES):
            return Command(id, body, now_ms)
    _Check().body(body)
    return Command(id, body, now_ms)


def changed_keys(body: Body) -> Iterator[bytes]:
    """Every key that a valid command may put or delete, whichever way its conditions turn out."""
    for operation in operations_of(body):
        yield operation.key


def operations_of(body: Body) -> Iterator[Operation]:
    """All that a valid command may do, whichever way its conditions turn out."""
    if isinstance(body, Branch):
        yield from operations_of(body.then)
        yield from operations_of(body.otherwise)
    elif isinstance(body, Actions):
        yield from body.operations


def examined_keys(body: Body) -> Iterator[bytes]:
    """Every key that a valid command's conditions look at."""
    if isinstance(body, Branch):
        yield from _keys_of(body.condition)
        yield from examined_keys(body.then)
        yield from examined_keys(body.otherwise)


def _keys_of(condition: Condition) -> Iterator[bytes]:
    if isinstance(condition, And | Or):
        for part in condition.conditions:
            yield from _keys_of(part)
    elif isinstance(condition, Not):
        yield from _keys_of(condition.condition)
    else:
        yield condition.key


class _Check:
    """Counts what a command holds while walking it, and stops at the first thing over a limit."""

    def __init__(self) -> None:
        self.operations = 0
        self.conditions = 0

    def body(self, body: Body) -> None:
        if not isinstance(body, Compact):
            self.tree(body, "body", 1)

    def tree(self, tree: Tree, where: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise InvalidCommand(_TOO_DEEP, "body", _FLATTEN)
        if isinstance(tree, Branch):
            self.condition(tree.condition, f"{where}.condition", 1)
            self.tree(tree.then, f"{where}.then", depth + 1)
            self.tree(tree.otherwise, f"{where}.otherwise", depth + 1)
        else:
            self.actions(tree, where)

    def actions(self, actions: Actions, where: str) -> None:
        self.operations += len(actions.operations)
        if self.operations > MAX_OPERATIONS:
            raise InvalidCommand(
                f"more than {MAX_OPERATIONS} operations in one command", where, "split it into several commands"
            )
        if type(actions.yields) is bytes and len(actions.yields) > MAX_YIELD_BYTES:
            raise InvalidCommand(
                f"a result of {len(actions.yields)} bytes is over the limit of {MAX_YIELD_BYTES}",
                f"{where}.yields",
                "yield a short mark and keep the data in a key",
            )
        keys: set[bytes] = set()
        for number, operation in enumerate(actions.operations):
            at = f"{where}.operations[{number}]"
            self.key(operation.key, at)
            if operation.key in keys:
                raise InvalidCommand(
                    f"key {operation.key[:64]!r} is changed twice", at, "keep only the last change of a key"
                )
            keys.add(operation.key)
            if isinstance(operation, Put):
                self.value(operation.value, f"{at}.value")

    def condition(self, condition: Condition, where: str, depth: int) -> None:
        self.conditions += 1
        if depth > MAX_DEPTH:
            raise InvalidCommand(_TOO_DEEP, "body", _FLATTEN)
        if self.conditions > MAX_CONDITIONS:
            raise InvalidCommand(f"more than {MAX_CONDITIONS} conditions", where, "split it into several commands")
        if isinstance(condition, And | Or):
            for number, part in enumerate(condition.conditions):
                self.condition(part, f"{where}[{number}]", depth + 1)
        elif isinstance(condition, Not):
            self.condition(condition.condition, f"{where}.not", depth + 1)
        else:
            self.key(condition.key, where)
            if isinstance(condition, Value):
                self.value(condition.value, f"{where}.value")

    def key(self, key: bytes, where: str) -> None:
        if problem := check_key(key):
            raise InvalidCommand(problem, f"{where}.key", f"use a key of 1 to {MAX_KEY_BYTES} bytes")

    def value(self, value: bytes, where: str) -> None:
        if len(value) > MAX_VALUE_BYTES:
            raise InvalidCommand(
                f"a value of {len(value)} bytes is over the limit of {MAX_VALUE_BYTES}",
                where,
                "spread it over several keys",
            )
