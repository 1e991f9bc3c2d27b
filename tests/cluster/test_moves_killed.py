"""kill -9 of whoever takes part in a move, at every stage of it: the move ends or is undone, and no row is lost.

The leader stands still at a named place while somebody is killed (`gates`), so it happens there and nowhere else. A few
pairs of place and victim are tried always; TRIMTAB_ALL_KILLS=1 tries all of them, which takes a quarter of an hour.
The jobs run without Spark (`jobs_without_spark`), which would only take longer to start again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.elastic import Elastic
from tests.cluster.gates import Gates
from tests.cluster.mines import Mines
from tests.cluster.patience import patiently, put_rows
from tests.cluster.rows_load import FACTS, REGISTERS, create_tables
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.node.failpoints import VARIABLE
from trimtab.tablets.transitions import TransitionKind

ALL = bool(os.environ.get("TRIMTAB_ALL_KILLS"))
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(7200 if ALL else 600)]

NUMBERS = (1, 2, 3, 4)
NO_FAILPOINTS = {VARIABLE: ""}
KILLED_LEASE_MS = 6_000  # of the driver that is killed
_MORE_MOVES = 2  # than places to die at: one may be undone for another reason
# An operator's move begins with its own write; from there on the leader takes it from stage to stage.
FORWARD = (*("write_both_read_old", "streaming", "write_both_read_new", "use_new", "cleanup", "end_migration", "done"),)
BACKWARD = ("cleanup_target", "revert_migration")
GATES = tuple(f"moves.{stage}.{side}" for stage in (*FORWARD, *BACKWARD) for side in ("before", "after"))
VICTIMS = ("leader", "driver", "source", "target")
KILLS = (
    ("moves.write_both_read_old.after", "leader"),
    ("moves.streaming.after", "driver"),
    ("moves.streaming.after", "source"),
    ("moves.write_both_read_new.before", "target"),
    ("moves.cleanup.after", "source"),
    ("moves.cleanup_target.before", "leader"),
)
# Where the instance itself is in the middle of something, when it dies.
DEATHS = (
    *(f"moves.{call}.{side}" for call in ("prepare", "adopt", "clean") for side in ("before", "after")),
    *(f"moves.adopt.{place}" for place in ("verified", "linked", "recorded", "swapped", "after")),
)
# A start removes links without a note as it does links with one; who is killed in cleanup has cleaned nothing yet.
SOME_DEATHS = ("moves.adopt.recorded", "moves.adopt.swapped", "moves.adopt.after")
# Of those who ingest the rows of a merge.
MERGE_DEATHS = ("moves.adopt.verified", "moves.adopt.swapped")


@dataclass(frozen=True)
class Way:
    """A replica of a tablet that could go from one instance to another, neither of which leads."""

    tablet: int
    leader: int
    source: int
    to: int
    before: frozenset[int]

    @property
    def after(self) -> frozenset[int]:
        return self.before - {self.source} | {self.to}


@dataclass
class Stage:
    """Four instances, whose leader stops at gates, and a driver that is started again when it was killed."""

    elastic: Elastic
    gates: Gates
    mines: Mines

    def way(self) -> Way:
        elastic, leader = self.elastic, self.elastic.leader()
        for tablet, holders in elastic.replicas(FACTS).items():
            if leader in holders:
                (to,) = set(NUMBERS) - holders
                return Way(tablet, leader, min(holders - {leader}), to, frozenset(holders))
        # The leader is to hold one, so that it has no part in moving it.
        holders = elastic.replicas(FACTS)[0]
        elastic.move(FACTS, 0, min(holders), leader)
        elastic.still()
        return self.way()

    def begin(self, way: Way) -> None:
        assert self.elastic.move(FACTS, way.tablet, way.source, way.to) == "pending"

    def killing(self, victim: str, way: Way) -> Callable[[], None]:
        """What kills one who takes part in a move."""
        elastic = self.elastic
        if victim == "driver":
            return elastic.kill_driver
        number = {"leader": way.leader, "source": way.source, "target": way.to}[victim]
        return lambda: elastic.instances.kill_node(number)

    def ended(self, way: Way) -> str:
        """Wait until nothing is under way and everybody is back; what became of the move."""
        elastic = self.elastic
        elastic.still()
        run(elastic.instances.online())
        found = elastic.replicas(FACTS)[way.tablet]
        assert found in (way.before, way.after), f"{found} is neither {way.before} nor {way.after}"
        return "done" if found == way.after else "undone"

    def kill_at(self, place: str, victim: str) -> str:
        """A move during which somebody is killed when the leader is at a place; what became of it."""
        elastic, way = self.elastic, self.way()
        self.gates.at(place, self.killing(victim, way))
        backward = any(f".{each}." in place for each in BACKWARD)
        with elastic.held_copy(FACTS, way.tablet) if backward else contextlib.nullcontext() as held:
            self.begin(way)
            if held is not None:
                # What is undone has to be undone before its copy is there; an operator who ends the job does it.
                elastic.until(lambda: held.is_there, "the copy is held half-way")
                (job,) = elastic.streams()
                elastic.ask(lambda client: client.jobs.steer(job, "cancel"))

            def it_comes() -> bool:
                if place not in self.gates.waiting:
                    return True
                if held is None and not elastic.under_way():
                    self.begin(way)  # it was undone before, for another reason: somebody was silent for too long
                return False

            elastic.until(it_comes, f"the leader comes to {place}")
            if victim == "driver":
                elastic.start_driver(**NO_FAILPOINTS)
        return self.ended(way)

    def die_at(self, *places: str) -> str:
        """Moves during which whoever does something dies in the middle of it, once at each place; how the last ended.

        One that is not undone meets several.
        """
        self.mines.arm(*places)
        for _ in range(len(places) + _MORE_MOVES):
            way = self.way()
            self.begin(way)
            outcome = self.ended(way)
            if not self.mines.armed:
                return outcome
            assert outcome == "undone", f"nobody came to {self.mines.armed}"
        raise AssertionError(f"nobody came to {self.mines.armed} in {len(places) + _MORE_MOVES} moves")

    def grow(self, *places: str) -> None:
        """A fourth replica of everything is made of the merge of a read quorum, while somebody dies at each place."""
        elastic = self.elastic
        kinds: set[TransitionKind] = set()
        self.mines.arm(*places)
        with elastic.connect() as db:
            patiently(lambda: db.alter_keyspace("load", replication=len(NUMBERS)))

        def it_is_there() -> bool:
            kinds.update(each.kind for each in elastic.under_way().values())
            held = [*elastic.replicas(FACTS).values(), *elastic.replicas(REGISTERS).values()]
            return all(len(each) == len(NUMBERS) for each in held) and not self.mines.armed

        elastic.until(it_is_there, lambda: f"everybody has a replica, and died at {self.mines.armed}")
        run(elastic.instances.online())
        assert kinds == {TransitionKind.REBUILD}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("killed")
    processes = Processes()
    gates, mines = Gates(folder / "gates", GATES), Mines(folder / "mines", DEATHS)
    armed = ",".join((gates.env[VARIABLE], mines.env[VARIABLE]))
    elastic = Elastic(processes, folder, len(NUMBERS), env={VARIABLE: armed})
    try:
        elastic.start(*NUMBERS)
        elastic.start_driver(lease_ms=KILLED_LEASE_MS, **NO_FAILPOINTS)
        elastic.settings(enabled=False)
        with elastic.connect() as db:
            create_tables(db, tablets=2)
            # Large enough to be copied as they are, and not as a run of their rows.
            rows = [{"id": -1 - id, "value": os.urandom(500).hex()} for id in range(4000)]
            put_rows(db.table(FACTS), rows)
        yield Stage(elastic, gates, mines)
    finally:
        gates.close()
        processes.end_all()


def test_whoever_is_killed_at_whatever_stage_the_move_ends_and_no_row_is_lost(stage: Stage) -> None:
    with stage.elastic.load(planned=False) as load:
        for place, victim in itertools.product(GATES, VICTIMS) if ALL else KILLS:
            began = time.monotonic()
            outcome = stage.kill_at(place, victim)
            print(f"\n{victim} killed at {place}: {outcome} after {time.monotonic() - began:.1f} s")
            load.await_more(20)
    assert stage.gates.failure is None
    stage.elastic.check()


def test_an_instance_that_dies_in_the_middle_of_preparing_adopting_or_cleaning_does_it_again(stage: Stage) -> None:
    with stage.elastic.load(planned=False) as load:
        for places in [(place,) for place in DEATHS] if ALL else [SOME_DEATHS]:
            began = time.monotonic()
            outcome = stage.die_at(*places)
            print(f"\ndead at {', '.join(places)}: {outcome} after {time.monotonic() - began:.1f} s")
            load.await_more(20)
        # The last: everybody has a replica then.
        began = time.monotonic()
        stage.grow(*MERGE_DEATHS)
        print(f"\ndead at {', '.join(MERGE_DEATHS)} of a merge: {time.monotonic() - began:.1f} s")
        load.await_more(20)
    stage.elastic.check()
