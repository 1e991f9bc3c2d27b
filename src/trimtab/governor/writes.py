"""Writes under construction: what a rule reads here it is bound to, and what it changes it has read.

Every record that is looked up through a draft is expected at the revision it was read at, so that no rule can forget
the condition. Changes of one record add up: two parts of a rule that touch the same instance see each other's work. The
topology version is raised at most once in a write, however many changes ask for it; which number it gets is settled
when it is written (`rebasing`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import MAX_WRITE_BYTES, Told, Write
from trimtab.jobs.records import JobRecord
from trimtab.jobs.records import encode as encode_job
from trimtab.topology.grades import Grade, Grades, set_current, set_target
from trimtab.topology.records import (
    FENCE_KEY,
    TRANSITION_KEY,
    VERSION_KEY,
    InstanceRecord,
    RequestRecord,
    RequestState,
    TransitionRecord,
    encode,
    instance_key,
    job_key,
    request_key,
)
from trimtab.topology.states import FOLLOWING, NodeState

# Instances (or requests) that one step deals with, where their records don't fill a write before (`Draft.full`).
MAX_BATCH = 200


class Draft:
    """A write that grows. `write()` gives the value."""

    def __init__(self, state: ClusterState) -> None:
        self._view = state.view
        self._now_ms = state.now_ms
        self._expect: dict[bytes, int] = {}
        self._instances: dict[int, InstanceRecord] = {}
        self._requests: dict[int, RequestRecord] = {}
        self._puts: dict[bytes, bytes] = {}
        self._deletes: list[bytes] = []
        self._events: list[Told] = []
        self._bytes = 0
        self._version = 0

    @property
    def full(self) -> bool:
        """Whether nothing more should go into this write."""
        return self._bytes >= MAX_WRITE_BYTES

    def weigh(self, record: InstanceRecord | RequestRecord) -> None:
        """Keep room for a record, here or in the write that follows from this one."""
        self._bytes += len(encode(record))

    # Reading

    def depend(self, key: bytes) -> None:
        """The write only counts while this key is as it was read."""
        self._expect[key] = self._view.revisions.get(key, 0)

    def instance(self, raft_id: int) -> InstanceRecord:
        """The record as this write leaves it."""
        key = instance_key(raft_id)
        if key not in self._expect:
            self.depend(key)
            self.weigh(self._view.instances[raft_id])
        return self._instances.get(raft_id) or self._view.instances[raft_id]

    def request(self, number: int) -> RequestRecord:
        """The record as this write leaves it."""
        key = request_key(number)
        if key not in self._expect:
            self.depend(key)
            self.weigh(self._view.requests[number])
        return self._requests.get(number) or self._view.requests[number]

    # Changing

    def tell(self, sentence: str, about: Iterable[int] = (), names: Iterable[str] = ()) -> None:
        """An event, and the instances (by raft id, or by name) that this very sentence is about."""
        records = (self._instances.get(raft_id) or self._view.instances.get(raft_id) for raft_id in about)
        named = (*(record.instance_id for record in records if record is not None), *names)
        self._events.append(Told(sentence, named))
        self._bytes += len(sentence) + sum(map(len, named))

    def raise_version(self) -> int:
        """The topology version that tells of this write."""
        if not self._version:
            self.depend(VERSION_KEY)
            self._version = self._view.version + 1
            self._puts[VERSION_KEY] = b"%d" % self._version
        return self._version

    def raise_fence(self, version: int) -> None:
        """From now on replicas refuse what was stamped before this version, if they don't already."""
        if self._view.fence < version:
            self.depend(FENCE_KEY)
            self._puts[FENCE_KEY] = b"%d" % version

    def transition(self, record: TransitionRecord | None) -> None:
        """The transition from now on; None: it is over."""
        self.depend(TRANSITION_KEY)
        if record is None:
            self._puts.pop(TRANSITION_KEY, None)
            self._deletes.append(TRANSITION_KEY)
        else:
            self._puts[TRANSITION_KEY] = encode(record)

    def add_instance(self, raft_id: int, record: InstanceRecord) -> None:
        """A new row; the id must never have been used."""
        assert raft_id not in self._view.instances, "raft ids are never used again"
        self.depend(instance_key(raft_id))
        self.weigh(record)
        self._instances[raft_id] = record

    def change_instance(self, raft_id: int, **fields: Any) -> None:
        before = self.instance(raft_id)
        after = msgspec.structs.replace(before, **fields)
        if after.state is not before.state:
            assert after.state in FOLLOWING[before.state], f"{after.state} does not follow {before.state}"
        self._instances[raft_id] = after

    def change_request(self, number: int, **fields: Any) -> None:
        before = self.request(number)
        assert not before.state.final or before.state is fields.get("state", before.state), "an ended request stays so"
        self._requests[number] = msgspec.structs.replace(before, **fields)

    def forget_request(self, number: int) -> None:
        assert self.request(number).state.final, "only requests that ended are forgotten"
        self._deletes.append(request_key(number))

    def job(self, record: JobRecord) -> None:
        """A job that is new, or changes."""
        self.depend(job_key(record.number))
        self._puts[job_key(record.number)] = encode_job(record)
        self._bytes += len(self._puts[job_key(record.number)])

    # What happens to instances and requests again and again

    def climb(self, raft_id: int, grade: Grade) -> None:
        """The instance stands at another rung now; Online it has its weight, below it none."""
        grades = set_current(self.instance(raft_id).grades, grade)
        self.change_instance(raft_id, grades=grades, weight=1.0 if grade is Grade.ONLINE else 0.0, down_ms=0)

    def go_down(self, raft_id: int) -> None:
        """Current becomes what the target is, Offline or Expelled; routing is told."""
        record = self.instance(raft_id)
        if record.grades.target.grade is Grade.EXPELLED:
            self.expel(raft_id, record.reason)
            return
        grades = set_current(record.grades, Grade.OFFLINE)
        self.change_instance(
            raft_id, grades=grades, weight=0.0, since_version=self.raise_version(), down_ms=self._now_ms
        )

    def begin_anew(self, raft_id: int) -> None:
        """Another life climbs in the place of one that nobody saw go down: what that one sent has to be fenced off."""
        grades = set_current(self.instance(raft_id).grades, Grade.RAFT_SYNCED)
        self.change_instance(raft_id, grades=grades, weight=0.0, since_version=self.raise_version())

    def expel(self, raft_id: int, reason: str) -> None:
        """The instance is out for good; its row stays, so that its ids are never used again."""
        record = self.instance(raft_id)
        if record.left:
            return
        self.change_instance(
            raft_id,
            state=NodeState.LEFT,
            grades=_expelled(record.grades),
            weight=0.0,
            left_ms=self._now_ms,
            reason=reason,
            since_version=self.raise_version(),
        )

    def end_request(self, number: int, state: RequestState, reason: str) -> None:
        self.change_request(number, state=state, reason=reason, ended_ms=self._now_ms)

    def write(self) -> Write:
        puts = dict(self._puts)
        puts.update((instance_key(raft_id), encode(record)) for raft_id, record in self._instances.items())
        puts.update((request_key(number), encode(record)) for number, record in self._requests.items())
        return Write(dict(self._expect), puts, tuple(self._deletes), tuple(self._events))


def _expelled(grades: Grades) -> Grades:
    grades = set_target(grades, Grade.EXPELLED)
    return grades if grades.current.grade is Grade.EXPELLED else set_current(grades, Grade.EXPELLED)
