"""Nodes come and go, and replication changes, with real processes and a real Spark, under load at QUORUM, RF 3.

The tests share one cluster and one driver; each begins with the instances that the one before has left. What was loaded
by Spark and what a client writes meanwhile is compared in the end, replica by replica, and so are the files on disk.
TRIMTAB_TEST_ROWS makes the loaded table larger. With TRIMTAB_TEST_NO_SPARK=1 the same happens without Spark, which is
quicker when one looks for something else.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trimtab
from tests.cluster.elastic import Elastic, replica_directories
from tests.cluster.rows_load import FACTS, REGISTERS, create_tables
from tests.conftest import Processes
from trimtab.jobs.records import JobKind, JobState
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import Cause
from trimtab.topology.grades import Grade
from trimtab.topology.records import RequestKind, RequestState

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

NO_SPARK = bool(os.environ.get("TRIMTAB_TEST_NO_SPARK"))
LOADED = "load.loaded"
TABLETS = 4
SMALL_TABLETS = 2  # of the tables that clients write to
ROWS = int(os.environ.get("TRIMTAB_TEST_ROWS", "10000"))
# A tablet of the loaded table is sent as files, for which it must have more than a mebibyte. And as the balancer counts
# no replica for less than that, it must have much more, or the table is not the first that it spreads evenly.
ROW_BYTES = 1000
MOST = 10  # instances, one after another
TABLES = (FACTS, REGISTERS, LOADED)
ALONE = "alone.rows"
ALONE_ROWS = 2_000


class Changing(Elastic):
    """Three instances to begin with, a driver with Spark, and a table that was loaded by it."""

    _newest = 3

    def fill(self) -> None:
        with self.connect() as db:
            create_tables(db, tablets=SMALL_TABLETS)
            db.create_table(LOADED, {"id": "bigint", "value": "blob"}, primary_key=["id"], tablets=TABLETS)
        values = [os.urandom(ROW_BYTES) for _ in range(ROWS)]
        self._values = values
        if NO_SPARK:
            with self.connect() as db:
                db.table(LOADED).put_many([{"id": id, "value": value} for id, value in enumerate(values)])
            return
        path = self.folder / "loaded.parquet"
        pq.write_table(pa.table({"id": np.arange(ROWS), "value": pa.array(values, pa.binary())}), path)
        self.job(JobKind.LOAD, table=LOADED, paths=[str(path)])

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.instances.running))

    def grow(self, count: int) -> None:
        """Let as many join that there are so many."""
        for number in range(self._newest + 1, self._newest + 1 + count - len(self.members)):
            self._newest = number
            self.start(number)
        self.spread()

    def spread(self) -> None:
        """Wait until all who run share the large table evenly, and nobody else holds anything.

        Bytes come first: the small tables are where they make up for what the large one leaves uneven.
        """
        self.balanced(LOADED, *self.members)
        for table in TABLES:
            assert set(self.counts(table)) <= set(self.members)

    def whole(self) -> None:
        """Everything that must hold, whatever has happened."""
        self.check(*TABLES)
        with self.connect() as db:
            found = {row["id"]: row["value"] for row in db.table(LOADED, consistency="QUORUM").scan()}
        assert found == dict(enumerate(self._values))

    def held(self, number: int) -> int:
        """How many replicas an instance holds."""
        return sum(self.counts(table).get(number, 0) for table in TABLES)

    @contextlib.contextmanager
    def by_hand(self) -> Iterator[None]:
        """Only what the test asks for is moved, inside of the block."""
        self.settings(enabled=False)
        self.still()
        try:
            yield
        finally:
            self.settings(enabled=True)

    def ways(self, tablet: int) -> tuple[int, list[int]]:
        """Who could give its replica of a tablet of the loaded table away, and who could take it; nobody who leads."""
        holders, leader = self.replicas(LOADED)[tablet], self.leader()
        return min(holders - {leader}), sorted(set(self.members) - holders - {leader})

    def replication(self, db: trimtab.Database) -> set[int]:
        """How many replicas the tablets have, of all tables that are looked at."""
        return {len(tablet["replicas"]) for tablet in db.tablets() if tablet["keyspace"] == "load"}

    def replace(self, dead: int) -> None:
        """Let another one take the place of one that is dead."""
        self._newest += 1
        self.start(self._newest, options=("--replace", f"i{dead}"))

    def gone(self, number: int) -> None:
        """One that was decommissioned ends by itself, and has nothing left."""
        assert self.instances.ended(number) == 1
        assert not replica_directories(self.instances.data_dir(number))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changing]:
    processes = Processes()
    jobs = "tests.cluster.jobs_without_spark" if NO_SPARK else "tests.spark.held_copies"
    made = Changing(processes, tmp_path_factory.mktemp("moves"), MOST, jobs=jobs)
    try:
        made.start(1, 2, 3)
        made.start_driver()
        made.fill()
        yield made
    finally:
        processes.end_all()


def test_a_fourth_node_joins_and_gets_its_share_and_no_request_fails(stage: Changing) -> None:
    before = set(stage.members)
    with stage.load():
        stage.grow(4)
    (joined,) = set(stage.members) - before
    assert stage.counts(LOADED)[joined] == 3
    stage.whole()


def test_a_node_is_decommissioned_and_leaves_nothing_behind_and_no_request_fails(stage: Changing) -> None:
    stage.grow(4)
    leaver = next(number for number in stage.members if number != stage.leader())
    with stage.load():
        request = stage.request(RequestKind.LEAVE, leaver)
        stage.instances.let_go(leaver)
        assert stage.ended(request).state is RequestState.DONE
        stage.spread()
    stage.gone(leaver)
    stage.whole()


def test_a_decommission_that_is_cancelled_half_way_leaves_a_node_that_owns_tablets(stage: Changing) -> None:
    stage.grow(4)
    stays = next(number for number in stage.members if number != stage.leader())
    with stage.load():
        stage.limit(ROWS * ROW_BYTES // 20)
        before = stage.held(stays)
        request = stage.request(RequestKind.LEAVE, stays)

        def it_is_half_way() -> bool:
            """Small tablets have left it when large ones are still on their way."""
            draining = (Cause.DRAIN, Stage.STREAMING) in {(e.cause, e.stage) for e in stage.under_way().values()}
            return draining and 0 < stage.held(stays) < before

        stage.until(it_is_half_way, lambda: f"{stage.held(stays)} of {before} are there, {stage.under_way()}")
        stage.ask(lambda client: client.cancel(request, "not today"))
        assert stage.ended(request).state is RequestState.CANCELLED
        stage.limit(0)
        stage.spread()
    assert stage.counts(LOADED)[stays] == 3
    stage.until(lambda: _grade(stage, stays) is Grade.ONLINE, "it is Online")
    stage.whole()


def test_a_node_that_was_killed_is_replaced_by_another(stage: Changing) -> None:
    stage.grow(4)
    dead = next(number for number in stage.members if number != stage.leader())
    with stage.load(planned=False) as load:
        stage.instances.kill(dead)
        load.await_more(20)
        # Nobody takes the place of one that is believed to live.
        stage.until(lambda: _grade(stage, dead) is Grade.OFFLINE, "it is Offline")
        stage.replace(dead)
        stage.spread()
    assert dead not in stage.counts(LOADED)
    stage.whole()


def test_replication_goes_from_three_to_two_to_three_to_five_to_three(stage: Changing) -> None:
    stage.grow(5)
    with stage.load(), stage.connect() as db:
        for replication in (2, 3, 5, 3):
            began = time.monotonic()
            db.alter_keyspace("load", replication=replication)
            stage.until(
                lambda count=replication: stage.replication(db) == {count},  # type: ignore[misc]
                lambda: f"replicas: {[stage.replicas(table) for table in TABLES]}, {stage.under_way()}",
            )
            stage.still()
            print(f"\nreplication {replication} after {time.monotonic() - began:.1f} s")
            stage.replicas_are_equal(FACTS)
        stage.spread()
    stage.whole()


def test_a_target_that_changes_while_its_copy_is_held_ends_before_that_copy_could(stage: Changing) -> None:
    stage.grow(5)
    with stage.load(), stage.by_hand():
        source, (to, *_) = stage.ways(0)
        holders = stage.replicas(LOADED)[0]
        (other,) = set(stage.members) - holders - {to}
        with stage.held_copy(LOADED, 0) as held:
            assert stage.move(LOADED, 0, source, to) == "pending"
            stage.until(lambda: held.is_there, "the copy is held half-way")
            # Where an answer was lost, the client has asked again: the move to the other is pending already.
            assert stage.move(LOADED, 0, source, other) in ("adjusted", "pending")
            wanted = holders - {source} | {other}
            stage.until(lambda: stage.replicas(LOADED)[0] == wanted, lambda: f"it has moved: {stage.under_way()}")
            assert held.is_there
    stage.whole()


def test_a_target_killed_in_the_middle_of_its_copy_is_given_up_and_keeps_nothing_of_it(stage: Changing) -> None:
    stage.grow(5)
    with stage.load(planned=False), stage.by_hand():
        source, (to, *_) = stage.ways(1)
        before = stage.replicas(LOADED)[1]
        with stage.held_copy(LOADED, 1) as held:
            assert stage.move(LOADED, 1, source, to) == "pending"
            stage.until(lambda: held.is_there, "the copy is held half-way")
            assert stage.staged_bytes(to) > 0
            stage.instances.kill(to)
            stage.still()
            assert held.is_there and stage.replicas(LOADED)[1] == before
        stage.start(to)
    stage.whole()


def test_a_table_with_one_replica_is_loaded_and_read_by_spark_while_its_tablets_move(stage: Changing) -> None:
    with stage.connect() as db:
        db.create_keyspace("alone", replication=1)
        db.create_table(ALONE, {"id": "bigint", "value": "blob"}, primary_key=["id"], tablets=TABLETS)
    stage.settings(enabled=False)
    moved = 0
    for turn in range(2):
        ids = np.arange(turn * ALONE_ROWS, (turn + 1) * ALONE_ROWS)
        path = stage.folder / f"alone{turn}.parquet"
        pq.write_table(pa.table({"id": ids, "value": pa.array([os.urandom(50) for _ in ids], pa.binary())}), path)
        asked: dict[str, Any] = {"table": ALONE, "paths": [str(path)]}
        jobs = [stage.ask(lambda client, asked=asked: client.jobs.create(JobKind.LOAD, asked)).number]  # type: ignore[misc]
        jobs += [stage.ask(lambda client: client.jobs.create(JobKind.COUNT, {"table": ALONE})).number]
        for tablet, holders in stage.replicas(ALONE).items():
            (source,) = holders
            to = next(number for number in stage.members if number not in holders)
            stage.move(ALONE, tablet, source, to)
            moved += 1
        ended = [stage.job_ended(number) for number in jobs]
        assert [job.state for job in ended] == [JobState.SUCCEEDED] * 2, f"{ended}\n{stage.said()}"
        assert ended[1].result["rows"] in (turn * ALONE_ROWS, (turn + 1) * ALONE_ROWS)
        stage.still()
        assert stage.job(JobKind.COUNT, table=ALONE)["rows"] == (turn + 1) * ALONE_ROWS
    print(f"\n{moved} moves")
    stage.settings(enabled=True)
    with stage.connect() as db:
        db.drop_keyspace("alone")


def _grade(stage: Changing, number: int) -> Grade:
    view = stage.ask(lambda client: client.view())
    return next(each.record.grades.current.grade for each in view.instances if each.record.instance_id == f"i{number}")
