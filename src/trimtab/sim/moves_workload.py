"""Clients of tables whose tablets move: they put, delete, batch and read at QUORUM, through whoever is there now."""

from __future__ import annotations

import asyncio

from trimtab.sim.tables_workload import ROWS, Deed, TablesClient
from trimtab.tablets.consistency import Level


class MovesClient(TablesClient):
    """One client, one request at a time. Other levels promise too little to be judged while replicas change."""

    async def _work(self) -> None:
        deeds = self._deeds()
        while not self.stopped:
            await asyncio.sleep(self.rng.expovariate(1.0 / self.plan.think_s))
            self.connect()
            machine = self.rng.choice(self.cluster.taking_part())
            if self.catalog.find(ROWS) is None:
                await self.refresh(machine)
                continue
            await self.rng.choice(deeds)(machine)

    def _deeds(self) -> list[Deed]:
        # What is written once, and read in the end only, nobody mends by the way.
        return [*super()._deeds(), *[self._ledger_batch] * 8]

    def _level(self) -> Level:
        return Level.QUORUM

    def _read_level(self) -> Level:
        return Level.QUORUM
