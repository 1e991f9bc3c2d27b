"""A cluster made of dictionaries: members that answer for rows as real ones would, and fail as a test tells them to.

Schema and tablets are the product's own; rows are kept once, for all members, because it is the client that is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from trimtab.catalog import commands
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.errors import SchemaError
from trimtab.catalog.planning import plan
from trimtab.catalog.schema import ColumnKind, Table
from trimtab.client.plans import TablePlan
from trimtab.metastore import requests as metastore
from trimtab.metastore.requests import MemberStatus
from trimtab.net.server import Handler, Request
from trimtab.rows import protocol
from trimtab.rows.protocol import (
    BatchRequest,
    Bound,
    CellMeta,
    ChangeReply,
    DeleteRequest,
    GetRequest,
    PutRequest,
    RowsReply,
    ScanRequest,
    SchemaReply,
    SliceRequest,
    WriteReply,
)
from trimtab.tablets import move_protocol, moves_shown, sizes
from trimtab.tablets.move_protocol import MoveReply, SettingsReply
from trimtab.tablets.moves_shown import MovesShown, ShownMove
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.records import pack
from trimtab.tablets.sizes import SizeLedger, SizesReport
from trimtab.tablets.transitions import Cause, TabletTransition, TransitionKind

Key = tuple[bytes, ...]
# column id -> cell, stamp, ttl
Cells = dict[int, tuple[bytes, int, int | None]]
DECODERS: dict[str, Callable[[bytes], Any]] = {
    protocol.PUT: protocol.decode_put,
    protocol.DELETE: protocol.decode_delete,
    protocol.BATCH: protocol.decode_batch,
    protocol.GET: protocol.decode_get,
    protocol.SLICE: protocol.decode_slice,
    protocol.SCAN: protocol.decode_scan,
}


def fails(code: str, text: str = "because", **details: Any) -> Handler:
    packed = msgspec.msgpack.encode(details) if details else b""
    return lambda request: request.fail(code, text, packed)


def ignores(_request: Request) -> None:
    """As if the answer was lost."""


class FakeCluster:
    """Members 1 to n. `asked` has what each was asked for, in order."""

    def __init__(self, addresses: dict[int, str], *, dcs: dict[int, str] | None = None, replicas: int = 3) -> None:
        self.addresses = addresses
        self.dcs = {number: (dcs or {}).get(number, "dc1") for number in addresses}
        self.replicas = min(replicas, len(addresses))
        self.catalog = Catalog()
        self.topology = 1
        self.rows: dict[int, dict[Key, dict[Key, Cells]]] = {}
        self.statics: dict[int, dict[Key, Cells]] = {}
        self.stamp_us = 1_000_000
        self.asked: list[tuple[int, str, Any]] = []
        self.scripts: dict[tuple[int, str], list[Handler]] = {}
        self.behind: dict[int, Catalog] = {}  # members that know an older schema
        self.under_way: dict[tuple[int, int], ShownMove] = {}
        self.settings = RebalanceSettings()
        self.moved: dict[int, tuple[int, ...]] = {}  # tablets whose replicas are elsewhere by now, of all tables
        self.placed = 1
        self.shown_us = 0  # what answers to reads say of the stamps in them
        self.epoch = 0  # the newest of all tables
        self.oldest_epoch = 0  # that can still be read

    def script(self, method: str, *handlers: Handler, members: tuple[int, ...] = ()) -> None:
        """What members do about their next requests of a kind, before they answer as they should."""
        for number in members or self.addresses:
            self.scripts.setdefault((number, method), []).extend(handlers)

    def of(self, method: str) -> list[Any]:
        """What was asked for, of one kind."""
        return [body for _, asked, body in self.asked if asked == method]

    def change(self, command: commands.Command) -> int:
        update = plan(self.catalog, command, 1, set(self.dcs.values()), lambda _: 8)
        if update is not None:
            self.catalog = self.catalog.apply(update)
        return self.catalog.version

    def create(self, name: str, columns: str, partition: str, clustering: str = "", tablets: int = 8) -> None:
        """A table in a line: create("shop.users", "id bigint, name text", "id")."""
        keyspace, table = name.split(".")
        self.change(commands.CreateKeyspace(keyspace, {"dc1": self.replicas}, if_not_exists=True))
        specs = [each.strip().split(" ") for each in columns.split(", ")]
        self.change(
            commands.CreateTable(
                keyspace,
                table,
                [commands.ColumnSpec(each[0], each[1], "static" in each) for each in specs],
                partition.split(", "),
                [(each.split(" ")[0], each.endswith(" desc")) for each in clustering.split(", ") if each],
                tablets=tablets,
            )
        )

    def move(self, tablet: int, replicas: tuple[int, ...]) -> None:
        """The replicas of this tablet, of all tables, are there from now on."""
        self.moved[tablet] = replicas
        self.placed += 1

    def holders(self, tablet: int) -> tuple[int, ...]:
        if tablet in self.moved:
            return self.moved[tablet]
        numbers = sorted(self.addresses)
        return tuple(numbers[(tablet + each) % len(numbers)] for each in range(self.replicas))

    # Serving

    def handlers(self, number: int) -> dict[str, Handler]:
        def handler(method: str, answer: Callable[[int, Any], bytes]) -> Handler:
            def handle(request: Request) -> None:
                body = DECODERS[method](request.body) if method in DECODERS else request.body
                self.asked.append((number, method, body))
                script = self.scripts.get((number, method))
                if script:
                    script.pop(0)(request)
                    return
                try:
                    request.reply(answer(number, body))
                except _Refused as refused:
                    request.fail(refused.code, str(refused))

            return handle

        made = {method: handler(method, self._rows_answer) for method in DECODERS}
        made[protocol.SCHEMA] = handler(protocol.SCHEMA, self._schema)
        made[protocol.CHANGE] = handler(protocol.CHANGE, self._change)
        made[sizes.SIZES] = handler(sizes.SIZES, self._sizes)
        made[moves_shown.SHOW] = handler(moves_shown.SHOW, self._moves)
        made[move_protocol.ASK] = handler(move_protocol.ASK, self._move)
        made[move_protocol.SETTINGS] = handler(move_protocol.SETTINGS, self._settings)
        made[metastore.STATUS] = lambda request: request.reply(self._status())
        return made

    def _status(self) -> bytes:
        known = [MemberStatus(each, address, True, False) for each, address in self.addresses.items()]
        first = min(self.addresses)
        return metastore.encode(
            metastore.StatusReply(
                "c", f"i{first}", first, first, self.addresses[first], 1, 1, 1, 1, 1, 0, 0, b"", "", known
            )
        )

    def _schema(self, number: int, body: bytes) -> bytes:
        request = protocol.decode_schema_request(body)
        known = request.known
        catalog = self.behind.get(number, self.catalog)
        reply = SchemaReply(catalog.version, self.topology)
        tablets = {
            table.id: [pack([self.holders(tablet) for tablet in range(table.tablets)])]
            for table in catalog.tables.values()
        }
        if known[0] != catalog.version:
            reply = msgspec.structs.replace(reply, catalog=catalog.snapshot(), tablets=tablets, placed=self.placed)
        elif 0 <= request.placed < self.placed:
            reply = msgspec.structs.replace(reply, tablets=tablets, placed=self.placed)
        if known != (catalog.version, self.topology):
            instances = {each: (f"i{each}", address, self.dcs[each], True) for each, address in self.addresses.items()}
            reply = msgspec.structs.replace(reply, instances=instances)
        return protocol.encode(reply)

    def _sizes(self, _number: int, body: bytes) -> bytes:
        """A tablet has a thousand bytes for each tablet before it; they come two at a time."""
        request = sizes.decode_request(body)
        ledger = SizeLedger()
        told = {
            table.id: {each: 1000 * each for each in range(table.tablets)} for table in self.catalog.tables.values()
        }
        ledger.take(SizesReport(1, "", 1, told, True), {table: len(each) for table, each in told.items()})
        chosen = {table: [(each, (1,)) for each in told[table]] for table in told if request.table in (0, table)}
        return bytes(sizes.encode(ledger.page(chosen, request.start, limit=2)))

    def _moves(self, _number: int, body: bytes) -> bytes:
        request = moves_shown.decode_show(body)
        chosen = [each for place, each in sorted(self.under_way.items()) if request.table in (0, place[0])]
        chosen = [each for each in chosen if request.tablet in (-1, each.tablet)]
        at = self.holders(request.tablet) if request.tablet >= 0 else ()
        names = {table.id: table.full_name for table in self.catalog.tables.values()}
        return bytes(moves_shown.encode(MovesShown(chosen, names=names, told=True, replicas=at)))

    def _move(self, _number: int, body: bytes) -> bytes:
        """Any move of a tablet that is not under way is taken up, and any that is goes back."""
        request = move_protocol.decode_move(body)
        place, held = (request.table, request.tablet), self.holders(request.tablet)
        if request.to:
            pending = tuple(request.to if each == request.source else each for each in held)
            made = TabletTransition(pending, TransitionKind.MIGRATION, session="s", cause=Cause.OPERATOR)
            self.under_way[place] = ShownMove(*place, held, made)
            return bytes(move_protocol.encode(MoveReply("pending", list(pending))))
        if place not in self.under_way:
            raise _Refused("conflict", f"tablet {request.tablet} is not under way")
        del self.under_way[place]
        return bytes(move_protocol.encode(MoveReply("undone", list(held))))

    def _settings(self, _number: int, body: bytes) -> bytes:
        wanted = move_protocol.decode_settings(body).settings
        if wanted is not None and wanted.set_ms != self.settings.set_ms:
            raise _Refused("conflict", "somebody else has changed how balancing is set")
        if wanted is not None:
            self.settings = msgspec.structs.replace(wanted, set_ms=self.settings.set_ms + 1)
        return bytes(move_protocol.encode(SettingsReply(self.settings, self.settings.keeps_still(0))))

    def _change(self, _number: int, body: bytes) -> bytes:
        try:
            version = self.change(commands.decode(protocol.decode_change(body).command))
        except SchemaError as error:
            raise _Refused(error.code, str(error)) from error
        return protocol.encode(ChangeReply(version))

    def _rows_answer(self, number: int, request: Any) -> bytes:
        if isinstance(request, PutRequest | DeleteRequest | BatchRequest):
            writes = request.writes if isinstance(request, BatchRequest) else [request]
            for write in writes:
                self._table(number, write.table, write.version)
            self.stamp_us = max(self.stamp_us, request.after_us) + 1
            stamp = request.timestamp_us or self.stamp_us
            for write in writes:
                self.write(write, stamp)
            return protocol.encode(WriteReply(stamp, 2))
        table = self._table(number, request.table, request.version)
        if isinstance(request, GetRequest):
            return protocol.encode(self._get(table, request))
        return protocol.encode(self._page(table, request))

    def _table(self, number: int, table: int, version: int) -> Table:
        catalog = self.behind.get(number, self.catalog)
        if table not in catalog.tables:
            raise _Refused("not_found", f"there is no table {table}")
        if catalog.tables[table].version != version:
            raise _Refused("version_mismatch", f"version {version} of table {table} is not the current one")
        return catalog.tables[table]

    # Rows

    def write(self, write: PutRequest | DeleteRequest, stamp: int) -> None:
        table = self.catalog.tables[write.table]
        partitions = self.rows.setdefault(table.id, {})
        keys = [column.id for column in table.of_kind(ColumnKind.PARTITION)]
        clustering = [column.id for column in table.of_kind(ColumnKind.CLUSTERING)]
        static = {column.id for column in table.of_kind(ColumnKind.STATIC)}
        if isinstance(write, DeleteRequest):
            self._delete(write, partitions)
            for id in static & set(write.columns):
                self.statics.get(table.id, {}).get(tuple(write.partition), {}).pop(id, None)
            return
        for row in write.rows:
            cells = dict(zip(write.columns, row, strict=True))
            partition = tuple(cells.pop(each) or b"" for each in keys)
            at = tuple(cells.pop(each) or b"" for each in clustering if each in cells)
            shared = self.statics.setdefault(table.id, {}).setdefault(partition, {})
            if len(at) < len(clustering):
                target = shared
            else:
                target = partitions.setdefault(partition, {}).setdefault(at, {})
            for id, cell in cells.items():
                here = shared if id in static else target
                if cell is None:
                    here.pop(id, None)
                elif id not in here or here[id][1] <= stamp:
                    here[id] = (cell, stamp, write.ttl_s or None)

    @staticmethod
    def _delete(write: DeleteRequest, partitions: dict[Key, dict[Key, Cells]]) -> None:
        rows = partitions.get(tuple(write.partition), {})
        if write.row is not None and write.columns:
            for id in write.columns:
                rows.get(tuple(write.row), {}).pop(id, None)
        elif write.columns:
            return
        elif write.row is not None:
            rows.pop(tuple(write.row), None)
        else:
            for at in [at for at in rows if within(at, write.start, write.end)]:
                del rows[at]

    def _cells(
        self, table: Table, partition: Key, at: Key, columns: list[int]
    ) -> tuple[list[bytes | None], list[CellMeta | None]]:
        names = [each.id for kind in (ColumnKind.PARTITION, ColumnKind.CLUSTERING) for each in table.of_kind(kind)]
        keys = dict(zip(names, (*partition, *at), strict=True))
        stored = self.rows[table.id][partition][at] | self.statics.get(table.id, {}).get(partition, {})
        cells = [keys[each] if each in keys else stored.get(each, (None,))[0] for each in columns]
        metas = [CellMeta(stored[each][1], stored[each][2]) if each in stored else None for each in columns]
        return cells, metas

    def _reply(
        self, table: Table, found: list[tuple[Key, Key] | None], columns: list[int], meta: bool, page: bytes = b""
    ) -> RowsReply:
        made = [None if each is None else self._cells(table, *each, columns) for each in found]
        metas = [None if each is None else each[1] for each in made] if meta else []
        return RowsReply(
            [None if each is None else each[0] for each in made], page, False, metas, stamp_us=self.shown_us
        )

    def _get(self, table: Table, request: GetRequest) -> RowsReply:
        count = len(table.of_kind(ColumnKind.PARTITION))
        found: list[tuple[Key, Key] | None] = []
        for key in request.keys:
            partition, at = tuple(key[:count]), tuple(key[count:])
            there = at in self.rows.get(table.id, {}).get(partition, {})
            found.append((partition, at) if there else None)
        return self._reply(table, found, request.columns, request.with_meta)

    def _page(self, table: Table, request: SliceRequest | ScanRequest) -> RowsReply:
        plan = TablePlan(table, {})
        partitions = self.rows.get(table.id, {})
        if isinstance(request, SliceRequest):
            partition = tuple(request.partition)
            rows = sorted(at for at in partitions.get(partition, {}) if within(at, request.start, request.end))
            everything = [(partition, at) for at in (reversed(rows) if request.reverse else rows)]
        else:
            low = request.first_token if request.first_token is not None else -(1 << 63)
            high = request.last_token if request.last_token is not None else (1 << 63) - 1
            tokens = {partition: plan.token(partition) for partition in partitions}
            chosen = sorted((token, each) for each, token in tokens.items() if low < token <= high)
            everything = [(each, at) for _, each in chosen for at in sorted(partitions[each])]
        begin = int(request.page or b"0")
        end = begin + request.limit
        page = b"%d" % end if end < len(everything) else b""
        reply = self._reply(table, list(everything[begin:end]), request.columns, request.with_meta, page)
        return msgspec.structs.replace(reply, epoch=self._epoch_of(request))

    def _epoch_of(self, request: SliceRequest | ScanRequest) -> int:
        if isinstance(request, SliceRequest) or request.epoch < 0:
            return self.epoch
        if request.epoch < self.oldest_epoch:
            raise _Refused("invalid", f"epoch {request.epoch} can't be read any more; begin the scan again")
        return request.epoch


def within(at: Key, start: Bound | None, end: Bound | None) -> bool:
    if start is not None:
        first = at[: len(start.cells)]
        if list(first) < start.cells or (list(first) == start.cells and not start.inclusive):
            return False
    if end is not None:
        first = at[: len(end.cells)]
        if list(first) > end.cells or (list(first) == end.cells and not end.inclusive):
            return False
    return True


class _Refused(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
