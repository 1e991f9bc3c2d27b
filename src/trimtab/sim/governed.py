"""A governed cluster of simulated machines: instances that find each other, join, are governed, leave and return.

Everything inside a machine is production code (`machines`). Here is what surrounds it: the machines, an operator who
talks to any of them over the network, the invariants of Raft and of the topology, and the question whether all is well.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from trimtab.net import frames
from trimtab.net.client import Channel
from trimtab.net.errors import NetError
from trimtab.net.hello import Hello
from trimtab.node import failpoints
from trimtab.node.errors import Expelled, JoinRejected
from trimtab.node.identity import Identity
from trimtab.node.instance import Instance
from trimtab.node.links import decode_parcel
from trimtab.node.settings import Limits, Settings, Timing
from trimtab.raft.messages import Message, MessageType
from trimtab.sim.checks import Checks, Violation
from trimtab.sim.machines import Killed, Machine
from trimtab.sim.reference import FOUNDING_INDEX, FOUNDING_TERM
from trimtab.sim.topology_checks import TopologyChecks
from trimtab.sim.transport import Pipe
from trimtab.sim.world import Process, World
from trimtab.topology import protocol
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import CancelRequest, CreateRequest, Level, ProbeReply, ProbeRequest, RequestReply
from trimtab.topology.records import RequestKind
from trimtab.topology.states import NodeState

PORT = 3301
_NOTED = frozenset((MessageType.VOTE, MessageType.VOTE_RESP, MessageType.APP_RESP))
_decode_frame = msgspec.msgpack.Decoder(frames.Frame).decode
_HEARTBEAT = protocol.RENEW.encode()
# Reasons to end for good that belong to the life of a cluster; any other one is a failure of the run.
_ENDINGS = (Expelled, JoinRejected)


def address(number: int) -> str:
    return f"10.0.{number // 200}.{number % 200 + 1}:{PORT}"


class GovernedCluster:
    """Machines, and the watch over them."""

    def __init__(self, world: World, timing: Timing, limits: Limits | None = None, *, watched: bool = True) -> None:
        self.world = world
        self.timing = timing
        self.limits = limits or Limits(disk_reserve_bytes=0)
        self.machines: dict[str, Machine] = {}
        self.endings: tuple[type[BaseException], ...] = _ENDINGS
        # Keeps requests open inside replicas, where it is set.
        self.hold: Callable[[Machine], Awaitable[None]] | None = None
        # Told when a child takes part: it may be given another pace than production's.
        self.on_began: Callable[[Machine, Instance], None] | None = None
        # Told of every frame that a process writes, before it arrives anywhere: moments to strike at.
        self.on_sent: Callable[[Pipe, bytes], None] | None = None
        # Told when a supervisor has ended.
        self.on_exit: Callable[[Machine], None] | None = None
        self.topology = TopologyChecks(lambda: self.machines.values(), lambda: world.now)
        self.checks = Checks(self.topology.reference, tell=lambda _member, _text: None)
        self.checks.founded(FOUNDING_INDEX, FOUNDING_TERM, self.topology.reference.state)
        self.operator: Process = world.process("operator", "10.0.99.1")
        self.operator.start()
        # Told when a machine asks for a lease, and when one that is no member yet answers: moments to strike at.
        self.on_heartbeat: Callable[[Machine], None] | None = None
        self.on_early_answer: Callable[[Machine], None] | None = None
        self._said: list[Message] = []
        self._watched = watched
        world.network.on_frame = self._heard
        world.after_event = self._after
        world.expected_error = lambda _process, context: isinstance(context.get("exception"), Killed)

    # -- machines --------------------------------------------------------------------------------------------------

    def add(
        self,
        peers: list[int],
        *,
        failure_domain: dict[str, str] | None = None,
        replace: str = "",
        instance_id: str = "",
        cluster_id: str = "trimtab",
    ) -> Machine:
        """A machine that looks for its cluster at the machines with these numbers (from 0); nothing runs on it yet."""
        number = len(self.machines)
        settings = Settings(
            instance_id or f"i{number}",
            address(number),
            tuple(address(peer) for peer in peers),
            cluster_id=cluster_id,
            timing=self.timing,
            limits=self.limits,
            failure_domain=failure_domain or {},
            replace=replace,
        )
        machine = self.machines[f"m{number}"] = Machine(self, f"m{number}", settings)
        return machine

    def running(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.alive]

    def taking_part(self) -> list[Machine]:
        """Those that run or should: neither put out by the cluster, nor never started."""
        return [
            machine
            for machine in self.machines.values()
            if machine.on or (machine.process.lives and not isinstance(machine.ended_by, self.endings))
        ]

    def leader(self) -> Machine | None:
        """Whoever leads in the highest term."""
        leaders = [machine for machine in self.machines.values() if machine.leads]
        return max(leaders, key=_term, default=None)

    def of_raft_id(self, raft_id: int) -> Machine | None:
        for machine in self.machines.values():
            if machine.raft_id == raft_id:
                return machine
        return None

    def of_instance(self, instance_id: str) -> Machine:
        return next(machine for machine in self.machines.values() if machine.settings.instance_id == instance_id)

    # -- told by machines ------------------------------------------------------------------------------------------

    def identified(self, machine: Machine, identity: Identity) -> None:
        try:
            self.topology.identified(machine, identity)
        except Violation as violation:
            self.world.fail(violation.why, violation.evidence)

    def began(self, machine: Machine, instance: Instance) -> None:
        """A child takes part."""
        if self.on_began is not None:
            self.on_began(machine, instance)
        hold = self.hold
        if hold is not None and instance.control is not None:
            instance.control.serving.hold = lambda: hold(machine)

    def exited(self, machine: Machine) -> None:
        """A supervisor has ended."""
        if machine.ended_by is not None and not isinstance(machine.ended_by, self.endings):
            why = machine.ended_by
            self.world.fail(f"{machine.name} stopped itself: {type(why).__name__}: {why}")
        elif self.on_exit is not None:
            self.on_exit(machine)

    # -- failpoints ------------------------------------------------------------------------------------------------

    def kill_at(self, place: str, who: Machine | None = None) -> list[Machine]:
        """Kill whoever (or one machine, when it) first comes to a failpoint; who that was is in the list, then.

        Failpoints are the process's own: disarm them when the run is over.
        """
        fallen: list[Machine] = []

        def fall(name: str, instance_id: str) -> None:
            machine = self.of_instance(instance_id)
            if not fallen and machine.alive and (who is None or machine is who):
                fallen.append(machine)
                machine.fall_at_failpoint(name)

        failpoints.arm(place, fall)
        return fallen

    # -- watching --------------------------------------------------------------------------------------------------

    def _after(self, process: Process) -> None:
        machine = process.owner
        if machine is None:
            return
        instance = machine.instance
        if instance is None:
            return
        group = machine.group
        if group is None:
            group = machine.group = getattr(instance, "cluster", None)
            if group is None or instance.control is None:
                machine.group = None
                return
        if not self._watched:
            return
        try:
            self.checks.observe(instance.raft_id, group)
            if self._said:
                said, self._said = self._said, []
                for message in said:
                    self.checks.message(instance.raft_id, message)
            self.topology.after(machine)
        except Violation as violation:
            self.world.fail(violation.why, violation.evidence)

    def _heard(self, pipe: Pipe, frame: bytes) -> None:
        if self.on_sent is not None:
            self.on_sent(pipe, frame)
        if not self._watched:
            return
        if frame[5] != frames.ONEWAY:
            self._tell_nemesis(pipe, frame)
            try:
                self.topology.heard(pipe, frame)
            except Violation as violation:
                self.world.fail(violation.why, violation.evidence)
            return
        if pipe.source.loop.process.owner is None:
            return
        decoded = _decode_frame(memoryview(frame)[4:])
        if decoded.method == "raft":
            self._said += [message for _, message in decode_parcel(decoded.body) if message.type in _NOTED]

    def _tell_nemesis(self, pipe: Pipe, frame: bytes) -> None:
        machine: Machine | None = pipe.source.loop.process.owner
        if machine is None:
            return
        if self.on_heartbeat is not None and frame[5] == frames.REQUEST and _HEARTBEAT in frame[:32]:
            self.on_heartbeat(machine)
        if self.on_early_answer is not None and frame[5] == frames.RESPONSE and machine.instance is None:
            self.on_early_answer(machine)

    # -- operators -------------------------------------------------------------------------------------------------

    async def ask(self, machine: Machine, method: str, body: bytes, rng: random.Random, timeout_s: float) -> bytes:
        """Ask a member, from whatever process runs this. NetError: there is no answer, or it says no (RpcError)."""
        channel = Channel(machine.settings.address, Hello(), rng, limits=machine.settings.net_limits)
        try:
            await channel.wait_connected(timeout_s)
            return await channel.call(method, body, timeout_s)
        finally:
            channel.close()

    async def create(
        self,
        machine: Machine,
        kind: RequestKind,
        instance_id: str = "",
        *,
        expel: bool = False,
        deadline_ms: int = 0,
        timeout_s: float = 3.0,
    ) -> RequestReply:
        """An operator asks a member for a change of the topology. `deadline_ms`: it fails if it takes longer."""
        asked = CreateRequest(kind, instance_id, expel=expel, timeout_ms=deadline_ms)
        rng = self.world.rng(f"operator/{self.world.events}")
        body = await self.ask(machine, protocol.CREATE, protocol.encode(asked), rng, timeout_s)
        return protocol.decode_request_reply(body)

    async def cancel(self, machine: Machine, number: int, *, timeout_s: float = 3.0) -> RequestReply:
        """An operator thinks again."""
        rng = self.world.rng(f"operator/{self.world.events}")
        body = protocol.encode(CancelRequest(number, "an operator thought again"))
        return protocol.decode_request_reply(await self.ask(machine, protocol.CANCEL, body, rng, timeout_s))

    async def probe(
        self, router: Machine, target: int = 0, level: Level = Level.QUORUM, *, timeout_s: float = 2.0
    ) -> ProbeReply:
        """A request that takes the way of every data request."""
        rng = self.world.rng(f"operator/{self.world.events}")
        body = protocol.encode(ProbeRequest(target, level))
        return protocol.decode_probe_reply(await self.ask(router, protocol.PROBE, body, rng, timeout_s))

    def do(self, work: Coroutine[Any, Any, Any], within_s: float = 30.0) -> Any:
        """Let an operator do something, and the world go on until that is done."""
        return self.world.run_until_done(self.operator.spawn(work), self.world.now + within_s)

    # -- being well ------------------------------------------------------------------------------------------------

    def until(self, so: Callable[[], Any], within_s: float = 60.0, what: str = "") -> Any:
        """Let the world go on until it is so; TimeoutError when it is not in time."""
        until = self.world.now + within_s
        while not (result := so()):
            if self.world.now >= until:
                raise TimeoutError(f"not so at {self.world.now:.1f} s: {what or so}")
            self.world.run(self.world.now + 0.05)
        return result

    def settle(self, within_s: float = 60.0) -> None:
        """Let the world go on until all is well."""
        until = self.world.now + within_s
        while (trouble := self.trouble()) is not None:
            if self.world.now >= until:
                raise TimeoutError(f"the cluster did not settle within {within_s:g} s: {trouble}")
            self.world.run(self.world.now + 0.1)

    def trouble(self) -> str | None:
        """Why the cluster has not converged; None when everybody who is not out for good is Online and agrees."""
        leader = self.leader()
        if leader is None or leader.group is None or leader.instance is None:
            return "there is no leader"
        raft = leader.group.raw.raft
        config = raft.tracker.config
        view = leader.instance.watching.view
        members = view.members()
        if config.is_joint:
            return f"{leader.name} is still in a joint configuration: {config}"
        if view.transition is not None:
            return f"a transition is under way: {view.transition}"
        for number, request in sorted(view.requests.items()):
            if not request.state.final:
                return f"request {number} ({request.kind.value}) is {request.state.value}"
        if set(members) != set(raft.tracker.progress):
            return f"members are {sorted(members)}, but Raft's are {sorted(raft.tracker.progress)}"
        for row in members.values():
            grades = row.grades
            if row.state is not NodeState.NORMAL or grades.current.grade is not Grade.ONLINE or not grades.settled:
                return f"{row.instance_id} is {row.state.value}, {grades.current.grade.value} → {grades.target}"
        wanted = voters_by_size(len(members))
        if len(config.voters.ids()) != wanted:
            return f"{sorted(config.voters.ids())} vote, but {wanted} of {len(members)} should"
        return self._trouble_of_machines(leader)

    def _trouble_of_machines(self, leader: Machine) -> str | None:
        assert leader.group is not None and leader.instance is not None
        raft, view = leader.group.raw.raft, leader.instance.watching.view
        seen = set()
        for machine in self.machines.values():
            if not machine.on and isinstance(machine.ended_by, self.endings):
                continue
            if not machine.on and machine.process.lives == 0:
                continue
            instance, group = machine.instance, machine.group
            if instance is None or group is None or not machine.alive or instance.control is None:
                return f"{machine.name} does not take part"
            seen.add(instance.raft_id)
            if instance.raft_id not in view.members():
                return f"{machine.name} (raft id {instance.raft_id}) runs, but is no member"
            other = group.raw.raft
            if (other.lead, other.term) != (raft.id, raft.term):
                return f"{machine.name} does not follow {leader.name} in term {raft.term} (it is in {other.term})"
            if group.machine.applied_index != raft.log.last_index():
                return f"{machine.name} has applied {group.machine.applied_index} of {raft.log.last_index()} entries"
            if not instance.control.online:
                return f"{machine.name} does not know that it is Online"
            if not instance.control.lease_left_ms():
                return f"{machine.name} has no lease: {instance.control.lease.why_not(instance.boot_s())}"
            own = instance.watching.view
            if (own.instances, own.requests, own.version, own.fence, own.transition) != (
                view.instances,
                view.requests,
                view.version,
                view.fence,
                view.transition,
            ):
                return f"{machine.name} sees another topology than {leader.name}"
        if lost := set(view.members()) - seen:
            return f"{sorted(lost)} are members that run nowhere"
        return None


def voters_by_size(members: int) -> int:
    """How many should vote, by the table of the document."""
    return {0: 0, 1: 1, 2: 2, 3: 3, 4: 3}.get(members, 5)


def _term(machine: Machine) -> int:
    return int(machine.group.raw.raft.term) if machine.group is not None else 0


FAILURES = (NetError, TimeoutError)
