"""The requests that read rows, each as an ask: made from Python values, read back into them.

What an application gives is kept as it was given, because a request is made anew when the table has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trimtab.client.asks import Ask
from trimtab.client.contact import decoded
from trimtab.client.errors import Error, InvalidRequest
from trimtab.client.known import Known
from trimtab.client.plans import ReadPlan, Row, TablePlan
from trimtab.client.stamps import Stamps
from trimtab.rows import protocol
from trimtab.rows.protocol import Bound, GetRequest, RowsReply, ScanRequest, SliceRequest
from trimtab.tablets.consistency import Level
from trimtab.tablets.ring import tablet_of


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
