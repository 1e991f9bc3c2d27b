"""What passes the door, what does not, and what the refusal says."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.metastore.driver import Driver

from trimtab.metastore.commands import (
    Actions,
    Branch,
    Command,
    Compact,
    Delete,
    Put,
    changed_keys,
    compact,
    decode,
    delete,
    encode,
    examined_keys,
    invoke,
    put,
    put_all,
    stamp,
)
from trimtab.metastore.conditions import And, Compare, Condition, Exists, Not, Or, Revision, Tombstone, Value
from trimtab.metastore.errors import InvalidCommand
from trimtab.metastore.limits import (
    MAX_COMMAND_BYTES,
    MAX_CONDITIONS,
    MAX_DEPTH,
    MAX_KEY_BYTES,
    MAX_OPERATIONS,
    MAX_VALUE_BYTES,
    MAX_YIELD_BYTES,
)
from trimtab.metastore.results import Failed, FailureCode

ID = bytes(range(32))


def nested_not(depth: int) -> Condition:
    condition: Condition = Exists(b"k")
    for _ in range(depth - 1):
        condition = Not(condition)
    return condition


def nested_branch(depth: int) -> Branch | Actions:
    tree: Branch | Actions = Actions()
    for _ in range(depth - 1):
        tree = Branch(Exists(b"k"), tree, Actions())
    return tree


COMMANDS = [
    put(b"k", b"v", id=ID),
    delete(b"k"),
    put_all({b"a": b"1", b"b": b"2"}),
    Command(b"", Actions((Delete(b"a"), Delete(b"b")))),
    compact(7, id=ID),
    invoke(Exists(b"a"), [Put(b"b", b"")], [Delete(b"c")]),
    invoke(
        And((Tombstone(b"x"), Or((Value(b"y", Compare.LT, b"m"), Not(Revision(b"z", Compare.GE, 4)))))),
        Branch(Exists(b"q"), Actions((), b"inner"), Actions((Put(b"r", b"s"),), False)),
        Actions((), b"outer"),
    ),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_comes_back_from_its_bytes(command: Command) -> None:
    assert decode(encode(command)) == command
    stamped = decode(stamp(encode(command), 123))
    assert stamped == Command(command.id, command.body, 123)


def test_the_encoding_of_version_1_is_what_it_was() -> None:
    """Fails when the encoding changes: then raise the version, and keep reading the old one."""
    golden = [encode(command).hex() for command in (COMMANDS[0], COMMANDS[4], COMMANDS[6])]
    assert golden == GOLDEN


GOLDEN: list[str] = [
    (
        "01000000000000000092c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f93019193"
        "01c4016bc40176c3"
    ),
    ("01000000000000000092c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f920307"),
    (
        "01000000000000000092c40094029206929203c401789207929404c4017902c4016d92089405c4017a050494029201c4"
        "0171930190c405696e6e65729301919301c40172c40173c2930190c4056f75746572"
    ),
]

AT_THE_LIMIT = [
    put(b"k" * MAX_KEY_BYTES, b"v" * MAX_VALUE_BYTES),
    put_all({b"%d" % n: b"" for n in range(MAX_OPERATIONS)}),
    invoke(nested_not(MAX_DEPTH), []),
    Command(b"", nested_branch(MAX_DEPTH)),
    invoke(And((Exists(b"k"),) * (MAX_CONDITIONS - 1)), []),
    Command(b"", Actions((), b"y" * MAX_YIELD_BYTES)),
]
OVER_THE_LIMIT = [
    (put(b"", b""), r"body\.operations\[0\]\.key: a key must not be empty; use a key of 1 to 4096 bytes"),
    (put(b"k" * (MAX_KEY_BYTES + 1), b""), "a key of 4097 bytes is over the limit of 4096"),
    (put(b"k", b"v" * (MAX_VALUE_BYTES + 1)), r"a value of \d+ bytes is over the limit of \d+; spread it"),
    (delete(b""), "a key must not be empty"),
    (put_all({b"%d" % n: b"" for n in range(MAX_OPERATIONS + 1)}), "1024"),
    (
        invoke(
            Exists(b"k"),
            [Put(b"a%d" % n, b"") for n in range(600)],
            [Put(b"b%d" % n, b"") for n in range(600)],
        ),
        "more than 1024 operations in one command",
    ),
    (invoke(nested_not(MAX_DEPTH + 1), []), "nested deeper than 16; use fewer levels"),
    (Command(b"", nested_branch(MAX_DEPTH + 1)), "nested deeper than 16"),
    (invoke(And((Exists(b"k"),) * MAX_CONDITIONS), []), "more than 1024 conditions"),
    (invoke(Exists(b""), []), r"body\.condition\.key: a key must not be empty"),
    (invoke(Value(b"k", Compare.EQ, b"v" * (MAX_VALUE_BYTES + 1)), []), r"body\.condition\.value"),
    (Command(b"", Actions((), b"y" * (MAX_YIELD_BYTES + 1))), r"body\.yields: a result of"),
    (Command(b"", Actions((Put(b"k", b"1"), Delete(b"k")))), "key b'k' is changed twice; keep only the last"),
    (put(b"k", b"v", id=b"short"), "an id has 32 bytes or none, not 5; make ids with CommandIds"),
    (put(b"k", b"v", id=b"x" * 33), "id"),
    (put_all(dict.fromkeys((b"a", b"b", b"c"), b"v" * MAX_VALUE_BYTES)), "bytes are over the limit of 1000000"),
    (Command(b"", Actions(), now_ms=-1), "is not a time"),
    (Command(b"", Actions(), now_ms=2**64), "is not a time"),
    (compact(-1), "invalid command at body"),
    (compact(2**63), "invalid command at body"),
]


@pytest.mark.parametrize("command", AT_THE_LIMIT)
def test_a_command_at_the_limit_passes(command: Command) -> None:
    encode(command)
    assert not isinstance(Driver()(command), Failed)


@pytest.mark.parametrize(("command", "says"), OVER_THE_LIMIT)
def test_a_command_over_a_limit_is_refused_with_the_place_and_the_way_out(command: Command, says: str) -> None:
    with pytest.raises(InvalidCommand, match=says):
        encode(command)


@pytest.mark.parametrize(
    "wrong",
    [
        put("text", b""),  # type: ignore[arg-type]
        put(b"k", 7),  # type: ignore[arg-type]
        Command(b"", Actions((), "text")),  # type: ignore[arg-type]
        Command(b"", None),  # type: ignore[arg-type]
        Command(None, Actions()),  # type: ignore[arg-type]
        Command(b"", Branch(Exists(b"k"), Compact(1), Actions())),  # type: ignore[arg-type]
        Command(b"", Actions((Put(b"k", object()),))),  # type: ignore[arg-type]
        Command(b"", Actions(), now_ms="soon"),  # type: ignore[arg-type]
        "not even a command",
    ],
)
def test_wrong_types_are_refused_like_anything_else(wrong: Any) -> None:
    with pytest.raises(InvalidCommand):
        encode(wrong)


def test_all_keys_that_a_command_may_change_are_known_before_its_conditions_are() -> None:
    inner = Branch(Exists(b"q"), Actions((Put(b"b", b""), Delete(b"c"))), Actions())
    command = invoke(Exists(b"a"), inner, [Put(b"d", b"")])
    assert list(changed_keys(command.body)) == [b"b", b"c", b"d"]
    assert list(changed_keys(compact(7).body)) == []


def test_all_keys_that_a_command_asks_about_are_known() -> None:
    asked = And((Exists(b"a"), Or((Not(Value(b"b", Compare.GE, b"x")), Revision(b"c", Compare.EQ, 0)))))
    inner = Branch(Exists(b"d"), Actions((Put(b"x", b""),)), Actions())
    assert list(examined_keys(invoke(asked, inner).body)) == [b"a", b"b", b"c", b"d"]
    assert list(examined_keys(compact(7).body)) == [] == list(examined_keys(Actions((Put(b"x", b""),))))


HEAD = b"\x01" + bytes(8)
HOSTILE = [
    b"",
    b"\x01",
    b"\x02" + bytes(20),
    b"\x01" + b"\xff" * 8 + b"\x90",
    HEAD + b"\x92\xc4\x00" + b"\x93\x02" * 300_000,  # branches without end
    HEAD + b"\x92\xc4\x00\x94\x02" + b"\x92\x08" * 300_000,  # Not(Not(Not(...
    HEAD + b"\x92\xc4\x00\x94\x02\x92\x06\xdd\xff\xff\xff\xff",  # four billion conditions announced
    HEAD + b"\x92\xc4\x00\x93\x01\xdd\xff\xff\xff\xff",  # four billion operations announced
    HEAD + b"\x92\xc6\xff\xff\xff\xff",  # an id of four gigabytes announced
    HEAD + b"\x93\xc4\x00\x91\x01" + b"\x91" * 900_000,  # garbage after what is known
    HEAD + b"\x91" * 900_000,
    b"\x01" * (MAX_COMMAND_BYTES + 1),
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_bytes_are_refused_at_once_at_the_door_and_in_the_log(data: bytes) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidCommand):
        decode(data)
    assert time.thread_time() - began < 1
    if data:
        driver = Driver()
        (result,) = driver.raw(data)
        assert isinstance(result, Failed) and result.code is FailureCode.INVALID
        assert driver.machine.applied_index == 1 and driver.machine.revision == 0


def test_how_deep_the_caller_is_makes_no_difference_to_the_refusal() -> None:
    data = encode(invoke(Exists(b"k"), []))
    deep = HEAD + msgspec.msgpack.encode([b"", _raw_nots(40)])

    def at(depth: int, bytes_: bytes) -> str:
        if depth:
            return at(depth - 1, bytes_)
        try:
            return str(decode(bytes_))
        except InvalidCommand as refusal:
            return str(refusal)

    assert at(0, deep) == at(800, deep) == at(900, deep)
    assert at(0, data) == at(900, data)


def _raw_nots(depth: int) -> list[Any]:
    condition: list[Any] = [1, b"k"]
    for _ in range(depth):
        condition = [8, condition]
    return [2, condition, [1, [], True], [1, [], False]]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
@example(HEAD)
@example(HEAD + b"\xc1")
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for candidate in (data, HEAD + data):
        with contextlib.suppress(InvalidCommand):
            decode(candidate)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(COMMANDS), st.data())
def test_a_damaged_command_decodes_or_is_refused_and_never_stops_the_machine(command: Command, data: Any) -> None:
    damaged = bytearray(encode(command))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(1, len(damaged)))])
    driver = Driver()
    driver.raw(cut, b"", encode(put(b"after", b"it")))
    assert driver.machine.applied_index == 3
    assert driver.value(b"after") == b"it"


def test_stamping_what_is_no_command_is_refused() -> None:
    with pytest.raises(InvalidCommand, match="no command of a known version"):
        stamp(b"\x07garbage..........", 1)
    with pytest.raises(InvalidCommand, match="is not a time"):
        stamp(encode(put(b"k", b"v")), -5)
