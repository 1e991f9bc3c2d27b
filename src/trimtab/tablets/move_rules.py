"""What an operator may ask of a tablet: one replica from an instance to another, or an end of what is under way.

Pure: the views in, a proposal or a refusal out. Some things can't be, whoever wants them: a table, tablet or instance
that is not there, a target that goes or is down, another data centre (replication is declared by data centre). Others
are only unwise, and can be forced: two replicas on one host, fewer racks, more bytes than the target has room for.

A tablet that is under way already: the target that it has is replaced, where that is still possible; from the lock on
the new one is planned, and begins when the tablet has arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from trimtab.tablets.departures import left_for_good
from trimtab.tablets.domains import domain_of, is_online, may_hold
from trimtab.tablets.move_protocol import MoveRequest
from trimtab.tablets.quorums import missing
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.transitions import ADJUSTABLE, Cause, Proposal, TabletTransition, goes_back, same
from trimtab.tablets.view import TableView
from trimtab.topology.lifecycle import open_requests
from trimtab.topology.records import InstanceRecord, RequestKind
from trimtab.topology.view import View

INVALID = "invalid"
NOT_FOUND = "not_found"
CONFLICT = "conflict"
MAX_WHY = 200
_GOING = (RequestKind.LEAVE, RequestKind.REMOVE)
_FORCE = "it is done all the same if it is forced"


class MoveRefused(ValueError):
    """Nothing is changed; the text says why and what to do. `code` is for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class MoveScene:
    """All that is looked at. `sizes` are the bytes that each instance holds, as far as they are known."""

    view: View
    tables: TableView
    alive: Callable[[int], bool]
    size_bytes: int = 0  # of the tablet
    sizes: Mapping[int, int] = field(default_factory=dict)

    def name(self, raft_id: int) -> str:
        record = self.view.instances.get(raft_id)
        return record.instance_id if record is not None else f"instance {raft_id}"

    def names(self, raft_ids: Collection[int]) -> str:
        return ", ".join(map(self.name, raft_ids)) or "nobody"

    def down(self, raft_id: int) -> bool:
        record = self.view.instances.get(raft_id)
        return record is None or record.left or not is_online(record) or not self.alive(raft_id)


def lost_of(scene: MoveScene, replicas: Collection[int]) -> frozenset[int]:
    """Those of whom no copy can be had now."""
    return frozenset(raft_id for raft_id in replicas if scene.down(raft_id))


def asked_move(scene: MoveScene, request: MoveRequest, trigger: int) -> Proposal | None:
    """The proposal that an operator's request comes to; None: it is so already. MoveRefused: it can't be."""
    stable, current = _place(scene, request)
    return (
        _undo(scene, request, stable, current, trigger)
        if not request.to
        else _move(scene, request, stable, current, trigger)
    )


def _place(scene: MoveScene, request: MoveRequest) -> tuple[Replicas, TabletTransition | None]:
    table = scene.tables.catalog.tables.get(request.table)
    if table is None:
        raise MoveRefused(NOT_FOUND, f"there is no table with the id {request.table} (any more); was it dropped?")
    if not 0 <= request.tablet < table.tablets:
        raise MoveRefused(
            NOT_FOUND, f"{table.full_name} has the tablets 0 to {table.tablets - 1}, and no tablet {request.tablet}"
        )
    try:
        stable = scene.tables.map(table.id).replicas(request.tablet)
    except KeyError:
        raise MoveRefused("not_ready", f"not all tablets of {table.full_name} are known here; try again") from None
    return stable, scene.tables.transition(table.id, request.tablet)


def _title(scene: MoveScene, request: MoveRequest) -> str:
    return f"tablet {request.tablet} of {scene.tables.name_of(request.table)}"


def goes_to(stable: Replicas, current: TabletTransition | None) -> Replicas:
    """The set that a tablet ends with if nobody changes anything."""
    if current is None:
        return stable
    if current.planned:
        return current.planned
    return stable if goes_back(current) else current.pending


# Undoing


def _undo(
    scene: MoveScene, request: MoveRequest, stable: Replicas, current: TabletTransition | None, trigger: int
) -> Proposal | None:
    title = _title(scene, request)
    if current is None:
        raise MoveRefused(CONFLICT, f"{title} is not under way: there is nothing to undo; `trimtab tablets` shows it")
    if goes_back(current):
        if not current.planned:
            return None
    elif current.locked or current.stage not in ADJUSTABLE:
        if current.planned:
            # What is under way ends as it must; what was to follow is given up.
            return _proposal(scene, request, current.pending, stable, trigger)
        raise MoveRefused(
            CONFLICT,
            f"{title} is in {current.stage.value}: its copy is verified and taken, so it only goes forward to "
            f"{scene.names(current.pending)}; move it back when it has arrived",
        )
    elif left_for_good(scene.view, stable):
        raise MoveRefused(
            CONFLICT,
            f"{title} can't go back: {scene.names(stable)} left for good, and whoever gets it may have the only copy",
        )
    return _proposal(scene, request, stable, stable, trigger)


def _proposal(scene: MoveScene, request: MoveRequest, target: Replicas, stable: Replicas, trigger: int) -> Proposal:
    said = " ".join(request.why.split())[:MAX_WHY]
    why = f"an operator asked for it{f': {said}' if said else ''}"
    return Proposal(request.table, request.tablet, target, Cause.OPERATOR, why, trigger, scene.size_bytes, was=stable)


