"""The cluster's state as one value, read from the metastore and kept up to date from its changes.

A view is what everybody who decides or shows something looks at: the governor, the router, the status page. It knows
the metastore revision each record was written at, so that a decision can be written on the condition that what it was
based on is still so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from trimtab.catalog.keys import CATALOG
from trimtab.topology.records import (
    EPOCHS,
    EVENTS,
    FENCE_KEY,
    INSTANCES,
    JOBS,
    LOADS,
    PIPELINE,
    REBALANCE,
    REQUESTS,
    SECRETS,
    SESSIONS,
    SETTINGS,
    TABLETS,
    TOPOLOGY,
    TRANSITION_KEY,
    TRANSITIONS,
    VERSION_KEY,
    EventRecord,
    InstanceRecord,
    RequestRecord,
    TransitionRecord,
    decode_event,
    decode_instance,
    decode_request,
    decode_transition,
    job_key,
    number_of,
    request_key,
)

_NONE: frozenset[int] = frozenset()


@dataclass
class View:
    """Everything under the system's prefixes. `revisions` has the modification revision of each key it read."""

    instances: dict[int, InstanceRecord] = field(default_factory=dict)
    requests: dict[int, RequestRecord] = field(default_factory=dict)
    version: int = 0
    fence: int = 0
    transition: TransitionRecord | None = None
    events: dict[int, EventRecord] = field(default_factory=dict)
    last_job: int = 0  # the greatest number of a job; its record is in a view of its own (`jobs.view`)
    revisions: dict[bytes, int] = field(default_factory=dict)
    # Why a record could not be read, by key: it is left as it was (where it was read before), nobody changes it, and
    # it is shown to the operator. A newer release may have written it.
    unreadable: dict[bytes, str] = field(default_factory=dict)

    def change(self, key: bytes, value: bytes | None, revision: int) -> None:
        """Take note of a key's new value (None: it was deleted). Keys that are not the system's are ignored."""
        reader = _READERS.get(key) or _READERS.get(key[: key.find(b"/") + 1])
        if reader is None:
            return
        try:
            reader(self, key, value)
        except ValueError as error:
            self.unreadable[key] = str(error)
        else:
            self.unreadable.pop(key, None)
        # Also of what can't be read: a decision that was based on what was there before must know that it is outdated.
        if value is None:
            self.revisions.pop(key, None)
            self.unreadable.pop(key, None)
        else:
            self.revisions[key] = revision

    def load(self, entries: Iterable[tuple[bytes, bytes, int]]) -> None:
        """Begin anew from (key, value, revision) of everything there is."""
        fresh = View()
        for key, value, revision in entries:
            fresh.change(key, value, revision)
        self.__dict__.update(fresh.__dict__)

    # Looking

    def named(self, instance_id: str) -> tuple[int, InstanceRecord] | None:
        """The instance of that name that is in the cluster, or (where there is none) the last that was."""
        found = None
        for raft_id, record in self.instances.items():
            if record.instance_id == instance_id and (found is None or not record.left or found[1].left):
                found = (raft_id, record)
        return found

    def members(self) -> dict[int, InstanceRecord]:
        """All instances that have not left."""
        return {raft_id: record for raft_id, record in self.instances.items() if not record.left}

    def next_raft_id(self) -> int:
        """Greater than any id that was ever given: those of instances that left count, and of unreadable rows."""
        return max(max(self.instances, default=0), *self.unread(INSTANCES), 0) + 1

    def next_request(self) -> int:
        """Requests and jobs count together, so that a task's number says which it is."""
        return max(max(self.requests, default=0), *self.unread(REQUESTS), self.last_job) + 1

    def unused(self, number: int) -> dict[bytes, int]:
        """What a write expects that takes this number: neither a request nor a job has it."""
        return {request_key(number): 0, job_key(number): 0}

    def next_event(self) -> int:
        return max(max(self.events, default=0), *self.unread(EVENTS), 0) + 1

    def unread(self, prefix: bytes) -> frozenset[int]:
        """The numbers of the records under this prefix that could not be read."""
        if not self.unreadable:
            return _NONE
        digits = (key.removeprefix(prefix) for key in self.unreadable if key.startswith(prefix))
        return frozenset(int(each) for each in digits if each.isdigit())


def _read_instance(view: View, key: bytes, value: bytes | None) -> None:
    raft_id = number_of(key, INSTANCES)
    if value is None:
        view.instances.pop(raft_id, None)
    else:
        view.instances[raft_id] = decode_instance(value)


def _read_request(view: View, key: bytes, value: bytes | None) -> None:
    number = number_of(key, REQUESTS)
    if value is None:
        view.requests.pop(number, None)
    else:
        view.requests[number] = decode_request(value)


def _read_event(view: View, key: bytes, value: bytes | None) -> None:
    number = number_of(key, EVENTS)
    if value is None:
        view.events.pop(number, None)
    else:
        view.events[number] = decode_event(value)


def _read_job(view: View, key: bytes, _value: bytes | None) -> None:
    view.last_job = max(view.last_job, number_of(key, JOBS))


def _read_version(view: View, _key: bytes, value: bytes | None) -> None:
    view.version = int(value or 0)


def _read_fence(view: View, _key: bytes, value: bytes | None) -> None:
    view.fence = int(value or 0)


def _read_transition(view: View, _key: bytes, value: bytes | None) -> None:
    view.transition = None if value is None else decode_transition(value)


def _ignore(_view: View, _key: bytes, _value: bytes | None) -> None:
    return


_READERS: dict[bytes, Callable[[View, bytes, bytes | None], None]] = {
    INSTANCES: _read_instance,
    REQUESTS: _read_request,
    EVENTS: _read_event,
    VERSION_KEY: _read_version,
    FENCE_KEY: _read_fence,
    TRANSITION_KEY: _read_transition,
    TOPOLOGY: _ignore,
    JOBS: _read_job,
    # These have views of their own (`tablets`, `loads`, `jobs`); here are only the revisions that decisions depend on.
    **dict.fromkeys(
        (CATALOG, TABLETS, TRANSITIONS, REBALANCE, SESSIONS, LOADS, EPOCHS, PIPELINE, SETTINGS, SECRETS), _ignore
    ),
}
