"""What clients of tables asked for and were told, as plain values: the input of `tables_judge`, and nothing else.

Keys are small numbers (partition, row); values are unique, so that a value that is read names the write it came from.
Times are those of the world, which no process knows. A write whose stamp nobody was told has stamp 0.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from trimtab.tablets.consistency import Level

MARKER = 0  # stands for "the row exists", among the ids of columns


class Outcome(enum.Enum):
    ACKED = "acknowledged"
    REFUSED = "refused"  # for certain: nothing happened, or will
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Row:
    """A place for a row. `table` is the table's id: another table of the same name is another place."""

    table: int
    partition: int
    row: int = 0

    def __str__(self) -> str:
        return f"table {self.table} row {self.partition}/{self.row}"


@dataclass(frozen=True)
class Put:
    """Cells of one row; None deletes one. `marker`: the row exists from now on. `ttl_s` 0: for ever."""

    row: Row
    cells: dict[int, bytes | None]
    marker: bool = True
    ttl_s: int = 0


@dataclass(frozen=True)
class Delete:
    """Rows `first` to `last` (inclusive) of a partition, or only some columns of them."""

    table: int
    partition: int
    first: int
    last: int
    columns: tuple[int, ...] = ()

    def covers(self, row: Row, column: int) -> bool:
        return (
            (row.table, row.partition) == (self.table, self.partition)
            and self.first <= row.row <= self.last
            and (not self.columns or column in self.columns)
        )


@dataclass
class Write:
    """One request; several parts: a batch. `returned_s` None: it never came back."""

    number: int
    who: str
    level: Level
    dc: str
    parts: tuple[Put | Delete, ...]
    invoked_s: float
    stamp_us: int = 0
    returned_s: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    through: str = ""
    why: str = ""
    epoch: int = 0  # of a load: from there on it is seen, all of it or nothing; 0: it is none

    def __str__(self) -> str:
        ended = f"{self.returned_s:.4f}" if self.returned_s is not None else "…"
        what = ", ".join(map(_told, self.parts))
        why = f" ({self.why})" if self.why else ""
        return (
            f"#{self.number} {self.who} at {self.level.name} through {self.through}, {self.invoked_s:.4f} to {ended} "
            f"s, {self.outcome.value}{why}, stamp {self.stamp_us}: {what}"
        )


Cells = dict[int, tuple[bytes | None, int]]  # column -> value, stamp


@dataclass
class Read:
    """What a read that was answered said about all the rows it was to look at; None: there is no such row.

    `columns`: those it asked for. `epoch`: the newest of its table that the member knew of when it was asked.
    """

    number: int
    who: str
    level: Level
    dc: str
    invoked_s: float
    returned_s: float
    columns: tuple[int, ...]
    rows: dict[Row, Cells | None]
    through: str = ""
    epoch: int = 0
    final: bool = False  # after all has healed and caught up

    def __str__(self) -> str:
        last = ", after all had healed" if self.final else ""
        return (
            f"read #{self.number} of {self.who} at {self.level.name} through {self.through}, {self.invoked_s:.4f} to "
            f"{self.returned_s:.4f} s{last}"
        )


@dataclass
class TablesHistory:
    """Everything, in the order of invocation. `replication` is that of the keyspace, by data centre."""

    replication: dict[str, int]
    skew_s: float = 0.0  # by how much clocks of instances may be wrong
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)

    def next_number(self) -> int:
        return len(self.writes) + len(self.reads) + 1

    def count(self, outcome: Outcome) -> int:
        return sum(write.outcome is outcome for write in self.writes)

    def puts(self) -> Iterator[tuple[Write, Put]]:
        for write in self.writes:
            for part in write.parts:
                if isinstance(part, Put):
                    yield write, part


def _told(part: Put | Delete) -> str:
    if isinstance(part, Put):
        cells = " ".join(f"{id}={value.decode() if value else value}" for id, value in part.cells.items())
        ttl = f" for {part.ttl_s} s" if part.ttl_s else ""
        return f"{'insert' if part.marker else 'update'} {part.row}: {cells}{ttl}"
    columns = f" columns {part.columns}" if part.columns else ""
    return f"delete table {part.table} {part.partition}/{part.first}-{part.last}{columns}"
