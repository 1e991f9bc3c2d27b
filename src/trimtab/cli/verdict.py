"""Whether all is well, in words: the first line of `trimtab status`, and what an operator should know besides.

Pure: a view in, sentences out. The order is that of urgency: no leader, instances that are down, disks that are full,
voters that may not fail any more, records that can't be read, then what is merely under way.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from trimtab.topology.grades import Grade
from trimtab.topology.protocol import InstanceView, ViewReply
from trimtab.topology.records import RequestKind, RequestRecord
from trimtab.topology.states import NodeState

# Heartbeats come twice a second: silence of this length is no accident.
QUIET_MS = 2_000
_SILENCE = "not heard from"  # how failure detection begins its reason
# How the waits of moves are told that are no trouble.
_COPIED = (" copies it", " repairs it")
_DRAINED = " is drained; it still has "
_COMING = (NodeState.NONE, NodeState.BOOTSTRAPPING, NodeState.REPLACING)
_JOINS = (RequestKind.JOIN, RequestKind.REPLACE)


class Level(enum.IntEnum):
    """How bad it is."""

    WELL = 0
    BUSY = 1
    WRONG = 2
    STOPPED = 3


@dataclass(frozen=True)
class Verdict:
    """How bad, in one line, and the details, one line each."""

    level: Level
    line: str
    details: tuple[str, ...] = ()


def name_of(view: ViewReply, raft_id: int) -> str:
    """An instance's name, for people."""
    for each in view.instances:
        if each.raft_id == raft_id:
            return each.record.instance_id
    return f"member {raft_id}"


def members_of(view: ViewReply) -> list[InstanceView]:
    return [each for each in view.instances if not each.record.left]


def is_joining(view: ViewReply, each: InstanceView) -> bool:
    """Whether an instance is on its way in: that it is not Online, or was never heard of, is then no fault."""
    return each.record.state in _COMING or any(
        request.raft_id == each.raft_id and request.kind in _JOINS and not request.state.final
        for _, request in view.requests
    )


def was_heard(each: InstanceView) -> bool:
    """Whether the leader heard of an instance since it leads; if not, `heard_ms` is only how long it has led."""
    return each.heard_ms is not None and bool(each.applied)


def judge(view: ViewReply, stale: str = "", answering: frozenset[str] = frozenset()) -> Verdict:
    """The verdict on a view; `stale` says why no majority confirmed it, and `answering` then who is up."""
    members = members_of(view)
    if stale or not view.leader:
        return _without_leader(view, members, stale, answering)
    there = [each for each in members if not is_joining(view, each)]
    down = [each for each in there if each.record.grades.target.grade is Grade.OFFLINE]
    silent = [each for each in there if each not in down and (each.heard_ms or 0) > QUIET_MS]
    full = [each for each in members if each.disk_full and each not in (*down, *silent)]
    leader = name_of(view, view.leader)
    wrong = []
    if down:
        wrong.append(f"{_names(down)} {'is' if len(down) == 1 else 'are'} Offline")
    if silent:
        wrong.append(f"{_names(silent)} {'has' if len(silent) == 1 else 'have'} not been heard of lately")
    if full:
        wrong.append(f"{_names(full)} {'takes' if len(full) == 1 else 'take'} no writes, for want of disk space")
    details = [_why_down(each) for each in (*down, *silent)]
    details += _what_to_do(view, down)
    details += _make_space(full)
    details += _voters(members, down)
    details += [f"a record in the metastore can't be read: {text}" for text in view.unreadable]
    details += view.moving.problems
    under_way = (*_under_way(view, members), *_waiting(view))
    if details:
        what = "; ".join(wrong) or details.pop(0)
        serves = _serves(view, nobody=bool(full) and len(full) + len(down) == len(members))
        return Verdict(Level.WRONG, f"Not well: {what}; {leader} leads, and {serves}.", (*details, *under_way))
    online = sum(each.record.grades.current.grade is Grade.ONLINE for each in members)
    if under_way:
        return Verdict(Level.BUSY, f"Busy: {online} of {len(members)} instances Online, {leader} leads.", under_way)
    alone = ("It is a cluster of one, which survives no failure: add two more.",) if len(members) == 1 else ()
    count = "1 instance" if len(members) == 1 else f"{len(members)} instances"
    return Verdict(Level.WELL, f"All is well: {count} Online, {leader} leads.", alone)


def _serves(view: ViewReply, *, nobody: bool) -> str:
    if nobody:
        return "nobody takes writes"
    unserved = view.moving.unserved_tablets
    return "the cluster serves" + (f" all but {unserved} tablet{'s' if unserved != 1 else ''}" if unserved else "")


def _without_leader(view: ViewReply, members: list[InstanceView], stale: str, answering: frozenset[str]) -> Verdict:
    voters = [each for each in members if each.voter]
    up = [each for each in voters if each.record.address in answering]
    silent = [each for each in members if each.record.address not in answering]
    needed = len(voters) // 2 + 1
    details = ["What is shown is what those who answer last knew; nothing can be changed, reads at ONE may be stale."]
    if answering and len(up) < needed:
        line = f"No majority: {len(up)} of {len(voters)} voters answer, {needed} are needed; there is no leader."
        details.append(f"Start {_names(silent)} again.")
        lost = "it is" if len(silent) == 1 else "they are"
        details.append(f"If {lost} lost for good, `trimtab recover` on a survivor explains the way back.")
    else:
        line = "No leader: an election is under way, or the members can't reach each other."
        details.append("Look again in a few seconds; if it stays so, check the network between the members.")
        if stale:
            details.append(f"The last attempt said: {stale}")
    details += _make_space([each for each in members if each.disk_full])
    return Verdict(Level.STOPPED, line, tuple(details))


