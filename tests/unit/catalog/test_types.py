"""Types: cells are the CQL driver's, byte for byte; what is wrong is refused in words."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from cassandra import cqltypes, util
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.catalog.cql_values import BEYOND_PYTHON, NATIVE_VALUES, TYPE_TEXTS, values_of

from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.limits import MAX_ELEMENTS, MAX_TYPE_DEPTH
from trimtab.catalog.natives import NATIVES
from trimtab.catalog.nested import join_elements
from trimtab.catalog.schema import UserType
from trimtab.catalog.types import Duration, parse, without_user_types

PROTOCOL = 4
ADDRESS = UserType("shop", "address", (("street", "text"), ("tags", "set<int>"), ("at", "timestamp")))
PERSON = UserType("shop", "Person", (("name", "text"), ("homes", "list<frozen<address>>"), ("main", "address")))
UDTS = {each.name: each for each in (ADDRESS, PERSON)}


def driver_type(made: Type) -> Any:
    """The driver's type of the same name."""
    inner = [driver_type(element) for element in made.elements]
    match made.kind:
        case Kind.LIST:
            return cqltypes.ListType.apply_parameters(inner)
        case Kind.SET:
            return cqltypes.SetType.apply_parameters(inner)
        case Kind.MAP:
            return cqltypes.MapType.apply_parameters(inner)
        case Kind.TUPLE:
            return cqltypes.TupleType.apply_parameters(inner)
        case Kind.USER:
            return cqltypes.UserType.make_udt_class("shop", made.user_name, made.fields, tuple(inner))
        case kind:
            return cqltypes._cqltypes[kind.value]


class Entries(list[tuple[Any, Any]]):
    """A map for the driver whose keys need not be hashable."""

    def items(self) -> Entries:
        return self


def for_driver(made: Type, value: Any) -> Any:
    """The value in the driver's form: sets and maps in the order that they are stored in."""
    if value is None:
        return None
    elements = made.elements
    match made.kind:
        case Kind.LIST:
            return [for_driver(elements[0], each) for each in value]
        case Kind.SET:
            cell = elements[0].serialize
            ordered = sorted(value, key=lambda each: (elements[0].order(cell(each)), cell(each)))
            unique = {cell(each): each for each in ordered}
            return [for_driver(elements[0], each) for each in unique.values()]
        case Kind.MAP:
            cell = elements[0].serialize
            entries = dict(value)
            ordered = sorted(entries, key=lambda each: (elements[0].order(cell(each)), cell(each)))
            return Entries((for_driver(elements[0], key), for_driver(elements[1], entries[key])) for key in ordered)
        case Kind.TUPLE:
            return tuple(for_driver(element, each) for element, each in zip(elements, value, strict=True))
        case Kind.USER:
            parts = value.values() if isinstance(value, dict) else value
            return tuple(for_driver(element, each) for element, each in zip(elements, parts, strict=True))
        case Kind.DURATION:
            return util.Duration(*value)
        case _:
            return value


