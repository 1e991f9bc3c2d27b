"""Whom a barrier waits for, and what its write depends on besides.

A barrier waits for every member that may route or serve: those that stand at RaftSynced or higher, whether or not they
were heard from lately. Only a mark `Offline` excuses a node, because only that says that its lease is over; failure
detection sets it, and the executor then goes on without the node.

Somebody who is Offline now may be on its way back, and come in while the barrier waits: it may not have seen the
version, and may have old requests open. So the executor asks it too, and the write depends on the rows of those who are
still absent then.

Nobody answers for some requests: those of a router that went down, or that was started anew before anybody noticed,
and those that a router gave up because their time was over, while a replica that stood still had yet to take them. The
fence is for these. Every barrier ends with it: the write that follows a barrier at v raises the fence to v, and the
next barrier, which is asked at a later index, proves that every replica knows it.

Where it is known that somebody went down or began anew (`unfenced`), that is too late. Then the executor raises the
fence before the barrier's write, and asks everybody once more. So when any barrier has passed, no replica takes what
such a router had stamped with an older version. Where nothing else needs a barrier, `down.fence_off` is one for its own
sake.
"""

from __future__ import annotations

from collections.abc import Iterable

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Barrier, StepKind
from trimtab.governor.writes import Draft
from trimtab.topology.grades import Grade
from trimtab.topology.records import InstanceRecord, instance_key
from trimtab.topology.view import View


def barrier_nodes(view: View) -> tuple[int, ...]:
    """Everybody who has to acknowledge."""
    return tuple(raft_id for raft_id, record in sorted(view.members().items()) if not _absent(record))


def absent(view: View) -> dict[bytes, int]:
    """The rows (and their revisions) of those whom a barrier does not wait for, and who may come in any time."""
    keys = [instance_key(raft_id) for raft_id, record in sorted(view.members().items()) if _absent(record)]
    return {key: view.revisions.get(key, 0) for key in keys}


def _absent(record: InstanceRecord) -> bool:
    return record.grades.current.grade in (Grade.OFFLINE, Grade.EXPELLED)


def unfenced(view: View) -> tuple[int, ...]:
    """Who went down or began anew, so that what it sent before may still be taken; whatever became of it since."""
    return tuple(raft_id for raft_id, record in sorted(view.instances.items()) if record.since_version > view.fence)


def barrier(
    state: ClusterState,
    kind: StepKind,
    why: str,
    subjects: Iterable[int],
    draft: Draft,
    *,
    about: Iterable[int] = (),
    version: int = 0,
) -> Barrier:
    """The step that runs a barrier (at the version of now, if no other is given), and then writes the draft.

    `about` are the instances that `why` is about.
    """
    version = version or state.view.version
    draft.raise_fence(version)
    draft.tell(why, about)
    return Barrier(kind, why, tuple(subjects), version=version, nodes=barrier_nodes(state.view), write=draft.write())
