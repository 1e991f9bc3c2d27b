"""The invariants of a governed cluster, looked at after every event, every commit and every frame.

Nothing here knows of a particular bug. Beside the rules for committed writes (`topology_rules`) it states:

- never two clusters: one genesis at most is ever written to any disk, and one data directory stands behind a raft id;
- whoever is Offline or Expelled by a committed row holds no valid lease, at that moment and as long as it stays so;
- what leaves an instance as an answer above ONE leaves under a lease, and not while its row says Offline;
- an instance acknowledges no order of a term that it knows to be over;
- a barrier that an instance acknowledges is passed there: it has the version, and no older request is open;
- when a barrier at version v has passed (the write after it is committed), every older request that is still out
  (its router is dead, down, or has it open) is below the fence where it would be carried out, and none is answered
  from then on; nor is what a router with a lease stamps with an older version after that. (What a living router has
  given up because its time was over is refused a little later, when the replica learns of the fence.)

Requests for rows take the way of a probe, so the same is said of what routers send to replicas.

Answers are read off the wire when they leave. An acknowledgement that leaves at the very instant at which
something changed is not held against anybody: it may have been decided a moment before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from trimtab.metastore.watch import Changes, Prefix
from trimtab.net import frames
from trimtab.node.identity import Identity, Phase
from trimtab.raft.messages import Entry
from trimtab.rows import protocol as rows
from trimtab.sim.checks import State, Violation
from trimtab.sim.machines import Machine
from trimtab.sim.reference import ReferenceMachine
from trimtab.sim.topology_rules import Committed
from trimtab.sim.transport import Pipe
from trimtab.tablets.consistency import Level as RowLevel
from trimtab.topology import protocol
from trimtab.topology.protocol import Level
from trimtab.topology.records import SYSTEM_PREFIXES

_decode_frame = msgspec.msgpack.Decoder(frames.Frame).decode
_ORDERS = (protocol.SYNC, protocol.REPLICAS, protocol.BARRIER)
# A method's name stands near the beginning of a frame, which is cheaper to look for than to decode every frame.
_HEAD = 48
_MARKS = (b"governor.", b"probe", b"replica.")
_STALE_LEVELS = (RowLevel.ONE, RowLevel.LOCAL_ONE)


class _Stamped(msgspec.Struct, array_like=True):
    """The beginning of what a router sends to a replica."""

    topology: int


_decode_stamped = msgspec.msgpack.Decoder(_Stamped).decode


class TopologyReference(ReferenceMachine):
    """The reference machine; `committed` is told of what each entry changed in the topology."""

    def __init__(self, committed: Callable[[int, int, dict[bytes, bytes | None]], None]) -> None:
        super().__init__()
        self._told = committed
        self._changes: dict[bytes, bytes | None] = {}
        for prefix in SYSTEM_PREFIXES:
            self._metastore.watch(Prefix(prefix), self._take, self._over)

    def apply(self, entry: Entry) -> State:
        state = super().apply(entry)
        if self._changes:
            changes, self._changes = self._changes, {}
            self._told(entry.index, entry.term, changes)
        return state

    def _take(self, changes: Changes) -> bool:
        for change in changes.changes:
            self._changes[change.key] = None if change.new is None else change.new.value
        return True

    def _over(self, error: Exception) -> None:
        raise error


@dataclass
class _Asked:
    """A request that is on its way, and what was known when it was sent. `outlawed`: it must not be answered."""

    method: str
    term: int = 0
    version: int = 0
    level: Level = Level.ONE
    router: Machine | None = None
    life: int = 0
    outlawed: str = ""
    place: tuple[int, int] = (0, 0)  # table and tablet, of a read


class TopologyChecks:
    """The account of one run. Raises Violation."""

    def __init__(self, machines: Callable[[], Iterable[Machine]], now: Callable[[], float]) -> None:
        self.committed = Committed()
        self.reference = TopologyReference(self._commit)
        self.answered = 0
        self.refused = 0
        # Told of a request that leaves its router for the replica at a host: the nemesis strikes at such moments.
        self.on_routed: Callable[[Machine, str], None] | None = None
        # Told of every committed change of the system's keys, in their order, before any instance has applied it.
        self.on_commit: Callable[[int, dict[bytes, bytes | None]], None] | None = None
        # Told of every read that a replica has answered: by whom, at which version it was routed, of which tablet.
        self.on_read: Callable[[Machine, int, tuple[int, int]], None] | None = None
        self._machines = machines
        self._now = now
        self._genesis = ""
        self._founder: Machine | None = None
        self._owners: dict[int, str] = {}  # raft id -> uuid of the data directory behind it
        self._terms: dict[Machine, tuple[int, float, int]] = {}  # the term, since when, and the one before it
        self._asked: dict[Pipe, dict[int, _Asked]] = {}
        self._down: set[int] = set()

    # -- identities ------------------------------------------------------------------------------------------------

    def identified(self, machine: Machine, identity: Identity) -> None:
        """An identity was written to a disk."""
        if identity.genesis:
            if not self._genesis:
                self._genesis, self._founder = identity.genesis, machine
            elif identity.genesis != self._genesis:
                raise Violation(
                    f"there are two clusters: {machine.name} ({identity.phase.value}) is of {identity.genesis[:8]}, "
                    f"but {self._founder.name if self._founder else 'somebody'} is of {self._genesis[:8]}"
                )
        if identity.phase is Phase.MEMBER:
            owner = self._owners.setdefault(identity.raft_id, identity.uuid)
            if owner != identity.uuid:
                raise Violation(
                    f"raft id {identity.raft_id} was given twice: to {owner[:8]}, and to {identity.uuid[:8]} on "
                    f"{machine.name}"
                )

    # -- commits ---------------------------------------------------------------------------------------------------

    def _commit(self, index: int, term: int, changes: dict[bytes, bytes | None]) -> None:
        passed = self.committed.passed
        # Who is put out by the very write that follows a barrier has passed that barrier like everybody else.
        self._down = {raft_id for raft_id in self.committed.rows if self.committed.down(raft_id)}
        self.committed.apply(index, term, changes)
        if self.committed.passed > passed:
            self._barrier_passed(self.committed.passed)
        for machine in self._machines():
            self._lease(machine)
        if self.on_commit is not None:
            self.on_commit(index, changes)

    def barrier_passed(self, version: int) -> None:
        """What was committed just now may follow a barrier at this version only."""
        if self.committed.fence < version:
            raise Violation(
                f"what a barrier at version {version} has to come before was written, but the fence is at "
                f"{self.committed.fence}"
            )
        if version > self.committed.passed:
            self.committed.passed = version
            self._barrier_passed(version)

    def _barrier_passed(self, version: int) -> None:
        """Whatever older request may still be carried out must be refused where it would be."""
        for machine in self._machines():
            control = machine.instance.control if machine.instance is not None else None
            oldest = control.open_requests.oldest() if control is not None else None
            if oldest is None or oldest >= version or self.committed.fence > oldest or self._is_down(machine):
                continue
            raise Violation(
                f"a barrier at version {version} was passed while a request of version {oldest} is open on "
                f"{machine.name}, which counts as up",
                f"the committed fence is at {self.committed.fence}",
            )
        for pipe, waiting in self._asked.items():
            for asked in waiting.values():
                if asked.router is None or asked.version >= version or asked.outlawed:
                    continue
                asked.outlawed = self._still_out(asked.router, asked)
                if asked.outlawed:
                    self._must_refuse(pipe, asked, version)

    def _still_out(self, router: Machine, asked: _Asked) -> str:
        """Why an older request is still out when a barrier has passed; empty: its router has given it up."""
        if not router.alive or router.process.lives != asked.life:
            oldest = router.waited_for.get(asked.life)
            return f"its router {router.name} had died" if oldest is not None and oldest <= asked.version else ""
        if self._is_down(router):
            return f"its router {router.name} was down"
        control = router.instance.control if router.instance is not None else None
        oldest = control.open_requests.oldest() if control is not None else None
        return f"it is open at its router {router.name}" if oldest is not None and oldest <= asked.version else ""

    def _is_down(self, machine: Machine) -> bool:
        """Whether it was down when the barrier that has just been passed was."""
        return machine.instance is not None and machine.instance.raft_id in self._down

    def _must_refuse(self, pipe: Pipe, asked: _Asked, version: int) -> None:
        """A request that nobody waited for may still get to its replica, which must know the fence by now."""
        replica, loop = pipe.source.loop.process.owner, pipe.source.loop
        if replica is None or loop.dead or pipe.source.lost or replica.instance is None:
            return
        control = replica.instance.control
        if control is None or self._is_down(replica) or self.committed.down(replica.instance.raft_id):
            return
        if control.view.fence <= asked.version:
            raise Violation(
                f"a barrier at version {version} was passed, but nothing keeps {replica.name} from answering a request "
                f"of version {asked.version}: {asked.outlawed}",
                f"its fence is at {control.view.fence}, the committed one at {self.committed.fence}",
            )

    # -- events ----------------------------------------------------------------------------------------------------

    def after(self, machine: Machine) -> None:
        """An event of this machine's child is over."""
        group = machine.group
        assert group is not None
        term = group.raw.raft.term
        known = self._terms.get(machine)
        if known is None or known[0] != term:
            self._terms[machine] = (term, self._now(), known[0] if known is not None else 0)
        self._lease(machine)

    def _lease(self, machine: Machine) -> None:
        instance = machine.instance
        if instance is None or not self.committed.down(instance.raft_id):
            return
        control = instance.control
        if control is not None and control.lease.valid(machine.process.boot_s()):
            row = self.committed.rows[instance.raft_id]
            raise Violation(
                f"{machine.name} holds a lease for another {control.lease_left_ms()} ms, though it is "
                f"{row.grades.current.grade.value} by a committed row",
                f"reason: {row.reason}; since version {row.since_version}",
            )

    # -- the wire --------------------------------------------------------------------------------------------------

    def heard(self, pipe: Pipe, frame: bytes) -> None:
        """A frame leaves a process."""
        kind = frame[5]
        if kind == frames.REQUEST:
            head = frame[:_HEAD]
            if any(mark in head for mark in _MARKS):
                self._note(pipe, _decode_frame(memoryview(frame)[4:]))
        elif kind == frames.RESPONSE or kind == frames.ERROR:
            waiting = self._asked.get(pipe)
            if waiting:
                answer = _decode_frame(memoryview(frame)[4:])
                asked = waiting.pop(answer.id, None)
                if asked is None:
                    return
                if kind == frames.ERROR:
                    self.refused += asked.method == protocol.PROBE
                    return
                machine = pipe.source.loop.process.owner
                if isinstance(machine, Machine):
                    self._answer(machine, asked, answer.body)

    def _note(self, pipe: Pipe, request: Any) -> None:
        if request.method == protocol.PROBE:
            probe = protocol.decode_probe(request.body)
            asked = self._routed(pipe, request.method, probe.version, probe.level)
            if asked.router is not None and self.on_routed is not None:
                self.on_routed(asked.router, pipe.target.host)
        elif request.method == rows.REPLICA_WRITE:
            asked = self._routed(pipe, request.method, _decode_stamped(request.body).topology, Level.QUORUM)
        elif request.method == rows.REPLICA_READ:
            read = rows.decode_replica_read(request.body)
            level = Level.ONE if read.level in _STALE_LEVELS else Level.QUORUM
            asked = self._routed(pipe, request.method, read.topology, level)
            asked.place = (read.table, read.tablet)
        elif request.method == protocol.BARRIER:
            barrier = protocol.decode_barrier(request.body)
            asked = _Asked(request.method, term=barrier.term, version=barrier.version)
        elif request.method in _ORDERS:
            asked = _Asked(request.method, term=protocol.decode_sync(request.body).term)
        else:
            return
        # Its answer travels in the other direction of the same connection.
        self._asked.setdefault(pipe.target.out, {})[request.id] = asked

    def _routed(self, pipe: Pipe, method: str, version: int, level: Level) -> _Asked:
        """A request that a router sends to a replica, or a client to a router (which is of no version yet)."""
        process = pipe.source.loop.process
        # Who has no lease routes at ONE only, and its answers count as stale: barriers don't care for those.
        router = process.owner if version and _has_lease(process.owner) else None
        asked = _Asked(method, version=version, level=level, router=router, life=process.lives)
        if router is not None and version < self.committed.passed:
            asked.outlawed = f"it was sent by {process.name} when that had passed"
        return asked

    def _answer(self, machine: Machine, asked: _Asked, body: bytes) -> None:
        if asked.method == protocol.PROBE:
            self._probe_answer(machine, asked, body)
            return
        if asked.method == rows.REPLICA_WRITE:
            results = rows.decode_replica_written(body).results
            if any(failure is None for failure in results):
                self._answered(machine, asked, stale=False)
            return
        if asked.method == rows.REPLICA_READ:
            self._answered(machine, asked, stale=rows.decode_replica_rows(body).stale)
            if self.on_read is not None:
                self.on_read(machine, asked.version, asked.place)
            return
        term, since, before = self._terms.get(machine, (0, 0.0, 0))
        if since >= self._now():
            term = before
        if asked.term < term:
            raise Violation(
                f"{machine.name} obeyed {asked.method} of term {asked.term}, though it has been in term {term} since "
                f"{since:.6f} s"
            )
        control = machine.instance.control if machine.instance is not None else None
        if asked.method == protocol.BARRIER and control is not None:
            oldest = control.open_requests.oldest()
            if control.view.version < asked.version or (oldest is not None and oldest < asked.version):
                raise Violation(
                    f"{machine.name} acknowledged a barrier at version {asked.version}, though it is at "
                    f"{control.view.version} and a request of version {oldest} is open"
                )

    def _probe_answer(self, machine: Machine, asked: _Asked, body: bytes) -> None:
        reply = protocol.decode_probe_reply(body)
        instance = machine.instance
        if instance is None or reply.raft_id != instance.raft_id:
            # Only the way back through a router.
            return
        self.answered += 1
        self._answered(machine, asked, stale=reply.stale)

    def _answered(self, machine: Machine, asked: _Asked, *, stale: bool) -> None:
        """A replica has carried a request out."""
        instance = machine.instance
        if instance is None:
            return
        if asked.level is Level.QUORUM or not stale:
            if self.committed.down(instance.raft_id):
                raise Violation(
                    f"{machine.name} answered {asked.method} at {asked.level.name} as if it were fresh, though it is "
                    f"{self.committed.rows[instance.raft_id].grades.current.grade.value} by a committed row"
                )
            control = instance.control
            if control is None or not control.lease.valid(machine.process.boot_s()):
                raise Violation(f"{machine.name} answered {asked.method} at {asked.level.name} without a lease")
        if asked.outlawed:
            raise Violation(
                f"{machine.name} answered {asked.method} that was stamped with version {asked.version}, though a "
                f"barrier at version {self.committed.passed} was passed and {asked.outlawed}",
                f"the committed fence is at {self.committed.fence}, that of {machine.name} at "
                f"{instance.control.view.fence if instance.control is not None else '?'}",
            )


def _has_lease(machine: Machine | None) -> bool:
    control = machine.instance.control if machine is not None and machine.instance is not None else None
    return control is not None and control.lease_left_ms() > 0
