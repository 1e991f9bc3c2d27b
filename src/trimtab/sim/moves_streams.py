"""Copies of replicas on their way, as the tasks of `pipeline.streaming` carry them, with what befalls them there.

A task runs beside the driver that began it: when that dies, or the job is cancelled, it may go on for a while, or come
to itself only later, and bring what nobody waits for any more. On the way files are cut, or a byte of them changes so
that only a checksum tells; a manifest may come twice, or never.

    tell        how far each source was repaired: of several that are merged none may forget a deletion meanwhile
    snapshot    of each source, by the same name in every attempt
    stage       file after file into the target's `staging/<session>/<tablet>/`, while its bulk server takes them
    manifest    last; without it nobody adopts anything
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.catalog.schema import Table
from trimtab.loads import protocol
from trimtab.loads.protocol import ReleaseSnapshot, SnapshotReply, SnapshotRequest
from trimtab.net.errors import NetError, RpcError
from trimtab.node.replicas.replica_meta import FIRST_KEY
from trimtab.node.replicas.staging import path_of
from trimtab.pipeline.copies import MANIFEST, Carry, Source
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_bulk import BulkServers, NotStaged
from trimtab.sim.machines import Machine
from trimtab.sim.tables_history import TablesHistory
from trimtab.sim.tables_plan import TablesPlan
from trimtab.sim.tables_workload import Shared, TablesClient
from trimtab.storage.file_sums import sum_of
from trimtab.storage.model import ModelDisk

_LEASE_MS = 4_000
_ASK_S = 1.5
_TRIES = 3
_STEP_S = 0.02
_SLOW_S = 0.6


class CopyFailed(Exception):
    """It can't be brought now; `code` is for the leader."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Copying:
    """One replica to be."""

    table: Table
    tablet: int
    target: int
    sources: tuple[int, ...]
    session: str
    job: int

    def name(self, turn: int) -> str:
        """Of its snapshots: the same for every attempt of one job, so that whoever takes it over finds them."""
        sources = "-".join(map(str, sorted(self.sources)))
        return f"stream-{self.job}-{self.table.id}-{self.tablet}-{self.target}-{sources}-{turn}"


@dataclass(frozen=True)
class SimCarry(Carry):
    """A copy as its task has it. `large`: its files are sent as they lie; nothing is large enough by itself here."""

    large: bool = False

    @property
    def as_it_is(self) -> bool:
        return self.large


@dataclass
class Streamed:
    """What became of copies, in a run."""

    copies: int = 0
    merges: int = 0
    failed: int = 0
    spoiled: int = 0
    late: int = 0
    codes: dict[str, int] = field(default_factory=dict)


