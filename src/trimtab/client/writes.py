"""The requests that write rows, each as an ask: made from Python values. The answer is the stamp that orders the write.

What an application gives is kept as it was given, because a request is made anew when the table has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trimtab.client.asks import Ask
from trimtab.client.contact import decoded
from trimtab.client.errors import InvalidRequest
from trimtab.client.known import Known
from trimtab.client.plans import TablePlan, WritePlan
from trimtab.client.reads import Span
from trimtab.client.stamps import Stamps
from trimtab.rows import protocol
from trimtab.rows.protocol import BatchRequest, Bound, Cell, DeleteRequest, PutRequest, Way
from trimtab.tablets.consistency import Level
from trimtab.tablets.ring import tablet_of

if TYPE_CHECKING:
    from trimtab.client.members import Member


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
