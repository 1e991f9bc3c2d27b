"""Snapshots of all replicas of a tablet side by side, as tasks compare and copy them.

    beginning   every replica says which generation it is, how far it was repaired, and what time it is there
    copies      of all of them (or, where some can't be asked, of as many as answer), open for reading
    again       they say the same once more: if one was repaired further meanwhile, the copies are taken anew

The last step is what makes copies comparable: a replica that was repaired further between two copies may have forgotten
a deletion that the other copy does not have yet, and what it deleted would come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from trimtab.net.errors import NetError
from trimtab.pipeline.range_sums import RangeSums, differing, ranges_for, spans
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.deletions import Pair
from trimtab.rows.repair_protocol import BeginReply, BeginRequest
from trimtab.rows.tokens import AFTER_ALL
from trimtab.spark.instances import Instances
from trimtab.spark.reading import without
from trimtab.spark.replica_snapshots import ReplicaSnapshots, Wanted
from trimtab.spark.scan_plan import ScanFailed, ScanPart, ScanPlan, ScanStats
from trimtab.storage.port import StorageError
from trimtab.storage.sst import Snapshot

_ASK_S = 10.0
PATIENCE_S = 8.0  # with a replica: one that is only slow must not be taken for one that lacks something
_TIMES = 3
_ALL = 1 << 62


@dataclass(frozen=True)
class Copy:
    """One replica's snapshot; `hidden` stamps are of loads that can't be seen yet, and are left out."""

    raft_id: int
    snapshot: Snapshot
    hidden: frozenset[int]

    def pairs(self, low: bytes, high: bytes) -> list[Pair]:
        """Those with low <= key < high (empty: to the end), in order."""
        found: list[Pair] = []
        for keys, values in without(self.snapshot.batches(low, high or AFTER_ALL, rows=_ALL), self.hidden):
            found += zip(keys.to_list(), values.to_list(), strict=True)
        return found

    def sums(self, cuts: list[bytes]) -> RangeSums:
        """Checksums of its ranges; StorageError where its files are damaged."""
        sums = RangeSums(cuts)
        for keys, _ in without(self.snapshot.batches(), self.hidden):
            sums.add(keys)
        return sums


@dataclass(frozen=True)
class Copies:
    """Of one tablet. `silent`: replicas that could not be copied, and why. `begun` is what the others said before."""

    part: ScanPart
    by_holder: Mapping[int, Copy]
    begun: Mapping[int, BeginReply]
    silent: Mapping[int, str]

    @property
    def forget_ms(self) -> int:
        """Deletions from before may be forgotten by some of them."""
        return max((each.repaired_through_ms for each in self.begun.values()), default=0)

    @property
    def begun_ms(self) -> int:
        return min((each.now_ms for each in self.begun.values()), default=0)

    def ranges(self, tablets: int) -> tuple[list[bytes], list[int], int, dict[int, str]]:
        """Cuts, the ranges that differ, pairs of the largest replica, and which replicas are damaged."""
        cuts = ranges_for(self.part.tablet, tablets, self.part.size_bytes)
        sums, damaged = {}, {}
        for raft_id, copy in self.by_holder.items():
            try:
                sums[raft_id] = copy.sums(cuts)
                if sums[raft_id].foreign:
                    damaged[raft_id] = f"it holds {sums[raft_id].foreign} rows of other tablets"
            except StorageError as error:
                damaged[raft_id] = str(error)
        whole = [each for raft_id, each in sums.items() if raft_id not in damaged]
        pairs = max((each.pairs for each in whole), default=0)
        return cuts, differing([each.sums for each in whole]), pairs, damaged

    def differing_spans(self, tablets: int) -> tuple[list[tuple[bytes, bytes]], int, int, dict[int, str]]:
        """The spans of keys that differ, how many ranges there are, pairs, and who is damaged."""
        cuts, found, pairs, damaged = self.ranges(tablets)
        return spans(cuts, found), len(cuts) - 1, pairs, damaged


class _Snapshots(ReplicaSnapshots):
    """Of one tablet, at those of its replicas that are `asked`, and no others."""

    def __init__(self, plan: ScanPlan, part: ScanPart, asked: tuple[int, ...], attempt: int) -> None:
        super().__init__(plan, (), attempt, ScanStats())
        # As instances know it: who has left the cluster answers for nothing.
        reading = tuple(each for each in part.holders if each in plan.holders)
        self._only = Wanted(part, reading, asked)
        self._wanted = [self._only]

    def by_holder(self) -> dict[int, Copy]:
        return {raft_id: Copy(raft_id, snapshot, hidden) for raft_id, (snapshot, hidden) in self._only.open.items()}

    def _moved(self, wanted: Wanted, there: tuple[int, ...]) -> None:
        # Nothing is known of those who hold it now. Whoever planned this looks where they are.
        raise _changing(self._plan, wanted.part)


@contextmanager
def copies_of(
    plan: ScanPlan,
    part: ScanPart,
    instances: Instances,
    attempt: int,
    *,
    asked: tuple[int, ...] | None = None,
    least: int = 2,
    patience_s: float = PATIENCE_S,
) -> Iterator[Copies]:
    """Copies of all replicas that answer. ScanFailed: not even `least` do (or the only one there is does not).

    `asked`: of these alone. `patience_s`: so long one is waited for that was Online when this was planned.
    """
    among = part.holders if asked is None else asked
    for _ in range(_TIMES):
        begun, silent = begin_all(plan, part.tablet, among, instances, patience_s)
        answering = tuple(each for each in among if each in begun)
        if len(answering) < min(least, len(among)):
            said = "; ".join(f"{plan.name_of(raft_id)}: {why}" for raft_id, why in silent.items())
            raise ScanFailed(f"tablet {part.tablet} of {plan.table.full_name} can't be compared: {said}")
        snapshots = _Snapshots(plan, part, answering, attempt)
        with snapshots:
            again, _ = begin_all(plan, part.tablet, answering, instances, patience_s)
            if all(_same(begun[each], again.get(each)) for each in answering):
                yield Copies(part, snapshots.by_holder(), begun, silent)
                return
    raise _changing(plan, part)


def _changing(plan: ScanPlan, part: ScanPart) -> ScanFailed:
    text = f"tablet {part.tablet} of {plan.table.full_name} changes hands, or is being repaired"
    return ScanFailed(f"{text}; try later")


def begin_all(
    plan: ScanPlan, tablet: int, holders: Iterable[int], instances: Instances, patience_s: float
) -> tuple[dict[int, BeginReply], dict[int, str]]:
    """What each replica says of itself, and why some say nothing."""
    begun: dict[int, BeginReply] = {}
    silent: dict[int, str] = {}
    body = protocol.encode(BeginRequest(plan.table.id, tablet))
    for raft_id in holders:
        holder = plan.holders.get(raft_id)
        if holder is None:
            silent[raft_id] = "it is not known to the cluster"
            continue
        try:
            timeout_s = min(_ASK_S, plan.connection.timeout_s)
            longer_s = patience_s if holder.online else 0.0
            answer = instances.ask(holder.address, protocol.BEGIN, body, timeout_s, longer_s)
            begun[raft_id] = protocol.decode_begin_reply(answer)
        except (NetError, TimeoutError) as error:
            silent[raft_id] = str(error) or type(error).__name__
    return begun, silent


def _same(one: BeginReply, other: BeginReply | None) -> bool:
    return other is not None and (one.generation, one.repaired_through_ms) == (
        other.generation,
        other.repaired_through_ms,
    )
