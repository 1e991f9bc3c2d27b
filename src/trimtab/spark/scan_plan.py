"""What the planner of a read tells its tasks: plain values, which Spark pickles and sends to whichever machine.

All tasks of a read see the same: one version of the schema, one epoch, one moment for what expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import InputPartition

from trimtab.catalog.schema import Table, UserType
from trimtab.client.errors import Error
from trimtab.spark.options import Connection
from trimtab.tablets.consistency import Level

KeyRange = tuple[bytes, bytes]  # low <= key < high


class ScanFailed(Error):
    """A read that can't be done, and why."""


@dataclass(frozen=True)
class Holder:
    """An instance that holds replicas; `online`: as far as is known."""

    raft_id: int
    name: str
    address: str
    dc: str
    online: bool = True


@dataclass(frozen=True)
class ScanPart:
    """Some ranges of one tablet, in order; `holders` of its replicas, those to be preferred first."""

    tablet: int
    ranges: tuple[KeyRange, ...]
    holders: tuple[int, ...]
    size_bytes: int = 0


@dataclass(frozen=True)
class ScanPlan:
    """`columns` are names, in the order of the schema; those of `meta` follow them in the schema by their names."""

    connection: Connection
    table: Table
    types: Mapping[str, UserType]
    columns: tuple[str, ...]
    names: tuple[str, ...]  # of the whole schema, columns of meta included
    epoch: int
    now_s: int
    level: Level
    local_dc: str
    holders: Mapping[int, Holder]
    as_of_us: int = 0
    verify: bool = True

    def name_of(self, raft_id: int) -> str:
        holder = self.holders.get(raft_id)
        return holder.name if holder is not None else f"instance {raft_id}"


@dataclass(frozen=True)
class ScanStats:
    """What one task did, for tests and for those who wonder where time goes. Changed by that task alone."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, number: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + number


class ScanPartition(InputPartition):
    """What one task reads."""

    def __init__(self, plan: ScanPlan, parts: tuple[ScanPart, ...]) -> None:
        super().__init__(None)
        self.plan = plan
        self.parts = parts

    def __repr__(self) -> str:
        tablets = ", ".join(str(part.tablet) for part in self.parts)
        return f"ScanPartition({self.plan.table.full_name}, tablets {tablets})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ScanPartition, (self.plan, self.parts)
