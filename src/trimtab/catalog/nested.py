"""Types made of others: collections, tuples and user types, in the form of CQL's protocol from version 3 on.

    list, set   count · (size · element) ...                     all counts and sizes 4 bytes, signed
    map         count · (size · key · size · value) ...
    tuple, user type   (size · component) ...                    size -1: absent; missing ones at the end are absent

Nothing inside a collection is absent. Sets and maps are sorted and hold nothing twice; a whole tuple is written even
where its end is absent. So equal values are equal bytes, and can be keys.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from trimtab.catalog import ordering
from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.limits import MAX_ELEMENTS
from trimtab.catalog.values import refused, shown

_pack_size = struct.Struct(">i").pack
_unpack_size = struct.Struct(">i").unpack_from
_ABSENT = _pack_size(-1)


def split_elements(cell: bytes, name: str, per_entry: int = 1) -> list[bytes]:
    """The cells in a collection's cell, however many: what is added to one piece by piece has no bound of its own."""
    try:
        (count,) = _unpack_size(cell, 0)
        if count < 0:
            raise ValueError(f"a cell of {name} with {count} elements")
        position, found = 4, []
        for _ in range(count * per_entry):
            (size,) = _unpack_size(cell, position)
            if size < 0:
                raise ValueError(f"a cell of {name} with an absent element; nothing inside a collection is absent")
            position += 4
            end = position + size
            found.append(cell[position:end])
            position = end
    except struct.error:
        raise ValueError(f"a cell of {name} that ends too early ({len(cell)} bytes)") from None
    if position != len(cell):
        raise ValueError(f"a cell of {name} with {len(cell)} bytes, where its elements end at {position}")
    return found


def given_elements(cell: bytes, name: str, per_entry: int = 1) -> list[bytes]:
    """As `split_elements`, of a cell that comes with a request: ValueError too where it has more than one may give."""
    if (count := int.from_bytes(cell[:4], "big", signed=True)) > MAX_ELEMENTS:
        raise ValueError(f"a cell of {name} with {count} elements; at most {MAX_ELEMENTS} are given at once")
    return split_elements(cell, name, per_entry)


