"""Tablets that move between real processes, while a client reads and writes at QUORUM. The jobs run without Spark.

TRIMTAB_ALL_KILLS=1 tries every stage with everybody who takes part; see test_moves_killed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

import trimtab
from tests.cluster.elastic import GONE_S, Elastic, replica_directories
from tests.cluster.patience import create_keyspace, create_table, put_rows
from tests.cluster.rows_load import FACTS, REGISTERS, create_tables
from tests.conftest import Processes
from trimtab.jobs.records import JobState
from trimtab.tablets.rebalance_settings import DEFAULT_HEAL_AFTER_MS, MIN_HEAL_AFTER_MS
from trimtab.tablets.selectors import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

NUMBERS = (1, 2, 3, 4, 5)
_READ_PAUSE_S = 0.005
WIDE = "load.wide"
SINGLE = "alone.rows"
ROWS = int(os.environ.get("TRIMTAB_TEST_ROWS", "2000"))  # of about a kilobyte


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastic]:
    """Five instances and a driver, for all tests of this module: each leaves nothing under way."""
    processes = Processes()
    made = Elastic(processes, tmp_path_factory.mktemp("moves"), len(NUMBERS))
    try:
        made.start(*NUMBERS)
        made.start_driver()
        # Only what the tests ask for is moved.
        made.settings(enabled=False)
        with made.connect() as db:
            create_tables(db)
            create_table(db, WIDE, {"id": "bigint", "value": "text"}, tablets=1)
            rows = [{"id": id, "value": os.urandom(500).hex()} for id in range(ROWS)]
            put_rows(db.table(WIDE, consistency="ALL"), rows)
        yield made
    finally:
        processes.end_all()


def ways(stage: Elastic, table: str, tablet: int = 0) -> tuple[int, list[int]]:
    """Who could give its replica of a tablet away, and who could take it."""
    holders = stage.replicas(table)[tablet]
    return min(holders), sorted(set(NUMBERS) - holders)


def test_tablets_that_are_moved_back_and_forth_under_load_lose_nothing(stage: Elastic) -> None:
    with stage.load() as load:
        for _ in range(3):
            wanted = {}
            for tablet in (0, 1):
                source, (to, *_) = ways(stage, FACTS, tablet)
                assert stage.move(FACTS, tablet, source, to) == "pending"
                wanted[tablet] = stage.replicas(FACTS)[tablet] - {source} | {to}
            stage.still()
            found = stage.replicas(FACTS)
            assert {tablet: found[tablet] for tablet in wanted} == wanted
            load.await_more(50)
    stage.check()


def test_a_target_that_changes_while_its_copy_is_held_ends_before_that_copy_could(stage: Elastic) -> None:
    """Document 000: a copy that nobody wants any more is not waited for."""
    source, (to, other) = ways(stage, WIDE)
    wanted = stage.replicas(WIDE)[0] - {source} | {other}
    with stage.held_copy(WIDE, 0) as held:
        assert stage.move(WIDE, 0, source, to) == "pending"
        stage.until(lambda: held.is_there, "the copy is held half-way")
        began = time.monotonic()
        # Where an answer was lost, the client has asked again: the move to the other is pending already.
        assert stage.move(WIDE, 0, source, other) in ("adjusted", "pending")
        stage.until(lambda: stage.replicas(WIDE)[0] == wanted, lambda: f"it has moved: {stage.under_way()}")
        took_s = time.monotonic() - began
        assert held.is_there
    print(f"\nthe other target had its replica after {took_s:.1f} s, while the first copy was held")
    stage.check(WIDE)


def test_a_move_that_is_given_up_while_its_copy_is_held_is_undone_at_once(stage: Elastic) -> None:
    before = stage.replicas(WIDE)[0]
    source, (to, *_) = ways(stage, WIDE)
    with stage.held_copy(WIDE, 0) as held:
        stage.move(WIDE, 0, source, to)
        stage.until(lambda: held.is_there, "the copy is held half-way")
        assert stage.give_up(WIDE, 0) == "undone"
        stage.still()
        assert held.is_there and stage.replicas(WIDE)[0] == before
    stage.check(WIDE)


def stands_still(stage: Elastic, to: int) -> bool:
    """Whether no byte comes to an instance for a while."""
    before = stage.staged_bytes(to)
    time.sleep(4)
    return stage.staged_bytes(to) == before


def test_bytes_stand_still_while_a_copy_is_paused(stage: Elastic) -> None:
    source, (to, *_) = ways(stage, WIDE)
    stage.limit(ROWS * 50)  # of five: it takes a minute
    stage.move(WIDE, 0, source, to)
    stage.until(lambda: stage.staged_bytes(to) > 0, "bytes are on their way")
    (job,) = stage.streams()
    stage.ask(lambda client: client.jobs.steer(job, "pause"))
    try:
        stage.until(lambda: stage.ask(lambda client: client.jobs.get(job))[0].state is JobState.PAUSED, "it is paused")
        # A task that is told to stop goes on until it hears of it, and what had left it may still arrive.
        # The last of it may wait for its turn on a busy machine, after seconds without a byte, too.
        stage.until(lambda: stands_still(stage, to), "no more bytes come")
        assert stage.staged_bytes(to) < ROWS * 1000 / 2
        assert {each.stage for each in stage.under_way().values()} == {Stage.STREAMING}
    finally:
        stage.limit(0)
        stage.ask(lambda client: client.jobs.steer(job, "resume"))
        stage.still()
    assert to in stage.replicas(WIDE)[0]
    stage.check(WIDE)


class Reading:
    """Reads every row of a table again and again; what was wrong."""

    def __init__(self, peer: str, table: str, rows: int) -> None:
        self._peer, self._table, self._rows = peer, table, rows
        self.wrong: list[str] = []
        self.reads = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _read(self) -> None:
        with trimtab.connect(self._peer, timeout=30.0) as db:
            table = db.table(self._table, consistency="ONE")
            while not self._over.is_set():
                id = self.reads % self._rows
                try:
                    if (row := table.get(id=id)) != {"id": id, "value": f"v{id}"}:
                        self.wrong.append(f"row {id} is {row}")
                except trimtab.Error as error:
                    self.wrong.append(f"row {id}: {error}")
                self.reads += 1
                time.sleep(_READ_PAUSE_S)


def test_reads_of_a_table_with_one_replica_never_fail_while_it_moves(stage: Elastic) -> None:
    with stage.connect() as db:
        create_keyspace(db, "alone", replication=1)
        create_table(db, SINGLE, {"id": "bigint", "value": "text"}, tablets=1)
        put_rows(db.table(SINGLE), [{"id": id, "value": f"v{id}"} for id in range(500)])
    with Reading(stage.peer, SINGLE, 500) as reading:
        for _ in range(3):
            (source,) = stage.replicas(SINGLE)[0]
            to = next(number for number in NUMBERS if number != source)
            stage.move(SINGLE, 0, source, to)
            stage.until(
                lambda to=to: stage.replicas(SINGLE)[0] == {to},  # type: ignore[misc]
                "it has moved",
            )
            stage.still()
        stage.until(lambda: reading.reads > 500, lambda: f"every row was read: {reading.reads} reads")
    print(f"\n{reading.reads} reads")
    assert not reading.wrong, reading.wrong[:5]
    stage.check(SINGLE)
    with stage.connect() as db:
        db.drop_keyspace("alone")


def test_balancing_that_is_off_begins_nothing_and_what_was_moved_by_hand_is_put_right_when_it_is_on(
    stage: Elastic,
) -> None:
    # Whoever holds the large tablet has more than its share of bytes when it gets all of the small ones, too.
    to = min(stage.replicas(WIDE)[0])
    for tablet, holders in stage.replicas(FACTS).items():
        if to not in holders:
            stage.move(FACTS, tablet, min(holders), to)
    stage.still()
    before = stage.replicas(FACTS)
    time.sleep(1)
    assert stage.replicas(FACTS) == before
    stage.settings(enabled=True)
    stage.until(
        lambda: stage.counts(FACTS)[to] < len(before),
        lambda: f"i{to} gives some away: {stage.counts(FACTS)}, {stage.under_way()}",
    )
    stage.still()
    stage.settings(enabled=False)
    stage.check(FACTS, REGISTERS)


def test_a_killed_node_whose_replicas_were_made_anew_elsewhere_returns_and_keeps_none_of_them(stage: Elastic) -> None:
    tables = (FACTS, REGISTERS, WIDE)
    leader, holders = stage.leader(), stage.replicas(WIDE)[0]
    dead = min(holders - {leader})
    with stage.load(planned=False) as load:
        stage.instances.kill(dead)
        stage.settings(heal_after_ms=MIN_HEAL_AFTER_MS)
        stage.until(
            lambda: all(dead not in stage.counts(table) for table in tables),
            lambda: f"others have its replicas: {stage.under_way()}",
        )
        stage.settings(heal_after_ms=DEFAULT_HEAL_AFTER_MS)
        assert replica_directories(stage.instances.data_dir(dead)), "what it had is still there"
        load.await_more(20)
        stage.start(dead)
        # Nobody moves anything back.
        stage.until(
            lambda: not replica_directories(stage.instances.data_dir(dead)),
            lambda: f"it has none: {replica_directories(stage.instances.data_dir(dead))}",
            GONE_S,
        )
    stage.check(*tables)
    assert all(dead not in stage.counts(table) for table in tables)
