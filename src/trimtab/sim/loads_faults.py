"""What goes wrong around loads: deaths in the middle of them, drivers that stand still, tablets that move meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from trimtab.loads.protocol import ADOPT
from trimtab.net import frames
from trimtab.net.errors import NetError
from trimtab.node import failpoints
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_drivers import MOVED
from trimtab.sim.loads_jobs import JobDriver
from trimtab.sim.loads_plan import LoadsPlan
from trimtab.sim.loads_watch import LoadsWatch
from trimtab.sim.machines import Machine
from trimtab.sim.tables_faults import TablesNemesis
from trimtab.sim.topology_plan import Trouble
from trimtab.sim.transport import Pipe
from trimtab.sim.world import Process
from trimtab.tablets import move_protocol
from trimtab.tablets.move_protocol import MoveRequest

_ASK_S = 1.5
_ADOPT = ADOPT.encode()
_HEAD = 48
_PLACES = tuple(
    name
    for name in failpoints.NAMES
    if name.startswith(("load.", "job.", "governor.adopt.", "governor.load", "governor.job."))
)


class LoadsNemesis(TablesNemesis):
    """All the troubles of one run."""

    def __init__(
        self,
        cluster: GovernedCluster,
        plan: LoadsPlan,
        clients: list[Process],
        watch: LoadsWatch,
        job_drivers: list[JobDriver],
    ) -> None:
        super().__init__(cluster, plan.tables, clients)
        self.loads = plan
        self.watch = watch
        self.job_drivers = job_drivers
        self.moves = 0
        self._before: Callable[[Pipe, bytes], None] | None = None
        self._slow_until = 0.0

    def begin(self) -> None:
        super().begin()
        control = self.world.control
        if self.loads.deaths and Trouble.FAILPOINT not in self.plan.rates:
            self._tasks.append(control.launch(self._deaths(self.loads.deaths), name="deaths in loads"))
        if self.loads.moves:
            self._tasks.append(self.cluster.operator.launch(self._moves(self.loads.moves), name="moves"))
        if self.loads.slow:
            self._before, self.cluster.on_sent = self.cluster.on_sent, self._ordered
        if self.loads.mishap:
            self._tasks.append(control.launch(self._drivers(self.loads.mishap), name="drivers of jobs"))

    def heal(self) -> None:
        super().heal()
        for driver in self.job_drivers:
            driver.client.process.resume()
            if not driver.client.process.alive:
                driver.start()

    async def _deaths(self, rate: float) -> None:
        rng = self._rng("deaths in loads")
        while True:
            failpoints.disarm()
            for place in rng.sample(_PLACES, 3):
                self.cluster.kill_at(place)
            await self._wait(rng, 1.0 / rate)

    async def _drivers(self, rate: float) -> None:
        """Those who run jobs are killed, or stand still for longer than their lease."""
        rng = self._rng("drivers of jobs")
        while True:
            await self._wait(rng, 0.15 / rate)
            driver = rng.choice(self.job_drivers)
            process = driver.client.process
            if not process.alive or process.paused:
                continue
            if rng.random() < 0.5:
                driver.kill()
                self._later(rng.random() * 3.0, driver.start)
            else:
                seconds = self.loads.driver_lease_ms / 1000 * (0.5 + rng.random() * 1.5)
                self.world.tell(driver.client.name, f"stands still for {seconds:.2f} s")
                process.pause()
                self._later(seconds, process.resume)

    # -- taking over slowly ----------------------------------------------------------------------------------------

    def _ordered(self, pipe: Pipe, frame: bytes) -> None:
        """A frame was written. Whoever is told to take a load over may be slow, and be given up meanwhile."""
        if self._before is not None:
            self._before(pipe, frame)
        if frame[5] != frames.REQUEST or _ADOPT not in frame[:_HEAD] or self.world.now < self._slow_until:
            return
        rng = self._striking
        target = next((each for each in self.cluster.machines.values() if each.host == pipe.target.host), None)
        if target is None or target.leads or rng.random() >= self.loads.slow:
            return
        seconds = (1.1 + rng.random()) * self.plan.timing.offline_after_ms / 1000
        self._slow_until = self.world.now + seconds + 2.0
        self._tasks.append(self.world.control.launch(self._take_over_slowly(target, seconds), name="slow"))

    async def _take_over_slowly(self, machine: Machine, seconds: float) -> None:
        self._tell(f"{machine.name} takes over slowly, and is heard by nobody for {seconds:.2f} s")
        machine.disk.slow_rate, machine.disk.slow_s = 1.0, 1.0
        # It hears what it is told, and what becomes of it.
        await self._cut([(machine.host, host) for host in self._hosts() if host != machine.host], seconds)
        await asyncio.sleep(1.0)
        machine.disk.slow_rate = 0.0

    # -- moves -----------------------------------------------------------------------------------------------------

    async def _moves(self, rate: float) -> None:
        """An operator moves replicas of a table that only loads write. Those who run jobs copy them."""
        rng = self._rng("moves")
        while True:
            await self._wait(rng, 1.0 / rate)
            table = self.watch.tables.catalog.find(MOVED)
            places = list(self.watch.tables.map(table.id)) if table is not None else []
            asked = self._victim(rng, 0.1)
            if table is None or asked is None or not places:
                continue
            tablet, replicas = rng.choice(places)
            spare = sorted(each.raft_id for each in self.cluster.running() if each.raft_id not in replicas)
            if spare:
                request = MoveRequest(table.id, tablet, rng.choice(replicas), rng.choice(spare), why="by hand")
                await self._move(asked, request, rng)

    async def _move(self, asked: Machine, request: MoveRequest, rng: random.Random) -> None:
        body = move_protocol.encode(request)
        try:
            await self.cluster.ask(asked, move_protocol.ASK, body, rng, _ASK_S)
        except (NetError, TimeoutError) as error:
            self.world.tell("nemesis", f"{request}: no ({error})")
        else:
            self.moves += 1
