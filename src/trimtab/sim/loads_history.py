"""What is known of loads in a run: their rows, what became of them, and what readers of whole tables saw."""

from __future__ import annotations

from dataclasses import dataclass, field

from trimtab.loads.records import LoadKind, LoadState
from trimtab.sim.loads_bulk import Pairs
from trimtab.sim.tables_history import Write
from trimtab.tablets.consistency import Level

Key = tuple[int, int]  # partition and row of a table of these


@dataclass
class Load:
    """One load, from its beginning on. `rows` of tables that are read by epochs, `write` of those of ordinary clients.

    `tablets`: what its files hold. `told`: the states that its driver was told of, the last one last.
    """

    id: str
    table: int
    kind: LoadKind
    direct: bool
    stamp_us: int
    rows: dict[Key, bytes] = field(default_factory=dict)
    write: Write | None = None
    tablets: dict[int, Pairs] = field(default_factory=dict)
    told: list[LoadState] = field(default_factory=list)


@dataclass
class LoadedPut:
    """A row that was put into a table that is overwritten, at an epoch from `first_epoch` to `last_epoch`."""

    key: Key
    value: bytes
    table: int
    level: Level
    invoked_s: float
    returned_s: float = 0.0
    first_epoch: int = 0
    last_epoch: int = 0
    acked: bool = False
    refused: bool = False
    through: str = ""

    def __str__(self) -> str:
        how = "acknowledged" if self.acked else "refused" if self.refused else "unknown"
        return (
            f"put of {self.key} = {self.value.decode()} at {self.level.name} through {self.through}, "
            f"{self.invoked_s:.4f} to {self.returned_s:.4f} s, {how}, at epochs {self.first_epoch} to {self.last_epoch}"
        )


@dataclass
class EpochRead:
    """All rows of a table, as one scan showed them, page by page, at an epoch from `first_epoch` to `last_epoch`."""

    number: int
    who: str
    table: int
    level: Level
    invoked_s: float
    returned_s: float
    first_epoch: int
    last_epoch: int
    rows: dict[Key, bytes]
    through: list[str]

    def __str__(self) -> str:
        return (
            f"scan #{self.number} of table {self.table} by {self.who} at {self.level.name} through "
            f"{' '.join(self.through)}, {self.invoked_s:.4f} to {self.returned_s:.4f} s, at an epoch from "
            f"{self.first_epoch} to {self.last_epoch}"
        )


@dataclass
class LoadsHistory:
    """`visible`: by table, what each epoch shows: its generation, and the loads that belong to it."""

    loads: dict[str, Load] = field(default_factory=dict)
    puts: list[LoadedPut] = field(default_factory=list)
    reads: list[EpochRead] = field(default_factory=list)
    visible: dict[int, dict[int, tuple[int, tuple[str, ...]]]] = field(default_factory=dict)
    ended: dict[LoadState, int] = field(default_factory=dict)

    def newest(self, table: int) -> int:
        return max(self.visible.get(table, {}), default=0)

    def at(self, table: int, epoch: int) -> tuple[int, tuple[str, ...]]:
        return self.visible.get(table, {}).get(epoch, (1, ()))
