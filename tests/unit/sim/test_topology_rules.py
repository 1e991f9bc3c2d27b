"""The rules for committed writes refuse what they should, and nothing that is right."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trimtab.sim.checks import Violation
from trimtab.sim.topology_rules import Committed
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import (
    FENCE_KEY,
    TRANSITION_KEY,
    VERSION_KEY,
    EventRecord,
    InstanceRecord,
    RequestKind,
    RequestRecord,
    RequestState,
    TransitionRecord,
    encode,
    event_key,
    instance_key,
    request_key,
)
from trimtab.topology.states import NodeState, TransitionState

Writes = dict[bytes, bytes | None]


def grades(current: Grade, incarnation: int, target: Grade, target_incarnation: int) -> Grades:
    return Grades(Standing(current, incarnation), Standing(target, target_incarnation))


def put(raft_id: int, before: InstanceRecord, **fields: Any) -> Writes:
    return {instance_key(raft_id): encode(msgspec.structs.replace(before, **fields))}


class Story:
    """A cluster of i1, Online in its first life at version 2, and i2, which has a row."""

    def __init__(self) -> None:
        self.committed = Committed()
        self.index = 1
        founder = InstanceRecord("i1", "a:1", uuid="u1")
        self.write({instance_key(1): encode(founder), VERSION_KEY: b"1", FENCE_KEY: b"0"})
        self.change(1, grades=grades(Grade.OFFLINE, 0, Grade.ONLINE, 1))
        for grade in (Grade.RAFT_SYNCED, Grade.REPLICATED, Grade.SHARDING_INITIALIZED):
            self.change(1, grades=grades(grade, 1, Grade.ONLINE, 1))
        self.change(1, {VERSION_KEY: b"2"}, grades=grades(Grade.ONLINE, 1, Grade.ONLINE, 1), weight=1.0)
        self.write({instance_key(2): encode(InstanceRecord("i2", "b:1", uuid="u2", state=NodeState.NONE))})

    def row(self, raft_id: int) -> InstanceRecord:
        return self.committed.rows[raft_id]

    def write(self, writes: Writes, term: int = 2) -> None:
        self.index += 1
        self.committed.apply(self.index, term, writes)

    def change(self, raft_id: int, more: Writes | None = None, **fields: Any) -> None:
        self.write({**put(raft_id, self.row(raft_id), **fields), **(more or {})})

    def refuses(self, why: str, writes: Writes, term: int = 2) -> None:
        with pytest.raises(Violation, match=why):
            self.write(writes, term)

    def refuses_change(self, why: str, raft_id: int, more: Writes | None = None, **fields: Any) -> None:
        self.refuses(why, {**put(raft_id, self.row(raft_id), **fields), **(more or {})})


UP = {VERSION_KEY: b"3"}


def test_a_life_by_the_rules_is_taken() -> None:
    story = Story()
    story.change(1, grades=grades(Grade.ONLINE, 1, Grade.OFFLINE, 1))
    story.change(1, UP, grades=grades(Grade.OFFLINE, 1, Grade.OFFLINE, 1), weight=0.0)
    story.change(1, grades=grades(Grade.OFFLINE, 1, Grade.ONLINE, 2))
    story.change(1, grades=grades(Grade.RAFT_SYNCED, 2, Grade.ONLINE, 2))
    assert not story.committed.down(1) and story.committed.down(2)


def test_incarnations_are_raised_and_copied_as_the_rules_say() -> None:
    story = Story()
    story.refuses_change("incarnation 3, not 2", 1, grades=grades(Grade.ONLINE, 1, Grade.ONLINE, 3))
    story.refuses_change("incarnation 2, not 1", 1, grades=grades(Grade.ONLINE, 1, Grade.OFFLINE, 2))
    story.change(1, grades=grades(Grade.ONLINE, 1, Grade.ONLINE, 2))
    story.refuses_change(
        "current grade has incarnation 1", 1, UP, grades=grades(Grade.RAFT_SYNCED, 1, Grade.ONLINE, 2), weight=0.0
    )


def test_grades_climb_rung_by_rung_from_the_foot_and_have_a_weight_only_at_the_top() -> None:
    story = Story()
    story.change(2, grades=grades(Grade.OFFLINE, 0, Grade.ONLINE, 1))
    story.refuses_change(
        "does not begin at the foot|no step leads", 2, grades=grades(Grade.REPLICATED, 1, Grade.ONLINE, 1)
    )
    story.change(2, grades=grades(Grade.RAFT_SYNCED, 1, Grade.ONLINE, 1))
    story.refuses_change("no step leads", 2, grades=grades(Grade.SHARDING_INITIALIZED, 1, Grade.ONLINE, 1))
    story.change(2, grades=grades(Grade.REPLICATED, 1, Grade.ONLINE, 1))
    story.refuses_change("while its state is none", 2, grades=grades(Grade.SHARDING_INITIALIZED, 1, Grade.ONLINE, 1))
    story.refuses_change("its weight is 1", 2, weight=1.0)


def test_rows_are_kept_for_ever_and_ids_are_never_used_again() -> None:
    story = Story()
    story.refuses("was deleted", {instance_key(2): None})
    gone = {"state": NodeState.LEFT, "grades": grades(Grade.EXPELLED, 0, Grade.EXPELLED, 0)}
    story.refuses_change("it is left, but Offline", 2, UP, state=NodeState.LEFT)
    story.change(2, UP, **gone)
    story.refuses_change("must stay as it was", 2, reason="another")
    story.write({instance_key(4): encode(InstanceRecord("i4", "d:1", uuid="u4", state=NodeState.NONE))})
    third = InstanceRecord("i3", "c:1", uuid="u3", state=NodeState.NONE)
    story.refuses("raft id 3 was given to i3, though 4", {instance_key(3): encode(third)})
    twin = msgspec.structs.replace(third, uuid="u4")
    story.refuses("the same data directory", {instance_key(5): encode(twin)})


def test_states_follow_the_table_and_routing_is_told() -> None:
    story = Story()
    story.refuses_change("normal does not follow none", 2, UP, state=NodeState.NORMAL)
    story.refuses_change("routing is not told", 2, state=NodeState.BOOTSTRAPPING)
    story.refuses_change("uuid must never change", 2, uuid="another")
    story.refuses("went back", {VERSION_KEY: b"1"})
    story.refuses("ahead of the version", {FENCE_KEY: b"9"})


def test_requests_have_a_number_of_their_own_and_one_end() -> None:
    story = Story()
    asked = RequestRecord(RequestKind.REBUILD, raft_id=1)
    story.write({request_key(2): encode(asked)})
    story.refuses("was used again", {request_key(1): encode(asked)})
    story.refuses("forgotten before its end", {request_key(2): None})
    done = msgspec.structs.replace(asked, state=RequestState.DONE)
    story.write({request_key(2): encode(done)})
    story.refuses("changed after its end", {request_key(2): encode(msgspec.structs.replace(done, reason="late"))})


def test_a_transition_goes_forward_behind_the_fence() -> None:
    story = Story()
    running = RequestRecord(RequestKind.JOIN, RequestState.RUNNING, raft_id=2)
    story.write({request_key(1): encode(RequestRecord(RequestKind.JOIN))})
    story.write({request_key(1): encode(running)})
    new = TransitionRecord(TransitionState.WRITE_BOTH_READ_NEW, RequestKind.JOIN, [1], 3)
    story.refuses("began as write_both_read_new", {TRANSITION_KEY: encode(new), **UP})
    old = TransitionRecord(TransitionState.WRITE_BOTH_READ_OLD, RequestKind.JOIN, [1], 3)
    story.write({TRANSITION_KEY: encode(old), **UP})
    story.refuses("before its requests", {TRANSITION_KEY: None, VERSION_KEY: b"4"})
    story.refuses("but the fence is 0", {TRANSITION_KEY: encode(new), VERSION_KEY: b"4"})
    story = Story()
    story.write({request_key(1): encode(RequestRecord(RequestKind.JOIN))})
    story.write({request_key(1): encode(running)})
    story.write({TRANSITION_KEY: encode(old), **UP})
    story.write({TRANSITION_KEY: encode(new), VERSION_KEY: b"4", FENCE_KEY: b"3"})
    assert story.committed.passed == 3


def test_only_the_term_that_decided_writes() -> None:
    story = Story()
    event = EventRecord(0, "online", "i1 is Online", term=2)
    story.write({event_key(1): encode(event)})
    story.refuses("a decision of term 2 was written in term 3", {event_key(2): encode(event)}, term=3)
