"""Values and types for hypothesis: every type of CQL, nested as CQL allows, with values Python programs would write."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.types import Duration


def _signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _durations() -> st.SearchStrategy[Duration]:
    parts = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
    return st.tuples(parts, st.sampled_from((1, -1))).map(
        lambda drawn: Duration(*(drawn[1] * each for each in drawn[0]))
    )


def _timeuuid(number: int) -> uuid.UUID:
    return uuid.UUID(int=number & ~(0xF << 76) | 1 << 76)


def _plain_nan(value: float) -> float:
    """JSON has one NaN; floats have many."""
    return value if value == value else math.nan


NATIVE_VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.ASCII: st.text(st.characters(max_codepoint=127), max_size=8),
    Kind.BIGINT: _signed(64),
    Kind.BLOB: st.binary(max_size=8),
    Kind.BOOLEAN: st.booleans(),
    Kind.COUNTER: _signed(64),
    Kind.DATE: st.dates(),
    Kind.DECIMAL: st.decimals(allow_nan=False, allow_infinity=False)
    | st.builds(lambda n, s: Decimal(n).scaleb(s), st.integers(-999, 999), st.integers(-40, 40)),
    Kind.DOUBLE: st.floats().map(_plain_nan),
    Kind.DURATION: _durations(),
    Kind.FLOAT: st.floats(width=32).map(_plain_nan),
    Kind.INET: st.ip_addresses().map(str),
    Kind.INT: _signed(32),
    Kind.SMALLINT: _signed(16),
    Kind.TEXT: st.text(max_size=8),
    Kind.TIME: st.times(),
    Kind.TIMESTAMP: st.datetimes(timezones=st.just(UTC)).map(
        lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
    ),
    Kind.TIMEUUID: st.integers(0, 2**128 - 1).map(_timeuuid),
    Kind.TINYINT: _signed(8),
    Kind.UUID: st.uuids(),
    Kind.VARINT: st.integers() | st.integers(-(2**200), 2**200),
}
# Numbers that stand for what Python's own types can't hold.
BEYOND_PYTHON: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.DATE: st.integers(0, 10**6) | st.integers(2**32 - 10**6, 2**32 - 1),
    Kind.TIME: st.integers(0, 86_400 * 10**9 - 1).filter(lambda ns: ns % 1000),
    Kind.TIMESTAMP: st.integers(2**62, 2**63 - 1) | st.integers(-(2**63), -(2**62)),
}
EXAMPLES: dict[Kind, Any] = {
    Kind.DATE: date(2024, 5, 1),
    Kind.TIME: time(1, 2, 3, 4),
    Kind.TIMESTAMP: datetime(2024, 5, 1, 12, 30, tzinfo=UTC),
}


def values_of(given: Type) -> st.SearchStrategy[Any]:
    """Values of a type, in the form that `deserialize` gives them; what is inside sets and keys can be hashed."""
    return _values(given, hashable=False)


def _values(given: Type, hashable: bool) -> st.SearchStrategy[Any]:
    elements = given.elements
    match given.kind:
        case Kind.LIST:
            inner = st.lists(_values(elements[0], hashable), max_size=3)
            return inner.map(tuple) if hashable else inner
        case Kind.SET:
            inner_set = st.frozensets(_values(elements[0], True), max_size=3)
            return inner_set if hashable else inner_set.map(set)
        case Kind.MAP:
            entries = st.dictionaries(_values(elements[0], True), _values(elements[1], hashable), max_size=3)
            return entries.map(lambda each: tuple(each.items())) if hashable else entries
        case Kind.TUPLE | Kind.USER:
            parts = st.tuples(*(st.none() | _values(element, hashable) for element in elements))
            if given.kind is Kind.USER and not hashable:
                return parts.map(lambda each: dict(zip(given.fields, each, strict=True)))
            return parts
        case kind:
            # NaN is not itself, so a set of Python's would hold it twice.
            return NATIVE_VALUES[kind].filter(lambda value: value == value) if hashable else NATIVE_VALUES[kind]


_ORDERED = [kind.value for kind in NATIVE_VALUES if kind not in (Kind.DURATION, Kind.COUNTER)]
_INSIDE = [*_ORDERED, "duration"]


def _nest(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    ordered = inner.filter(lambda text: "duration" not in text)
    return st.one_of(
        st.builds("frozen<list<{}>>".format, inner),
        st.builds("frozen<set<{}>>".format, ordered),
        st.builds("frozen<map<{}, {}>>".format, ordered, inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: f"frozen<tuple<{', '.join(each)}>>"),
    )


TYPE_TEXTS = st.recursive(st.sampled_from(_INSIDE), _nest, max_leaves=5)
