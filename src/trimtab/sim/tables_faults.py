"""What goes wrong around tables, beside what goes wrong in any governed cluster: strikes at writes, and wrong clocks.

The worst moments are those in the middle of a write: its coordinator dies when one replica has it, all lose their power
just when the client has its answer, one message comes when everything has changed. So the nemesis looks at frames.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from trimtab.net import frames
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine
from trimtab.sim.tables_plan import BARRIERS, LATE, LONG_CUT, OVERTAKEN, SKEW, STRIKE, WILD_CLOCKS, TablesPlan
from trimtab.sim.tables_workload import ROWS
from trimtab.sim.topology_faults import REBUILD_MS, TopologyNemesis
from trimtab.sim.transport import Pipe
from trimtab.sim.world import Process
from trimtab.topology.records import RequestKind

_WRITE = b"replica.write"
_HEAD = 48
_CLIENTS = "10.0.98."


class TablesNemesis(TopologyNemesis):
    """All the troubles of one run."""

    def __init__(self, cluster: GovernedCluster, plan: TablesPlan, clients: list[Process]) -> None:
        super().__init__(cluster, plan.topology)
        self.tables = plan
        self._clients = clients
        self._striking = self._rng("strike")
        self._struck_until = 0.0

    def begin(self) -> None:
        super().begin()
        rates = self.tables.rates
        stories: dict[str, Callable[[float], Coroutine[Any, Any, None]]] = {
            SKEW: self._skew,
            WILD_CLOCKS: self._wild_clocks,
            LONG_CUT: self._long_cuts,
        }
        for name, story in stories.items():
            if name in rates:
                self._tasks.append(self.world.control.launch(story(rates[name]), name=name))
        if BARRIERS in rates:
            self._tasks.append(self.cluster.operator.launch(self._barriers(rates[BARRIERS]), name=BARRIERS))
        if {STRIKE, LATE, OVERTAKEN} & rates.keys():
            self.cluster.on_sent = self._sent

    def heal(self) -> None:
        self.cluster.on_sent = None
        super().heal()
        for process in (*self._clients, *(machine.process for machine in self.cluster.machines.values())):
            process.wall_offset_ms = 0

    # -- clocks ----------------------------------------------------------------------------------------------------

    async def _skew(self, rate: float) -> None:
        """Clocks differ, and jump, within what is allowed: each is wrong by less than half of it."""
        rng = self._rng(SKEW)
        most_ms = int(self.plan.timing.max_skew_ms * 0.45)
        while True:
            for process in (*self._clients, *(machine.process for machine in self.cluster.machines.values())):
                if rng.random() < 0.5:
                    process.wall_offset_ms = rng.randint(-most_ms, most_ms)
            await self._wait(rng, 1.0 / rate)

    async def _wild_clocks(self, rate: float) -> None:
        rng = self._rng(WILD_CLOCKS)
        while True:
            await self._wait(rng, 1.5 / rate)
            victim = rng.choice(list(self.cluster.machines.values()))
            jump_ms = rng.choice((-1, 1)) * rng.choice((800, 3_000, 10_000))
            victim.process.jump_wall_clock(jump_ms)
            self.world.tell(victim.name, f"its clock jumps by {jump_ms} ms")

    # -- the network -----------------------------------------------------------------------------------------------

    async def _long_cuts(self, rate: float) -> None:
        """Two machines don't hear each other for a while; all others hear both."""
        rng = self._rng(LONG_CUT)
        while True:
            await self._wait(rng, 1.0 / rate)
            one, other = rng.sample(self._hosts(), 2)
            if self.tables.remote and rng.random() < 0.8:
                one, other = self._strangers(rng) or (one, other)
            seconds = rng.choice((0.3, 1.5, 1.5, 4.0)) * (0.5 + rng.random())
            self._tell(f"{one} and {other} don't hear each other for {seconds:.2f} s")
            if rng.random() < 0.6:
                self.network.reset_connections(one, other)
            await self._cut([(one, other), (other, one)], seconds)

    def _strangers(self, rng: random.Random) -> tuple[str, str] | None:
        """A machine without a replica of the rows, and one with."""
        for machine in self.cluster.running():
            tables = machine.instance.watching.tables if machine.group is not None and machine.instance else None
            table = tables.catalog.find(ROWS) if tables is not None else None
            if tables is None or table is None:
                continue
            holders = set(tables.sets(table.id, 0).writers)
            within = [each.host for each in self.cluster.machines.values() if each.raft_id in holders]
            without = [each.host for each in self.cluster.machines.values() if each.raft_id not in holders]
            return (rng.choice(without), rng.choice(within)) if without and within else None
        return None

    async def _barriers(self, rate: float) -> None:
        rng = self._rng(BARRIERS)
        while True:
            await self._wait(rng, 1.0 / rate)
            if (asked := self._victim(rng, 0.1)) is None:
                continue
            kind = rng.choice((RequestKind.BARRIER, RequestKind.REBUILD))
            whom = "" if kind is RequestKind.BARRIER else self._instance_id(rng)
            # Nobody runs the jobs of a rebuild here: it begins, and ends without them.
            deadline_ms = 0 if kind is RequestKind.BARRIER else REBUILD_MS
            creating = self.cluster.create(asked, kind, whom, deadline_ms=deadline_ms, timeout_s=1.5)
            await self._ask(f"{kind.value} {whom}", creating)

    # -- in the middle of a write ----------------------------------------------------------------------------------

    def _sent(self, pipe: Pipe, frame: bytes) -> None:
        """A frame was written; nothing of it has arrived."""
        machine: Machine | None = pipe.source.loop.process.owner
        if machine is None or self.world.now < self._struck_until:
            return
        rates, rng = self.tables.rates, self._striking
        if frame[5] == frames.REQUEST and _WRITE in frame[:_HEAD]:
            if STRIKE in rates and rng.random() < 0.04 * rates[STRIKE]:
                self._strike(machine, pipe.target.host)
            elif LATE in rates and rng.random() < (0.2 if self.tables.remote else 0.05) * rates[LATE]:
                self._delay(machine, pipe.target.host)
        elif frame[5] == frames.RESPONSE and OVERTAKEN in rates and pipe.target.host.startswith(_CLIENTS):
            self._power_may_fail(rates[OVERTAKEN])

    def _strike(self, coordinator: Machine, reached: str) -> None:
        """One replica has a write, its coordinator's own or another, and for a while nobody else hears of it."""
        rng = self._striking
        self._struck_until = self.world.now + 0.5
        how = rng.choice(("dies", "is cut off", "keeps it to itself", "keeps it to itself"))
        spared = "" if how == "keeps it to itself" else reached
        others = [host for host in self._hosts() if host not in (spared, coordinator.host)]
        for host in others:
            self.network.block(coordinator.host, host)
        self._tell(f"{coordinator.name} {how} in the middle of a write; {spared or 'nobody'} has heard of it")
        if how == "dies":
            self._later(0.0, partial(coordinator.crash, power=rng.random() < 0.5))
            self._later(0.1 + rng.random() * rng.choice((0.3, 3.0)), coordinator.start)
        # Only what is under way then is lost: soon all hear each other again, and nobody has what one has.
        seconds = 0.02 + rng.random() * rng.choice((0.1, 2.0))
        self._tasks.append(self.world.control.launch(self._unblock(coordinator.host, others, seconds), name=STRIKE))

    async def _unblock(self, host: str, others: list[str], seconds: float) -> None:
        await asyncio.sleep(seconds)
        for other in others:
            self.network.unblock(host, other)

    def _delay(self, coordinator: Machine, replica: str) -> None:
        """What it says to one replica comes late; with barriers under way, so late that it counts as down by then."""
        rng = self._striking
        if BARRIERS in self.tables.rates:
            if coordinator.leads:
                return  # others would have to elect one first
            self._struck_until = self.world.now + 3.0
            self.network.clog(coordinator.host, replica)
            seconds = (1.3 + 0.7 * rng.random()) * self.plan.timing.offline_after_ms / 1000
            self._tasks.append(self.world.control.launch(self._strand(coordinator.host, replica, seconds), name=LATE))
            return
        self._struck_until = self.world.now + 0.3
        seconds = rng.random() * rng.choice((0.5, 2.0, 6.0)) if not self.tables.remote else 1.0 + 3.0 * rng.random()
        self._tell(f"what {coordinator.name} says to {replica} comes {seconds:.2f} s late")
        self.network.clog(coordinator.host, replica)
        self._later(seconds, partial(self.network.unclog, coordinator.host, replica))

    def _power_may_fail(self, rate: float) -> None:
        rng = self._striking
        if rng.random() >= 0.03 * rate:
            return
        self._struck_until = self.world.now + 1.0
        machines = list(self.cluster.machines.values())
        fallen = machines if rng.random() < 0.5 else rng.sample(machines, max(1, len(machines) // 2 + 1))
        self._tell(f"the power fails for {', '.join(machine.name for machine in fallen)} just after an answer")
        for machine in fallen:
            self._later(0.0, partial(machine.crash, power=True))
            self._later(0.05 + rng.random() * rng.choice((0.2, 2.0)), machine.start)
