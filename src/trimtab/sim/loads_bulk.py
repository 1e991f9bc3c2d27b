"""The bulk servers of simulated machines, as far as loads need them: files come in under a session, whole and durable.

A bulk server runs beside its node and asks it all the time which sessions are open. So for a moment, and as long as
the node is down, it takes files for sessions that are over: what comes so late has to be swept all the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from trimtab.catalog.schema import Table
from trimtab.loads.protocol import StagedFile
from trimtab.loads.records import LoadRecord
from trimtab.node.replicas.staging import path_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import PutRequest
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.machines import Machine

ASK_EVERY_S = 0.2
_FILE_S = 0.01

Pairs = list[tuple[bytes, bytes]]


class NotStaged(Exception):
    """The file is not there; the text says why."""


class BulkServers:
    """One on each machine that has power."""

    def __init__(self, cluster: GovernedCluster) -> None:
        self._cluster = cluster
        self._open: dict[str, frozenset[str]] = {}
        self.files = 0

    def start(self) -> None:
        self._cluster.world.control.launch(self._ask(), name="bulk servers")

    async def _ask(self) -> None:
        while True:
            for name, machine in self._cluster.machines.items():
                watching = getattr(machine.instance, "watching", None)
                if watching is not None and machine.alive and not machine.process.paused:
                    self._open[name] = frozenset(watching.loads.sessions)
            await asyncio.sleep(ASK_EVERY_S)

    async def stage(
        self, machine: Machine, session: str, tablet: int, name: str, pairs: Pairs, rng: random.Random, *, spoil: bool
    ) -> None:
        """Bring a file to a machine; with `spoil` it arrives damaged. NotStaged."""
        await self.arrive(machine, session, rng)
        disk, path = machine.disk.model, path_of(session, tablet, name)
        if disk.exists(path):
            return
        disk.write_table(path, pairs[:-1] if spoil else pairs)
        self.files += 1

    async def arrive(self, machine: Machine, session: str, rng: random.Random) -> None:
        """Return when a file of this session may be written there, in this very moment. NotStaged."""
        until = self._cluster.world.now + 2 * ASK_EVERY_S
        while session not in self._open.get(machine.name, frozenset()):
            # It may just have been opened.
            if self._cluster.world.now >= until:
                raise NotStaged(f"{machine.name} knows of no session {session}")
            await asyncio.sleep(ASK_EVERY_S / 4)
        await asyncio.sleep(rng.random() * _FILE_S)
        if not machine.on:
            raise NotStaged(f"{machine.name} is off")


def tables_of(
    table: Table, load: LoadRecord, columns: Sequence[int], cells: Sequence[Sequence[bytes | None]]
) -> dict[int, Pairs]:
    """The rows of a load as they lie in its files, by tablet."""
    request = PutRequest(table.id, table.version, list(columns), [list(each) for each in cells])
    found: dict[int, dict[bytes, bytes]] = {}
    for prefix, pairs in pairs_of_put(RowLayout(table), request, load.stamp_us, load.stamp_us // 1000).items():
        tablet = int.from_bytes(prefix[:8]) >> (65 - table.tablets.bit_length())
        found.setdefault(tablet, {}).update(zip(pairs[::2], pairs[1::2], strict=True))
    return {tablet: sorted(pairs.items()) for tablet, pairs in sorted(found.items())}


def in_files(tablets: Mapping[int, Pairs], files: int, attempt: str) -> list[tuple[int, str, Pairs]]:
    """What to stage: tablet, name and contents of each file; names of one attempt are its own."""
    found = []
    for tablet, pairs in tablets.items():
        for number in range(files):
            if some := pairs[number::files]:
                found.append((tablet, f"{attempt}-{number}", some))
    return found


def told_of(machine: Machine, tablet: int, name: str, pairs: Pairs) -> StagedFile:
    """The file as its sender knows it: what it says is what was sent, not what has arrived."""
    digest = type(machine.disk.model)(call_later=lambda _s, _f: None)
    digest.write_table("file", pairs)
    found = digest.digest("file")
    assert found is not None
    return StagedFile(tablet, name, *found, rows=len(pairs))
