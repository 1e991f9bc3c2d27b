"""Snapshots of a whole table, taken at once and held while a long job reads them.

A read at a time is exact only as long as its history is kept, and an epoch can be read only for a while after a newer
one: minutes, where copying a table may take hours. So every instance is asked for copies of all its replicas at the
beginning, under names that are the job's; they are hard links and cost next to nothing. The driver renews them; tasks
open them by name. A driver that takes over asks for the same names, and finds the same copies if it comes in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimtab.loads import protocol
from trimtab.loads.protocol import ReleaseSnapshot, RenewSnapshot, SnapshotReply, SnapshotRequest
from trimtab.net.errors import NetError, RpcError
from trimtab.spark.instances import Instances, tls_context
from trimtab.spark.replica_snapshots import ReplicaSnapshots, Wanted, same_disk
from trimtab.spark.scan_plan import ScanFailed, ScanPart, ScanPlan, ScanStats
from trimtab.storage.sst import Snapshot
from trimtab.tablets.consistency import goal

LEASE_MS = 180_000
PER_NAME = 200  # tablets in one snapshot
_ASK_S = 60.0
_PATIENCE_S = 20.0  # with whoever may hold one: without it all is read anew


@dataclass(frozen=True)
class Held:
    """What is held: for each instance, the names of snapshots and the tablets in each."""

    names: dict[int, dict[str, tuple[int, ...]]]

    def name_of(self, raft_id: int, tablet: int) -> tuple[str, tuple[int, ...]] | None:
        for name, tablets in self.names.get(raft_id, {}).items():
            if tablet in tablets:
                return name, tablets
        return None


@contextmanager
def hold(plan: ScanPlan, parts: Sequence[ScanPart], prefix: str) -> Iterator[Held]:
    """Take them all, and renew them inside of the block; given back after it, unless it fails: it may be tried again.

    ScanFailed: too few replicas of some tablet can be copied.
    """
    names: dict[int, dict[str, tuple[int, ...]]] = {}
    refused: dict[int, str] = {}
    with ExitStack() as stack:
        instances = stack.enter_context(Instances(tls_context(plan.connection)))
        holders = {part.tablet: sorted(part.holders) for part in parts}
        for raft_id, name, some in named(parts, prefix):
            try:
                _take(plan, instances, raft_id, name, {tablet: holders[tablet] for tablet in some})
                names.setdefault(raft_id, {})[name] = some
            except (NetError, TimeoutError) as error:
                if isinstance(error, RpcError) and error.code in ("not_found", "invalid"):
                    raise ScanFailed(f"{plan.table.full_name} can't be read: {error.text}") from error
                refused[raft_id] = str(error) or type(error).__name__
        held = Held(names)
        _check(plan, parts, held, refused)
        yield held
        for raft_id, of_holder in names.items():
            for name in of_holder:
                instances.let_go(f"{raft_id}/{name}")
                # Whoever can't be told forgets it when the lease is over.
                with suppress(NetError, TimeoutError):
                    body = protocol.encode(ReleaseSnapshot(name))
                    instances.call(plan.holders[raft_id].address, protocol.SNAPSHOT_RELEASE, body, _ASK_S)


def still_held(plan: ScanPlan, parts: Sequence[ScanPart], prefix: str) -> bool:
    """Whether every copy is there that was taken under these names; asking for them would make others."""
    with Instances(tls_context(plan.connection)) as instances:
        for raft_id, name, _ in named(parts, prefix):
            body = protocol.encode(RenewSnapshot(name, LEASE_MS))
            try:
                instances.ask(plan.holders[raft_id].address, protocol.SNAPSHOT_RENEW, body, _ASK_S, _PATIENCE_S)
            except (NetError, TimeoutError):
                return False
    return True


def named(parts: Sequence[ScanPart], prefix: str) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """Instance, name of the snapshot, and the tablets in it."""
    by_holder: dict[int, list[int]] = {}
    for part in parts:
        for raft_id in part.holders:
            by_holder.setdefault(raft_id, []).append(part.tablet)
    for raft_id, tablets in sorted(by_holder.items()):
        for number, start in enumerate(range(0, len(tablets), PER_NAME)):
            yield raft_id, f"{prefix}-{number}", tuple(sorted(tablets)[start : start + PER_NAME])


def _take(plan: ScanPlan, instances: Instances, raft_id: int, name: str, tablets: Mapping[int, list[int]]) -> None:
    """`tablets` with those who are believed to hold each: where others do by now, it is refused."""
    address = plan.holders[raft_id].address
    reading = list(tablets.values())
    request = SnapshotRequest(plan.table.id, list(tablets), plan.epoch, LEASE_MS, name, plan.as_of_us, reading=reading)
    instances.call(address, protocol.SNAPSHOT, protocol.encode(request), _ASK_S)
    renewal = protocol.encode(RenewSnapshot(name, LEASE_MS))
    instances.keep(f"{raft_id}/{name}", address, protocol.SNAPSHOT_RENEW, renewal, LEASE_MS / 6000)


def _check(plan: ScanPlan, parts: Sequence[ScanPart], held: Held, refused: dict[int, str]) -> None:
    dc_of = {each.raft_id: each.dc for each in plan.holders.values()}
    for part in parts:
        there = [raft_id for raft_id in part.holders if held.name_of(raft_id, part.tablet) is not None]
        need = goal(plan.level, [part.holders], dc_of, plan.local_dc, for_write=False)
        if not there or not need.reached(there):
            said = "; ".join(f"{plan.name_of(raft_id)}: {why}" for raft_id, why in refused.items())
            words = need.describe(there, "could be copied")
            raise ScanFailed(f"tablet {part.tablet} of {plan.table.full_name} can't be read: {words}. {said}")


class HeldSnapshots(ReplicaSnapshots):
    """In a task: opens what is held, by name; a copy that is gone is never made anew, because it would be of later."""

    def __init__(self, plan: ScanPlan, parts: Sequence[ScanPart], attempt: int, stats: ScanStats, held: Held) -> None:
        super().__init__(plan, parts, attempt, stats)
        self._held = held

    def _ask(self, raft_id: int, some: list[Wanted]) -> None:
        for each in some:
            super()._ask(raft_id, [each])

    def _open(self, raft_id: int, some: Sequence[Wanted], tablets: list[int]) -> None:
        (wanted,), (tablet,) = some, tablets
        found = self._held.name_of(raft_id, tablet)
        if found is None:
            raise TimeoutError("it has no copy that is held for this job")
        name, of_name = found
        holder = self._plan.holders[raft_id]
        renewal = protocol.encode(RenewSnapshot(name, LEASE_MS))
        # Refused where the copy is gone: asking for it would make another one.
        self._instances.call(holder.address, protocol.SNAPSHOT_RENEW, renewal, _ASK_S)
        request = SnapshotRequest(self._plan.table.id, list(of_name), self._plan.epoch, LEASE_MS, name)
        answer = self._instances.call(holder.address, protocol.SNAPSHOT, protocol.encode(request), _ASK_S)
        reply: SnapshotReply = protocol.decode_snapshot_reply(answer)
        only = msgspec.structs.replace(reply, tablets=[each for each in reply.tablets if each.tablet == tablet])
        here = Path(reply.directory)
        path = here / only.tablets[0].path if same_disk(here, only) else self._downloaded(only)[tablet]
        opened = self._stack.enter_context(Snapshot(path))
        wanted.open[raft_id] = opened, frozenset(reply.hidden)
