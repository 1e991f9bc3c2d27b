"""What the leader does about loads by itself; and that nothing it could die between leaves a load half seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.unit.governor.governed import Governed
from tests.unit.loads.ledger import ORDERS, THREE, USERS

from trimtab.governor.loads import end_loads, publish_loads, tidy_loads, write_of
from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Adopt, Commit, Step, StepKey, StepKind, Write
from trimtab.governor.waiting import waiting
from trimtab.loads import publishing
from trimtab.loads.generations import ANNOUNCED_MS, KEEP_ENDED_MS, announce
from trimtab.loads.protocol import RollbackRequest
from trimtab.loads.records import (
    KEEP_GENERATION_MS,
    LoadKind,
    LoadState,
    SessionKind,
    SessionRecord,
    encode,
    epoch_key,
    session_key,
)
from trimtab.loads.situation import LoadRefused
from trimtab.topology.grades import Grade

LEASE_MS = 60_000


class Leader(Governed):
    """Whoever governs loads. `has`: what each instance has really taken over; `holds`: what it has sealed."""

    rules = (publish_loads, end_loads, tidy_loads)

    def __init__(self, replicas: Sequence[tuple[int, ...]] = THREE) -> None:
        super().__init__(replicas)
        self.heard_ms: dict[tuple[int, str], int] = {}
        self.has: dict[str, set[int]] = {}
        self.holds: dict[str, set[int]] = {}
        self.seen: list[tuple[int, int]] = []

    def state(self) -> ClusterState:
        return replace(super().state(), renewed_ms=dict(self.heard_ms))

    def ask(self, step: Adopt) -> list[int]:
        """Who takes the load over when asked: whoever is there and holds its files, while the session is open."""
        load = self.load(step.id, step.table)
        answered = []
        for raft_id in step.nodes:
            open_here = step.id in self.loads.sessions and load.state is LoadState.COMMITTED
            if raft_id not in self.silent and open_here and raft_id in self.holds.get(step.id, {raft_id}):
                self.has.setdefault(step.id, set()).add(raft_id)
                answered.append(raft_id)
        return answered

    def write_for(self, step: Step, answered: list[int]) -> Write | None:
        if isinstance(step, Commit):
            return step.write
        assert isinstance(step, Adopt)
        load = publishing.next_load(self.loads, step.table)
        if load is None or load.id != step.id or not set(answered) - set(load.adopted):
            return None
        return write_of(publishing.adopted(self.situation(), load, answered))

    def apply(self, write: Write) -> bool:
        if any(self.store.get(key, (b"", 0))[1] != revision for key, revision in write.expect.items()):
            return False
        before = {table: self.loads.visible(table) for table in self.loads.tables}
        self.put(write.puts, write.deletes)
        for table in self.loads.tables:
            visible = self.loads.visible(table)
            assert before.get(table, 0) <= visible <= before.get(table, 0) + 1, "epochs are seen one by one"
            if visible > before.get(table, 0):
                self.seen.append((table, visible))
        return True

    def carry_out(self, step: Step) -> None:
        answered = self.ask(step) if isinstance(step, Adopt) else []
        write = self.write_for(step, answered)
        if write is not None:
            assert self.apply(write)

    def run(self) -> list[str]:
        """All there is to do now; its whys."""
        told: list[str] = []
        for _ in range(200):
            step = self.next_step()
            if step is None:
                return told
            told.append(step.why)
            before = self.revision
            self.carry_out(step)
            if self.revision == before:
                return told
        raise AssertionError(f"no end of steps: {told[-5:]}")


def committed(leader: Leader, id: str, kind: LoadKind = LoadKind.APPEND, *sealed: int, table: int = USERS) -> None:
    leader.begin(id, kind, table=table)
    leader.commit(id, *(sealed or ((1, 2, 3) if table == USERS else (1,))), table=table)


def test_a_committed_load_is_taken_over_by_all_and_becomes_visible_without_its_driver() -> None:
    leader = Leader()
    committed(leader, "a")
    step = leader.next_step()
    assert isinstance(step, Adopt) and (step.table, step.id, step.nodes) == (USERS, "a", (1, 2, 3))
    assert step.key == StepKey(StepKind.ADOPT, (USERS,)) and step.index == leader.revision
    assert step.why == "load a of shop.users is taken over by i1, i2, i3"
    leader.carry_out(step)
    assert leader.load("a").state is LoadState.PUBLISHED and leader.seen == [(USERS, 1)]
    assert leader.next_step() is None and not leader.loads.sessions


def test_loads_of_a_table_go_one_by_one_and_those_of_others_beside_them() -> None:
    leader = Leader()
    committed(leader, "a")
    committed(leader, "b")
    committed(leader, "o", table=ORDERS)
    first = leader.next_step()
    assert isinstance(first, Adopt) and first.id == "a"
    leader.in_flight[first.key] = first
    second = leader.next_step()
    assert isinstance(second, Adopt) and second.id == "o"
    leader.in_flight[second.key] = second
    assert leader.next_step() is None
    leader.in_flight.clear()
    leader.resting.add(first.key)
    rested = leader.next_step()
    assert isinstance(rested, Adopt) and rested.id == "o"
    leader.resting.clear()
    leader.run()
    assert sorted(leader.seen) == [(USERS, 1), (USERS, 2), (ORDERS, 1)]


def test_one_that_is_silent_is_not_asked_and_not_waited_for_once_it_is_marked() -> None:
    leader = Leader()
    committed(leader, "a")
    leader.silent = {3}
    leader.run()
    leader.resting.add(StepKey(StepKind.ADOPT, (USERS,)))
    assert leader.load("a").adopted == (1, 2) and leader.loads.visible(USERS) == 0
    told = [each for each in waiting(leader.state()) if "load a" in each]
    assert told == ["load a of shop.users is committed, but can't be seen yet: i3 has yet to take it over"]
    leader.grade(3, Grade.OFFLINE)
    step = leader.next_step()
    assert isinstance(step, Commit)
    leader.carry_out(step)
    assert leader.load("a").state is LoadState.PUBLISHED


def test_the_driver_of_a_load_that_is_not_heard_from_for_a_lease_is_gone() -> None:
    leader = Leader()
    leader.begin("a")
    leader.begin("b")
    leader.heard_ms = {(USERS, "a"): LEASE_MS, (USERS, "b"): LEASE_MS + 1}
    assert leader.run() == ["load b of shop.users aborted: its driver was not heard from for 60.0 s"]
    assert leader.load("b").state is LoadState.ABORTED and list(leader.loads.sessions) == ["a"]
    committed(leader, "c")
    leader.heard_ms = {(USERS, "c"): 10 * LEASE_MS, (USERS, "a"): 0}
    leader.run()
    assert leader.load("c").state is LoadState.PUBLISHED


def test_a_load_that_the_leader_has_just_come_to_know_goes_on_however_long_it_has_led() -> None:
    leader = Leader()
    leader.begin("a")
    leader.in_office_ms = 100 * LEASE_MS
    assert leader.next_step() is None


def test_loads_of_a_dropped_table_end_and_are_forgotten() -> None:
    leader = Leader()
    leader.publish("a")
    committed(leader, "b")
    leader.begin("c")
    leader.drop(USERS)
    assert leader.run() == ["loads b of table 1, c of table 1 aborted: its table was dropped"]
    assert not leader.loads.sessions and leader.loads.visible(USERS) == 1
    leader.now_ms += KEEP_ENDED_MS
    leader.run()
    assert not leader.loads.tables


def test_a_session_without_a_load_is_closed() -> None:
    leader = Leader()
    leader.put({session_key("lost"): encode(SessionRecord(SessionKind.LOAD, USERS, leader.now_ms))})
    leader.put({session_key("copy"): encode(SessionRecord(SessionKind.STREAM, USERS, leader.now_ms))})
    leader.run()
    assert list(leader.loads.sessions) == ["copy"]


def test_old_generations_and_records_go() -> None:
    leader = Leader()
    leader.publish("over", LoadKind.OVERWRITE)
    for number in range(130):
        leader.publish(f"a{number}")
    leader.run()
    assert leader.loads.count(USERS) == 131 and leader.loads.generations(USERS) == {1, 2}
    leader.now_ms += KEEP_GENERATION_MS
    leader.run()
    assert leader.loads.count(USERS) == 101 and leader.loads.generations(USERS) == {2}


def test_what_a_leader_left_of_a_rollback_that_was_not_done_goes() -> None:
    leader = Leader()
    leader.publish("over", LoadKind.OVERWRITE)
    leader.done(announce(leader.situation(), RollbackRequest(USERS, "over")))
    leader.run()
    assert leader.loads.swapping(USERS), "its leader may be about to write it"
    leader.now_ms += ANNOUNCED_MS
    leader.run()
    assert not leader.loads.swapping(USERS) and leader.loads.generation(USERS) == 2


def test_nothing_is_done_about_a_table_whose_records_cannot_be_read() -> None:
    leader = Leader()
    committed(leader, "a")
    leader.begin("b")
    leader.heard_ms = {(USERS, "b"): 10 * LEASE_MS}
    leader.put({epoch_key(USERS): b"{"})
    assert leader.next_step() is None


@pytest.mark.parametrize("lost", ["before", "deed", "nothing"])
def test_a_leader_that_dies_between_any_two_steps_leaves_what_the_next_one_finishes(lost: str) -> None:
    leader = Leader()
    committed(leader, "a")
    committed(leader, "b", LoadKind.OVERWRITE)
    for _ in range(10):
        step = leader.next_step()
        if step is None:
            break
        if lost == "deed" and isinstance(step, Adopt):
            leader.ask(replace(step, nodes=step.nodes[:1]))  # one has taken it over, and nobody wrote that down
            lost = "nothing"
        elif lost == "before":
            lost = "nothing"
        else:
            leader.carry_out(step)
    assert leader.seen == [(USERS, 1), (USERS, 2)] and leader.loads.generation(USERS) == 2
    assert not leader.loads.sessions and not leader.loads.open_loads


# Any order of everything


class Storm:
    """Drivers, instances and leaders that do as they like; after each write the promises are looked at."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.leader = Leader(((1, 2, 3), (2, 3, 4), (1, 3, 4), (1, 2, 4)))
        self.next_id = 0
        self.stale: list[Write] = []

    def play(self, turns: int) -> None:
        deeds: list[Callable[[], None]] = [self.begin, self.seal, self.seal, self.commit, self.commit, self.abort]
        deeds += [self.govern, self.govern, self.govern, self.late_write, self.down, self.up, self.mark, self.elect]
        deeds += [self.rollback, self.wait]
        for _ in range(turns):
            self.rng.choice(deeds)()
            self.check()

    def staging(self) -> list[str]:
        return [load.id for load in self.leader.loads.open_loads.values() if load.state is LoadState.STAGING]

    def begin(self) -> None:
        self.next_id += 1
        kind = LoadKind.OVERWRITE if self.rng.random() < 0.3 else LoadKind.APPEND
        try:
            self.leader.begin(f"l{self.next_id}", kind)
        except LoadRefused as error:
            assert error.code in ("unavailable", "too_many_loads")
            return
        self.leader.heard_ms[USERS, f"l{self.next_id}"] = 0

    def seal(self) -> None:
        if ids := self.staging():
            up = [each for each in (1, 2, 3, 4) if each not in self.leader.silent]
            self.leader.holds.setdefault(self.rng.choice(ids), set()).update(self.rng.sample(up, len(up) // 2 + 1))

    def commit(self) -> None:
        if not (ids := self.staging()):
            return
        id = self.rng.choice(ids)
        holds = self.leader.holds.get(id, set())
        try:
            load = self.leader.commit(id, *holds)
        except LoadRefused as error:
            assert error.code in ("moved", "unavailable")
            if error.code == "moved":
                assert not set(error.missing) & holds
            return
        for raft_id in (1, 2, 3, 4):
            down = self.leader.view.instances[raft_id].grades.current.grade is Grade.OFFLINE
            assert raft_id in holds or down, "committed without all replicas that are up"
            assert (raft_id in load.sealed) == (raft_id in holds)

    def abort(self) -> None:
        if (ids := self.staging()) and self.rng.random() < 0.3:
            self.leader.abort(self.rng.choice(ids))

    def govern(self) -> None:
        step = self.leader.next_step()
        if step is None:
            return
        answered = self.leader.ask(step) if isinstance(step, Adopt) else []
        if self.rng.random() < 0.2:
            return  # the leader died before it wrote
        write = self.leader.write_for(step, answered)
        if write is None:
            return
        if self.rng.random() < 0.2:
            self.stale.append(write)  # it is on its way, and comes whenever it does
        else:
            assert self.leader.apply(write)

    def late_write(self) -> None:
        if self.stale:
            self.leader.apply(self.stale.pop(self.rng.randrange(len(self.stale))))

    def down(self) -> None:
        if len(self.leader.silent) < 2:
            self.leader.silent.add(self.rng.randint(1, 4))

    def up(self) -> None:
        if self.leader.silent:
            raft_id = self.leader.silent.pop()
            if self.leader.view.instances[raft_id].grades.current.grade is Grade.OFFLINE:
                self.leader.grade(raft_id, Grade.ONLINE)

    def mark(self) -> None:
        for raft_id in self.leader.silent:
            if self.rng.random() < 0.5:
                self.leader.grade(raft_id, Grade.OFFLINE)

    def elect(self) -> None:
        self.leader.heard_ms = dict.fromkeys(self.leader.loads.open_loads, 0)
        self.leader.in_office_ms = 0

    def rollback(self) -> None:
        over = [load.id for load in self.leader.loads.of_table(USERS) if load.kind is LoadKind.OVERWRITE]
        if over and self.rng.random() < 0.3:
            try:
                self.leader.rollback(over[-1])
            except LoadRefused as error:
                assert error.code in ("conflict", "not_ready")

    def wait(self) -> None:
        ms = self.rng.choice((10, 1_000, 40_000))
        self.leader.now_ms += ms
        self.leader.in_office_ms += ms
        for key in self.leader.heard_ms:
            self.leader.heard_ms[key] += 0 if self.rng.random() < 0.8 else ms

    def check(self) -> None:
        loads, has = self.leader.loads, self.leader.has
        epochs = loads.epoch_record(USERS)
        visible = loads.visible(USERS)
        given = [load.epoch for load in loads.of_table(USERS) if load.epoch]
        assert len(set(given)) == len(given) and max(given, default=0) <= epochs.committed
        assert len({load.stamp_us for load in loads.of_table(USERS)}) == loads.count(USERS)
        coming = {load.epoch for load in loads.of_table(USERS) if load.state is LoadState.COMMITTED}
        assert coming == set(range(visible + 1, epochs.committed + 1)), "what is committed and not seen is to come"
        for load in loads.of_table(USERS):
            assert (load.id in loads.sessions) == (not load.state.final)
            if load.state is LoadState.COMMITTED:
                assert load.stamp_us in loads.hidden(USERS, visible)
            if load.state is LoadState.PUBLISHED:
                assert load.epoch <= visible and load.stamp_us not in loads.hidden(USERS, visible)
                taken = has.get(load.id, set())
                assert set(load.adopted) <= taken, "nobody is noted that has not taken it over"
                for replicas in ((1, 2, 3), (2, 3, 4), (1, 3, 4), (1, 2, 4)):
                    assert len(taken.intersection(replicas)) >= 2, "seen without a quorum that has it"
        assert loads.generation(USERS) in loads.generations(USERS)

    def heal(self) -> None:
        """Everybody is back, nobody drives: what was committed is seen, all else ends."""
        self.leader.silent.clear()
        for raft_id in (1, 2, 3, 4):
            self.leader.grade(raft_id, Grade.ONLINE)
        for load in self.leader.loads.open_loads.values():
            if load.state is LoadState.COMMITTED:
                self.leader.holds.setdefault(load.id, set()).update(load.sealed)
        self.leader.heard_ms = dict.fromkeys(self.leader.loads.open_loads, LEASE_MS + 1)
        self.leader.run()
        self.check()
        assert not self.leader.loads.open_loads and not self.leader.loads.sessions
        assert self.leader.loads.visible(USERS) == self.leader.loads.epoch_record(USERS).committed


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_loads_are_seen_whole_in_their_order_or_not_at_all(seed: int) -> None:
    storm = Storm(seed)
    storm.play(150)
    storm.heal()
    seen = [epoch for table, epoch in storm.leader.seen if table == USERS]
    assert seen == sorted(seen)


def test_storms_reach_everything_that_they_are_for() -> None:
    states: set[LoadState] = set()
    for seed in range(20):
        storm = Storm(seed)
        storm.play(150)
        storm.heal()
        states.update(load.state for load in storm.leader.loads.loads.values())
    assert states == {LoadState.PUBLISHED, LoadState.ABORTED, LoadState.ROLLED_BACK}
