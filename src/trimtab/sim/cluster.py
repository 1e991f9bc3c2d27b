"""A cluster of simulated processes: members that are production instances, and clients that are production clients.

Only the ports of an instance are given from here: its loop (time and network), its disk, its random numbers and its
other clocks. Who is a member is decided by the scenario, not by a governor: members are founded directly. After every
event of a member the invariants are looked at; what members say to each other is read off the wire.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from trimtab.net import frames
from trimtab.node import founding
from trimtab.node import identity as identities
from trimtab.node.group import Group
from trimtab.node.identity import Identity, Phase
from trimtab.node.instance import Instance
from trimtab.node.links import decode_parcel
from trimtab.node.settings import Settings
from trimtab.raft.core import StateType
from trimtab.raft.messages import Message, MessageType
from trimtab.sim.checks import Checks, Violation
from trimtab.sim.disks import MemberDisk
from trimtab.sim.loop import SimLoop
from trimtab.sim.plan import Plan
from trimtab.sim.reference import FOUNDING_INDEX, FOUNDING_TERM, ReferenceMachine
from trimtab.sim.transport import Pipe
from trimtab.sim.world import Process, World
from trimtab.storage.port import DiskFull, StorageError, SyncFailed
from trimtab.topology.protocol import Address

PORT = 3301
GENESIS = "simulated"
RESTART_AFTER_FAILURE_S = 0.3
_decode_frame = msgspec.msgpack.Decoder(frames.Frame).decode


class SimMember:
    """One member across all its lives: a machine with a disk, on which an instance runs or does not."""

    def __init__(self, cluster: SimCluster, raft_id: int, founders: int) -> None:
        self.raft_id = raft_id
        self.name = f"n{raft_id}"
        self.host = f"10.0.0.{raft_id}"
        self.process: Process = cluster.world.process(self.name, self.host)
        self.process.owner = self
        self.disk = MemberDisk(self.process, slow_rate=0.0)
        self.instance: Instance | None = None
        self.group: Group | None = None
        self.retired = False
        # The members the cluster begins with: itself among them, unless it comes later.
        self.founders = {number: f"10.0.0.{number}:{PORT}" for number in range(1, founders + 1)}
        self.settings = Settings(
            instance_id=f"i{raft_id}",
            listen=f"{self.host}:{PORT}",
            peers=tuple(self.founders.values()),
            timing=cluster.plan.timing,
            limits=cluster.plan.limits,
        )

    @property
    def address(self) -> str:
        return self.settings.listen

    async def identify(self, rng: random.Random) -> Identity:
        """Whose disk this is. An empty one becomes that of a founder, or of a newcomer that knows the founders."""
        disk = self.disk.model
        found = identities.load(disk)
        if found is not None and found.phase is Phase.MEMBER:
            return found
        mine = Identity(
            identities.FORMAT, self.settings.cluster_id, self.settings.instance_id, identities.fresh_id(rng)
        )
        # As in production: nothing of it counts before the last step, and a crash before that begins anew.
        identities.store(disk, msgspec.structs.replace(mine, phase=Phase.BOOT))
        founding.drop_database(disk)
        founder = self.raft_id in self.founders
        if founder:
            await founding.write_log(disk, self.founders)
        return identities.store(
            disk,
            msgspec.structs.replace(
                mine,
                phase=Phase.MEMBER,
                raft_id=self.raft_id,
                genesis=GENESIS,
                founders=self.founders if founder else {},
                contacts=[] if founder else [Address(number, at, 0) for number, at in self.founders.items()],
            ),
        )

    @property
    def alive(self) -> bool:
        return self.process.alive

    @property
    def leads(self) -> bool:
        return self.alive and self.group is not None and self.group.raw.raft.state is StateType.LEADER


class SimCluster:
    """Members, and the watch over them."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.members: dict[int, SimMember] = {}
        self.healing = False
        # Told of (member, message) after the event in which it was sent: the nemesis strikes at such moments.
        self.on_message: list[Callable[[SimMember, Message], None]] = []
        self.on_leader: Callable[[SimMember], None] | None = None
        self._said: list[Message] = []
        reference = ReferenceMachine()
        self.checks = Checks(reference, tell=self._tell)
        self.checks.founded(FOUNDING_INDEX, FOUNDING_TERM, reference.state)
        world.network.latency_s = plan.latency_s
        world.network.on_frame = self._heard
        world.after_event = self._after
        for raft_id in range(1, plan.members + 1):
            self.add(raft_id)

    # -- members ---------------------------------------------------------------------------------------------------

    def add(self, raft_id: int) -> SimMember:
        """A machine for a member; nothing runs on it yet."""
        member = self.members[raft_id] = SimMember(self, raft_id, self.plan.members)
        return member

    def new_member(self) -> SimMember:
        """A machine with an id that was never used."""
        return self.add(max(self.members) + 1)

    def start(self, member: SimMember) -> None:
        """Start the instance, as its supervisor does."""
        if member.alive or member.retired:
            return
        process = member.process
        process.start()
        member.group = None
        self.world.tell(member.name, "starts" if process.lives == 1 else f"starts again (life {process.lives})")
        process.launch(self._live(member), name=member.name)

    async def _live(self, member: SimMember) -> None:
        process = member.process
        rng = self.world.rng(f"instance/{member.name}/{process.lives}")
        failure: BaseException | None
        try:
            instance = member.instance = Instance(
                member.settings,
                await member.identify(rng),
                disk=member.disk.model,
                rng=rng,
                wall_ms=process.wall_ms,
                boot_s=process.boot_s,
                story=lambda line: self._instance_says(member, line),
                governed=False,
            )
            await instance.start()
            await instance.ended
            failure = instance.failure
        except StorageError as error:
            failure = error
        # The process ends with its reason, and its supervisor starts another. Only a disk may be the reason.
        self.world.tell(member.name, f"exits: {failure}")
        if not isinstance(failure, (DiskFull, SyncFailed)):
            self.world.fail(f"{member.name} stopped itself: {type(failure).__name__}: {failure}")
            return
        control = self.world.control.loop
        assert control is not None
        # Nobody knows what a failed sync left on the disk; losing it all is the worst of it.
        control.call_soon(self.kill, member, isinstance(failure, SyncFailed))
        control.call_later(RESTART_AFTER_FAILURE_S, self.start, member)

    def _instance_says(self, member: SimMember, line: str) -> None:
        """Its log is part of the story, except for the noise of connections."""
        if not line.startswith("connection of "):
            self.world.tell(member.name, line)
        elif self.world.tracing:
            self.world.trace(member.name, line)

    def kill(self, member: SimMember, power: bool) -> None:
        """SIGKILL, or (power) the machine loses its unsynced writes as well."""
        if not member.alive:
            return
        member.process.kill()
        member.instance = member.group = None
        self.checks.died(member.raft_id)
        lost = member.disk.died(power=power)
        self.world.tell(member.name, f"loses power ({lost})" if power else "is killed")

    def retire(self, member: SimMember) -> None:
        """A member that was removed is switched off for good."""
        self.kill(member, False)
        member.retired = True

    def running(self) -> list[SimMember]:
        return [member for member in self.members.values() if member.alive]

    def leader(self) -> SimMember | None:
        """Whoever leads in the highest term."""
        leaders = [member for member in self.members.values() if member.leads]
        return max(leaders, key=_term, default=None)

    def current_members(self) -> list[SimMember]:
        """Whom an operator would name today: those the leader counts, or without one all that were not switched off."""
        leader = self.leader()
        members = [member for member in self.members.values() if not member.retired]
        if leader is None or leader.group is None:
            return members
        progress = leader.group.raw.raft.tracker.progress
        return [member for member in members if member.raft_id in progress]

    # -- watching --------------------------------------------------------------------------------------------------

    def _after(self, process: Process) -> None:
        member: SimMember | None = process.owner
        if member is None:
            return
        group = member.group
        if group is None:
            instance = member.instance
            group = member.group = getattr(instance, "cluster", None)
            if group is None:
                return
        try:
            self.checks.observe(member.raft_id, group)
            if self._said:
                said, self._said = self._said, []
                for message in said:
                    self.checks.message(member.raft_id, message)
                    for told in self.on_message:
                        told(member, message)
        except Violation as violation:
            self.world.fail(violation.why, violation.evidence)

    def _heard(self, pipe: Pipe, frame: bytes) -> None:
        """A frame leaves a process."""
        loop, host = pipe.source.loop, pipe.target.host
        if frame[5] != frames.ONEWAY or loop.process.owner is None:
            if self.world.tracing:
                self._trace_frame(loop, host, frame)
            return
        decoded = _decode_frame(memoryview(frame)[4:])
        if decoded.method != "raft":
            return
        for _, message in decode_parcel(decoded.body):
            if self.world.tracing:
                self.world.trace(loop.process.name, f"to {host}: {describe(message)}")
            if message.type in _NOTED:
                self._said.append(message)

    def _trace_frame(self, loop: SimLoop, host: str, frame: bytes) -> None:
        decoded = _decode_frame(memoryview(frame)[4:])
        kind = frames.KIND_NAMES.get(decoded.kind, str(decoded.kind))
        text = f"to {host}: {kind} {decoded.id} {decoded.method} {len(decoded.body)} bytes"
        self.world.trace(loop.process.name, text)

    def _tell(self, raft_id: int, text: str) -> None:
        member = self.members[raft_id]
        self.world.tell(member.name, text)
        if self.on_leader is not None:
            self.on_leader(member)

    # -- being well ------------------------------------------------------------------------------------------------

    def trouble(self) -> str | None:
        """Why the cluster has not converged; None when it has."""
        leader = self.leader()
        if leader is None or leader.group is None:
            return "there is no leader"
        raft = leader.group.raw.raft
        config = raft.tracker.config
        if config.is_joint:
            return f"{leader.name} is still in a joint configuration: {config}"
        for raft_id in sorted(raft.tracker.progress):
            member = self.members[raft_id]
            if member.group is None or not member.alive:
                return f"{member.name} is down"
            other = member.group.raw.raft
            if other.lead != leader.raft_id or other.term != raft.term:
                return f"{member.name} does not follow {leader.name} in term {raft.term} (it is in {other.term})"
            applied = member.group.machine.applied_index
            if applied != raft.log.last_index():
                return f"{member.name} has applied {applied}, the leader's log ends at {raft.log.last_index()}"
        return None


def _term(member: SimMember) -> int:
    return int(member.group.raw.raft.term) if member.group is not None else 0


_NOTED = frozenset((MessageType.VOTE, MessageType.VOTE_RESP, MessageType.APP_RESP))


def describe(message: Message) -> str:
    """A Raft message in a line of a trace."""
    parts = [f"{message.type.name} term {message.term}"]
    for name, value in (("index", message.index), ("log term", message.log_term), ("commit", message.commit)):
        if value:
            parts.append(f"{name} {value}")
    if message.entries:
        parts.append("entries " + " ".join(f"{entry.index}/{entry.term}" for entry in message.entries))
    if message.snapshot is not None:
        parts.append(f"snapshot at {message.snapshot.metadata.index}/{message.snapshot.metadata.term}")
    if message.reject:
        parts.append(f"rejected, hint {message.reject_hint}")
    return ", ".join(parts)


def any_of(rng: random.Random, members: list[Any]) -> Any:
    """A random one, or None of nothing."""
    return rng.choice(members) if members else None