# Moving


def _move(
    scene: MoveScene, request: MoveRequest, stable: Replicas, current: TabletTransition | None, trigger: int
) -> Proposal | None:
    title, source, to = _title(scene, request), request.source, request.to
    if source == to:
        raise MoveRefused(INVALID, f"{scene.name(to)} is both source and target; a replica moves to another instance")
    for raft_id in (source, to):
        if raft_id not in scene.view.instances:
            raise MoveRefused(NOT_FOUND, f"there is no instance with the raft id {raft_id}")
    # Until the lock another target takes the place of the one it has; after it, it follows.
    fixed = current is not None and not goes_back(current) and (current.locked or current.stage not in ADJUSTABLE)
    base = current.pending if current is not None and fixed else stable
    after = "will be on" if fixed else "is on"
    if source not in base and to in base:
        raise MoveRefused(
            CONFLICT,
            f"{title} {after} {scene.names(base)}: {scene.name(to)} has a replica already and {scene.name(source)} has "
            "none; it has moved before, or the two are mixed up",
        )
    if source not in base:
        raise MoveRefused(
            CONFLICT, f"{scene.name(source)} holds no replica of {title}, which {after} {scene.names(base)}"
        )
    if to in base:
        raise MoveRefused(
            CONFLICT, f"{scene.name(to)} holds a replica of {title} already, which {after} {scene.names(base)}"
        )
    target = tuple(to if raft_id == source else raft_id for raft_id in base)
    if current is not None and not goes_back(current) and not current.planned and same(target, current.pending):
        return None  # asked for again, while it is under way
    _check_target(scene, title, source, to)
    _check_sources(scene, title, source, to, stable)
    if not request.force:
        _check_constraints(scene, title, source, to, base)
    return _proposal(scene, request, target, stable, trigger)


def _check_target(scene: MoveScene, title: str, source: int, to: int) -> None:
    record, who = scene.view.instances[to], scene.name(to)
    if record.left:
        raise MoveRefused(CONFLICT, f"{who} has left the cluster")
    going = [request.kind for request in open_requests(scene.view).values() if request.raft_id == to]
    if not may_hold(record) or any(kind in _GOING for kind in going):
        doing = "is asked to leave" if record.state.value == "normal" else f"is {record.state.value}"
        raise MoveRefused(CONFLICT, f"{who} {doing}: it gets no replicas; choose another instance for {title}")
    if scene.down(to):
        grade = record.grades.current.grade.value
        raise MoveRefused(CONFLICT, f"{who} can't take a replica of {title} now: it is {grade}, not Online")
    before, after = domain_of(scene.view.instances[source]), domain_of(record)
    if before.dc != after.dc:
        raise MoveRefused(
            CONFLICT,
            f"{who} is in data centre {after.dc} and {scene.name(source)} in {before.dc}; how many replicas a data "
            "centre has is declared: trimtab keyspaces alter",
        )


def _check_sources(scene: MoveScene, title: str, source: int, to: int, stable: Replicas) -> None:
    """A source that is up is copied; else a read quorum is merged, and has to be there."""
    if source in stable and not scene.down(source):
        return
    up = [raft_id for raft_id in stable if not scene.down(raft_id)]
    dc_of = {raft_id: domain_of(record).dc for raft_id, record in scene.view.instances.items()}
    gone = [raft_id for raft_id in stable if raft_id in scene.view.instances and scene.view.instances[raft_id].left]
    if why := missing(to, stable, up, dc_of, intact=False, gone=gone):
        raise MoveRefused(
            CONFLICT, f"{scene.name(source)} is down, and too few other replicas of {title} are up to make one: {why}"
        )


def _check_constraints(scene: MoveScene, title: str, source: int, to: int, base: Replicas) -> None:
    view = scene.view
    staying = [raft_id for raft_id in base if raft_id != source and raft_id in view.instances]
    target = domain_of(view.instances[to])
    sharing = [raft_id for raft_id in staying if domain_of(view.instances[raft_id]).host == target.host]
    if sharing:
        raise MoveRefused(
            CONFLICT,
            f"{scene.name(to)} is on the host {target.host}, as is {scene.name(sharing[0])}, which holds a replica of "
            f"{title}: both would fail together; {_FORCE}",
        )
    peers = [view.instances[raft_id] for raft_id in staying]
    before, after = _crowding([*peers, view.instances[source]]), _crowding([*peers, view.instances[to]])
    if after > before:
        raise MoveRefused(
            CONFLICT,
            f"the replicas of {title} would be spread over fewer racks: {target.rack}, where {scene.name(to)} is, "
            f"holds another one; {_FORCE}",
        )
    _check_room(scene, title, to)


def _check_room(scene: MoveScene, title: str, to: int) -> None:
    capacity = scene.view.instances[to].capacity_bytes
    if capacity and scene.sizes.get(to, 0) + scene.size_bytes > capacity:
        raise MoveRefused(
            CONFLICT,
            f"{scene.name(to)} holds {scene.sizes.get(to, 0):,} of the {capacity:,} bytes that it has room for, and "
            f"{title} has {scene.size_bytes:,}; {_FORCE}",
        )


def _crowding(records: list[InstanceRecord]) -> int:
    """The more replicas share racks, the larger; by data centre."""
    racks = Counter((domain.dc, domain.rack) for domain in map(domain_of, records))
    return sum(count * count for count in racks.values())