class Streams:
    """The executors: a process of their own, which outlives the drivers.

    `mishap`: the chance that something happens to a copy on its way. `lateness_s`: for how long tasks go on that nobody
    waits for any more.
    """

    def __init__(
        self, cluster: GovernedCluster, tables: TablesPlan, bulk: BulkServers, *, mishap: float, lateness_s: float
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.bulk = bulk
        self.client = TablesClient(cluster, tables, 180, TablesHistory({}), Shared())
        self.client.name = "x1"
        self.rng: random.Random = self.world.rng("streams")
        self.mishap = mishap
        self.lateness_s = lateness_s
        self.quiet = False  # nothing happens to copies any more
        self.told = Streamed()
        # A test may hold every task here, before it stages anything.
        self.hold: asyncio.Event | None = None

    def start(self) -> None:
        self.client.process.start()

    def begin(self, copying: Copying, epoch: int) -> asyncio.Task[dict[str, Any]]:
        """A task of its own; who gives up on it may cancel it, or not."""
        return self.client.process.spawn(self._carry(copying, epoch), name=f"stream of {copying.tablet}")

    def abandon(self, task: asyncio.Task[dict[str, Any]]) -> None:
        """Nobody waits for it any more. Spark kills it, sooner or later."""
        if task.done():
            return
        task.add_done_callback(_ignored)
        if self.quiet or not self.lateness_s or self.rng.random() < 0.5:
            task.cancel()
            return
        self.told.late += 1
        control = self.world.control.loop
        assert control is not None
        control.call_later(self.rng.random() * self.lateness_s, task.cancel)

    # -- a task ----------------------------------------------------------------------------------------------------

    async def _carry(self, copying: Copying, epoch: int) -> dict[str, Any]:
        for turn in range(_TRIES):
            try:
                return await self._copy(copying, epoch, turn)
            except CopyFailed as failed:
                if turn == _TRIES - 1:
                    self.told.failed += 1
                    self.told.codes[failed.code] = self.told.codes.get(failed.code, 0) + 1
                    raise
            await asyncio.sleep(0.1 + 0.2 * self.rng.random())
        raise AssertionError("every try returns or raises")

    async def _copy(self, copying: Copying, epoch: int, turn: int) -> dict[str, Any]:
        await self._step()
        machines = [self._machine(raft_id) for raft_id in copying.sources]
        through: list[list[int]] = [[] for _ in machines]
        if len(machines) > 1:
            for number, machine in enumerate(machines):
                stand = await self._snapshot(machine, copying, epoch, [], "")
                through[number] = [stand.tablets[0].repaired_through_ms]
        replies = []
        for machine, known in zip(machines, through, strict=True):
            await self._step()
            replies.append(await self._snapshot(machine, copying, epoch, known, copying.name(turn)))
        if len({reply.found for reply in replies}) > 1:
            # Some are of an earlier attempt: they may hold what others have forgotten since.
            for machine in machines:
                await self._release(machine, copying.name(turn))
            raise CopyFailed("not_ready", "some snapshots were there before")
        if self.hold is not None:
            await self.hold.wait()
        if not all(reply.proof for reply in replies):
            raise CopyFailed("not_ready", "a snapshot was dropped while it was looked at")
        carry = self._carry_of(copying, machines, replies)
        if len({source.generation for source in carry.sources}) > 1:
            raise CopyFailed("stale_copy", f"the sources are of several generations: {carry.sources}")
        if carry.as_it_is:
            files = self._whole(machines[0], carry)
            self.told.copies += 1
        else:
            files = self._merged(machines, carry)
            self.told.merges += 1
        listed: list[dict[str, object]] = []
        for name, data in files:
            await self._step()
            await self._stage(copying, f"{carry.stream}.{name}", data)
            listed.append(
                {"name": f"{carry.stream}.{name}", "file": name, "bytes": len(data), "checksum": sum_of(data)}
            )
        await self._step()
        manifest = carry.manifest(listed)
        last = json.dumps(manifest, sort_keys=True).encode()
        await self._stage(copying, f"{carry.stream}.{MANIFEST}", last, whole=True)
        for machine in machines:
            await self._release(machine, copying.name(turn))
        return manifest

    def _carry_of(self, copying: Copying, machines: Sequence[Machine], replies: Sequence[SnapshotReply]) -> SimCarry:
        sources = [
            Source(
                machine.raft_id,
                machine.name,
                reply.name,
                "",
                reply.proof,
                reply.tablets[0].path,
                tuple(reply.tablets[0].files),
                "",
                b"",
                reply.tablets[0].generation,
                reply.tablets[0].adopted,
                reply.tablets[0].repaired_through_ms,
                reply.tablets[0].forgot_us,
            )
            for machine, reply in zip(machines, replies, strict=True)
        ]
        # By the snapshot, so that whoever tries again does the same.
        large = len(sources) == 1 and int(replies[0].proof[:1] or "0", 16) % 2 == 0
        table, target = copying.table.full_name, copying.target
        return SimCarry(0, table, copying.tablet, target, "", copying.session, b"", "", tuple(sources), large)

    async def _step(self) -> None:
        """Between two steps: it takes a while; sometimes much longer."""
        slow = not self.quiet and self.rng.random() < self.mishap
        await asyncio.sleep(self.rng.random() * (_SLOW_S if slow else _STEP_S))

    def _machine(self, raft_id: int) -> Machine:
        machine = self.cluster.of_raft_id(raft_id)
        if machine is None:
            raise CopyFailed("no_source", f"there is no instance {raft_id}")
        return machine

    async def _snapshot(
        self, machine: Machine, copying: Copying, epoch: int, through: list[int], name: str
    ) -> SnapshotReply:
        """A snapshot of this name; without one, how the replica stands."""
        request = SnapshotRequest(
            copying.table.id,
            [copying.tablet],
            epoch,
            _LEASE_MS,
            name,
            copying=True,
            through=through,
            only_tell=not name,
        )
        try:
            body = await self.client.ask(machine, protocol.SNAPSHOT, protocol.encode(request), _ASK_S)
        except RpcError as error:
            raise CopyFailed(error.code, f"{machine.name}: {error.text}") from error
        except NetError as error:
            raise CopyFailed("not_ready", f"{machine.name}: {error}") from error
        reply: SnapshotReply = protocol.decode_snapshot_reply(body)
        if not reply.tablets:
            code, text = reply.refused[0][1:] if reply.refused else ("not_ready", "it is not there")
            raise CopyFailed(code, f"{machine.name}: {text}")
        return reply

    async def _release(self, machine: Machine, name: str) -> None:
        with contextlib.suppress(NetError):
            await self.client.ask(machine, protocol.SNAPSHOT_RELEASE, protocol.encode(ReleaseSnapshot(name)), _ASK_S)

    def _whole(self, machine: Machine, carry: SimCarry) -> list[tuple[str, bytes]]:
        """All files of one snapshot."""
        path, disk = carry.sources[0].path, machine.disk.model
        files = []
        for name, _size in disk.files(path):
            data = disk.read_file(f"{path}/{name}") if machine.on else None
            if data is None:
                raise CopyFailed("source_gone", f"{machine.name} does not give {path}/{name}")
            files.append((name, data))
        return files

    def _merged(self, machines: Sequence[Machine], carry: SimCarry) -> list[tuple[str, bytes]]:
        """Every pair that any of the sources has, once, in runs."""
        pairs: dict[bytes, bytes] = {}
        for machine, source in zip(machines, carry.sources, strict=True):
            pairs.update(pairs_of(machine, source.path))
        rows = sorted(item for item in pairs.items() if item[0] >= FIRST_KEY)
        half = len(rows) // 2 if len(rows) > 4 else len(rows)
        files = []
        scratch = ModelDisk(call_later=lambda _s, _f: None)
        for number, run in enumerate(filter(None, (rows[:half], rows[half:]))):
            scratch.write_table("run", run)
            data = scratch.read_file("run")
            assert data is not None
            files.append((f"{number:06d}.sst", data))
        return files

    async def _stage(self, copying: Copying, name: str, data: bytes, *, whole: bool = False) -> None:
        """One file to where it is to be; sometimes it does not lie there as it was sent."""
        machine = self._machine(copying.target)
        try:
            await self.bulk.arrive(machine, copying.session, self.rng)
        except NotStaged as error:
            raise CopyFailed("no_session", str(error)) from error
        disk, path = machine.disk.model, path_of(copying.session, copying.tablet, name)
        there = disk.read_file(path)
        if there is not None and len(there) == len(data):
            return  # it was sent before, by an earlier attempt
        if not whole and not self.quiet and self.rng.random() < self.mishap / 2:
            self.told.spoiled += 1
            self.world.tell("streams", f"{name} for {machine.name} is spoiled on its way")
            data = spoiled(data, self.rng)
        disk.write_file(path, data)


def pairs_of(machine: Machine, path: str) -> dict[bytes, bytes]:
    """Everything that lies in a snapshot."""
    disk = machine.disk.model
    contents = disk._stores.get(path) if machine.on else None
    if contents is None:
        raise CopyFailed("source_gone", f"{machine.name} does not give {path}")
    return dict(contents.table.values)


def spoiled(data: bytes, rng: random.Random) -> bytes:
    """A file that was cut, or in which one byte is another."""
    if len(data) < 8 or rng.random() < 0.2:
        return data[: len(data) // 2]
    # Near the end lie values: it can be read as before, and says something else.
    at = len(data) - 1 - rng.randrange(min(6, len(data)))
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


def _ignored(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
