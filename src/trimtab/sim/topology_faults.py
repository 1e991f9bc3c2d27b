"""What goes wrong in a governed cluster, and what its operators do meanwhile, drawn from the seed.

Each kind of trouble is a small endless story of its own: wait, do something, wait, mend it. They overlap as they like.
`heal` ends them all and mends everything; what they did to disks, logs and the topology stays. Machines that ended
because the cluster put them out, or did not want them, stay as they are; all others run again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from trimtab.net.errors import NetError
from trimtab.node import failpoints
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.topology_plan import MAX_MACHINES, TopologyPlan, Trouble
from trimtab.topology.protocol import Level
from trimtab.topology.records import RequestKind

ASK_S = 1.5
REBUILD_MS = 1_000  # where nobody runs its jobs
MAX_EXPELS = 4
MAX_REPLACEMENTS = 2
_DEADLY = tuple(name for name in failpoints.NAMES if name not in failpoints.HOLDS)

Story = Callable[[float], Coroutine[Any, Any, None]]


class TopologyNemesis:
    """All the troubles of one run."""

    def __init__(self, cluster: GovernedCluster, plan: TopologyPlan) -> None:
        self.cluster = cluster
        self.plan = plan
        self.world = cluster.world
        self.network = cluster.world.network
        self.active = False
        self._tasks: list[asyncio.Task[None]] = []
        self._expels = 0
        self._replacements = 0
        self._late = plan.late_machines
        self._stranded = False

    def begin(self) -> None:
        """Set every story of the plan going."""
        self.active = True
        stories: dict[Trouble, Story] = {
            Trouble.WEATHER: self._weather,
            Trouble.PARTITION: self._partitions,
            Trouble.ONE_WAY: self._one_way,
            Trouble.CLOG: self._clogs,
            Trouble.KILL: self._kills,
            Trouble.POWER: self._power,
            Trouble.BLACKOUT: self._blackouts,
            Trouble.PAUSE: self._pauses,
            Trouble.DRIFT: self._drift,
            Trouble.SLOW_DISK: self._slow_disks,
            Trouble.STOP: self._stops,
            Trouble.JOIN: self._joins,
            Trouble.FAILPOINT: self._failpoints,
        }
        asked: dict[Trouble, Story] = {
            Trouble.EXPEL: self._expel,
            Trouble.REQUEST: self._requests,
            Trouble.CANCEL: self._cancels,
            Trouble.REPLACE: self._replaces,
        }
        if Trouble.BLACKOUT in self.plan.rates:
            self.cluster.on_early_answer = self._answered_early
        if Trouble.STRAND in self.plan.rates:
            self.cluster.topology.on_routed = self._routed
        if Trouble.PAUSE in self.plan.rates:
            self.cluster.on_heartbeat = self._asked_for_a_lease
        for process, those in ((self.world.control, stories), (self.cluster.operator, asked)):
            for trouble, story in those.items():
                if trouble in self.plan.rates:
                    self._tasks.append(process.launch(story(self.plan.rates[trouble]), name=trouble.value))

    def heal(self) -> None:
        """End all troubles and mend what can be mended."""
        self.active = False
        for task in self._tasks:
            task.cancel()
        failpoints.disarm()
        self.cluster.on_heartbeat = self.cluster.on_early_answer = self.cluster.topology.on_routed = None
        self.network.heal()
        for machine in self.cluster.machines.values():
            machine.disk.heal()
            machine.process.set_clock_rate(1.0)
            machine.process.resume()
            self._point_out_members(machine)
            self._start_unless_out(machine)
        self.cluster.on_exit = self._start_unless_out

    def _start_unless_out(self, machine: Machine) -> None:
        if not isinstance(machine.ended_by, self.cluster.endings):
            machine.start()

    def _point_out_members(self, machine: Machine) -> None:
        """Those it was told of may all leave: an operator restarts it with the addresses of all machines there are."""
        everybody = tuple(other.settings.address for other in self.cluster.machines.values())
        if self.cluster.topology.committed.rows and not machine.raft_id and machine.settings.peers != everybody:
            machine.crash(power=False)
            machine.settings = replace(machine.settings, peers=everybody)

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
        return [machine.host for machine in self.cluster.machines.values()]

    def _victim(self, rng: random.Random, leader_share: float = 0.35) -> Machine | None:
        running = self.cluster.running()
        leader = self.cluster.leader()
        if leader is not None and rng.random() < leader_share:
            return leader
        return rng.choice(running) if running else None

    def _tell(self, text: str) -> None:
        self.world.tell("nemesis", text)

    # -- the network -----------------------------------------------------------------------------------------------

    async def _weather(self, rate: float) -> None:
        rng = self._rng("weather")
        while True:
            kind = rng.choice(("loss_rate", "duplicate_rate", "reorder_rate", "delay_rate"))
            amount, longest_s = rng.random() * 0.4 * rate, rng.choice((0.05, 0.5, 3.0))
            everywhere = rng.random() < 0.5
            hosts = self._hosts()
            for source in hosts:
                for target in hosts:
                    if source != target and (everywhere or rng.random() < 0.4):
                        link = self.network.link(source, target)
                        link.heal()
                        setattr(link, kind, amount)
                        link.delay_s = longest_s
            self._tell(f"{kind} {amount:.2f} on {'all' if everywhere else 'some'} links")
            await self._wait(rng, 2.0)

    async def _partitions(self, rate: float) -> None:
        rng = self._rng("partition")
        while True:
            await self._wait(rng, 1.5 / rate)
            hosts = self._hosts()
            leader = self.cluster.leader()
            if leader is not None and rng.random() < 0.4:
                inside = [leader.host]
            else:
                rng.shuffle(hosts)
                inside = hosts[: rng.randrange(1, max(2, len(hosts)))]
            outside = [host for host in hosts if host not in inside]
            self._tell(f"partition: {', '.join(inside)} from {', '.join(outside) or 'nobody'}")
            pairs = [(one, other) for one in inside for other in outside]
            await self._cut(pairs + [(other, one) for one, other in pairs], self._seconds(rng))

    async def _one_way(self, rate: float) -> None:
        rng = self._rng("one way")
        while True:
            await self._wait(rng, 1.5 / rate)
            hosts = self._hosts()
            victim = self._victim(rng)
            one = victim.host if victim is not None else rng.choice(hosts)
            others = [host for host in hosts if host != one and rng.random() < 0.8]
            hears = rng.random() < 0.5
            pairs = [(one, other) if hears else (other, one) for other in others]
            self._tell(f"one way: {one} can't {'be heard by' if hears else 'hear'} {', '.join(others) or 'nobody'}")
            await self._cut(pairs, self._seconds(rng))

    def _seconds(self, rng: random.Random) -> float:
        """How long a cut or a pause lasts: often longer than it takes to be found silent."""
        return rng.random() * rng.choice((0.5, 1.0, 2.0)) * self.plan.timing.offline_after_ms / 1000

    async def _cut(self, pairs: list[tuple[str, str]], seconds: float) -> None:
        for source, target in pairs:
            self.network.block(source, target)
        await asyncio.sleep(seconds)
        for source, target in pairs:
            self.network.unblock(source, target)

    async def _clogs(self, rate: float) -> None:
        rng = self._rng("clog")
        while True:
            await self._wait(rng, 1.0 / rate)
            hosts = self._hosts()
            victim = self._victim(rng)
            one = victim.host if victim is not None else rng.choice(hosts)
            away = rng.random() < 0.5
            some = [host for host in hosts if host != one and rng.random() < 0.6]
            pairs = [(one, other) if away else (other, one) for other in some]
            self._tell(f"clog: {', '.join(f'{a} to {b}' for a, b in pairs) or 'nothing'}")
            for source, target in pairs:
                self.network.clog(source, target)
            await asyncio.sleep(self._seconds(rng))
            for source, target in pairs:
                self.network.unclog(source, target)

    def _routed(self, router: Machine, replica: str) -> None:
        """A request is on its way. Sometimes it takes so long that its router is given up meanwhile."""
        rng = self._rng(f"routed/{self.world.events}")
        if not self._stranded and rng.random() < self.plan.rates[Trouble.STRAND]:
            self._stranded = True
            seconds = (1.3 + 0.7 * rng.random()) * self.plan.timing.offline_after_ms / 1000
            self._tasks.append(self.world.control.launch(self._strand(router.host, replica, seconds), name="strand"))

    async def _strand(self, router: str, replica: str, seconds: float) -> None:
        self._tell(f"{router} is heard by nobody for {seconds:.2f} s; what it said to {replica} comes later")
        self.network.clog(router, replica)
        rng = self._rng(f"strand/{self.world.events}")
        asked = [machine for machine in self.cluster.running() if machine.host != router]
        if asked:
            # So that there is a barrier which waits for the router until it is given up.
            whom = rng.choice(asked).settings.instance_id
            rebuilding = self._rebuild(rng.choice(asked), whom)
            self._tasks.append(self.cluster.operator.launch(rebuilding, name="rebuild"))
        await self._cut([(router, host) for host in self._hosts() if host not in (router, replica)], seconds)
        self.network.unclog(router, replica)
        self._stranded = False

    async def _rebuild(self, asked: Machine, whom: str) -> None:
        """A new version, and a barrier. With tables a rebuild has jobs, which nobody may run: it ends without them."""
        tables = asked.instance is not None and bool(asked.instance.watching.tables.maps)
        deadline_ms = REBUILD_MS if tables else 0
        await self._ask("rebuild", self.cluster.create(asked, RequestKind.REBUILD, whom, deadline_ms=deadline_ms))
        if tables:
            await self._ask("barrier", self.cluster.create(asked, RequestKind.BARRIER))

    # -- machines --------------------------------------------------------------------------------------------------

    async def _kills(self, rate: float) -> None:
        rng = self._rng("kill")
        while True:
            await self._wait(rng, 1.5 / rate)
            if (victim := self._victim(rng)) is not None:
                victim.kill_child()

    async def _power(self, rate: float) -> None:
        rng = self._rng("power")
        while True:
            await self._wait(rng, 2.0 / rate)
            if (victim := self._victim(rng)) is not None:
                victim.crash(power=rng.random() < 0.7)
                self._later(rng.random() * rng.choice((0.1, 1.0, 6.0)), victim.start)

    async def _blackouts(self, rate: float) -> None:
        """Everything, or every other machine, loses its power; also in the middle of the bootstrap."""
        rng = self._rng("blackout")
        while True:
            await self._wait(rng, rng.choice((0.02, 0.3, 3.0)) / rate)
            self._tell("blackout")
            spread_s, share = rng.choice((0.01, 0.5, 2.0)), rng.choice((1.0, 0.5))
            for machine in self.cluster.machines.values():
                if machine.on and rng.random() < share:
                    machine.crash(power=True)
                    self._later(0.01 + rng.random() * spread_s, machine.start)

    def _answered_early(self, machine: Machine) -> None:
        """It has told another one something, before there is a cluster. That is when it must not forget."""
        rng = self._rng(f"early/{self.world.events}")
        if rng.random() < 0.3 * self.plan.rates[Trouble.BLACKOUT]:
            self._later(0.0, partial(machine.crash, power=True))
            self._later(0.001 + rng.random() * rng.choice((0.01, 0.5)), machine.start)

    async def _pauses(self, rate: float) -> None:
        rng = self._rng("pause")
        while True:
            await self._wait(rng, 1.5 / rate)
            if (victim := self._victim(rng)) is not None:
                self._pause(victim, self._seconds(rng))

    def _pause(self, victim: Machine, seconds: float) -> None:
        if victim.alive and not victim.process.paused:
            victim.process.pause()
            self.world.tell(victim.name, f"is paused for {seconds:.2f} s")
            self._later(seconds, victim.process.resume)

    def _asked_for_a_lease(self, machine: Machine) -> None:
        """The answer is on its way. Sometimes it is only heard when all has changed."""
        rng = self._rng(f"lease/{self.world.events}")
        if rng.random() < 0.01 * self.plan.rates[Trouble.PAUSE]:
            self._later(0.0, self._pause, machine, (1.1 + rng.random()) * self.plan.timing.offline_after_ms / 1000)

    async def _drift(self, rate: float) -> None:
        rng = self._rng("drift")
        while True:
            for machine in self.cluster.machines.values():
                machine.process.set_clock_rate(1.0 + (rng.random() - 0.5) * 0.019 * rate)
                if rng.random() < 0.2:
                    machine.process.jump_wall_clock(rng.randrange(-3_000, 3_000))
            await self._wait(rng, 3.0)

    async def _slow_disks(self, rate: float) -> None:
        rng = self._rng("slow disk")
        while True:
            machine = rng.choice(list(self.cluster.machines.values()))
            machine.disk.slow_rate = rng.choice((0.1, 0.5, 1.0)) * (0.5 + 0.5 * rate)
            machine.disk.slow_s = rng.choice((0.05, 0.3, 1.0))
            self.world.tell(machine.name, f"one sync in {1 / max(machine.disk.slow_rate, 0.01):.0f} is slow")
            await self._wait(rng, 1.5)
            if rng.random() < 0.4:
                machine.disk.slow_rate = 0.0

    async def _stops(self, rate: float) -> None:
        rng = self._rng("stop")
        while True:
            await self._wait(rng, 2.5 / rate)
            if (victim := self._victim(rng)) is not None:
                victim.stop()
                self._later(4.0 + rng.random() * 3.0, victim.start)

    async def _failpoints(self, rate: float) -> None:
        rng = self._rng("failpoint")
        while True:
            failpoints.disarm()
            for place in rng.sample(_DEADLY, 6):
                self.cluster.kill_at(place)
            await self._wait(rng, 2.0 / rate)

    # -- coming ----------------------------------------------------------------------------------------------------

    async def _joins(self, rate: float) -> None:
        rng = self._rng("join")
        while self._late:
            await self._wait(rng, self.plan.chaos_s / (1.5 * self._late + 1) / (0.5 + rate))
            self._late -= 1
            self._newcomer(rng).start()

    def _newcomer(self, rng: random.Random, replaces: str = "") -> Machine:
        """Another machine. Its operator lists all that were there from the start, so that it can't found a cluster."""
        number = len(self.cluster.machines)
        founders = list(range(len(self.plan.peers)))
        rng.shuffle(founders)
        return self.cluster.add(founders, failure_domain=self.plan.domains[number], replace=replaces)

    # -- operators -------------------------------------------------------------------------------------------------

    def _instance_id(self, rng: random.Random) -> str:
        rows = self.cluster.topology.committed.rows
        members = sorted(row.instance_id for row in rows.values() if not row.left)
        return rng.choice(members) if members else "i0"

    async def _ask(self, what: str, asking: Coroutine[Any, Any, Any]) -> bool:
        try:
            reply = await asking
        except (NetError, TimeoutError) as error:
            self.world.tell("operator", f"{what}: no ({error})")
            return False
        self.world.tell("operator", f"{what}: request {reply.number}")
        return True

    async def _expel(self, rate: float) -> None:
        rng = self._rng("expel")
        while self._expels < MAX_EXPELS:
            await self._wait(rng, 3.0 / rate)
            asked = self._victim(rng)
            if asked is None:
                continue
            leader = self.cluster.leader()
            whom = self._instance_id(rng)
            if leader is not None and rng.random() < 0.4:
                whom = leader.settings.instance_id
            expelling = self.cluster.create(asked, RequestKind.LEAVE, whom, expel=True, timeout_s=ASK_S)
            self._expels += await self._ask(f"expel {whom}", expelling)

    async def _requests(self, rate: float) -> None:
        rng = self._rng("request")
        while True:
            await self._wait(rng, 1.0 / rate)
            asked = self._victim(rng, 0.1)
            if asked is None:
                continue
            kind = rng.choice((RequestKind.REBUILD, RequestKind.BARRIER, RequestKind.BARRIER, RequestKind.LEAVE))
            whom = "" if kind is RequestKind.BARRIER else self._instance_id(rng)
            if kind is RequestKind.LEAVE:
                if self._expels >= MAX_EXPELS:
                    continue
                self._expels += 1
                kind = rng.choice((RequestKind.LEAVE, RequestKind.REMOVE))
            await self._ask(f"{kind.value} {whom}", self.cluster.create(asked, kind, whom, timeout_s=ASK_S))

    async def _cancels(self, rate: float) -> None:
        rng = self._rng("cancel")
        while True:
            await self._wait(rng, 1.0 / rate)
            asked = self._victim(rng, 0.1)
            requests = self.cluster.topology.committed.requests
            under_way = [number for number, request in requests.items() if not request.state.final]
            if asked is not None and under_way:
                number = rng.choice(under_way)
                await self._ask(f"cancel {number}", self.cluster.cancel(asked, number, timeout_s=ASK_S))

    async def _replaces(self, rate: float) -> None:
        """A machine is gone for a long time, and another one takes its place."""
        rng = self._rng("replace")
        while self._replacements < MAX_REPLACEMENTS and len(self.cluster.machines) < MAX_MACHINES:
            await self._wait(rng, 3.0 / rate)
            victim = self._victim(rng, 0.2)
            if victim is None or not self.cluster.topology.committed.rows:
                continue
            self._replacements += 1
            victim.crash(power=True)
            await self._wait(rng, 1.0)
            self._newcomer(rng, victim.settings.instance_id).start()


class Prober:
    """A client that asks any router for any replica, at ONE and at QUORUM; the answers are judged on the wire."""

    def __init__(self, cluster: GovernedCluster, number: int) -> None:
        self.cluster = cluster
        self.process = cluster.world.process(f"c{number}", f"10.0.98.{number}")
        self.rng = cluster.world.rng(f"prober/{number}")
        self.stopped = False

    def start(self) -> None:
        self.process.start()
        self.process.launch(self._work(), name=self.process.name)

    async def _work(self) -> None:
        rng, cluster = self.rng, self.cluster
        while not self.stopped:
            await asyncio.sleep(rng.expovariate(1.0 / 0.25))
            running = cluster.running()
            ids = sorted(cluster.topology.committed.rows)
            if not running or not ids:
                continue
            level = rng.choice((Level.ONE, Level.QUORUM, Level.QUORUM))
            target = rng.choice((0, rng.choice(ids)))
            try:
                await cluster.probe(rng.choice(running), target, level, timeout_s=rng.choice((0.3, 2.0, 8.0)))
            except (NetError, TimeoutError):
                continue
