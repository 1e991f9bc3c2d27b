"""The nemesis: everything that goes wrong in a run, drawn from the seed.

Each kind of fault that the plan switches on is a small endless story of its own on the control loop: wait, break
something, wait, mend it. They overlap as they like. `heal` ends them all and mends everything; what they did to disks,
logs and memberships stays.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from trimtab.client.errors import Error
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore.requests import MembersChange, MembersRequest
from trimtab.raft.messages import Message, MessageType
from trimtab.sim.cluster import SimCluster, SimMember
from trimtab.sim.plan import Fault

MAX_EXTRA_MEMBERS = 4
MAX_VOTERS = 5
# Of two voters none is taken. Both are needed until the change is known to be applied: if the one that goes has a
# longer log than the one that stays (it lost its tail in a crash), it may neither lead nor vote for the other.
VOTERS_TO_TAKE_FROM = 3
ADMIN_S = 1.5
# No more than one strike in this time, or nothing else would ever happen.
STRIKE_PAUSE_S = 0.25

Story = Callable[[float], Coroutine[Any, Any, None]]


class Nemesis:
    """All the troubles of one run."""

    def __init__(self, cluster: SimCluster, client_hosts: list[str]) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.network = cluster.world.network
        self.clients = client_hosts
        self.active = False
        self._tasks: list[asyncio.Task[None]] = []
        self._struck_at = 0.0
        self._silent: SimMember | None = None
        self._admin = self.world.process("admin", "10.0.2.1")
        self._admin_client: MetastoreClient | None = None

    def begin(self) -> None:
        """Set every story of the plan going."""
        self.active = True
        stories: dict[Fault, Story] = {
            Fault.LOSS: self._loss,
            Fault.DUPLICATION: self._duplication,
            Fault.REORDERING: self._reordering,
            Fault.DELAY: self._delay,
            Fault.PARTITION: self._partitions,
            Fault.ONE_WAY: self._one_way,
            Fault.CLOG: self._clogs,
            Fault.RESET: self._resets,
            Fault.KILL: self._kills,
            Fault.POWER: self._power,
            Fault.PAUSE: self._pauses,
            Fault.SKEW: self._skew,
            Fault.SLOW_DISK: self._slow_disks,
            Fault.FULL_DISK: self._full_disks,
            Fault.FAILED_SYNC: self._failed_syncs,
        }
        rates = self.cluster.plan.rates
        for fault, story in stories.items():
            if fault in rates:
                self._tasks.append(self.world.control.launch(story(rates[fault]), name=fault.value))
        if Fault.MEMBERSHIP in rates or Fault.TRANSFER in rates:
            self._admin.start()
        if Fault.MEMBERSHIP in rates:
            self._tasks.append(self._admin.launch(self._membership(rates[Fault.MEMBERSHIP]), name="membership"))
        if Fault.TRANSFER in rates:
            self._tasks.append(self._admin.launch(self._transfers(rates[Fault.TRANSFER]), name="transfers"))
        if Fault.STRIKE in rates:
            # Not both in one run: a silenced member that is killed as well never gets to speak again.
            if self._rng("strikes").random() < 0.4:
                self.cluster.on_leader = self._new_leader
            else:
                self.cluster.on_message.append(self._asks_for_votes)
        if Fault.TRAP in rates:
            self.cluster.on_message.append(self._promised)

    def heal(self) -> None:
        """End all troubles and mend what can be mended."""
        self.active = False
        for task in self._tasks:
            task.cancel()
        self._admin.kill()
        self.cluster.on_leader = None
        self.cluster.on_message.clear()
        self.network.heal()
        for member in self.cluster.members.values():
            member.disk.heal()
            member.process.set_clock_rate(1.0)
            member.process.resume()
            self.cluster.start(member)

    # -- choosing --------------------------------------------------------------------------------------------------

    def _rng(self, name: str) -> random.Random:
        return self.world.rng(f"nemesis/{name}")

    async def _wait(self, rng: random.Random, mean_s: float) -> None:
        await asyncio.sleep(min(rng.expovariate(1.0 / mean_s), 4 * mean_s))

    def _later(self, delay_s: float, deed: Callable[..., None], *args: Any) -> None:
        control = self.world.control.loop
        assert control is not None
        control.call_later(delay_s, self._if_active, deed, args)

    def _if_active(self, deed: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.active:
            deed(*args)

    def _hosts(self) -> list[str]:
        return [member.host for member in self.cluster.members.values() if not member.retired]

    def _tell(self, text: str) -> None:
        self.world.tell("nemesis", text)

    # -- weather ---------------------------------------------------------------------------------------------------

    async def _weather(self, fault: Fault, rate: float, change: Callable[[Any, float], None], most: float) -> None:
        """Now and then every link, or some, get another rate of a fault."""
        rng = self._rng(fault.value)
        while True:
            amount = rng.random() * most * rate
            everywhere = rng.random() < 0.5
            with_clients = rng.random() < 0.3
            hosts = self._hosts() + (self.clients if with_clients else [])
            for source in hosts:
                for target in hosts:
                    if source != target:
                        on = everywhere or rng.random() < 0.4
                        change(self.network.link(source, target), amount if on else 0.0)
            self._tell(f"{fault.value} of {amount:.2f} on {'all' if everywhere else 'some'} links")
            await self._wait(rng, 2.0)

    async def _loss(self, rate: float) -> None:
        await self._weather(Fault.LOSS, rate, lambda link, amount: setattr(link, "loss_rate", amount), 0.3)

    async def _duplication(self, rate: float) -> None:
        await self._weather(Fault.DUPLICATION, rate, lambda link, amount: setattr(link, "duplicate_rate", amount), 0.3)

    async def _reordering(self, rate: float) -> None:
        await self._weather(Fault.REORDERING, rate, lambda link, amount: setattr(link, "reorder_rate", amount), 0.4)

    async def _delay(self, rate: float) -> None:
        longest_s = self._rng("delay length").choice((0.02, 0.2, 1.0))

        def change(link: Any, amount: float) -> None:
            link.delay_rate, link.delay_s = amount, longest_s

        await self._weather(Fault.DELAY, rate, change, 0.5)

    # -- cuts ------------------------------------------------------------------------------------------------------

    async def _partitions(self, rate: float) -> None:
        rng = self._rng("partition")
        while True:
            await self._wait(rng, 0.4 / rate)
            hosts = self._hosts()
            leader = self.cluster.leader()
            if leader is not None and rng.random() < 0.6:
                minority = [leader.host]
            else:
                rng.shuffle(hosts)
                minority = hosts[: rng.randrange(1, max(2, len(hosts)))]
            inside = minority + ([rng.choice(self.clients)] if rng.random() < 0.3 else [])
            outside = [host for host in hosts + self.clients if host not in inside]
            if rng.random() < 0.6:
                # Clients reach both sides: only that shows a leader that does not know it was replaced.
                outside = [host for host in outside if host not in self.clients]
            pairs = [(one, other) for one in inside for other in outside]
            self._tell(f"partition: {', '.join(inside)} from {', '.join(outside) or 'nobody'}")
            if leader is not None and leader.host in inside and rng.random() < 0.6:
                # A busy machine: it hears everything, but its timers are late. It learns last that it leads no more.
                leader.process.set_clock_rate(0.1 + rng.random() * 0.4)
                self.world.tell(leader.name, f"its clock runs at {leader.process.clock_rate:.2f}")
            await self._cut(pairs + [(other, one) for one, other in pairs], 0.2 + rng.random() * 1.8)
            if leader is not None and Fault.SKEW not in self.cluster.plan.rates:
                leader.process.set_clock_rate(1.0)

    async def _one_way(self, rate: float) -> None:
        rng = self._rng("one way")
        while True:
            await self._wait(rng, 0.4 / rate)
            hosts = self._hosts()
            one = rng.choice(hosts)
            others = [host for host in hosts if host != one and rng.random() < 0.7]
            hears = rng.random() < 0.5
            pairs = [(one, other) if hears else (other, one) for other in others]
            self._tell(f"one way: {one} can't {'be heard by' if hears else 'hear'} {', '.join(others) or 'nobody'}")
            await self._cut(pairs, 0.1 + rng.random() * 2.0)

    async def _cut(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        for source, target in pairs:
            self.network.block(source, target)
        await asyncio.sleep(seconds)
        for source, target in pairs:
            self.network.unblock(source, target)

    async def _clogs(self, rate: float) -> None:
        rng = self._rng("clog")
        while True:
            await self._wait(rng, 0.7 / rate)
            hosts = self._hosts()
            pairs = [(a, b) for a in hosts for b in hosts if a != b and rng.random() < 0.35]
            self._tell(f"clog: {', '.join(f'{a} to {b}' for a, b in pairs) or 'nothing'}")
            for source, target in pairs:
                self.network.clog(source, target)
            await asyncio.sleep(0.05 + rng.random() * 1.2)
            for source, target in pairs:
                self.network.unclog(source, target)

    async def _resets(self, rate: float) -> None:
        rng = self._rng("reset")
        while True:
            await self._wait(rng, 0.7 / rate)
            hosts = self._hosts() + self.clients
            one, other = rng.sample(hosts, 2)
            self.network.reset_connections(one, other)

    # -- deaths ----------------------------------------------------------------------------------------------------

    async def _kills(self, rate: float) -> None:
        rng = self._rng("kill")
        while True:
            await self._wait(rng, 0.6 / rate)
            running = self.cluster.running()
            leader = self.cluster.leader()
            if running:
                at_the_head = leader is not None and rng.random() < 0.3
                self._kill_for_a_while(rng, leader if at_the_head and leader is not None else rng.choice(running))

    def _kill_for_a_while(self, rng: random.Random, member: SimMember) -> None:
        self.cluster.kill(member, rng.random() < 0.6)
        down_s = rng.choice((0.005, 0.1, 0.5, 1.5)) * (0.5 + rng.random())
        self._later(down_s, self.cluster.start, member)

    async def _power(self, rate: float) -> None:
        rng = self._rng("power")
        while True:
            await self._wait(rng, 2.5 / rate)
            self._tell("power failure")
            for member in self.cluster.running():
                self.cluster.kill(member, True)
                self._later(0.01 + rng.random() * rng.choice((0.05, 0.5)), self.cluster.start, member)

    async def _pauses(self, rate: float) -> None:
        rng = self._rng("pause")
        while True:
            await self._wait(rng, 0.8 / rate)
            running = [member for member in self.cluster.running() if not member.process.paused]
            leader = self.cluster.leader()
            if not running:
                continue
            member = leader if leader in running and rng.random() < 0.4 else rng.choice(running)
            assert member is not None
            member.process.pause()
            seconds = 0.02 + rng.random() * rng.choice((0.1, 0.5, 2.0))
            self.world.tell(member.name, f"is paused for {seconds:.2f} s")
            self._later(seconds, member.process.resume)

    # -- clocks and disks ------------------------------------------------------------------------------------------

    async def _skew(self, rate: float) -> None:
        rng = self._rng("skew")
        while True:
            member = rng.choice(list(self.cluster.members.values()))
            if rng.random() < 0.6:
                member.process.set_clock_rate(1.0 + (rng.random() - 0.5) * 0.8 * rate)
                self.world.tell(member.name, f"its clock runs at {member.process.clock_rate:.2f}")
            else:
                jump_ms = rng.randrange(-20_000, 20_000)
                member.process.jump_wall_clock(jump_ms)
                self.world.tell(member.name, f"its wall clock jumps by {jump_ms / 1000:.1f} s")
            await self._wait(rng, 1.5)

    async def _slow_disks(self, rate: float) -> None:
        rng = self._rng("slow disk")
        while True:
            member = rng.choice(list(self.cluster.members.values()))
            member.disk.slow_rate = rng.choice((0.1, 0.5, 1.0)) * (0.5 + 0.5 * rate)
            member.disk.slow_s = rng.choice((0.05, 0.4, 2.0))
            self.world.tell(member.name, f"one sync in {1 / max(member.disk.slow_rate, 0.01):.0f} is slow")
            await self._wait(rng, 1.0)
            if rng.random() < 0.3:
                member.disk.slow_rate = 0.0

    async def _full_disks(self, rate: float) -> None:
        rng = self._rng("full disk")
        while True:
            await self._wait(rng, 1.2 / rate)
            member = rng.choice(list(self.cluster.members.values()))
            seconds = 0.1 + rng.random() * 2.0
            self.world.tell(member.name, f"its disk is full for {seconds:.2f} s")
            member.disk.fill()
            self._later(seconds, member.disk.drain)

    async def _failed_syncs(self, rate: float) -> None:
        rng = self._rng("failed sync")
        while True:
            await self._wait(rng, 2.0 / rate)
            member = rng.choice(list(self.cluster.members.values()))
            self.world.tell(member.name, "its next sync will fail")
            member.disk.fail_next_sync()

    # -- strikes ---------------------------------------------------------------------------------------------------

    def _may_strike(self) -> bool:
        if not self.active or self.world.now - self._struck_at < STRIKE_PAUSE_S:
            return False
        self._struck_at = self.world.now
        return True

    def _new_leader(self, member: SimMember) -> None:
        """Somebody was just elected. That is when elections are fragile."""
        rng = self._rng(f"strike/{self.world.events}")
        if rng.random() < self.cluster.plan.rates[Fault.STRIKE] and self._may_strike():
            self._later(rng.random() * rng.choice((0.0, 0.002, 0.02)), self._strike, rng, member)

    def _strike(self, rng: random.Random, member: SimMember) -> None:
        if not member.alive:
            return
        match rng.randrange(4):
            case 0:
                self._kill_for_a_while(rng, member)
            case 1:
                member.process.pause()
                self._later(0.2 + rng.random(), member.process.resume)
                self.world.tell(member.name, "is paused, just elected")
            case _:
                others = [host for host in self._hosts() if host != member.host]
                pairs = [(member.host, other) for other in others]
                if rng.random() < 0.6:
                    pairs += [(other, member.host) for other in others]
                self._tell(f"cut off {member.name}, just elected")
                seconds = 0.2 + rng.random() * 1.5
                self.world.control.launch(self._cut(pairs, seconds), name="strike")

    def _asks_for_votes(self, member: SimMember, message: Message) -> None:
        """A candidate that may hear its votes, but is not heard any more: elected, it can replicate nothing."""
        if message.type != MessageType.VOTE:
            return
        if member is self._silent:
            return
        rng = self._rng(f"candidate/{self.world.events}")
        if rng.random() < 0.5 + 0.5 * self.cluster.plan.rates[Fault.STRIKE]:
            self._later(0.0, self._silence, member, rng.random() * 1.5)

    def _silence(self, member: SimMember, seconds: float) -> None:
        """One member at a time can't be heard by the others. Clients reach it: its log grows, and nobody has it."""
        before, self._silent = self._silent, member
        for one, silent in ((before, False), (member, True)):
            for host in self._hosts() if one is not None else ():
                if one is not None and host != one.host:
                    (self.network.block if silent else self.network.unblock)(one.host, host)
        self._tell(f"silence {member.name}, a candidate" + (f"; hear {before.name} again" if before else ""))
        self._later(0.3 + seconds, self._speak, member)

    def _speak(self, member: SimMember) -> None:
        if self._silent is member:
            self._silent = None
            for host in self._hosts():
                self.network.unblock(member.host, host)

    def _promised(self, member: SimMember, message: Message) -> None:
        """A vote or an acknowledgement left a member. That is when it must not forget."""
        if message.reject or message.type == MessageType.VOTE:
            return
        rng = self._rng(f"trap/{self.world.events}")
        if rng.random() < 0.05 * self.cluster.plan.rates[Fault.TRAP] and self._may_strike():
            victims = [member]
            if rng.random() < 0.4 and (leader := self.cluster.leader()) is not None and leader is not member:
                victims.append(leader)
            delay_s = rng.random() * rng.choice((0.0, 0.002))
            for victim in victims:
                self._later(delay_s, self.cluster.kill, victim, True)
                self._later(delay_s + 0.001 + rng.random() * rng.choice((0.01, 0.3)), self.cluster.start, victim)

    # -- membership ------------------------------------------------------------------------------------------------

    async def _ask(self, changes: list[tuple[MembersChange, int]], address: str = "", instance_id: str = "") -> bool:
        """Ask the cluster for a change, as an operator would. Whether it said yes."""
        addresses = [member.address for member in self.cluster.current_members()]
        words = ", ".join(f"{change.name.lower().replace('_', ' ')} n{raft_id}" for change, raft_id in changes)
        client: MetastoreClient | None = None
        try:
            client = await MetastoreClient.connect(
                addresses, rng=self._rng(f"admin/{self.world.events}"), wall_ms=self._admin.wall_ms, timeout_s=ADMIN_S
            )
            await client.change_members(MembersRequest(changes, address, instance_id), timeout_s=ADMIN_S)
        except Error as error:
            self.world.tell("admin", f"{words}: no ({type(error).__name__}: {error})")
            return False
        finally:
            if client is not None:
                await client.close()
        self.world.tell("admin", f"{words}: done")
        self._after_change()
        return True

    def _after_change(self) -> None:
        """A change was made. Members whose disks are slow have not applied it, and may soon need another leader."""
        leader = self.cluster.leader()
        rng = self._rng(f"after change/{self.world.events}")
        if Fault.KILL in self.cluster.plan.rates and leader is not None and rng.random() < 0.4:
            self._later(rng.random() * 0.02, self._kill_for_a_while, rng, leader)

    async def _membership(self, rate: float) -> None:
        rng = self._rng("membership")
        limit = len(self.cluster.members) + MAX_EXTRA_MEMBERS
        while True:
            await self._wait(rng, 0.35 / rate)
            leader = self.cluster.leader()
            if leader is None or leader.group is None:
                continue
            config = leader.group.raw.raft.tracker.config
            voters, learners = sorted(config.voters.incoming), sorted(config.learners)
            deeds = ["transfer"]
            if len(self.cluster.members) < limit and len(learners) < 2:
                deeds += ["add", "add"]
            if learners and len(voters) < MAX_VOTERS:
                deeds += ["promote"] * 3
            if learners and len(voters) >= VOTERS_TO_TAKE_FROM:
                deeds += ["swap"] * 2
            if len(voters) >= VOTERS_TO_TAKE_FROM:
                deeds += ["remove", "demote"]
            match rng.choice(deeds):
                case "add":
                    await self._add()
                case "promote":
                    await self._ask([(MembersChange.PROMOTE, rng.choice(learners))])
                case "swap":
                    gone = leader.raft_id if rng.random() < 0.4 else rng.choice(voters)
                    how = MembersChange.REMOVE if rng.random() < 0.6 else MembersChange.DEMOTE
                    await self._change_and_retire(rng, [(MembersChange.PROMOTE, rng.choice(learners)), (how, gone)])
                case "remove":
                    gone = leader.raft_id if rng.random() < 0.4 else rng.choice(voters + learners)
                    await self._change_and_retire(rng, [(MembersChange.REMOVE, gone)])
                case "demote":
                    await self._ask([(MembersChange.DEMOTE, rng.choice(voters))])
                case _:
                    await self._ask([(MembersChange.TRANSFER, rng.choice(voters))])

    async def _add(self) -> None:
        member = self.cluster.new_member()
        self._later(0.0, self.cluster.start, member)
        await self._ask([(MembersChange.ADD_LEARNER, member.raft_id)], member.address, member.settings.instance_id)

    async def _change_and_retire(self, rng: random.Random, changes: list[tuple[MembersChange, int]]) -> None:
        """A removed member is switched off sometimes, and else left running to disturb the others."""
        if not await self._ask(changes) or rng.random() < 0.5:
            return
        leader = self.cluster.leader()
        for change, raft_id in changes:
            removed = leader is not None and leader.group is not None
            if removed and leader is not None and leader.group is not None:
                removed = raft_id not in leader.group.raw.raft.tracker.progress
            if change is MembersChange.REMOVE and removed:
                self._later(0.2, self.cluster.retire, self.cluster.members[raft_id])

    async def _transfers(self, rate: float) -> None:
        rng = self._rng("transfer")
        while True:
            await self._wait(rng, 0.8 / rate)
            leader = self.cluster.leader()
            if leader is not None and leader.group is not None:
                voters = sorted(leader.group.raw.raft.tracker.config.voters.incoming)
                await self._ask([(MembersChange.TRANSFER, rng.choice(voters))])
