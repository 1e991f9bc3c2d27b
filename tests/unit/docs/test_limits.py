"""The numbers in docs/tables.md are those of the code."""

from __future__ import annotations

import re

import pytest
from tests.conftest import ROOT

from trimtab.catalog import limits
from trimtab.catalog.options import MAX_HISTORY_S, MAX_TTL_S
from trimtab.catalog.schema import TableOptions
from trimtab.client.contact import DEFAULT_TIMEOUT_S
from trimtab.client.dispatch import ATTEMPT_S, MAX_IN_FLIGHT, MAX_WAITING
from trimtab.jobs.repair_schedule import DEFAULT_INTERVAL_S
from trimtab.node.replicas.flushing import FlushBounds
from trimtab.node.replicas.folding import FoldPace
from trimtab.node.router.executor import MAX_ROWS
from trimtab.node.router.overload import Room
from trimtab.node.router.paging import MAX_PAGE_ROWS, PAGE_BYTES
from trimtab.node.settings import Limits, Timing
from trimtab.rows.folding import MAX_VERSIONS
from trimtab.storage.rocks_options import RocksOptions
from trimtab.tablets.clock import DEFAULT_MAX_SKEW_MS
from trimtab.tablets.ring import MAX_CHOSEN, MAX_TABLETS

KIB, MIB = 1 << 10, 1 << 20
LIMITS, TIMING, OPTIONS, ROOM = Limits(), Timing(), TableOptions(), Room()
TEXT = re.sub(r"\s+", " ", (ROOT / "docs" / "tables.md").read_text())


@pytest.mark.parametrize(
    "said",
    [
        f"{LIMITS.frame_bytes * 3 // 4 // KIB} KiB; three quarters of `--message-limit-kb` "
        f"({LIMITS.frame_bytes // KIB})",
        f"| rows of one put message, writes of one batch | {MAX_ROWS:,};",
        f"| a page | {MAX_PAGE_ROWS:,} rows or {PAGE_BYTES // KIB} KiB",
        f"| a row in an answer | {LIMITS.answer_bytes // MIB} MiB |",
        f"| a partition | {FoldPace().partition_bytes >> 30} GiB",
        f"| elements of a collection | {limits.MAX_ELEMENTS:,} in one request;",
        f"a `varint` has up to {limits.MAX_NUMBER_BYTES:,} bytes |",
        f"one gets {ATTEMPT_S:.0f} s to answer a read, the next {2 * ATTEMPT_S:.0f} s",
        f"| TTL | {MAX_TTL_S // (365 * 86_400)} years |",
        f"| tablets of a table | 1 to {MAX_TABLETS:,}, a power of two; without a wish 4 for each instance, "
        f"from 8 to {MAX_CHOSEN:,} |",
        f"| {limits.MAX_REPLICAS} in a data centre, on as many hosts; {limits.MAX_DATACENTERS} data centres |",
        f"| {limits.MAX_KEYSPACES:,}, {limits.MAX_TABLES:,}, {limits.MAX_COLUMNS:,}; "
        f"{limits.MAX_KEY_COLUMNS} columns in a",
        f"| names | {limits.MAX_NAME_CHARACTERS} characters, columns {limits.MAX_COLUMN_CHARACTERS} |",
        f"{ROOM.requests:,} and {ROOM.bytes // MIB} MiB on an instance, {ROOM.connection_bytes // MIB} MiB on a",
        f"{MAX_IN_FLIGHT:,} of a client, {MAX_WAITING:,} wait |",
        f"up to {LIMITS.hint_bytes // MIB} MiB and {LIMITS.hint_count:,} writes (`--hint-limit-kb`) and "
        f"{TIMING.hint_life_ms // 3_600_000} hours",
        f"Keep clocks within {DEFAULT_MAX_SKEW_MS} ms",
        f"| `gc_grace_s` | {OPTIONS.gc_grace_s:,} (10 days)",
        f"| `history_s` | {OPTIONS.history_s}, up to {MAX_HISTORY_S // 86_400} days",
        f"| `speculative_retry` | `{OPTIONS.speculative_retry}` |",
        f"folded beyond {MAX_VERSIONS} versions",
        f"up to {FlushBounds().total_bytes // MIB} MiB of rows that are in no file yet",
        f"until `timeout` ({DEFAULT_TIMEOUT_S:.0f} s)",
    ],
)
def test_the_number_is_that_of_the_code(said: str) -> None:
    assert said in TEXT


def test_what_is_said_of_the_caches_and_of_time_holds() -> None:
    assert RocksOptions().block_cache_bytes == LIMITS.row_cache_bytes == 32 * MIB and "32 MiB each" in TEXT
    assert FlushBounds().age_s == 60 and "(a minute at most)" in TEXT
    assert TIMING.repair_every_ms == 7 * 86_400_000 and "where none has for a week" in TEXT
    assert DEFAULT_INTERVAL_S == 3 * 86_400 and "every three days a job compares" in TEXT
