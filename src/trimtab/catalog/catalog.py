"""The catalog: everything that is declared, as of one version. A value: the next version is another catalog.

`apply` is the only way to the next version, and it asks no questions of the outside: whoever applies the same updates,
or begins from a snapshot and applies the rest, has the same catalog. What an update does not touch stays the same
object, so others may keep what they made of a table for as long as `table is` the one they made it of.

An update that does not fit (another version, a table that is not there) raises ValueError and changes nothing:
somebody's history is damaged, and a schema made of guesses would be worse than an old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from trimtab.catalog import drafts, names
from trimtab.catalog.errors import NoSuchThing
from trimtab.catalog.schema import Keyspace, Table, UserType
from trimtab.catalog.updates import Update

FORMAT = 1
_NO_TYPES: Mapping[str, UserType] = {}


@dataclass(frozen=True)
class Catalog:
    """`types`: user types by keyspace, then by name. `next_table` is never an id of any table there was."""

    version: int = 0
    activation_ms: int = 0
    keyspaces: Mapping[str, Keyspace] = field(default_factory=dict)
    tables: Mapping[int, Table] = field(default_factory=dict)
    types: Mapping[str, Mapping[str, UserType]] = field(default_factory=dict)
    next_table: int = 1
    ids: Mapping[tuple[str, str], int] = field(default_factory=dict, repr=False)  # keyspace and name -> table id

    # Looking

    def find(self, full_name: str) -> Table | None:
        """The table `shop.users`, or None."""
        keyspace, _, name = full_name.partition(".")
        found = self.ids.get((keyspace, name))
        return None if found is None else self.tables[found]

    def table(self, full_name: str) -> Table:
        """The table `shop.users`; NoSuchThing, with what there is, where there is none."""
        if found := self.find(full_name):
            return found
        try:
            keyspace, name = names.split_table(full_name)
        except ValueError as error:
            raise NoSuchThing(str(error)) from None
        raise drafts.no_table(self, keyspace, name)

    def types_of(self, keyspace: str) -> Mapping[str, UserType]:
        """The user types of a keyspace by name: the same object until one of them changes."""
        return self.types.get(keyspace, _NO_TYPES)

    def tables_of(self, keyspace: str) -> list[Table]:
        """By name."""
        return sorted(
            (table for table in self.tables.values() if table.keyspace == keyspace), key=lambda table: table.name
        )

    # Changing

    def apply(self, update: Update) -> Catalog:
        """The next version. ValueError where the update is not the one that comes next."""
        if update.version != self.version + 1:
            raise ValueError(f"schema update {update.version} does not follow version {self.version}")
        if update.activation_ms <= self.activation_ms:
            raise ValueError(
                f"schema update {update.version} would be active from {update.activation_ms} on, not after version "
                f"{self.version} ({self.activation_ms})"
            )
        draft = drafts.Draft(self, update.version)
        for change in update.changes:
            draft.apply(change)
        draft.finish()
        return Catalog(
            version=update.version,
            activation_ms=update.activation_ms,
            keyspaces=draft.keyspaces,
            tables=draft.tables,
            types=draft.types,
            next_table=draft.next_table,
            ids=draft.ids,
        )

    # As bytes

    def snapshot(self) -> bytes:
        """All of it: what clients are sent, and what stands for the updates up to this version."""
        return _encoder.encode(
            _Snapshot(
                format=FORMAT,
                version=self.version,
                activation_ms=self.activation_ms,
                next_table=self.next_table,
                keyspaces=tuple(self.keyspaces[name] for name in sorted(self.keyspaces)),
                types=tuple(
                    self.types[keyspace][name]
                    for keyspace in sorted(self.types)
                    for name in sorted(self.types[keyspace])
                ),
                tables=tuple(self.tables[number] for number in sorted(self.tables)),
            )
        )

    @staticmethod
    def from_snapshot(encoded: bytes) -> Catalog:
        """The way back; ValueError, with what to do, on what this release can't read for certain."""
        try:
            header = _header.decode(encoded)
            if header.format != FORMAT:
                raise ValueError(
                    f"a catalog of format {header.format}, and this release reads {FORMAT}; use the one that wrote it"
                )
            read = _decoder.decode(encoded)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(
                f"a catalog that can't be read ({error}); if a newer release wrote it, use that release"
            ) from None
        types: dict[str, dict[str, UserType]] = {}
        for user_type in read.types:
            types.setdefault(user_type.keyspace, {})[user_type.name] = user_type
        return Catalog(
            version=read.version,
            activation_ms=read.activation_ms,
            keyspaces={keyspace.name: keyspace for keyspace in read.keyspaces},
            tables={table.id: table for table in read.tables},
            types=types,
            next_table=read.next_table,
            ids={(table.keyspace, table.name): table.id for table in read.tables},
        )


def load(snapshot: bytes, updates: Iterable[Update]) -> Catalog:
    """The catalog of a snapshot (empty: there is none) and the updates after it; those it stands for are skipped."""
    catalog = Catalog.from_snapshot(snapshot) if snapshot else Catalog()
    for update in sorted(updates, key=lambda update: update.version):
        if update.version > catalog.version:
            catalog = catalog.apply(update)
    return catalog


class _Snapshot(msgspec.Struct, frozen=True):
    format: int
    version: int
    activation_ms: int
    next_table: int
    keyspaces: tuple[Keyspace, ...]
    types: tuple[UserType, ...]
    tables: tuple[Table, ...]


class _Header(msgspec.Struct, frozen=True):
    format: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Snapshot)
_header = msgspec.json.Decoder(_Header)