def join_elements(cells: Sequence[bytes], per_entry: int = 1) -> bytes:
    """A collection's cell from those of its elements: of a map keys and values by turns."""
    parts = [_pack_size(len(cells) // per_entry)]
    for cell in cells:
        parts.append(_pack_size(len(cell)))
        parts.append(cell)
    return b"".join(parts)


def split_components(cell: bytes, name: str, count: int) -> list[bytes | None]:
    """The components of a tuple's cell, as many as the type has."""
    position, found = 0, list[bytes | None]()
    try:
        while position < len(cell):
            (size,) = _unpack_size(cell, position)
            position += 4
            if size < -1 or len(found) == count:
                raise ValueError(f"a cell of {name} with more than its {count} components, or damaged")
            if size == -1:
                found.append(None)
                continue
            found.append(cell[position : position + size])
            position += size
    except struct.error:
        raise ValueError(f"a cell of {name} that ends too early ({len(cell)} bytes)") from None
    if position != len(cell):
        raise ValueError(f"a cell of {name} with {len(cell)} bytes, where its components end at {position}")
    found.extend([None] * (count - len(found)))
    return found


def join_components(cells: Sequence[bytes | None]) -> bytes:
    parts = []
    for cell in cells:
        if cell is None:
            parts.append(_ABSENT)
        else:
            parts.append(_pack_size(len(cell)))
            parts.append(cell)
    return b"".join(parts)


def _each(convert: Callable[[Any], Any], items: Iterable[Any], where: str) -> list[Any]:
    """Every item converted; what is refused is named by its place."""
    done: list[Any] = []
    try:
        for item in items:
            done.append(convert(item))
    except ValueError as error:
        raise ValueError(f"{where} {len(done)}: {error}") from None
    return done


def _within_limit(count: int, name: str) -> None:
    if count > MAX_ELEMENTS:
        raise ValueError(f"{name} has at most {MAX_ELEMENTS} elements, not {count}")


def _named(inner: str, multicell: bool) -> str:
    return inner if multicell else f"frozen<{inner}>"


def list_of(element: Type, multicell: bool) -> Type:
    name = _named(f"list<{element.name}>", multicell)
    place = f"{name}, element"
    order = ordering.sequence(element.order)

    def serialize(value: Any) -> bytes:
        if isinstance(value, str | bytes | bytearray | Mapping | Set) or not isinstance(value, Iterable):
            raise refused(f"a list for {name}", value)
        cells = _each(element.serialize, value, place)
        _within_limit(len(cells), name)
        return join_elements(cells)

    def deserialize(cell: bytes) -> list[Any]:
        return _each(element.deserialize, split_elements(cell, name), place)

    def validate(cell: bytes) -> None:
        _each(element.validate, given_elements(cell, name), place)

    def canonical(cell: bytes) -> bytes:
        return join_elements(_each(element.canonical, given_elements(cell, name), place))

    return Type(
        name=name,
        kind=Kind.LIST,
        fixed_width=None,
        serialize=serialize,
        deserialize=deserialize,
        validate=validate,
        canonical=canonical,
        order=lambda cell: order(split_elements(cell, name)),
        hashable=lambda cell: tuple(_each(element.hashable, split_elements(cell, name), place)),
        multicell=multicell,
        elements=(element,),
    )


def set_of(element: Type, multicell: bool) -> Type:
    name = _named(f"set<{element.name}>", multicell)
    place = f"{name}, element"
    order = ordering.sequence(element.order)

    def by_order(cell: bytes) -> tuple[Any, bytes]:
        return element.order(cell), cell

    def serialize(value: Any) -> bytes:
        if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
            raise refused(f"a set for {name}", value)
        cells = set(_each(element.serialize, value, place))
        _within_limit(len(cells), name)
        return join_elements(sorted(cells, key=by_order))

    def validate(cell: bytes) -> None:
        cells = given_elements(cell, name)
        _each(element.validate, cells, place)
        # What is stored element by element is sorted there; what is stored as one has to be sorted here.
        if not multicell:
            _check_sorted(cells, by_order, name)

    def canonical(cell: bytes) -> bytes:
        return join_elements(sorted(set(_each(element.canonical, given_elements(cell, name), place)), key=by_order))

    return Type(
        name=name,
        kind=Kind.SET,
        fixed_width=None,
        serialize=serialize,
        deserialize=lambda cell: set(_each(element.hashable, split_elements(cell, name), place)),
        validate=validate,
        canonical=canonical,
        order=lambda cell: order(split_elements(cell, name)),
        hashable=lambda cell: frozenset(_each(element.hashable, split_elements(cell, name), place)),
        multicell=multicell,
        elements=(element,),
    )


def map_of(key: Type, value: Type, multicell: bool) -> Type:
    name = _named(f"map<{key.name}, {value.name}>", multicell)
    key_place, value_place = f"{name}, key", f"{name}, value"
    key_order, value_order = ordering.sequence(key.order), ordering.sequence(value.order)

    def by_order(cell: bytes) -> tuple[Any, bytes]:
        return key.order(cell), cell

    def flat(entries: Mapping[bytes, bytes]) -> bytes:
        return join_elements([cell for each in sorted(entries, key=by_order) for cell in (each, entries[each])], 2)

    def serialize(given: Any) -> bytes:
        if isinstance(given, Mapping):
            keys, values = list(given), list(given.values())
        elif isinstance(given, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in given):
            keys, values = [pair[0] for pair in given], [pair[1] for pair in given]
        else:
            raise refused(f"a dict for {name}", given)
        _within_limit(len(keys), name)
        cells = _each(key.serialize, keys, key_place)
        entries = dict(zip(cells, _each(value.serialize, values, value_place), strict=True))
        if len(entries) != len(keys):
            raise ValueError(f"{name} with a key twice: {shown(given)}")
        return flat(entries)

    def split(cell: bytes) -> tuple[list[bytes], list[bytes]]:
        cells = split_elements(cell, name, 2)
        return cells[::2], cells[1::2]

    def given(cell: bytes) -> tuple[list[bytes], list[bytes]]:
        cells = given_elements(cell, name, 2)
        return cells[::2], cells[1::2]

    def deserialize(cell: bytes) -> dict[Any, Any]:
        keys, values = split(cell)
        return dict(
            zip(_each(key.hashable, keys, key_place), _each(value.deserialize, values, value_place), strict=True)
        )

    def hashable(cell: bytes) -> tuple[tuple[Any, Any], ...]:
        keys, values = split(cell)
        return tuple(zip(_each(key.hashable, keys, key_place), _each(value.hashable, values, value_place), strict=True))

    def validate(cell: bytes) -> None:
        keys, values = given(cell)
        _each(key.validate, keys, key_place)
        _each(value.validate, values, value_place)
        if not multicell:
            _check_sorted(keys, by_order, name)

    def canonical(cell: bytes) -> bytes:
        keys, values = given(cell)
        return flat(
            dict(zip(_each(key.canonical, keys, key_place), _each(value.canonical, values, value_place), strict=True))
        )

    def order(cell: bytes) -> tuple[Any, ...]:
        keys, values = split(cell)
        return tuple(zip(key_order(keys), value_order(values), strict=True))

    return Type(
        name=name,
        kind=Kind.MAP,
        fixed_width=None,
        serialize=serialize,
        deserialize=deserialize,
        validate=validate,
        canonical=canonical,
        order=order,
        hashable=hashable,
        multicell=multicell,
        elements=(key, value),
    )


def _check_sorted(cells: list[bytes], by_order: Callable[[bytes], Any], name: str) -> None:
    if len(cells) < 2:
        return
    orders = [by_order(cell) for cell in cells]
    if any(one >= other for one, other in pairwise(orders)):
        raise ValueError(f"a cell of {name} whose elements are not sorted, or there twice; sort them in CQL's order")


def tuple_of(elements: tuple[Type, ...]) -> Type:
    name = f"frozen<tuple<{', '.join(element.name for element in elements)}>>"
    return _components(name, Kind.TUPLE, elements, ())


def user_type(name: str, fields: tuple[str, ...], elements: tuple[Type, ...]) -> Type:
    """`name` as it is written in a type's text. Values are dicts; a field that is missing is absent."""
    return _components(f"frozen<{name}>", Kind.USER, elements, fields)


def _components(name: str, kind: Kind, elements: tuple[Type, ...], fields: tuple[str, ...]) -> Type:
    count = len(elements)
    places = [f"{name}, field {field}" for field in fields] or [f"{name}, component {n}" for n in range(count)]
    order = ordering.components(tuple(element.order for element in elements))
    serializers = [element.serialize for element in elements]
    deserializers = [element.deserialize for element in elements]
    hashables = [element.hashable for element in elements]
    validators = [element.validate for element in elements]
    canonicals = [element.canonical for element in elements]

    def convert(functions: list[Callable[[Any], Any]], items: Sequence[Any]) -> list[Any]:
        done: list[Any] = []
        try:
            for function, item in zip(functions, items, strict=True):
                done.append(None if item is None else function(item))
        except ValueError as error:
            raise ValueError(f"{places[len(done)]}: {error}") from None
        return done

    def in_order(value: Any) -> Sequence[Any]:
        if isinstance(value, Mapping) and fields:
            if unknown := [key for key in value if key not in fields]:
                raise ValueError(f"{name} has no field {shown(unknown[0])}; its fields are {', '.join(fields)}")
            return [value.get(field) for field in fields]
        if not isinstance(value, tuple | list):
            raise refused(f"a {'dict' if fields else 'tuple'} for {name}", value)
        if len(value) > count:
            raise ValueError(f"{name} has {count} component{'s' if count > 1 else ''}, not {len(value)}")
        return [*value, *[None] * (count - len(value))]

    def serialize(value: Any) -> bytes:
        return join_components(convert(serializers, in_order(value)))

    def plain(cell: bytes) -> tuple[Any, ...]:
        return tuple(convert(deserializers, split_components(cell, name, count)))

    def mapping(cell: bytes) -> dict[str, Any]:
        return dict(zip(fields, convert(deserializers, split_components(cell, name, count)), strict=True))

    def validate(cell: bytes) -> None:
        convert(validators, split_components(cell, name, count))

    def canonical(cell: bytes) -> bytes:
        return join_components(convert(canonicals, split_components(cell, name, count)))

    return Type(
        name=name,
        kind=kind,
        fixed_width=None,
        serialize=serialize,
        deserialize=mapping if fields else plain,
        validate=validate,
        canonical=canonical,
        order=lambda cell: order(split_components(cell, name, count)),
        hashable=lambda cell: tuple(convert(hashables, split_components(cell, name, count))),
        elements=elements,
        fields=fields,
    )
