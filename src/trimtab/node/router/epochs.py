"""What a reader at an epoch sees of a replica: the right generation of it, without the rows of loads that come later.

A load's rows lie in the replicas before they may be seen. They are told by their stamp, which no other row has
(`loads.records`): a reader at an epoch below the load's leaves them out. A replica answers at an epoch only if it has
everything up to there (its marker), so whoever answers answers the same.

Tables that were never loaded pay one look into a dict for it. Where nothing is hidden a replica is read as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from trimtab.loads.records import EpochRecord, LoadState
from trimtab.loads.unsettled import unsettled_stamps
from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router.replica_reads import Pair, Readable
from trimtab.rows.keys import inverted
from trimtab.rows.protocol import Cell

NOT_READY = "not_ready"
_LOOK_AGAIN_MS = 1_000
_NO_STAMPS: list[int] = []


class Loaded(Readable, Protocol):
    """A replica, and up to which epoch it has taken over loads."""

    @property
    def generation(self) -> int: ...

    @property
    def adopted(self) -> int: ...


R = TypeVar("R", bound=Loaded)
R_co = TypeVar("R_co", bound=Loaded, covariant=True)


class Generations(Protocol[R_co]):
    """The replicas that this node holds, of any generation."""

    def find(self, table: int, tablet: int, generation: int) -> R_co | None: ...


class _NothingKnown:
    """In place of rows that are kept ready: what is kept is of the newest epoch."""

    def find(self, row_keys: Sequence[bytes], _asked: int) -> list[tuple[Cell, ...] | None]:
        return [None] * len(row_keys)

    def keep(self, row_key: bytes, asked: int, cells: tuple[Cell, ...], size_bytes: int) -> None:
        pass


class Veiled:
    """A replica without the rows of these stamps."""

    __slots__ = ("_hidden", "_replica")
    rows = _NothingKnown()

    def __init__(self, replica: Readable, stamps: frozenset[int]) -> None:
        self._replica = replica
        self._hidden = frozenset(map(inverted, stamps))

    @property
    def readable(self) -> bool:
        return self._replica.readable

    def scan(self, low: bytes, high: bytes | None, *, reverse: bool = False) -> Iterator[Pair]:
        hidden = self._hidden
        return (pair for pair in self._replica.scan(low, high, reverse=reverse) if pair[0][-17:-9] not in hidden)

    def read(self, low: bytes, high: bytes, limit: int) -> list[Pair]:
        hidden = self._hidden
        return [pair for pair in self._replica.read(low, high, limit) if pair[0][-17:-9] not in hidden]


class Unsettled:
    """The stamps of loads whose rows must not be merged with others yet, by table; looked up once in a while."""

    def __init__(self, loads: LoadView, wall_ms: Callable[[], int]) -> None:
        self._loads = loads
        self._wall_ms = wall_ms
        self._known: dict[int, tuple[EpochRecord, int, list[int]]] = {}  # of when, until when, stamps

    def stamps(self, table: int) -> list[int]:
        record = self._loads.epochs.get(table)
        if record is None:
            return _NO_STAMPS
        now_ms = self._wall_ms()
        known = self._known.get(table)
        # Every commit and every publication writes the record anew.
        if known is None or known[0] is not record or now_ms >= known[1]:
            stamps = sorted(unsettled_stamps(self._loads, table, now_ms))
            if len(self._known) > len(self._loads.epochs):
                self._known.clear()
            known = self._known[table] = (record, now_ms + _LOOK_AGAIN_MS, stamps)
        return known[2]


def is_coming(loads: LoadView, table: int, generation: int) -> bool:
    """Whether a generation is not served yet, as far as is known here."""
    known = loads.epoch_record(table)
    if generation == known.generation:
        return False
    return generation >= known.next_generation or any(
        load.generation == generation and load.state in (LoadState.STAGING, LoadState.COMMITTED)
        for load in loads.of_table(table)
    )


def plain(loads: LoadView, replica: Loaded, table: int) -> bool:
    """Whether a replica can be read as it is by who reads at the newest epoch."""
    known = loads.epochs.get(table)
    return known is None or (
        known.committed == known.visible <= replica.adopted and replica.generation == known.generations[-1][1]
    )


def at_epoch(
    loads: LoadView, replicas: Generations[R], replica: R, table: int, tablet: int, epoch: int
) -> tuple[R, frozenset[int]]:
    """The replica to read at an epoch, and the stamps that are hidden from whoever does. Refused: not here, not now.

    `epoch` -1: the newest.
    """
    known = loads.epochs.get(table)
    if known is None:
        return replica, frozenset()
    if epoch < 0:
        epoch = known.visible
    if known.generations[0][0] > epoch:
        text = f"epoch {epoch} of table {table} is not kept any more; begin the scan again"
        raise Refused("invalid", text)
    generation = loads.generation(table, epoch)
    found = replica if replica.generation == generation else replicas.find(table, tablet, generation)
    if found is None:
        text = f"the replica of tablet {tablet} of table {table} in generation {generation} is not open here yet"
        raise Refused(NOT_READY, text)
    needed = loads.needed(table, epoch)
    if found.adopted < needed:
        text = (
            f"the replica of tablet {tablet} of table {table} has loads up to epoch {found.adopted} only, not yet "
            f"{needed}; ask another"
        )
        raise Refused(NOT_READY, text)
    return found, loads.hidden(table, epoch)
