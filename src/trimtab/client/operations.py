"""The requests for rows, each as an ask: made from Python values, read back into them.

What an application gives is kept as it was given, because a request is made anew when the table has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trimtab.client.asks import Ask
from trimtab.client.contact import decoded
from trimtab.client.errors import Error, InvalidRequest
from trimtab.client.known import Known
from trimtab.client.plans import ReadPlan, Row, TablePlan, WritePlan
from trimtab.client.stamps import Stamps
from trimtab.rows import protocol
from trimtab.rows.protocol import (
    BatchRequest,
    Bound,
    Cell,
    DeleteRequest,
    GetRequest,
    PutRequest,
    RowsReply,
    ScanRequest,
    SliceRequest,
    Way,
)
from trimtab.tablets.consistency import Level
from trimtab.tablets.ring import tablet_of

if TYPE_CHECKING:
    from trimtab.client.members import Member


@dataclass(frozen=True, slots=True)
class RowWithMeta:
    """A row, and of its cells when they were written (microseconds since 1970) and how many seconds they have left.

    `stale`: whoever answered could not make sure that it is the newest.
    """

    row: Row
    writetime: dict[str, int]
    ttl: dict[str, int]
    stale: bool


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a partition, in the table's order: from `since` on or `after` it, up to `until` or only `before` it."""

    after: Any = None
    since: Any = None
    until: Any = None
    before: Any = None

    def __post_init__(self) -> None:
        for one, other in (("after", "since"), ("until", "before")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise InvalidRequest(f"{one} and {other} say two things about the same end: give one of them")

    def bounds(self, plan: TablePlan, prefix: list[bytes]) -> tuple[Bound | None, Bound | None]:
        """The ends of the range, within rows whose clustering key begins with `prefix`."""
        start = self._bound(plan, prefix, self.since, self.after)
        end = self._bound(plan, prefix, self.until, self.before)
        return start, end

    @staticmethod
    def _bound(plan: TablePlan, prefix: list[bytes], inclusive: Any, exclusive: Any) -> Bound | None:
        if inclusive is not None:
            return Bound(prefix + plan.bound_cells(inclusive, len(prefix)), True)
        if exclusive is not None:
            return Bound(prefix + plan.bound_cells(exclusive, len(prefix)), False)
        return Bound(prefix, True) if prefix else None


# Reading


class Reading(Ask[Any]):
    """What all reads share."""

    writes: ClassVar[bool] = False
    plan: ReadPlan

    def __init__(
        self,
        name: str,
        columns: Sequence[str] | None,
        stamps: Stamps,
        level: Level,
        as_of_us: int,
        meta: bool,
        timeout_s: float,
    ) -> None:
        self.timeout_s = timeout_s
        self.repeatable = True
        self.name = name
        self.columns = columns
        self.stamps = stamps
        self.level = level
        self.as_of_us = as_of_us
        self.meta = meta

    def rows(self, reply: RowsReply) -> list[Any]:
        """Each row as it was asked for; None where there is none."""
        self.stamps.saw(reply.stamp_us)
        plan = self.plan
        try:
            rows = plan.rows(reply.rows)
            if not self.meta:
                return rows
            metas = reply.metas or [None] * len(rows)
            return [
                None
                if row is None
                else RowWithMeta(row, plan.writetimes(meta or []), plan.ttls(meta or []), reply.stale)
                for row, meta in zip(rows, metas, strict=True)
            ]
        except ValueError as error:
            raise Error(f"{self.name}: a row that came back can't be read: {error}") from error


class Get(Reading):
    """One row by its whole primary key."""

    method: ClassVar[str] = protocol.GET

    def __init__(
        self,
        name: str,
        key: Mapping[str, Any],
        columns: Sequence[str] | None,
        stamps: Stamps,
        level: Level,
        as_of_us: int,
        meta: bool,
        timeout_s: float,
    ) -> None:
        super().__init__(name, columns, stamps, level, as_of_us, meta, timeout_s)
        self.key = key

    def prepare(self, known: Known) -> None:
        plan = known.plan(self.name)
        cells = plan.key_cells(self.key)
        self.plan = reading = plan.reading(self.columns)
        table = plan.table
        # A row as it was is another matter: the newest past is waited for.
        self.alike = (table.id, self.level) if plan.speculative and not self.as_of_us else None
        self.table = table.id
        self.tablet = tablet_of(plan.token(cells[: plan.partition_count]), table.tablets)
        self.body = protocol.encode(
            GetRequest(table.id, table.version, [cells], reading.ids, self.level, self.as_of_us, self.meta)
        )

    def read(self, body: bytes) -> Any:
        rows = self.rows(decoded(protocol.decode_rows, body))
        return rows[0] if rows else None


class GetSome(Reading):
    """Several rows whose replicas share a member. `places`: where each belongs in what was asked for."""

    method: ClassVar[str] = protocol.GET
    keys: Sequence[Mapping[str, Any]] = ()
    places: Sequence[int] = ()

    def prepare(self, known: Known) -> None:
        plan = known.plan(self.name)
        self.send(plan, plan.keys_cells(self.keys))

    def send(self, plan: TablePlan, cells: list[list[bytes]]) -> None:
        self.plan = reading = plan.reading(self.columns)
        table = plan.table
        self.table = table.id
        self.tablet = tablet_of(plan.token(cells[0][: plan.partition_count]), table.tablets)
        self.body = protocol.encode(
            GetRequest(table.id, table.version, cells, reading.ids, self.level, self.as_of_us, self.meta)
        )

    def halves(self) -> list[GetSome]:
        """The same as two requests, because the answer to one is too large; nothing if it is for one row."""
        middle = len(self.keys) // 2
        made = []
        for part in (slice(None, middle), slice(middle, None)) if middle else ():
            half = GetSome(self.name, self.columns, self.stamps, self.level, self.as_of_us, self.meta, self.timeout_s)
            half.keys, half.places, half.prefer = self.keys[part], self.places[part], self.prefer
            made.append(half)
        return made

    def put_into(self, rows: list[Any], found: list[Any]) -> None:
        """The rows that were answered, where they belong."""
        places = self.places
        if isinstance(places, range):
            rows[places.start : places.stop] = found
        else:
            for place, row in zip(places, found, strict=True):
                rows[place] = row

    def read(self, body: bytes) -> list[Any]:
        rows = self.rows(decoded(protocol.decode_rows, body))
        if len(rows) != len(self.keys):
            raise Error(f"{self.name}: {len(self.keys)} rows were asked for, and {len(rows)} were answered")
        return rows


@dataclass(frozen=True, slots=True)
class Page:
    rows: list[Any]
    state: bytes
    epoch: int


class Slice(Reading):
    """A page of rows of one partition."""

    method: ClassVar[str] = protocol.SLICE

    def __init__(
        self,
        name: str,
        key: Mapping[str, Any],
        span: Span,
        columns: Sequence[str] | None,
        limit: int,
        reverse: bool,
        page: bytes,
        stamps: Stamps,
        level: Level,
        as_of_us: int,
        meta: bool,
        timeout_s: float,
    ) -> None:
        super().__init__(name, columns, stamps, level, as_of_us, meta, timeout_s)
        self.key = key
        self.span = span
        self.limit = limit
        self.reverse = reverse
        self.page = page

    def prepare(self, known: Known) -> None:
        plan = known.plan(self.name)
        partition, prefix = plan.prefix_cells(self.key)
        start, end = self.span.bounds(plan, prefix)
        self.plan = reading = plan.reading(self.columns)
        table = plan.table
        self.table = table.id
        self.tablet = tablet_of(plan.token(partition), table.tablets)
        self.body = protocol.encode(
            SliceRequest(
                table.id,
                table.version,
                partition,
                reading.ids,
                start,
                end,
                self.reverse,
                self.limit,
                self.page,
                self.level,
                self.as_of_us,
                self.meta,
            )
        )

    def read(self, body: bytes) -> Page:
        reply = decoded(protocol.decode_rows, body)
        return Page(self.rows(reply), reply.page, reply.epoch)


class Scan(Reading):
    """A page of rows in the order of their tokens, from the tablet `first` on."""

    method: ClassVar[str] = protocol.SCAN

    def __init__(
        self,
        name: str,
        columns: Sequence[str] | None,
        first_token: int | None,
        last_token: int | None,
        limit: int,
        page: bytes,
        epoch: int,
        stamps: Stamps,
        level: Level,
        as_of_us: int,
        meta: bool,
        timeout_s: float,
    ) -> None:
        super().__init__(name, columns, stamps, level, as_of_us, meta, timeout_s)
        self.first_token = first_token
        self.last_token = last_token
        self.limit = limit
        self.page = page
        self.epoch = epoch

    def prepare(self, known: Known) -> None:
        plan = known.plan(self.name)
        self.plan = reading = plan.reading(self.columns)
        table = plan.table
        self.table = table.id
        self.tablet = 0 if self.first_token is None else tablet_of(self.first_token + 1, table.tablets)
        self.body = protocol.encode(
            ScanRequest(
                table.id,
                table.version,
                reading.ids,
                self.first_token,
                self.last_token,
                self.limit,
                self.page,
                self.level,
                self.as_of_us,
                self.meta,
                self.epoch,
            )
        )

    def read(self, body: bytes) -> Page:
        reply = decoded(protocol.decode_rows, body)
        return Page(self.rows(reply), reply.page, reply.epoch)


# Writing


class Writing(Ask[int]):
    """What all writes share. The answer is the stamp that orders the write."""

    writes: ClassVar[bool] = True

    def __init__(self, stamps: Stamps, level: Level, timestamp_us: int, timeout_s: float) -> None:
        super().__init__(timeout_s, repeatable=timestamp_us != 0)
        self.stamps = stamps
        self.level = level
        self.timestamp_us = timestamp_us

    def read(self, body: bytes) -> int:
        stamp: int = decoded(protocol.decode_write_reply, body).timestamp_us
        self.stamps.saw(stamp)
        return stamp


class Put(Writing):
    """One row. Its message is made when it is sent: it may become that of several (see `joining`)."""

    method: ClassVar[str] = protocol.PUT
    cells: list[Cell] | None = None
    version = 0
    writing: WritePlan
    ways: list[Way]
    row_key: tuple[Cell, ...]
    size_bytes = 0

    def __init__(
        self,
        name: str,
        row: Mapping[str, Any],
        update: bool,
        ttl_s: int | None,
        stamps: Stamps,
        level: Level,
        timestamp_us: int,
        timeout_s: float,
    ) -> None:
        super().__init__(stamps, level, timestamp_us, timeout_s)
        self.name = name
        self.row = row
        self.ttl_s = ttl_s
        self.update = update

    def prepare(self, known: Known) -> None:
        plan = known.plan(self.name)
        row = self.row
        self.writing = writing = plan.writing(row)
        cells, self.ways = plan.changing_cells(writing, row)
        table = plan.table
        self.table = table.id
        self.version = table.version
        partition: Any = [cells[at] for at in writing.partition]
        self.tablet = tablet_of(plan.token(partition), table.tablets)
        self.cells = cells
        if writing.joins and not (self.timestamp_us or self.ways):
            self.row_key = tuple([cells[at] for at in writing.key])
            self.size_bytes = sum([len(cell) for cell in cells if cell is not None])
            # The plan, which is there as long as this is, stands for the table, its version and the columns.
            self.joins = id(writing), self.level, self.ttl_s, self.update, self.timeout_s

    @property
    def ready(self) -> bool:
        return self.cells is not None

    def message(self) -> bytes:
        return put_message([self])

    def go_on(self, timestamp_us: int, member: Member) -> None:
        """This member has stamped it, and what became of it is not known: so it is repeated, with this stamp.

        First there: that stamp is in order by that member's clock.
        """
        self.timestamp_us = timestamp_us
        self.repeatable = self.doubt = self.goes_on = True
        self.joins = ()
        self.prefer, self.attempts = member, 0


def put_message(puts: Sequence[Put]) -> bytes:
    """What a member is sent for puts that differ in their rows alone."""
    first = puts[0]
    rows: list[Any] = [put.cells for put in puts]
    return protocol.encode(
        PutRequest(
            first.table,
            first.version,
            first.writing.ids,
            rows,
            first.level,
            first.timestamp_us,
            first.stamps.latest_us,
            first.ttl_s,
            first.update,
            first.ways,
            len(puts) > 1,
        )
    )


class PutSome(Writing):
    """Rows of equal columns whose replicas share a member."""

    method: ClassVar[str] = protocol.PUT

    def __init__(
        self,
        name: str,
        update: bool,
        ttl_s: int | None,
        stamps: Stamps,
        level: Level,
        timestamp_us: int,
        timeout_s: float,
    ) -> None:
        super().__init__(stamps, level, timestamp_us, timeout_s)
        self.name = name
        self.rows: list[Mapping[str, Any]] = []
        self.ttl_s = ttl_s
        self.update = update

    def prepare(self, known: Known) -> None:
        plan = known.plan(self.name)
        writing = plan.writing(self.rows[0])
        self.send(plan, [plan.cells(writing, row) for row in self.rows])

    def send(self, plan: TablePlan, cells: list[list[bytes | None]]) -> None:
        writing = plan.writing(self.rows[0])
        partition: Any = [cells[0][at] for at in writing.partition]
        table = plan.table
        self.table = table.id
        self.tablet = tablet_of(plan.token(partition), table.tablets)
        self.body = protocol.encode(
            PutRequest(
                table.id,
                table.version,
                writing.ids,
                cells,
                self.level,
                self.timestamp_us,
                self.stamps.latest_us,
                self.ttl_s,
                self.update,
            )
        )


def delete_request(
    plan: TablePlan, key: Mapping[str, Any], columns: Sequence[str], span: Span | None
) -> tuple[DeleteRequest, int]:
    """What deletes a row, some of its cells, the rows that begin alike, a range, or a partition; and its token."""
    partition, clustering = plan.prefix_cells(key)
    table = plan.table
    ids = plan.deletable(columns) if columns else []
    row = start = end = None
    if span is not None:
        if not plan.clustering:
            raise InvalidRequest(f"{plan.name} has no clustering columns, so it has no ranges of rows; use delete")
        start, end = span.bounds(plan, clustering)
        if start is None and end is None:
            start = Bound()  # all rows: without any end it would be the partition, with its static columns
    elif len(clustering) == len(plan.clustering):
        row = clustering
    elif ids:
        wanted = [name for name in plan.clustering if name not in key]
        if not all(name in plan.statics for name in columns):
            raise InvalidRequest(f"{plan.name}: cells are deleted in one row, so {', '.join(wanted)} is needed too")
    elif clustering:
        start = end = Bound(clustering, True)
    made = DeleteRequest(table.id, table.version, partition, row, ids, start, end)
    return made, plan.token(partition)


class Delete(Writing):
    """A row, cells of it, a range of rows, or a partition."""

    method: ClassVar[str] = protocol.DELETE

    def __init__(
        self,
        name: str,
        key: Mapping[str, Any],
        columns: Sequence[str],
        span: Span | None,
        stamps: Stamps,
        level: Level,
        timestamp_us: int,
        timeout_s: float,
    ) -> None:
        super().__init__(stamps, level, timestamp_us, timeout_s)
        self.name = name
        self.key = key
        self.columns = columns
        self.span = span

    def prepare(self, known: Known) -> None:
        plan = known.plan(self.name)
        request, token = delete_request(plan, self.key, self.columns, self.span)
        self.table = plan.table.id
        self.tablet = tablet_of(token, plan.table.tablets)
        self.body = protocol.encode(
            DeleteRequest(
                request.table,
                request.version,
                request.partition,
                request.row,
                request.columns,
                request.start,
                request.end,
                self.level,
                self.timestamp_us,
                self.stamps.latest_us,
            )
        )


@dataclass(frozen=True, slots=True)
class BatchedPut:
    name: str
    row: Mapping[str, Any]
    update: bool
    ttl_s: int | None

    def request(self, known: Known) -> tuple[PutRequest, int]:
        plan = known.plan(self.name)
        writing = plan.writing(self.row)
        cells, ways = plan.changing_cells(writing, self.row)
        partition: Any = [cells[at] for at in writing.partition]
        table = plan.table
        made = PutRequest(
            table.id, table.version, writing.ids, [cells], ttl_s=self.ttl_s, update=self.update, ways=ways
        )
        return made, plan.token(partition)


@dataclass(frozen=True, slots=True)
class BatchedDelete:
    name: str
    key: Mapping[str, Any]
    columns: Sequence[str]
    span: Span | None

    def request(self, known: Known) -> tuple[DeleteRequest, int]:
        return delete_request(known.plan(self.name), self.key, self.columns, self.span)


class Batch(Writing):
    """Several writes of one stamp."""

    method: ClassVar[str] = protocol.BATCH

    def __init__(
        self,
        parts: Sequence[BatchedPut | BatchedDelete],
        logged: bool,
        stamps: Stamps,
        level: Level,
        timestamp_us: int,
        timeout_s: float,
    ) -> None:
        super().__init__(stamps, level, timestamp_us, timeout_s)
        self.parts = parts
        self.logged = logged

    def prepare(self, known: Known) -> None:
        made = [part.request(known) for part in self.parts]
        first, token = made[0]
        self.table = first.table
        self.tablet = tablet_of(token, known.plan(self.parts[0].name).table.tablets)
        self.body = protocol.encode(
            BatchRequest(
                [request for request, _ in made],
                self.logged,
                self.level,
                self.timestamp_us,
                self.stamps.latest_us,
            )
        )
