"""Clients that read, write, delete and swap a few keys through the production client, and write down the answers."""

from __future__ import annotations

import asyncio
import random

from trimtab.client.errors import Error, Overloaded, Unavailable
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore import commands
from trimtab.metastore.conditions import Compare, Revision
from trimtab.metastore.results import CommandFailed
from trimtab.sim.cluster import SimCluster
from trimtab.sim.history import Deed, History, Operation, Outcome
from trimtab.sim.models import Delete, Get, Put, PutIf
from trimtab.sim.world import Process

CONNECT_S = 1.0
FINAL_S = 10.0


class SimClient:
    """One client process."""

    def __init__(self, cluster: SimCluster, number: int, history: History) -> None:
        self.cluster = cluster
        self.name = f"c{number}"
        self.process: Process = cluster.world.process(self.name, f"10.0.1.{number}")
        self.history = history
        self.rng: random.Random = cluster.world.rng(f"client/{self.name}")
        self.stopped = False
        # The first one mostly reads: it has no reason to leave a leader that was replaced but still answers.
        self.read_share = 0.95 if number == 1 else cluster.plan.read_share
        self._client: MetastoreClient | None = None
        self._working: asyncio.Task[None] | None = None
        self._written = 0
        # The revision each key was last seen at, as the base of the next swap.
        self._seen: dict[bytes, int] = {}

    def start(self) -> None:
        self.process.start()
        self._working = self.process.launch(self._work(), name=self.name)

    async def _work(self) -> None:
        plan, rng = self.cluster.plan, self.rng
        while True:
            await asyncio.sleep(rng.expovariate(1.0 / plan.think_s))
            if self.stopped:
                return
            key = b"k%d" % rng.randrange(plan.keys)
            if rng.random() < self.read_share:
                await self.do(Get(key))
                continue
            draw = rng.random()
            if draw < 0.6:
                await self.do(Put(key, self._value()))
            elif draw < 0.9:
                await self.do(PutIf(key, self._seen.get(key, 0), self._value()))
            else:
                await self.do(Delete(key))

    async def final(self) -> str | None:
        """Once everything is healed, writes and reads must succeed. What went wrong, or None."""
        assert self._working is not None
        await self._working
        await self._disconnect()
        for number in range(self.cluster.plan.keys):
            key = b"k%d" % number
            for deed in (Get(key), Put(key, self._value()), Get(key)):
                operation = await self.do(deed, FINAL_S)
                if operation is None or operation.outcome is not Outcome.OK:
                    what = operation.describe() if operation is not None else "no member could be reached"
                    return f"{self.name} was not served by the healed cluster: {what}"
        return None

    def _value(self) -> bytes:
        self._written += 1
        return f"{self.name}.{self._written}".encode()

    async def do(self, deed: Deed, timeout_s: float | None = None) -> Operation | None:
        """One operation, written down. None when no member could be reached at all."""
        world = self.cluster.world
        client = await self._connected(timeout_s or CONNECT_S)
        if client is None:
            return None
        operation = self.history.invoke(self.name, deed, world.now)
        try:
            operation.result = await self._carry_out(client, deed, timeout_s or self.cluster.plan.operation_s)
            operation.outcome = Outcome.OK
        except (Unavailable, Overloaded):
            operation.outcome = Outcome.FAILED
        except (Error, CommandFailed):
            operation.outcome = Outcome.FAILED if type(deed) is Get else Outcome.UNKNOWN
        if operation.outcome is not Outcome.UNKNOWN:
            operation.returned_at = world.now
        if world.tracing:
            world.trace(self.name, operation.describe())
        if operation.outcome is not Outcome.OK:
            # Perhaps all it knows is gone by now; begin again with what an operator would give it today.
            await self._disconnect()
        return operation

    async def _carry_out(self, client: MetastoreClient, deed: Deed, timeout_s: float) -> object:
        """Do it; the result as the checker's model has it."""
        if type(deed) is Get:
            entry = await client.get(deed.key, timeout_s=timeout_s)
            self._seen[deed.key] = entry.mod_revision if entry is not None else 0
            return (entry.value, entry.mod_revision) if entry is not None else None
        if type(deed) is Put:
            return await client.put(deed.key, deed.value, timeout_s=timeout_s)
        if type(deed) is Delete:
            return await client.delete(deed.key, timeout_s=timeout_s)
        assert type(deed) is PutIf
        condition = Revision(deed.key, Compare.EQ, deed.expected)
        command = commands.invoke(condition, [commands.Put(deed.key, deed.value)])
        answer = await client.invoke(command, timeout_s=timeout_s)
        return answer.revision if answer.yields is True else None

    async def _connected(self, timeout_s: float) -> MetastoreClient | None:
        if self._client is None:
            addresses = [member.address for member in self.cluster.current_members()]
            if not self.stopped:
                # Clients that know different members disagree for a while about who leads. That is worth watching.
                addresses = self.rng.sample(addresses, self.rng.randint(1, len(addresses)))
            try:
                self._client = await MetastoreClient.connect(
                    addresses, rng=self.rng, wall_ms=self.process.wall_ms, timeout_s=timeout_s
                )
            except Error:
                return None
        return self._client

    async def _disconnect(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
