"""Folding in the background: rows with many versions become short again, and what expired or was deleted goes.

The rule is `rows.folding`; here is when, and how fast. A replica is walked from end to end when enough was written to
it since the last walk, and now and then anyway, because time alone makes things expire. The walk takes a few
milliseconds of the loop at a time and rests for longer than it worked. Rows that were found to be long, because they
are written again and again or by who read them, are folded before.

A walk reads what was there when it began. Whatever is written meanwhile is not among what it replaces, and merges with
the outcome as it would have with the versions. Between the parts of a walk, which end where a partition does, the files
it reads are let go.

On its way a walk measures partitions. Those that are large are watched from then on, and above the limit they take no
more rows (deletions still pass).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from trimtab.node.answering import Refused
from trimtab.node.background import telling
from trimtab.node.replicas.replica import FIRST_KEY, LargePartition, Replica
from trimtab.rows.errors import BadRow
from trimtab.rows.folding import Folded, FoldRule, fold_range
from trimtab.rows.keys import STATIC, partition_end, prefix_of
from trimtab.rows.layout import RowLayout
from trimtab.storage.port import Corrupt, StorageError

Pair = tuple[bytes, bytes]
# What it is folded by: the newest layout and the rule of now; None: there is no such table any more.
LayoutOf = Callable[[int], RowLayout | None]
RuleOf = Callable[[Replica, RowLayout], FoldRule]

_LOOK_EVERY = 16
_WATCH_FROM = 8  # partitions above this part of the limit are watched
_MAX_WATCHED = 1_000
# Of a row that is long: so many versions at a time, in view of so many deletions in its partition.
_MOST_VERSIONS = 5_000
_MOST_DELETIONS = 1_000


@dataclass(frozen=True)
class FoldPace:
    """A slice of work lasts for `slice_s` or `slice_steps`, then it rests for `rest_s`."""

    slice_s: float = 0.004
    slice_steps: int = 2_000
    rest_s: float = 0.03
    part_s: float = 10.0
    every_s: float = 600.0  # at most so often, where something was written
    anyway_s: float = 21_600.0
    written_bytes: int = 64 << 20
    written_share: float = 0.25
    partition_bytes: int = 1 << 30
    look_every_s: float = 0.2


@dataclass(slots=True)
class _Walked:
    """When a replica was walked last, and how much had been written to it by then."""

    incarnation: int
    at: float
    written_bytes: int


class Folding:
    """Of all replicas of one node."""

    def __init__(
        self,
        replicas: Callable[[], Sequence[Replica]],
        layout_of: LayoutOf,
        rule_of: RuleOf,
        *,
        pace: FoldPace | None = None,
        busy: Callable[[], bool] = lambda: False,
        complain: Callable[[str], None],
        defect: Callable[[BaseException], None],
    ) -> None:
        self.pace = pace or FoldPace()
        self.walks = 0
        self.rows = 0
        self.removed = 0
        self.largest_partition_bytes = 0
        self.walking = ""
        self._replicas = replicas
        self._layout_of = layout_of
        self._rule_of = rule_of
        self._busy = busy
        self._complain = complain
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._walked: dict[str, _Walked] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="folding")
        self._task.add_done_callback(telling(self._defect))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.pace.look_every_s)
            if self._busy():
                continue
            replicas = [each for each in self._replicas() if not each.closed]
            for replica in replicas:
                if replica.hot:
                    self.fold_hot(replica)
                    await asyncio.sleep(0)
            due = self._most_due(replicas)
            if due is not None:
                await self.walk(due)

    # When

    def _most_due(self, replicas: Sequence[Replica]) -> Replica | None:
        names = {each.name for each in replicas}
        for name in [each for each in self._walked if each not in names]:
            del self._walked[name]
        now = self._loop.time()
        # The longest unwalked: were it the first, those at the end would never have their turn where all are due again
        # before a round is done.
        due = [each for each in replicas if self._due(each, now)]
        return min(due, key=lambda each: self._walked[each.name].at, default=None)

    def _due(self, replica: Replica, now: float) -> bool:
        pace, walked = self.pace, self._walked.get(replica.name)
        if walked is None or walked.incarnation != replica.incarnation:
            # Begin somewhere in the interval, so that replicas that were opened together are not walked together.
            spread = (replica.incarnation * 0.618034) % 1.0
            at = now - pace.every_s * spread
            self._walked[replica.name] = _Walked(replica.incarnation, at, 0)
            return False
        written = replica.written_bytes - walked.written_bytes
        if written and now - walked.at >= pace.every_s:
            return True
        if written >= pace.written_bytes and written >= pace.written_share * replica.held_bytes:
            return True
        return now - walked.at >= pace.anyway_s

    # What

    async def walk(self, replica: Replica) -> bool:
        """Fold all of a replica. False: it was given up, and is tried again."""
        self.walking = replica.name
        begun = _Walked(replica.incarnation, self._loop.time(), replica.written_bytes)
        large: dict[bytes, list[LargePartition]] = {}
        try:
            cursor: bytes | None = FIRST_KEY
            while cursor is not None:
                layout = self._layout_of(replica.table)
                if layout is None or replica.closed:
                    return False
                cursor = await self._part(replica, layout, cursor, large)
                self.fold_hot(replica)
        except BadRow as error:
            # A newer layout than the one at hand, or damage that no checksum shows.
            self._complain(f"{replica.name} could not be folded: {error}")
            return False
        except (Corrupt, Refused):
            # Told by the replica itself, or it was closed, or is being copied.
            return False
        except StorageError as error:
            self._complain(f"{replica.name} could not be folded: {error}")
            return False
        finally:
            self.walking = ""
            self._walked[replica.name] = begun
        replica.large = large
        self.largest_partition_bytes = max(
            (each.bytes for one in self._replicas() for found in one.large.values() for each in found), default=0
        )
        self.walks += 1
        return True

    async def _part(
        self, replica: Replica, layout: RowLayout, low: bytes, large: dict[bytes, list[LargePartition]]
    ) -> bytes | None:
        """Fold from `low` on for a while; where to go on, or None at the end."""
        rule = self._rule_of(replica, layout)
        pace = self.pace
        end_at = self._loop.time() + pace.part_s
        pairs = _Part(replica.scan(low, None), layout, large, pace.partition_bytes, lambda: self._loop.time() >= end_at)
        batch: list[Folded] = []
        began = self._loop.time()
        for steps, folded in enumerate(fold_range(layout, pairs, rule), 1):
            if folded is not None:
                batch.append(folded)
            if steps % _LOOK_EVERY:
                continue
            if steps % pace.slice_steps == 0 or self._loop.time() - began >= pace.slice_s:
                self._rewrite(replica, batch)
                batch = []
                await asyncio.sleep(pace.look_every_s if self._busy() else pace.rest_s)
                began = self._loop.time()
        self._rewrite(replica, batch)
        return pairs.next_key

    def fold_hot(self, replica: Replica) -> None:
        """Fold rows that were found to be long: for a slice of time, and at least one."""
        if not replica.hot or replica.closed:
            return
        layout = self._layout_of(replica.table)
        if layout is None:
            return
        rule = self._rule_of(replica, layout)
        began = self._loop.time()
        try:
            for row_key in list(replica.hot):
                more = self._fold_one(replica, layout, rule, row_key)
                # Only now: folding reads it, and a row whose versions are young stays long.
                replica.hot.pop(row_key, None)
                if more:
                    replica.note_hot(row_key)
                if self._loop.time() - began >= self.pace.slice_s:
                    break
        except (BadRow, Corrupt, Refused, StorageError) as error:
            replica.hot.clear()
            self._complain(f"a row of {replica.name} could not be folded: {error}")

    def _fold_one(self, replica: Replica, layout: RowLayout, rule: FoldRule, row_key: bytes) -> bool:
        """Whether it has more versions than are folded at a time."""
        before: list[Pair] = []
        if layout.clustering:
            prefix = prefix_of(layout, row_key)
            if row_key < prefix + STATIC:
                return False  # deletions of a partition or of ranges: a walk folds those
            # Those that are left out cover less, that is all.
            before = list(islice(replica.scan(prefix, prefix + STATIC), _MOST_DELETIONS))
        versions = replica.get_row(row_key, _MOST_VERSIONS)
        more = len(versions) == _MOST_VERSIONS
        if more:
            # Older versions may have what the deletions among these cover.
            rule = replace(rule, forget_before_ms=0)
        folded = [each for each in fold_range(layout, versions, rule, before=before, complete=False) if each]
        self._rewrite(replica, folded)
        return more and bool(folded)

    def _rewrite(self, replica: Replica, batch: list[Folded]) -> None:
        if not batch:
            return
        deletes = [key for each in batch for key in each.deletes]
        puts = [part for each in batch for part in each.puts]
        if not replica.rewrite(deletes, puts, max(each.forgot_us for each in batch)):
            raise Refused("not_ready", f"the replica of {replica.title} is being copied, or was closed")
        self.rows += len(batch)
        self.removed += len(deletes) - len(puts) // 2


class _Part:
    """The pairs of a part of a walk: it ends where a partition does once `over` says so. Measures on the way."""

    def __init__(
        self,
        pairs: Iterator[Pair],
        layout: RowLayout,
        large: dict[bytes, list[LargePartition]],
        limit_bytes: int,
        over: Callable[[], bool],
    ) -> None:
        self.next_key: bytes | None = None
        self._pairs = pairs
        self._layout = layout
        self._large = large
        self._limit_bytes = limit_bytes
        self._over = over

    def __iter__(self) -> Iterator[Pair]:
        token, size, last = b"", 0, b""
        for pair in self._pairs:
            key = pair[0]
            if key[:8] != token:
                if size >= self._limit_bytes // _WATCH_FROM:
                    self._note(last, size)
                if token and self._over():
                    self.next_key = key
                    return
                token, size = key[:8], 0
            size += len(key) + len(pair[1])
            last = key
            yield pair
        if size >= self._limit_bytes // _WATCH_FROM:
            self._note(last, size)

    def _note(self, key: bytes, size: int) -> None:
        """Partitions that share a token, which hardly ever happens, are measured together and count for the last."""
        end = partition_end(self._layout, key)
        if end is not None and len(self._large) < _MAX_WATCHED:
            self._large[key[:8]] = [LargePartition(key[:end], size, self._limit_bytes)]