def same(one: Any, other: Any) -> bool:
    """Equal, where NaN is itself."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("kind", NATIVES, ids=lambda kind: kind.value)
def test_a_simple_value_has_the_cell_that_the_driver_writes(kind: Kind) -> None:
    made, driver = NATIVES[kind], cqltypes._cqltypes[kind.value]

    @settings(max_examples=60, deadline=None)
    @given(NATIVE_VALUES[kind])
    def check(value: Any) -> None:
        cell = made.serialize(value)
        assert cell == driver.serialize(for_driver(made, value), PROTOCOL)
        assert made.fixed_width in (None, len(cell))
        made.validate(cell)
        assert made.canonical(cell) == cell
        assert same(made.deserialize(cell), value)
        assert same(made.hashable(cell), value)
        assert made.from_json(made.to_json(value)) == value or same(made.from_json(made.to_json(value)), value)
        assert same(made.from_text(made.to_text(value)), value)

    check()


@pytest.mark.parametrize("kind", BEYOND_PYTHON, ids=lambda kind: kind.value)
def test_what_python_has_no_value_for_comes_as_a_number_and_goes_back(kind: Kind) -> None:
    made = NATIVES[kind]

    @settings(max_examples=40, deadline=None)
    @given(BEYOND_PYTHON[kind])
    def check(number: int) -> None:
        cell = made.serialize(number)
        made.validate(cell)
        assert made.deserialize(cell) == number
        assert made.from_json(made.to_json(number)) == number

    check()


@settings(max_examples=150, deadline=None)
@given(st.data(), TYPE_TEXTS)
def test_nested_values_have_the_cells_that_the_driver_writes(data: st.DataObject, text: str) -> None:
    made = parse(text)
    assert parse(made.name).name == made.name
    value = data.draw(values_of(made))
    cell = made.serialize(value)
    assert cell == driver_type(made).serialize(for_driver(made, value), PROTOCOL)
    made.validate(cell)
    assert made.canonical(cell) == cell
    back = made.deserialize(cell)
    assert made.serialize(back) == cell
    assert made.serialize(made.hashable(cell)) == cell
    assert made.serialize(made.from_json(made.to_json(back))) == cell
    hash(made.hashable(cell))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["address", '"Person"', "list<frozen<address>>", 'map<int, frozen<"Person">>']))
def test_user_types_have_the_cells_that_the_driver_writes(data: st.DataObject, text: str) -> None:
    made = parse(text, UDTS)
    value = data.draw(values_of(made))
    cell = made.serialize(value)
    assert cell == driver_type(made).serialize(for_driver(made, value), PROTOCOL)
    made.validate(cell)
    assert made.serialize(made.deserialize(cell)) == cell
    assert made.serialize(made.from_json(made.to_json(made.deserialize(cell)))) == cell
    plain = parse(without_user_types(made))
    assert plain.serialize(plain.deserialize(cell)) == cell


@settings(max_examples=200, deadline=None)
@given(TYPE_TEXTS, st.binary(max_size=40))
def test_no_cell_does_more_harm_than_a_sentence(text: str, cell: bytes) -> None:
    made = parse(text)
    try:
        made.validate(cell)
    except ValueError as error:
        assert str(error)
        return
    back = made.deserialize(cell)
    made.order(cell)
    if made.kind not in (Kind.FLOAT, Kind.DOUBLE):
        assert len(made.serialize(back)) >= len(made.canonical(cell)) - 4 * 300


def test_the_same_set_is_the_same_bytes_whoever_writes_it() -> None:
    made = parse("frozen<set<int>>")
    assert made.serialize([3, -1, 2, 3]) == made.serialize({2, 3, -1})
    unsorted = b"\x00\x00\x00\x02" + b"\x00\x00\x00\x04\x00\x00\x00\x02" + b"\x00\x00\x00\x04\xff\xff\xff\xff"
    with pytest.raises(ValueError, match="not sorted"):
        made.validate(unsorted)
    assert made.canonical(unsorted) == made.serialize({2, -1})
    parse("set<int>").validate(unsorted)  # its elements are stored one by one, sorted there
    pairs = parse("frozen<map<text, int>>")
    assert pairs.serialize({"b": 1, "a": 2}) == pairs.serialize({"a": 2, "b": 1})


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("int", [-(2**31), -1, 0, 1, 2**31 - 1]),
        ("double", [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]),
        ("float", [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]),
        ("text", ["", "a", "aa", "b", "ä"]),
        ("varint", [-(10**30), -256, -1, 0, 127, 128, 10**30]),
        ("decimal", [Decimal("-10"), Decimal("-0.1"), Decimal(0), Decimal("0.09"), Decimal("1e5"), Decimal("1e200")]),
        ("timestamp", [datetime(1, 1, 1), datetime(1969, 1, 1), datetime(1970, 1, 1), datetime(2024, 1, 1)]),
        ("date", [date(1, 1, 1), date(1970, 1, 1), date(2024, 1, 1)]),
        ("boolean", [False, True]),
        ("frozen<list<int>>", [[], [-1], [-1, 5], [0], [1]]),
        ("tuple<int, text>", [(None, "z"), (-1, None), (-1, ""), (3, "a")]),
        ("frozen<map<int, int>>", [{}, {1: 1}, {1: 1, 2: 0}, {1: 2}, {2: 0}]),
    ],
)
def test_order_is_that_of_cql(text: str, values: list[Any]) -> None:
    made = parse(text)
    orders = [made.order(made.serialize(value)) for value in values]
    assert orders == sorted(orders)
    assert all(one != other for one, other in pairwise(orders))


def test_timeuuids_are_in_order_of_their_time() -> None:
    early = uuid.UUID("ffffffff-0000-1000-8000-000000000000")
    late = uuid.UUID("00000000-0001-1000-8000-000000000000")
    for text in ("timeuuid", "uuid"):
        made = parse(text)
        assert made.order(made.serialize(early)) < made.order(made.serialize(late))
    signed = parse("timeuuid")  # the rest compares as signed bytes: 0x80 is the smallest
    low, high = uuid.UUID("00000000-0000-1000-8000-000000000080"), uuid.UUID("00000000-0000-1000-8000-000000000000")
    assert signed.order(low.bytes) < signed.order(high.bytes)
    plain = parse("uuid")
    assert plain.order(low.bytes) > plain.order(high.bytes)
    assert plain.order(uuid.UUID(int=1 << 76).bytes) < plain.order(uuid.UUID(int=4 << 76).bytes)


@pytest.mark.parametrize(
    ("text", "value", "words"),
    [
        ("int", 2**31, "from -2147483648 to 2147483647 for int, got 2147483648"),
        ("int", "1", "got '1' (str)"),
        ("int", True, "got True (bool)"),
        ("int", 1.5, "got 1.5 (float)"),
        ("bigint", 10**4000, "a number of"),
        ("tinyint", 128, "from -128 to 127"),
        ("text", b"x", "a str for text, got b'x' (bytes)"),
        ("text", "\ud800", "UTF-8"),
        ("ascii", "é", "use text"),
        ("blob", "x", "bytes for blob"),
        ("boolean", 1, "True or False"),
        ("float", 1e300, "fits float"),
        ("double", "1", "fits double"),
        ("varint", 1 << 8191, "at most 1024 bytes"),
        ("varint", 1.0, "a whole number"),
        ("decimal", 0.1, "Decimal('0.1')"),
        ("decimal", Decimal("NaN"), "finite"),
        ("decimal", Decimal("1e-3000000000"), "32 bits"),
        ("uuid", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "a uuid.UUID"),
        ("timeuuid", uuid.UUID(int=4 << 76), "version 1"),
        ("timestamp", "2024-01-01", "a datetime"),
        ("timestamp", 2**63, "a datetime"),
        ("date", datetime(2024, 1, 1), ".date()"),
        ("time", -1, "since midnight"),
        ("time", 86_400 * 10**9, "since midnight"),
        ("inet", "fe80::1%eth0", "'10.0.0.1'"),
        ("inet", "10.0.0", "'10.0.0.1'"),
        ("duration", timedelta(1), "Duration(months"),
        ("duration", Duration(1, -1, 0), "one sign"),
        ("duration", Duration(2**31, 0, 0), "32 bits"),
        ("list<int>", "12", "a list for list<int>"),
        ("list<int>", [1, None], "list<int>, element 1: expected a whole number"),
        ("list<int>", [1, "x"], "element 1"),
        ("set<int>", {1: 2}, "a set for"),
        ("map<int, text>", [1], "a dict for"),
        ("map<int, text>", {1: 2}, "value 0: expected a str"),
        ("tuple<int, int>", (1, 2, 3), "has 2 components, not 3"),
        ("tuple<int, int>", 5, "a tuple for"),
        ("frozen<address>", {"road": 1}, "no field 'road'"),
        ("frozen<address>", {"street": 1}, "field street: expected a str"),
        ("list<int>", [0] * (MAX_ELEMENTS + 1), "at most 65535 elements"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected_and_what_came(text: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text, UDTS).serialize(value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "cell", "words"),
    [
        ("int", b"", "has 4 bytes, not 0"),
        ("boolean", b"\x02", "0 or 1"),
        ("text", b"\xff", "not UTF-8"),
        ("ascii", b"\x80", "above 127"),
        ("varint", b"\x00\x01", "as short as can be"),
        ("varint", b"", "1 to 1024 bytes"),
        ("decimal", b"\x00\x00\x00\x00", "at least 5"),
        ("time", b"\xff" * 8, "less than a day"),
        ("timeuuid", b"\x00" * 16, "version 1, not 0"),
        ("inet", b"\x00" * 5, "4 or 16"),
        ("duration", b"\x00\x00", "ends before"),
        ("duration", b"\x00\x00\x00\x00", "follow"),
        ("duration", b"\x80\x00\x00\x00", "as short"),
        ("list<int>", b"\x7f\xff\xff\xff", "2147483647 elements"),
        ("list<int>", b"\x00\x00\x00\x01", "ends too early"),
        ("list<int>", b"\x00\x00\x00\x01\xff\xff\xff\xff", "absent"),
        ("list<int>", b"\x00\x00\x00\x00x", "end at 4"),
        ("list<blob>", b"\x00\x00\x00\x01\x00\x00\x00\x09x", "end at 17"),
        ("tuple<int>", b"\xff\xff\xff\xff" * 2, "more than its 1"),
        ("tuple<blob>", b"\x00\x00\x00\x09x", "end at 13"),
    ],
)
def test_a_wrong_cell_is_refused(text: str, cell: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text).validate(cell)


@pytest.mark.parametrize(("text", "per_entry"), [("list<blob>", 1), ("set<blob>", 1), ("map<blob, blob>", 2)])
def test_a_collection_that_grew_beyond_what_a_request_may_give_is_read(text: str, per_entry: int) -> None:
    """Eight acknowledged Adds of 10,000 elements made a row that nobody could read."""
    count = MAX_ELEMENTS + 1
    cells = [each.to_bytes(4, "big") for each in range(count) for _ in range(per_entry)]
    made, grown = parse(text), join_elements(cells, per_entry)
    assert len(made.deserialize(grown)) == len(made.hashable(grown)) == count
    for take in (made.validate, made.canonical):
        with pytest.raises(ValueError, match="with 65536 elements; at most 65535 are given at once"):
            take(grown)


def test_a_value_from_before_a_field_was_added_reads_with_the_field_absent() -> None:
    old = parse("tuple<int>").serialize((7,))
    made = parse("t", {"t": UserType("k", "t", (("a", "int"), ("b", "text")))})
    made.validate(old)
    assert made.deserialize(old) == {"a": 7, "b": None}


@pytest.mark.parametrize(
    ("text", "name", "multicell"),
    [
        ("VarChar", "text", False),
        (" LIST < Text > ", "list<text>", True),
        ("frozen<list<list<int>>>", "frozen<list<frozen<list<int>>>>", False),
        ("map<text,frozen<set<int>>>", "map<text, frozen<set<int>>>", True),
        ("tuple<int,list<text>>", "frozen<tuple<int, frozen<list<text>>>>", False),
        ("address", "frozen<address>", False),
        ("shop.Address", "frozen<address>", False),
        ('list<frozen<"Person">>', 'list<frozen<"Person">>', True),
    ],
)
def test_names_are_canonical(text: str, name: str, multicell: bool) -> None:
    made = parse(text, UDTS)
    assert (made.name, made.multicell) == (name, multicell)
    assert parse(name, UDTS).name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a type is missing"),
        ("   ", "a type is missing"),
        ("strin", "no type 'strin'"),
        ("list", "write list<...>"),
        ("list<", "ends too early"),
        ("list<int", "comes '>'"),
        ("list<int>>", "nothing can follow"),
        ("list<int, text>", "1 parameter, not 2"),
        ("map<int>", "2 parameters, not 1"),
        ("int<text>", "takes no parameters"),
        ("list<list<int>>", "write frozen<list<int>>"),
        ("frozen<int>", "can't be frozen"),
        ("frozen<frozen<list<int>>>", "once is enough"),
        ("list<counter>", "counter"),
        ("set<duration>", "no order"),
        ("map<frozen<tuple<duration>>, int>", "no order"),
        ("in-t", "can't read '-t'"),
        ("other.address", "no type 'address'"),
        ('"ADDRESS"', "no type 'ADDRESS'"),
        ("frozen<list<" * 20 + "int" + ">>" * 20, "nested more than 16"),
        ("frozen<" * 1000 + "int" + ">" * 1000, "once is enough"),
        ("tuple<" + "int, " * 300 + "int>", "at most 256"),
        ("x" * 9000, "at most 8192"),
    ],
)
def test_what_is_no_type_is_refused_with_why(text: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse(text, UDTS)
    assert words in str(caught.value)


def test_user_types_that_share_parts_many_times_over_cost_nothing() -> None:
    udts = {"t0": UserType("k", "t0", (("a", "int"),))}
    for n in range(1, MAX_TYPE_DEPTH - 1):
        udts[f"t{n}"] = UserType("k", f"t{n}", tuple((f"f{m}", f"t{n - 1}") for m in range(100)))
    made = parse(f"t{MAX_TYPE_DEPTH - 2}", udts)
    assert made.depth == MAX_TYPE_DEPTH
    assert len(made.user_types) == MAX_TYPE_DEPTH - 1
    assert without_user_types(made)
    with pytest.raises(ValueError, match="nested more than 16"):
        parse(f"list<frozen<t{MAX_TYPE_DEPTH - 2}>>", udts)


def test_types_that_hold_themselves_are_refused() -> None:
    udts = {"a": UserType("k", "a", (("b", "b"),)), "b": UserType("k", "b", (("a", "a"),))}
    with pytest.raises(ValueError, match="nested more than"):
        parse("a", udts)


def test_times_of_other_zones_and_without_one_are_utc() -> None:
    made = parse("timestamp")
    noon = datetime(2024, 5, 1, 12, tzinfo=UTC)
    assert made.serialize(noon.astimezone(timezone(timedelta(hours=5)))) == made.serialize(noon)
    assert made.serialize(datetime(2024, 5, 1, 12)) == made.serialize(noon)
    assert made.serialize(date(2024, 5, 1)) == made.serialize(datetime(2024, 5, 1))
    for at in (datetime(1969, 12, 31, 23, 59, 59, 999_500), datetime(1970, 1, 1, 0, 0, 0, 1_500)):
        assert made.serialize(at) == cqltypes.DateType.serialize(at, PROTOCOL)


def test_numpy_numbers_are_numbers() -> None:
    import numpy

    assert parse("bigint").serialize(numpy.int64(5)) == parse("bigint").serialize(5)
    assert parse("varint").serialize(numpy.int64(5)) == parse("varint").serialize(5)
    assert parse("boolean").serialize(numpy.bool_(True)) == b"\x01"
    assert parse("float").serialize(numpy.float32(0.5)) == parse("float").serialize(0.5)


@pytest.mark.parametrize(
    ("text", "typed", "value"),
    [
        ("bigint", "-7", -7),
        ("boolean", "TRUE", True),
        ("double", "1e3", 1000.0),
        ("double", "NaN", math.nan),
        ("blob", "0x00ff", b"\x00\xff"),
        ("decimal", "12.50", Decimal("12.50")),
        ("timestamp", "2024-05-01T12:30:00Z", datetime(2024, 5, 1, 12, 30, tzinfo=UTC)),
        ("timestamp", "2024-05-01", datetime(2024, 5, 1, tzinfo=UTC)),
        ("timestamp", "0", 0),
        ("date", "2024-05-01", date(2024, 5, 1)),
        ("time", "12:30", time(12, 30)),
        ("time", "12:30:00.000000001", 45_000_000_000_001),
        ("duration", "1y2mo1w3d1h1m1s1ms1us1ns", Duration(14, 10, 3_661_001_001_001)),
        ("duration", "-3d", Duration(0, -3, 0)),
        ("list<int>", "[1, 2]", [1, 2]),
        ("map<int, text>", '{"1": "a"}', {1: "a"}),
        ("set<text>", '["a"]', {"a"}),
        ("tuple<int, text>", "[1]", (1, None)),
        ("address", '{"street": "x"}', {"street": "x", "tags": None, "at": None}),
        ("text", "[1", "[1"),
    ],
)
def test_values_are_typed_on_a_command_line(text: str, typed: str, value: Any) -> None:
    assert same(parse(text, UDTS).from_text(typed), value)


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("int", "1.5"),
        ("int", "eins"),
        ("boolean", "yes"),
        ("blob", "00ff"),
        ("blob", "0xf"),
        ("decimal", "1,5"),
        ("decimal", "inf"),
        ("uuid", "x"),
        ("timestamp", "yesterday"),
        ("date", "2024-13-01"),
        ("time", "25:00"),
        ("duration", "3 days"),
        ("duration", ""),
        ("list<int>", "1, 2"),
        ("list<int>", '{"a": 1}'),
        ("list<int>", "[true]"),
        ("map<int, int>", "[]"),
        ("address", '{"road": "x"}'),
        ("list<text>", "[" * 100_000),
    ],
)
def test_what_can_not_be_typed_is_refused_with_an_example(text: str, typed: str) -> None:
    with pytest.raises(ValueError, match=r"expected|no field|array|components"):
        parse(text, UDTS).from_text(typed)
