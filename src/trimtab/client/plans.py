"""How the rows of one table become cells and cells become rows, worked out once for each version of the table.

A cell is CQL's own serialisation, so a client needs the types to make one. Everything that depends only on the table,
or on the set of columns that is written or read, is looked up here and not again for every row: a write with the same
columns as the one before it costs one call for each value.

Wrong values are refused here, before anything is sent, and named: table, column, type, value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from trimtab.catalog.cql_type import Kind, Type
from trimtab.catalog.schema import Column, ColumnKind, Table, UserType
from trimtab.catalog.types import parse
from trimtab.client.elements import ElementChange, HasChanges, element_cells
from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.rows.hashing import token_of_bytes
from trimtab.rows.protocol import Cell, CellMeta, Way

Row = dict[str, Any]
Serialize = Callable[[Any], bytes]
Deserialize = Callable[[bytes], Any]

# Different cells of these may be equal values, and as clustering keys name the same row.
_SEVERAL_CELLS = frozenset((Kind.DECIMAL, Kind.DOUBLE, Kind.FLOAT, Kind.TUPLE, Kind.USER))
_MAX_PLANS = 256  # of one table and kind; sets of columns beyond that are worked out anew


class WritePlan(NamedTuple):
    """For rows that have these columns, in this order."""

    ids: list[int]
    serializers: tuple[Serialize, ...]
    partition: tuple[int, ...]  # where among the columns the partition key's are
    key: tuple[int, ...]  # where the whole primary key's are
    joins: bool  # whether such rows may be put as one request, if they are not the same one


class ReadPlan(NamedTuple):
    """For answers that have these columns, in this order. `deserializers`: where a value is not its cell."""

    ids: list[int]
    names: tuple[str, ...]
    deserializers: tuple[tuple[str, Deserialize], ...]

    def rows(self, answered: Sequence[Sequence[Cell] | None]) -> list[Row | None]:
        """The values of rows, in step; None where there is none. ValueError: they are not of these columns."""
        names, width = self.names, len(self.names)
        if not {len(cells) for cells in answered if cells is not None} <= {width}:
            raise ValueError(f"a row has not {width} cells, which {_listed(names)} need")
        # `strict` would take half as long again; it was looked at above.
        rows: list[Row | None] = [None if cells is None else dict(zip(names, cells)) for cells in answered]  # noqa: B905
        for name, read in self.deserializers:
            for row in rows:
                if row is not None and (cell := row[name]) is not None:
                    row[name] = read(cell)
        return rows

    def writetimes(self, metas: Sequence[CellMeta | None]) -> dict[str, int]:
        """Of the cells that have one: key columns have none."""
        return {name: meta.writetime_us for name, meta in zip(self.names, metas, strict=True) if meta is not None}

    def ttls(self, metas: Sequence[CellMeta | None]) -> dict[str, int]:
        """Seconds left, of the cells that expire."""
        pairs = zip(self.names, metas, strict=True)
        return {name: meta.ttl_s for name, meta in pairs if meta is not None and meta.ttl_s is not None}


class TablePlan:
    """Of one version of one table."""

    def __init__(self, table: Table, types: Mapping[str, UserType]) -> None:
        self.table = table
        self.name = table.full_name
        self.columns: dict[str, Column] = {column.name: column for column in table.columns}
        self.types: dict[str, Type] = {column.name: parse(column.type, types) for column in table.columns}
        self.partition = tuple(column.name for column in table.of_kind(ColumnKind.PARTITION))
        self.clustering = tuple(column.name for column in table.of_kind(ColumnKind.CLUSTERING))
        self.statics = frozenset(column.name for column in table.of_kind(ColumnKind.STATIC))
        self.key = self.partition + self.clustering
        self._key_set = frozenset(self.key)
        self._key_serializers = tuple(self.types[name].serialize for name in self.key)
        self.partition_count = len(self.partition)
        self._told_apart = all(self.types[name].kinds.isdisjoint(_SEVERAL_CELLS) for name in self.clustering)
        self.speculative = table.options.speculative_retry != "none"
        self._writes: dict[tuple[str, ...], WritePlan] = {}
        self._reads: dict[tuple[str, ...] | None, ReadPlan] = {}

    # Writing

    def writing(self, row: Mapping[str, Any]) -> WritePlan:
        """The plan for rows with the columns of this one, in its order."""
        names = tuple(row)
        plan = self._writes.get(names)
        if plan is None:
            plan = self._writing(names)
            if len(self._writes) >= _MAX_PLANS:
                self._writes.clear()
            self._writes[names] = plan
        return plan

    def _writing(self, names: tuple[str, ...]) -> WritePlan:
        self.check_columns(names)
        missing = [name for name in self.partition if name not in names]
        # Static columns belong to the partition: a row that has no others needs no clustering key.
        if any(name in names for name in self.clustering) or not (self.statics & set(names)):
            missing += [name for name in self.clustering if name not in names]
        elif self.clustering and (others := [n for n in names if n not in self.statics and n not in self._key_set]):
            raise InvalidRequest(
                f"{self.name}: {_listed(others)} can only be in a row, so {_listed(self.clustering)} is needed"
            )
        if missing:
            raise InvalidRequest(
                f"{self.name}: the row has no {_listed(missing)}, and needs all of the primary key: {_listed(self.key)}"
            )
        key = tuple(names.index(name) for name in self.key if name in names)
        return WritePlan(
            [self.columns[name].id for name in names],
            tuple(self.types[name].serialize for name in names),
            key[: self.partition_count],
            key,
            self._told_apart and self.statics.isdisjoint(names),
        )

    def cells(self, plan: WritePlan, row: Mapping[str, Any]) -> list[Cell]:
        """A row's cells in the order of its plan; InvalidRequest names the value that is wrong."""
        try:
            cells = [
                None if value is None else serialize(value)
                for serialize, value in zip(plan.serializers, row.values(), strict=True)
            ]
        except Exception as error:
            if any(isinstance(value, ElementChange) for value in row.values()):
                raise HasChanges(f"{self.name}: elements are changed row by row: with update or put") from None
            raise self._wrong_value(row, error) from error
        for at in plan.key:
            if cells[at] is None:
                raise self._null_key(tuple(row)[at])
        return cells

    def changing_cells(self, plan: WritePlan, row: Mapping[str, Any]) -> tuple[list[Cell], list[Way]]:
        """The cells of a row, and how each is written: some of them only change elements of a collection."""
        try:
            return self.cells(plan, row), []
        except HasChanges:
            cells, ways = element_cells(self.name, self.types, row)
        for at in plan.key:
            if cells[at] is None:
                raise self._null_key(tuple(row)[at])
        return cells, ways

    # Keys

    def key_cells(self, key: Mapping[str, Any]) -> list[bytes]:
        """The cells of a whole primary key."""
        if len(key) != len(self.key):
            raise self._wrong_key(key)
        try:
            cells = [serialize(key[name]) for serialize, name in zip(self._key_serializers, self.key, strict=True)]
        except KeyError:
            raise self._wrong_key(key) from None
        except Exception as error:
            raise self._wrong_value(key, error) from error
        return cells

    def keys_cells(self, keys: Sequence[Mapping[str, Any]]) -> list[list[bytes]]:
        """The cells of several whole primary keys."""
        if len(self.key) == 1:
            (name,), (serialize,) = self.key, self._key_serializers
            # All have this column; as many columns as keys means that none has another. Which of them is wrong, and
            # how, is found one by one.
            with suppress(Exception):
                cells = [[serialize(key[name])] for key in keys]
                if len(cells) == sum(map(len, keys)):
                    return cells
        return [self.key_cells(key) for key in keys]

    def prefix_cells(self, key: Mapping[str, Any]) -> tuple[list[bytes], list[bytes]]:
        """Partition and clustering cells of the beginning of a primary key: at least all of the partition key."""
        count = len(key)
        if count < self.partition_count or any(name not in key for name in self.key[:count]):
            raise self._wrong_key(key, prefix=True)
        try:
            pairs = zip(self._key_serializers, self.key[:count], strict=False)
            cells = [serialize(key[name]) for serialize, name in pairs]
        except Exception as error:
            raise self._wrong_value(key, error) from error
        return cells[: self.partition_count], cells[self.partition_count :]

    def bound_cells(self, given: Any, taken: int) -> list[bytes]:
        """The clustering cells of a bound, after so many that are given anyway: a value, several, or a mapping."""
        names = self.clustering[taken:]
        if isinstance(given, Mapping):
            if set(given) != set(names[: len(given)]):
                raise InvalidRequest(f"{self.name}: a bound has the first of {_listed(names)}, not {_listed(given)}")
            values = {name: given[name] for name in names[: len(given)]}
        else:
            # A tuple may also be the value of a single column.
            several = isinstance(given, tuple | list) and not (len(names) == 1 and self._is_sequence(names[0]))
            listed = list(given) if several else [given]
            if not 0 < len(listed) <= len(names):
                there = f"the clustering columns left are {_listed(names)}" if names else "no clustering column is left"
                raise InvalidRequest(f"{self.name}: a bound of {len(listed)} values makes no sense: {there}")
            values = dict(zip(names, listed, strict=False))
        try:
            return [self.types[name].serialize(value) for name, value in values.items()]
        except Exception as error:
            raise self._wrong_value(values, error) from error

    def token(self, partition: Sequence[bytes]) -> int:
        """Of a partition key: where its row is."""
        if len(partition) == 1:
            return token_of_bytes(partition[0])
        return token_of_bytes(b"".join([len(cell).to_bytes(2, "big") + cell + b"\0" for cell in partition]))

    # Reading

    def reading(self, columns: Sequence[str] | None) -> ReadPlan:
        """The plan for these columns; None: all of them."""
        wanted = None if columns is None else tuple(columns)
        plan = self._reads.get(wanted)
        if plan is None or isinstance(columns, str):
            names = tuple(self.columns) if columns is None else columns
            self.check_columns(names)
            names = tuple(names)
            if not names or len(set(names)) != len(names):
                raise InvalidRequest(f"{self.name}: columns to read are named once each, and at least one")
            plan = ReadPlan(
                [self.columns[name].id for name in names],
                names,
                tuple((name, read) for name in names if (read := self.types[name].deserialize) is not bytes),
            )
            if len(self._reads) >= _MAX_PLANS:
                self._reads.clear()
            self._reads[wanted] = plan
        return plan

    def deletable(self, columns: Sequence[str]) -> list[int]:
        """The ids of columns whose cells are to be deleted."""
        self.check_columns(columns)
        if keys := [name for name in columns if name in self._key_set]:
            raise InvalidRequest(f"{self.name}: {_listed(keys)} is part of the primary key; delete the row instead")
        return [self.columns[name].id for name in columns]

    # What is wrong

    def check_columns(self, names: Collection[str]) -> None:
        if isinstance(names, str):
            raise InvalidRequest(f"{self.name}: columns are given as a list of names, not as one text {names!r}")
        for name in names:
            if name not in self.columns:
                raise self._no_column(name)

    def _no_column(self, name: object) -> NotFound:
        from difflib import get_close_matches

        close = get_close_matches(str(name), self.columns, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it has {_listed(list(self.columns))}"
        return NotFound(f"{self.name} has no column {name!r}{hint}")

    def _wrong_key(self, key: Mapping[str, Any], *, prefix: bool = False) -> InvalidRequest:
        self.check_columns(key)
        if strangers := [name for name in key if name not in self._key_set]:
            return InvalidRequest(
                f"{self.name}: {_listed(strangers)} is not part of the primary key, which is {_listed(self.key)}"
            )
        if not prefix:
            missing = [name for name in self.key if name not in key]
            return InvalidRequest(f"{self.name}: {_listed(missing)} is missing: the primary key is {_listed(self.key)}")
        return InvalidRequest(
            f"{self.name}: a key begins with {_listed(self.partition)}"
            + (f", then {_listed(self.clustering)} in that order" if self.clustering else "")
            + f"; {_listed(key) or 'nothing'} is not such a beginning"
        )

    def _null_key(self, name: str) -> InvalidRequest:
        return InvalidRequest(f"{self.name}: {name} is None, but it is part of the primary key and needs a value")

    def _wrong_value(self, values: Mapping[str, Any], error: Exception) -> InvalidRequest:
        """Which of the values it was, found by trying each again."""
        for name, value in values.items():
            if value is None:
                if name in self._key_set:
                    return self._null_key(name)
                continue
            try:
                self.types[name].serialize(value)
            except Exception as reason:
                return InvalidRequest(f"{self.name}.{name} is of type {self.types[name]}: {str(reason).rstrip('.')}")
        return InvalidRequest(f"{self.name}: the values can't be written: {error}")

    def _is_sequence(self, name: str) -> bool:
        return self.types[name].kind in (Kind.LIST, Kind.TUPLE)


def _listed(names: Collection[str]) -> str:
    return ", ".join(str(name) for name in names)
