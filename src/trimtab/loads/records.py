"""What the metastore keeps of loads and sessions, key by key.

    sessions/<id>          SessionRecord: files may be staged, and taken over, under this name while the record is there
    loads/<table>/<id>     LoadRecord: one load of one table, from its beginning to long after its end
    epochs/<table>         EpochRecord: which loads of a table can be seen; absent: none ever was

A load's rows all have one stamp, which no write that the cluster stamps can have (`is_load_stamp`). That is what makes
a load appear at once: replicas take its files over after the commit, tablet by tablet, and whoever reads at an epoch
below the load's leaves out the rows with its stamp. When every living replica has them the epoch becomes visible, in
one write.

    STAGING ── commit ──▶ COMMITTED ── all living replicas have it ──▶ PUBLISHED ── rollback ──▶ ROLLED_BACK
       └── abort, or its driver is gone ──▶ ABORTED

An overwrite is the same with a new *generation* of the table: its files make new replicas beside those that serve, and
publishing swaps them. The generation before stays on disk, so that a rollback can go back to it.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from trimtab.topology.records import EPOCHS, LOADS, SESSIONS

MAX_ID_CHARACTERS = 64
STREAM = "Spark stream"  # `who` of a micro batch's load begins with it; behind it comes what tells streams apart
STAMP_STEP_US = 1000
STAMP_REST_US = 999  # of a load's stamp modulo STAMP_STEP_US; the clocks of instances never give such a stamp
SCAN_LIFE_MS = 600_000  # for so long after a newer epoch became visible a scan may go on reading at the one before
KEEP_GENERATION_MS = 86_400_000  # for so long after an overwrite a rollback can go back to what was there before


class LoadKind(enum.Enum):
    APPEND = "append"
    OVERWRITE = "overwrite"


class LoadState(enum.Enum):
    STAGING = "staging"
    COMMITTED = "committed"
    PUBLISHED = "published"
    ABORTED = "aborted"
    ROLLED_BACK = "rolled_back"

    @property
    def final(self) -> bool:
        return self not in (LoadState.STAGING, LoadState.COMMITTED)


class SessionKind(enum.Enum):
    LOAD = "load"
    STREAM = "stream"  # a replica is copied, for a move or a repair


class SessionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`lease_ms`: whoever works under it says so at least that often, or the leader ends it. 0: it ends otherwise."""

    kind: SessionKind
    table: int
    opened_ms: int
    lease_ms: int = 0
    why: str = ""


class LoadRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`epoch` is given by the commit; `generation` is the one its rows belong to.

    `sealed`: instances that hold all files of their replicas (raft ids, from the commit); `missed`: replicas that were
    down and get the rows by repair when they return; `adopted`: instances that have taken their files over.
    `direct`: its rows were written as ordinary writes with its stamp, without files.
    `nonce`: which of the lists that were sealed under its id counts. Two drivers may have worked on it.
    """

    id: str
    table: int
    kind: LoadKind
    state: LoadState
    stamp_us: int
    generation: int = 1
    epoch: int = 0
    rows: int = 0
    size_bytes: int = 0
    rejected: int = 0
    sealed: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    adopted: tuple[int, ...] = ()
    direct: bool = False
    who: str = ""
    reason: str = ""
    begun_ms: int = 0
    committed_ms: int = 0
    ended_ms: int = 0
    published_ms: int = 0  # stays when it is rolled back later; `ended_ms` is then the time of that
    nonce: str = ""


class EpochRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """`committed` is the newest epoch given, `visible` the newest that is read.

    `generations`: (first epoch, generation) of each generation that is kept, in order; the last one is served.
    `returns`: (epoch, needed, time in ms) of the newest rollbacks. A rollback is an epoch that brings no rows: replicas
    that have taken over everything up to `needed` can answer at it.
    `returning_ms`: since when a rollback is about to be written; 0: none is.
    """

    committed: int = 0
    visible: int = 0
    generations: tuple[tuple[int, int], ...] = ((0, 1),)
    next_generation: int = 2
    returns: tuple[tuple[int, int, int], ...] = ()
    returning_ms: int = 0

    @property
    def generation(self) -> int:
        return self.generations[-1][1]

    def has_served(self, generation: int) -> bool:
        """Whether replicas of a generation that is not the newest may have rows, so that one made now lacks them.

        Not one that is only being taken over (another overwrite may have begun meanwhile), and none of a new table.
        """
        known = any(generation == each for _first, each in self.generations)
        return known and self.visible > 0 and generation < self.next_generation - 1


def is_load_stamp(stamp_us: int) -> bool:
    return stamp_us % STAMP_STEP_US == STAMP_REST_US


def load_stamp(after_us: int) -> int:
    """The first stamp for a load at or after this time."""
    return after_us - after_us % STAMP_STEP_US + STAMP_REST_US


def session_key(id: str) -> bytes:
    return SESSIONS + id.encode()


def load_key(table: int, id: str) -> bytes:
    return LOADS + b"%020d/" % table + id.encode()


def epoch_key(table: int) -> bytes:
    return EPOCHS + b"%020d" % table


encode: Any = msgspec.json.Encoder().encode
decode_session = msgspec.json.Decoder(SessionRecord).decode
decode_load = msgspec.json.Decoder(LoadRecord).decode
decode_epoch = msgspec.json.Decoder(EpochRecord).decode
