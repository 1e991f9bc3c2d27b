"""What the driver of a load and its tasks tell each other. Everything here can be pickled and sent to any machine.

The driver makes one `LoadPlan`; every task stages files by it and answers with a `StagedPart`, which says for each file
who holds it. A part may also say that the task gave up and why: so the driver has one reason to tell, where an
exception would have had Spark try the same again and tell it four times over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.catalog.schema import Table, UserType
from trimtab.client.errors import Error
from trimtab.loads.protocol import StagedFile
from trimtab.spark.options import Connection
from trimtab.tablets.consistency import count_by_dc, quorum_of

# Encoded together: a task takes the memory that is needed for them, and for files that wait to be sent (`sending`).
CHUNK_ROWS = 1_000_000
CHUNK_BYTES = 192 * 1024 * 1024
FAIL, REJECT = "fail", "reject"
REJECT_HINT = "Correct it, or load the rest with onError=reject and rejected=PATH (`trimtab load`: --rejected PATH)"


class LoadFailed(Error):
    """A load that came to nothing, and why. Nothing of it can be seen. `again`: the same may succeed later."""

    again = False


class NotNow(LoadFailed):
    """Nothing is wrong with the rows: an instance has no room for them or can't be reached, or the load was ended."""

    again = True


class OutOfReach(NotNow):
    """Too few replicas can be reached from here; from another machine, or later, it may be otherwise."""


@dataclass(frozen=True)
class LoadPlan:
    """One load, as its tasks need to know it.

    `replicas` of each tablet, by number; `bulk` addresses, data centres and names of instances by raft id. `stamp_us`
    is the timestamp of all rows. `rejected`: where bad rows go under the policy REJECT. `done`: an earlier run of the
    same load was committed, so there is nothing left to do. `compare_rows`: tasks tell prints of their rows
    (`known_rows`), of so many at most, so that rows of different tasks can be compared.
    """

    connection: Connection
    id: str
    table: Table
    types: Mapping[str, UserType]
    stamp_us: int
    now_ms: int
    ttl_s: int
    replicas: tuple[tuple[int, ...], ...]
    bulk: Mapping[int, str]
    dcs: Mapping[int, str]
    names: Mapping[int, str]
    ticket: bytes
    lease_ms: int
    on_error: str = FAIL
    rejected: str = ""
    chunk_rows: int = CHUNK_ROWS
    chunk_bytes: int = CHUNK_BYTES
    done: bool = False
    compare_rows: int = 0

    def name_of(self, raft_id: int) -> str:
        return self.names.get(raft_id) or f"instance {raft_id}"

    def short_of(self, tablet: int, holders: frozenset[int]) -> str:
        """What a file of this tablet lacks when only these hold it; empty: a quorum in every data centre does."""
        replicas = self.replicas[tablet]
        have = count_by_dc((each for each in replicas if each in holders), self.dcs)
        return "; ".join(
            f"{have.get(dc, 0)} of {factor} replicas in data centre {dc} took it, {quorum_of(factor)} are needed"
            for dc, factor in sorted(count_by_dc(replicas, self.dcs).items())
            if have.get(dc, 0) < quorum_of(factor)
        )


@dataclass(frozen=True)
class HeldFile:
    """A staged file, and the instances that said they have it, whole and durable."""

    file: StagedFile
    holders: tuple[int, ...]


@dataclass(frozen=True)
class StagedPart:
    """What one attempt of a task has staged. `missing`: instances it could not reach, and why.

    `failed`: it gave up, for a reason that another attempt at the task would meet again; `again`: another one at the
    whole load may not. `rejected_files`: what it wrote aside. `prints`: of its rows, where the plan asks for them.
    """

    attempt: str
    files: tuple[HeldFile, ...] = ()
    rows: int = 0
    size_bytes: int = 0
    rejected: int = 0
    rejected_files: tuple[str, ...] = ()
    missing: Mapping[int, str] = field(default_factory=dict)
    failed: str = ""
    again: bool = False
    prints: bytes = field(default=b"", repr=False)
