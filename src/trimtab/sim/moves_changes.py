"""What operators want of a cluster whose tablets move, and what befalls it meanwhile, drawn from the seed.

Each kind of change is a small endless story of its own, beside the troubles of the tables scenario. An instance is only
lost for good (removed, or replaced) when nobody else is being lost and no tablet depends on it alone; whatever else
happens to disks is nobody's wish. `heal` ends all stories: what was begun by then has to come to its end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from trimtab.catalog import commands
from trimtab.catalog.commands import AlterKeyspace
from trimtab.jobs import protocol as jobs_protocol
from trimtab.jobs.protocol import SteerJob
from trimtab.net import frames
from trimtab.net.errors import NetError
from trimtab.node import failpoints
from trimtab.rows import protocol as rows_protocol
from trimtab.rows.protocol import ChangeRequest
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_jobs import JobDriver, Queue
from trimtab.sim.machines import Machine
from trimtab.sim.moves_plan import MAX_MACHINES, Change, MovesPlan
from trimtab.sim.tables_faults import TablesNemesis
from trimtab.sim.transport import Pipe
from trimtab.sim.world import Process
from trimtab.tablets import move_protocol
from trimtab.tablets.move_protocol import MoveRequest, SettingsRequest
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.selectors import Stage
from trimtab.tablets.view import TableView
from trimtab.topology.records import RequestKind
from trimtab.topology.states import NodeState

ASK_S = 1.5
_MAX_LEAVES = 3
_MAX_LOST = 2
_LOST_S = 8.0
_ADOPT = move_protocol.ADOPT.encode()
_HEAD = 48
_PLACES = tuple(name for name in failpoints.NAMES if name.startswith(("moves.", "governor.move", "governor.job.")))

Story = Callable[[float], Coroutine[Any, Any, None]]


class MovesNemesis(TablesNemesis):
    """All that happens in one run."""

    def __init__(
        self,
        cluster: GovernedCluster,
        plan: MovesPlan,
        clients: list[Process],
        tables: TableView,
        queue: Queue,
        drivers: list[JobDriver],
    ) -> None:
        super().__init__(cluster, plan.tables, clients)
        self.moves = plan
        self.view = tables
        self.queue = queue
        self.drivers = drivers
        self.done: dict[str, int] = {}
        self._leaves = 0
        self._losses = 0
        self._lost: Machine | None = None
        self._asked = 0
        self._before: Callable[[Pipe, bytes], None] | None = None
        self._thinks_after_s = 0.0

    def begin(self) -> None:
        super().begin()
        stories: dict[Change, Story] = {
            Change.JOIN: self._newcomers,
            Change.LEAVE: self._decommission,
            Change.REMOVE: self._removals,
            Change.REPLACE: self._replacements_of,
            Change.REBUILD: self._rebuilds,
            Change.REPLICATION: self._replication,
            Change.MOVE: self._by_hand,
            Change.SWITCH: self._switch,
            Change.STEER: self._steer,
            Change.GROW: self._growth,
        }
        for change, story in stories.items():
            if change in self.moves.changes:
                rate = self.moves.changes[change]
                self._tasks.append(self.cluster.operator.launch(story(rate), name=change.value))
        control = self.world.control
        if self.moves.second_thoughts:
            self._before, self.cluster.on_sent = self.cluster.on_sent, self._ordered
        if self.moves.deaths and _PLACES:
            self._tasks.append(control.launch(self._deaths(self.moves.deaths), name="deaths in moves"))
        if self.moves.loads.mishap:
            self._tasks.append(control.launch(self._of_drivers(self.moves.loads.mishap), name="drivers of jobs"))

    def heal(self) -> None:
        super().heal()
        for machine in self.cluster.machines.values():
            machine.disk.slow_work(0.0)
        for driver in self.drivers:
            driver.client.process.resume()
            if not driver.client.process.alive:
                driver.start()

    # -- asking ----------------------------------------------------------------------------------------------------

    def _members(self) -> dict[int, str]:
        rows = self.cluster.topology.committed.rows
        return {raft_id: row.instance_id for raft_id, row in sorted(rows.items()) if row.state is NodeState.NORMAL}

    async def tell(self, what: str, method: str, body: bytes, *, tries: int = 1) -> bytes | None:
        """Ask any member; None: it says no, or nothing."""
        error: BaseException | None = None
        for _ in range(tries):
            running = self.cluster.running()
            if running:
                rng = self.world.rng(f"operator/{self.world.events}")
                try:
                    answer = await self.cluster.ask(rng.choice(running), method, body, rng, ASK_S)
                except (NetError, TimeoutError) as failure:
                    error = failure
                else:
                    self.done[what.split()[0]] = self.done.get(what.split()[0], 0) + 1
                    self.world.tell("operator", f"{what}: yes")
                    return answer
            await asyncio.sleep(0.2)
        self.world.tell("operator", f"{what}: no ({error})")
        return None

    async def settings(self, settings: RebalanceSettings, *, tries: int = 1) -> bool:
        said = "on" if settings.enabled else "off"
        for _ in range(tries):
            told = await self.tell("settings", move_protocol.SETTINGS, move_protocol.encode(SettingsRequest()))
            if told is None:
                continue
            # Who sets them says which it has seen.
            seen = move_protocol.decode_settings_reply(told).settings
            body = move_protocol.encode(SettingsRequest(msgspec.structs.replace(settings, set_ms=seen.set_ms)))
            if await self.tell(f"balancing {said}", move_protocol.SETTINGS, body) is not None:
                return True
        return False

    async def replication(self, number: int, *, tries: int = 1) -> bool:
        self._asked += 1
        command = commands.encode(AlterKeyspace("sim", number))
        body = rows_protocol.encode(ChangeRequest(command, f"replication {self._asked}"))
        return await self.tell(f"replication {number}", rows_protocol.CHANGE, body, tries=tries) is not None

    async def _request(self, kind: RequestKind, whom: str) -> int:
        """The number of a request that was made; 0: it was not."""
        asked = self._victim(self._rng(f"ask/{self.world.events}"), 0.1)
        if asked is None:
            return 0
        try:
            reply = await self.cluster.create(asked, kind, whom, timeout_s=ASK_S)
        except (NetError, TimeoutError) as error:
            self.world.tell("operator", f"{kind.value} {whom}: no ({error})")
            return 0
        self.done[kind.value] = self.done.get(kind.value, 0) + 1
        self.world.tell("operator", f"{kind.value} {whom}: request {reply.number}")
        return reply.number

    def _open(self, number: int) -> bool:
        request = self.cluster.topology.committed.requests.get(number)
        return request is not None and not request.state.final

    # -- coming and going ------------------------------------------------------------------------------------------

    async def _newcomers(self, rate: float) -> None:
        rng = self._rng(Change.JOIN.value)
        while self._late and len(self.cluster.machines) < MAX_MACHINES:
            await self._wait(rng, self.plan.chaos_s / (2.0 * self._late + 1) / (0.5 + rate))
            self._late -= 1
            self._newcomer(rng).start()

    def _newcomer(self, rng: random.Random, replaces: str = "") -> Machine:
        number = len(self.cluster.machines)
        there = self.cluster.taking_part()
        peers = [at for at, machine in enumerate(self.cluster.machines.values()) if machine in there]
        rng.shuffle(peers)
        machine = self.cluster.add(peers, failure_domain=self.plan.domains[number], replace=replaces)
        self.on_machine(machine)
        return machine

    def on_machine(self, machine: Machine) -> None:
        """Told of every machine that comes later."""

    async def _decommission(self, rate: float) -> None:
        rng = self._rng(Change.LEAVE.value)
        while self._leaves < _MAX_LEAVES:
            await self._wait(rng, 2.0 / rate)
            members = self._members()
            if len(members) < 3 or (len(members) <= self._declared() and rng.random() < 0.8):
                continue
            self._leaves += 1
            number = await self._request(RequestKind.LEAVE, rng.choice(list(members.values())))
            if number and Change.THINK_AGAIN in self.moves.changes and rng.random() < 0.6:
                await asyncio.sleep(rng.random() * rng.choice((0.2, 1.0, 2.5)))
                asked = self._victim(rng, 0.1)
                if asked is not None and self._open(number):
                    await self._ask(f"cancel {number}", self.cluster.cancel(asked, number, timeout_s=ASK_S))

    def _declared(self) -> int:
        keyspace = self.view.catalog.keyspaces.get("sim")
        return sum(keyspace.replication.values()) if keyspace is not None else 1

    def _may_lose(self, machine: Machine) -> bool:
        """Whether every acknowledged write is elsewhere too, whatever has been begun."""
        if self._lost is not None or not machine.raft_id or self._declared() < 2:
            return False
        for table, tablets in self.view.maps.items():
            for tablet, stable in tablets:
                current = self.view.transition(table, tablet)
                sets = [stable] if current is None else [stable, current.pending, *filter(None, (current.planned,))]
                if any(len(replicas) < 2 for replicas in sets):
                    return False
        return all(other.on or other is machine for other in self.cluster.taking_part())

    async def _gone(self, machine: Machine, *, until_s: float) -> bool:
        """Whether the cluster has put an instance out by then."""
        raft_id = machine.raft_id
        while self.world.now < until_s:
            row = self.cluster.topology.committed.rows.get(raft_id)
            if row is not None and row.left:
                return True
            await asyncio.sleep(0.1)
        return False

    async def _loses(self, rng: random.Random) -> Machine | None:
        """A machine that falls, and does not come back soon."""
        victim = self._victim(rng, 0.2)
        if victim is None or self._losses >= _MAX_LOST or not self._may_lose(victim):
            return None
        self._losses += 1
        self._lost = victim
        # What it says in its last moments does not get everywhere, and it takes what it owes with it.
        other = rng.choice([host for host in self._hosts() if host != victim.host])
        await self._cut([(victim.host, other), (other, victim.host)], rng.random() * rng.choice((0.3, 2.0)))
        victim.crash(power=True)
        await self._wait(rng, 1.0)
        return victim

    async def _removals(self, rate: float) -> None:
        rng = self._rng(Change.REMOVE.value)
        while True:
            await self._wait(rng, 2.0 / rate)
            if (victim := await self._loses(rng)) is None:
                continue
            until_s = self.world.now + _LOST_S
            number = 0
            while self.world.now < until_s and not self._open(number):
                number = await self._request(RequestKind.REMOVE, victim.settings.instance_id)
                await asyncio.sleep(0.7)
                if victim.raft_id and self.cluster.topology.committed.rows[victim.raft_id].left:
                    break
            if not await self._gone(victim, until_s=until_s + 4.0):
                victim.start()
            self._lost = None

    async def _replacements_of(self, rate: float) -> None:
        rng = self._rng(Change.REPLACE.value)
        while len(self.cluster.machines) < MAX_MACHINES:
            await self._wait(rng, 2.0 / rate)
            if (victim := await self._loses(rng)) is None:
                continue
            self._newcomer(rng, victim.settings.instance_id).start()
            # As long as that may still happen the other one stays where it is.
            if await self._gone(victim, until_s=self.world.now + 60.0):
                self._lost = None

    async def _rebuilds(self, rate: float) -> None:
        rng = self._rng(Change.REBUILD.value)
        while True:
            await self._wait(rng, 3.0 / rate)
            if members := self._members():
                await self._request(RequestKind.REBUILD, rng.choice(list(members.values())))

    # -- wishes ----------------------------------------------------------------------------------------------------

    async def _replication(self, rate: float) -> None:
        rng = self._rng(Change.REPLICATION.value)
        for number in self.moves.replications[1:]:
            await self._wait(rng, rng.choice((0.15, 1.0, 2.0)) / rate)
            if rng.random() < 0.6:
                # Some of those who are copied from have not heard all of it.
                one, other = rng.sample(self._hosts(), 2)
                cut = self._cut([(one, other), (other, one)], 1.5 + 2.0 * rng.random())
                self._tasks.append(self.world.control.launch(cut, name="lagging"))
                await asyncio.sleep(0.3 + 0.7 * rng.random())
            if number > 1 or self._lost is None:
                await self.replication(number)

    async def _growth(self, rate: float) -> None:
        """One replica more, again and again, while some of those that it is made of have not heard all of it."""
        rng, number = self._rng(Change.GROW.value), self.moves.replications[0]
        while True:
            await self._wait(rng, 0.5 / rate)
            one, other = rng.sample(self._hosts(), 2)
            cut = self._cut([(one, other), (other, one)], 2.5 + 2.0 * rng.random())
            self._tasks.append(self.world.control.launch(cut, name="lagging"))
            await asyncio.sleep(0.5 + 0.7 * rng.random())
            for wanted in (number + 1, number):
                if await self.replication(wanted):
                    await self._settled(5.0)

    async def _settled(self, seconds: float) -> None:
        """Wait until every tablet has as many replicas as it should, for so long at most."""
        until_s, number = self.world.now + seconds, self._declared()
        while self.world.now < until_s:
            await asyncio.sleep(0.1)
            placed = (replicas for tablets in self.view.maps.values() for _, replicas in tablets)
            if not any(self.view.transitions.values()) and all(len(each) == number for each in placed):
                return

    async def _by_hand(self, rate: float) -> None:
        rng = self._rng(Change.MOVE.value)
        while True:
            await self._wait(rng, rng.choice((0.1, 0.5, 0.8)) / rate)
            maps = self.view.maps
            places = [(table, tablet, tuple(stable)) for table, tablets in maps.items() for tablet, stable in tablets]
            members = list(self._members())
            if not places or not members:
                continue
            moving = [(table, tablet) for table, under_way in self.view.transitions.items() for tablet in under_way]
            table, tablet, stable = rng.choice(places)
            if moving and rng.random() < 0.5:
                # Somebody thinks again, half-way.
                table, tablet = rng.choice(moving)
                stable = self.view.maps[table].replicas(tablet)
            to = rng.choice([each for each in members if each not in stable] or [0])
            if rng.random() < 0.15:
                to = 0
            self._asked += 1
            request = MoveRequest(table, tablet, rng.choice(stable), to, why="by hand", request_id=f"m{self._asked}")
            what = f"move {table}/{tablet} from {request.source} to {to}"
            await self.tell(what, move_protocol.ASK, move_protocol.encode(request))

    async def _switch(self, rate: float) -> None:
        rng = self._rng(Change.SWITCH.value)
        while True:
            await self._wait(rng, 1.5 / rate)
            await self.settings(self.wanted(enabled=rng.random() < 0.5))

    def wanted(self, *, enabled: bool = True) -> RebalanceSettings:
        return RebalanceSettings(enabled=enabled, heal_after_ms=self.moves.heal_after_ms, moving=self.moves.moving)

    async def _steer(self, rate: float) -> None:
        rng = self._rng(Change.STEER.value)
        while True:
            await self._wait(rng, 1.0 / rate)
            jobs = sorted(self.queue.view.open)
            if jobs:
                order = rng.choice(("pause", "cancel", "resume", "resume"))
                await self.steer(rng.choice(jobs), order)

    async def steer(self, number: int, order: str) -> None:
        body = jobs_protocol.encode(SteerJob(number, order, "an operator thought again"))
        await self.tell(f"{order} job {number}", jobs_protocol.STEER, body)

    async def finish(self) -> None:
        """Balancing is on, and nothing stays paused."""
        await self.settings(self.wanted(), tries=50)
        while paused := [
            job.number for job in self.queue.view.open_jobs() if job.state.value == "paused" or job.wanted == "pause"
        ]:
            await self.steer(paused[0], "resume")
            await asyncio.sleep(0.2)

    # -- second thoughts -------------------------------------------------------------------------------------------

    def _ordered(self, pipe: Pipe, frame: bytes) -> None:
        """A frame was written. Whoever is told to take a copy over may be slow, and nobody want that any more."""
        if self._before is not None:
            self._before(pipe, frame)
        if frame[5] != frames.REQUEST or _ADOPT not in frame[:_HEAD] or self.world.now < self._thinks_after_s:
            return
        target = next((each for each in self.cluster.machines.values() if each.host == pipe.target.host), None)
        if target is None or self._striking.random() >= self.moves.second_thoughts:
            return
        self._thinks_after_s = self.world.now + 0.7
        self._tasks.append(self.cluster.operator.launch(self._thinks_again(target), name="second thoughts"))

    async def _thinks_again(self, machine: Machine) -> None:
        rng = self._striking
        here = [
            (table, tablet)
            for table, under_way in self.view.transitions.items()
            for tablet, current in under_way.items()
            if machine.raft_id in current.pending and current.stage is Stage.STREAMING
        ]
        if not here:
            return
        table, tablet = rng.choice(here)
        stable, others = self.view.maps[table].replicas(tablet), [*self._members(), 0, 0]
        to = rng.choice([each for each in others if each not in stable and each != machine.raft_id])
        machine.disk.slow_work(0.3)
        await asyncio.sleep(rng.random() * 0.2)
        request = MoveRequest(table, tablet, rng.choice(stable) if to else 0, to, why="second thoughts")
        what = f"move {table}/{tablet} from {request.source} to {to}, while {machine.name} takes it over"
        await self.tell(what, move_protocol.ASK, move_protocol.encode(request))
        await asyncio.sleep(0.3)
        machine.disk.slow_work(0.0)

    # -- mishaps ---------------------------------------------------------------------------------------------------

    async def _deaths(self, rate: float) -> None:
        rng = self._rng("deaths in moves")
        while True:
            failpoints.disarm()
            for place in rng.sample(_PLACES, min(3, len(_PLACES))):
                self.cluster.kill_at(place)
            await self._wait(rng, 1.0 / rate)

    async def _of_drivers(self, rate: float) -> None:
        """Those who run jobs are killed, or stand still for longer than their lease."""
        rng = self._rng("drivers of jobs")
        while True:
            await self._wait(rng, 0.2 / rate)
            driver = rng.choice(self.drivers)
            process = driver.client.process
            if not process.alive or process.paused:
                continue
            if rng.random() < 0.5:
                driver.kill()
                self._later(rng.random() * 2.0, driver.start)
            else:
                seconds = self.moves.loads.driver_lease_ms / 1000 * (0.5 + rng.random() * 1.5)
                self.world.tell(driver.client.name, f"stands still for {seconds:.2f} s")
                process.pause()
                self._later(seconds, process.resume)