def _why_down(each: InstanceView) -> str:
    name, reason = each.record.instance_id, each.record.reason
    age = f"{(each.heard_ms or 0) / 1000:.0f} s"
    if each.record.grades.target.grade is not Grade.OFFLINE:
        grade = each.record.grades.current.grade.value
        return f"{name} is still {grade}, but was not heard of for {age}: it will be marked Offline if that goes on"
    if not was_heard(each):
        return f"{name} is Offline" + (f": {reason}" if reason else "")
    if reason.startswith(_SILENCE):
        # The reason has the age of the moment at which it was marked; only that of now is of use.
        return f"{name} is Offline: {_SILENCE} for {age}"
    return f"{name} is Offline, last heard of {age} ago" + (f": {reason}" if reason else "")


def _what_to_do(view: ViewReply, down: list[InstanceView]) -> list[str]:
    """For those that are down and neither about to come back nor about to leave."""
    leaving = {request.raft_id for _, request in view.requests if not request.state.final}
    leaving_names = {
        request.join.replaces for _, request in view.requests if request.join is not None and not request.state.final
    }
    lost = [
        each
        for each in down
        if each.raft_id not in leaving
        and each.record.instance_id not in leaving_names
        and not (was_heard(each) and (each.heard_ms or 0) < QUIET_MS)
    ]
    kept, lost = [each for each in lost if each.stays], [each for each in lost if not each.stays]
    lines = []
    if kept:
        # To expel them would be refused, with this very reason.
        lines.append(f"start {_names(kept)} again: {kept[0].stays}")
    if len(lost) == 1:
        name = lost[0].record.instance_id
        lines.append(f"start {name} again, or, if it is gone for good: trimtab expel {name}")
    elif lost:
        lines.append(f"start {_names(lost)} again, or, for each that is gone for good: trimtab expel ID")
    return lines


def _make_space(full: list[InstanceView]) -> list[str]:
    if not full:
        return []
    whose = "its reserve" if len(full) == 1 else "their reserves"
    return [
        f"make space on the disk of {_names(full)}: less is free than {whose} (--disk-reserve-mb), and writes there are"
        " refused; they go on by themselves when there is space again"
    ]


def _voters(members: list[InstanceView], down: list[InstanceView]) -> list[str]:
    """What to know when no further voter may fail, though the cluster has enough to survive one."""
    voters = [each for each in members if each.voter]
    up = len([each for each in voters if each not in down])
    if len(voters) < 3 or up > len(voters) // 2 + 1:
        return []
    return [f"only {up} of {len(voters)} voters are up: if one more fails, nothing can be changed any more"]


def _under_way(view: ViewReply, members: list[InstanceView]) -> tuple[str, ...]:
    lines = []
    told = set()
    for number, request in view.requests:
        if request.state.final:
            continue
        why = f": {request.reason}" if request.reason else ""
        if request.kind in _JOINS:
            told.add(request.raft_id)
            lines.append(_joins(view, number, request) + why)
            continue
        name = name_of(view, request.raft_id)
        if not why and any(line.startswith(f"{name} is being ") for line in view.moving.sentences):
            continue  # how far it is says more
        about = f" of {name}" if request.raft_id else ""
        lines.append(f"request {number}, {request.kind.value}{about}, is {request.state.value}{why}")
    for each in members:
        grades = each.record.grades
        if each.raft_id in told:
            continue
        if not grades.settled and grades.target.grade is not Grade.OFFLINE:
            lines.append(
                f"{each.record.instance_id} goes from {grades.current.grade.value} to {grades.target.grade.value}"
            )
        elif each.record.state in _COMING:
            lines.append(f"{each.record.instance_id} has not joined yet")
        elif each.record.state is not NodeState.NORMAL:
            lines.append(f"{each.record.instance_id} is {each.record.state.value}")
    lines += view.moving.sentences
    if view.transition is not None:
        lines.append(f"the topology is in {view.transition.state.value} for {view.transition.kind.value}")
    return tuple(lines)


def _waiting(view: ViewReply) -> list[str]:
    """What the governor waits for, and is not told as a problem.

    That copies are made is how it should be, and how far they are says more.
    """
    waiting = [line for line in view.waiting if line not in view.moving.problems]
    if not view.moving.sentences:
        return waiting
    return [line for line in waiting if not line.endswith(_COPIED) and _DRAINED not in line]


def _joins(view: ViewReply, number: int, request: RequestRecord) -> str:
    """A join or replacement under way, as a sentence; without a raft id it is only asked for yet."""
    name = request.join.instance_id if request.join is not None else name_of(view, request.raft_id)
    place = f" in place of {request.join.replaces}" if request.join is not None and request.join.replaces else ""
    return f"{name} {'is joining' if request.raft_id else 'asks to join'}{place} (request {number})"


def _names(instances: list[InstanceView]) -> str:
    names = sorted(each.record.instance_id for each in instances)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "nobody"
