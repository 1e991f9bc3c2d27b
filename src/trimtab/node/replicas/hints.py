"""Hints: writes that a replica did not acknowledge, kept by their coordinator until it does.

    n <target u32> <number u64>    a hint: when it began (u64 ms), and the ReplicaWrite        number from 1
    n <target u32> 0               the target's mark: "missed since", and nothing is known of what it missed
    n 0 0                          this life may have promised hints that are not written: there was no clean end yet
    n 0 1                          the instances whose being gone this one has taken into account (see `catching_up`)

They lie in the node log's store and are synced with everything else that waits. Nobody waits for that, except for a
write at level ANY (`stored`): a coordinator that ends uncleanly may lose hints, and writes whose outcome it had not
heard yet. Therefore its next life marks every other member (`n 0 0` was still there), and members that are marked are
repaired, when they return or at their leisure.

Bounds: bytes and number per target, and age. What goes beyond drops all hints of the target into its mark: from then on
they would not spare it the repair. While it is marked and away, no more is kept for it.

Hints are pushed in order, in the background, one parcel at a time to each target that is connected and takes writes,
and removed when the target has synced them. Those of a table that was dropped, and those for an instance that left, are
removed.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol

import msgspec

from trimtab.net.errors import NetError, RpcError
from trimtab.node.background import defect_of
from trimtab.rows import protocol
from trimtab.rows.protocol import Failed, ReplicaWrite, ReplicaWrites, WriteKind
from trimtab.storage.mutation_log import Records
from trimtab.tablets.missed import Mark

PREFIX = b"n"
_KEY = struct.Struct(">IQ")
_BEGAN = struct.Struct(">Q")
_MAX_TARGET = (1 << 32) - 1
_OWN = 0  # no instance has this raft id
_DIRTY, _GONE, _NOTHING = 0, 1, 2

PUSH_BYTES = 256 << 10
PUSH_WRITES = 1_000
PUSH_TIMEOUT_S = 5.0
_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 5.0
_LOOK_AGAIN_S = 2.0
# Refusals that no retry changes: the table or the place of the replica is gone, or the hint is too old to be taken.
_POINTLESS = frozenset(("not_found", "not_here"))
_REFUSED_FOR_GOOD = frozenset(("too_late", "invalid", "too_large"))

Stored = Callable[[bool], None]

_encode_hint = msgspec.msgpack.Encoder().encode
_decode_hint = msgspec.msgpack.Decoder(ReplicaWrite).decode
_decode_mark = msgspec.msgpack.Decoder(Mark).decode
_decode_gone = msgspec.msgpack.Decoder(dict[int, int]).decode


class Surroundings(Protocol):
    """What hints have to know of this instance and of the others."""

    def wall_ms(self) -> int: ...

    def is_member(self, raft_id: int) -> bool: ...

    def takes_writes(self, raft_id: int) -> bool:
        """Whether it is connected, and may take writes as far as the topology tells."""
        ...

    def settled(self) -> bool:
        """Whether this instance knows the topology and the catalog of now."""
        ...

    def has_table(self, table: int) -> bool: ...

    def versions(self) -> tuple[int, int]:
        """Of the topology and of the catalog, for the parcels."""
        ...

    def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> Awaitable[bytes]: ...


@dataclass(frozen=True)
class HintBounds:
    """Per target; and for how long a hint lives."""

    bytes: int = 64 << 20
    count: int = 200_000
    life_ms: int = 10_800_000


@dataclass
class _Queue:
    """Of one target: hints `first <= number < next`, with gaps. `began_ms` is that of about the oldest."""

    first: int = 1
    next: int = 1
    count: int = 0
    bytes: int = 0
    began_ms: int = 0
    mark: Mark | None = None
    pushing: asyncio.Task[None] | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Hints:
    """All hints of one coordinator. `life` differs from life to life: a mark of an earlier one is another mark."""

    def __init__(
        self,
        records: Records,
        around: Surroundings,
        bounds: HintBounds,
        *,
        life: int,
        story: Callable[[str], None],
        defect: Callable[[BaseException], None],
    ) -> None:
        self._records = records
        self._around = around
        self._bounds = bounds
        self._life = life
        self._story = story
        self._defect = defect
        self._loop = asyncio.get_running_loop()
        self._queues: dict[int, _Queue] = {}
        self._emptied: dict[asyncio.Future[None], tuple[int, int]] = {}  # who waits until a target's first is past that
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.own = 0  # the raft id of this instance, for which no hints are kept
        self.own_missed: Callable[[int, int], None] = lambda _table, _tablet: None
        self._unclean_since: int | None = None  # set as long as it is not certain who else is a member
        self._marked_anew: set[int] = set()
        self.opened = False
        self.known_gone: dict[int, int] = {}
        self.added = 0
        self.pushed = 0
        self.dropped = 0

    # Life

    def open(self, others: Iterable[int]) -> bool:
        """Read what an earlier life left; whether it had ended uncleanly, so that others are marked now.

        Those are `others`, and whoever else turns out to be a member (`know_others`): at a start this instance may not
        have applied yet all that it had applied before.
        """
        self._unclean_since = self._load()
        unclean = self._unclean_since is not None
        if unclean:
            self._mark_anew(others)
            if self._marked_anew:
                self._story("this instance had not ended in an orderly way; what it owed others is marked as missed")
        self._records.put(_key(_OWN, _DIRTY), _BEGAN.pack(self._around.wall_ms()), essential=True)
        self.opened = True
        return unclean

    def know_others(self, others: Iterable[int]) -> None:
        """These are all members there are, for certain."""
        self._mark_anew(others)
        self._unclean_since = None

    def _mark_anew(self, targets: Iterable[int]) -> None:
        if self._unclean_since is None:
            return
        for target in sorted(set(targets) - self._marked_anew):
            self._marked_anew.add(target)
            self._miss(target, self._unclean_since)

    def start(self) -> None:
        """Push, from now on."""
        for target in list(self._queues):
            self._push_soon(target)
        self._timer = self._loop.call_later(_LOOK_AGAIN_S, self._look_again)

    async def sync(self) -> None:
        """Returns when everything that was put before is durable; raises what the sync failed with."""
        done: asyncio.Future[None] = self._loop.create_future()

        def synced(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        # There is no such key: its deletion is only there to be told when everything before it is durable.
        self._records.delete(_key(_OWN, _NOTHING), synced)
        await done

    async def close(self, *, clean: bool) -> None:
        """Push no more. `clean`: nothing is owed to anybody that is not a hint here; that is written down."""
        self.stop()
        if not clean or self._unclean_since is not None:
            return
        for target, queue in self._queues.items():
            if queue.mark is not None:
                self._records.put(_key(target, 0), msgspec.msgpack.encode(queue.mark), essential=True)
        # First the hints, then the word that they are all there is.
        await self.sync()
        self._records.delete(_key(_OWN, _DIRTY))
        await self.sync()

    def stop(self) -> None:
        """Push no more, at once."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for queue in self._queues.values():
            if queue.pushing is not None:
                queue.pushing.cancel()
        for future in self._emptied:
            future.cancel()

    def _load(self) -> int | None:
        """The time since which an earlier life had not ended cleanly; None: it had, or there was none."""
        unclean_since: int | None = None
        for key, value in self._records.scan():
            target, number = _KEY.unpack(key)
            if target == _OWN:
                if number == _DIRTY:
                    unclean_since = _BEGAN.unpack(value)[0]
                elif number == _GONE:
                    self.known_gone = _decode_gone(value)
                continue
            queue = self._queues.setdefault(target, _Queue())
            if not number:
                queue.mark = _decode_mark(value)
                continue
            if not queue.count:
                queue.first, queue.began_ms = number, _BEGAN.unpack_from(value)[0]
            queue.next = number + 1
            queue.count += 1
            queue.bytes += len(value)
        return unclean_since

    # Adding

    def add(self, target: int, write: ReplicaWrite, stored: Stored | None = None) -> None:
        """Keep a write for a replica that did not acknowledge it.

        `stored`, where it is given, is told once whether the hint is durable; never from within the call.
        """
        if target == self.own:
            self.own_missed(write.table, write.tablet)
        if self._closed or target == self.own or not self._around.is_member(target) or not 0 < target <= _MAX_TARGET:
            if stored is not None:
                self._loop.call_soon(stored, False)
            return
        queue = self._queues.setdefault(target, _Queue())
        if stored is None and queue.mark is not None and not self._around.takes_writes(target):
            # It will be repaired anyway. Only the mark has to know, for a repair that may be under way.
            queue.mark = queue.mark.with_more(write.written_ms)
            self.dropped += 1
            return
        value = _BEGAN.pack(write.written_ms) + _encode_hint(write)
        if queue.count >= self._bounds.count or queue.bytes + len(value) > self._bounds.bytes:
            if stored is not None:
                self._loop.call_soon(stored, False)
            kept = f"{queue.count} hints of {queue.bytes} bytes"
            self._story(f"instance {target} was away for too long: {kept} are dropped, it will have to be repaired")
            self._drop_all(target, queue)
            self._miss(target, write.written_ms)
            self.dropped += 1
            return
        number = queue.next
        if not queue.count:
            queue.first, queue.began_ms = number, write.written_ms
        queue.next += 1
        queue.count += 1
        queue.bytes += len(value)
        self.added += 1
        self._records.put(
            _key(target, number), value, partial(self._put, target, queue, len(value), write.written_ms, stored)
        )
        self._push_soon(target)

    def _put(
        self,
        target: int,
        queue: _Queue,
        bytes_: int,
        written_ms: int,
        stored: Stored | None,
        error: BaseException | None,
    ) -> None:
        """A hint is durable; or it was refused, because the disk is full or the instance stops."""
        if error is not None and self._queues.get(target) is queue:
            queue.count -= 1
            queue.bytes -= bytes_
            self.dropped += 1
            self._miss(target, written_ms)
            self._look_at_first(target, queue)
        if stored is not None:
            stored(error is None)

    def _miss(self, target: int, since_ms: int) -> None:
        """Write down that a target missed something that nobody keeps for it."""
        queue = self._queues.setdefault(target, _Queue())
        queue.mark = queue.mark.with_more(since_ms) if queue.mark is not None else Mark(since_ms)
        self._records.put(_key(target, 0), msgspec.msgpack.encode(queue.mark), essential=True)

    def _drop_all(self, target: int, queue: _Queue) -> None:
        if queue.count:
            self.dropped += queue.count
            self._miss(target, queue.began_ms)
        self._records.delete_range(_key(target, queue.first), _key(target, queue.next))
        queue.first, queue.count, queue.bytes, queue.began_ms = queue.next, 0, 0, 0
        self._tell_emptied()

    # Looking

    def held_for(self, target: int) -> tuple[int, int]:
        """How many hints there are for a target, and their bytes."""
        queue = self._queues.get(target)
        return (queue.count, queue.bytes) if queue is not None else (0, 0)

    def mark_of(self, target: int) -> tuple[int, tuple[int, int]]:
        """Since when a target has missed something that is not here (0: nothing), and the name of that mark."""
        self._mark_anew((target,))
        queue = self._queues.get(target)
        if queue is None or queue.mark is None:
            return 0, (0, 0)
        return max(queue.mark.since_ms, 1), (self._life, queue.mark.number)

    def marked(self) -> list[int]:
        """The targets that have a mark."""
        return [target for target, queue in self._queues.items() if queue.mark is not None]

    def oldest_ms(self) -> int | None:
        """About when the oldest hint began, whoever it is for; None: there is none."""
        return min((queue.began_ms for queue in self._queues.values() if queue.count), default=None)

    @property
    def held_count(self) -> int:
        return sum(queue.count for queue in self._queues.values())

    @property
    def held_bytes(self) -> int:
        return sum(queue.bytes for queue in self._queues.values())

    async def emptied(self, target: int, timeout_s: float) -> None:
        """Returns when all hints that there are now for a target have gone, or when the time is over."""
        queue = self._queues.get(target)
        if queue is None or not queue.count:
            return
        self.wake(target)
        gone: asyncio.Future[None] = self._loop.create_future()
        self._emptied[gone] = (target, queue.next)
        try:
            await asyncio.wait((gone,), timeout=timeout_s)
        finally:
            del self._emptied[gone]

    def _tell_emptied(self) -> None:
        for future, (target, number) in self._emptied.items():
            queue = self._queues.get(target)
            if not future.done() and (queue is None or not queue.count or queue.first >= number):
                future.set_result(None)

    # Clearing

    def clear_mark(self, target: int, name: tuple[int, int]) -> bool:
        """A target was repaired: its mark goes, unless more was missed since it was told the name."""
        queue = self._queues.get(target)
        if queue is None or queue.mark is None:
            return True
        if (self._life, queue.mark.number) != name:
            return False
        queue.mark = None
        self._records.delete(_key(target, 0))
        return True

    def forget(self, target: int) -> None:
        """An instance left: whatever was kept for it goes."""
        queue = self._queues.pop(target, None)
        if queue is None:
            return
        if queue.pushing is not None:
            queue.pushing.cancel()
        self._records.delete_range(_key(target, 0), _key(target + 1, 0))
        self._tell_emptied()

    def note_gone(self, gone: Mapping[int, int]) -> None:
        """Write down who is gone, by the incarnation of its last life, and has been taken into account."""
        if gone != self.known_gone:
            self.known_gone = dict(gone)
            self._records.put(_key(_OWN, _GONE), msgspec.msgpack.encode(self.known_gone), essential=True)

    # Pushing

    def wake(self, target: int) -> None:
        """Something about a target changed: it may take writes now."""
        if (queue := self._queues.get(target)) is not None:
            queue.news.set()
            self._push_soon(target)

    def _push_soon(self, target: int) -> None:
        queue = self._queues[target]
        if queue.pushing is None and queue.count and not self._closed:
            queue.pushing = self._loop.create_task(self._push_all(target, queue), name=f"hints for {target}")
            queue.pushing.add_done_callback(lambda task: self._ended(queue, task))

    def _ended(self, queue: _Queue, task: asyncio.Task[None]) -> None:
        queue.pushing = None
        if (error := defect_of(task)) is not None:
            self._defect(error)

    def _look_again(self) -> None:
        self._timer = self._loop.call_later(_LOOK_AGAIN_S, self._look_again)
        for target, queue in list(self._queues.items()):
            if not self._around.is_member(target):
                if self._around.settled():
                    self.forget(target)
            elif queue.count and queue.began_ms < self._around.wall_ms() - self._bounds.life_ms:
                self._drop_old(target, queue)

    def _drop_old(self, target: int, queue: _Queue) -> None:
        """So many at a time: the loop has other things to do."""
        if self._closed or self._queues.get(target) is not queue:
            return
        old: list[int] = []
        limit_ms = self._around.wall_ms() - self._bounds.life_ms
        for key, value in islice(self._read(target, queue), PUSH_WRITES):
            if (began_ms := _BEGAN.unpack_from(value)[0]) >= limit_ms:
                break
            self._remove(queue, key, value)
            old.append(began_ms)
        self._drop(target, old)
        self._look_at_first(target, queue)
        if len(old) == PUSH_WRITES:
            self._loop.call_later(_FIRST_BACKOFF_S, self._drop_old, target, queue)

    def _drop(self, target: int, began_ms: list[int]) -> None:
        """These got too old: the mark has to do."""
        if began_ms:
            self.dropped += len(began_ms)
            self._miss(target, min(began_ms))
            text = f"{len(began_ms)} hints for instance {target} got too old and are dropped"
            self._story(f"{text}; it will have to be repaired")

    async def _push_all(self, target: int, queue: _Queue) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while queue.count:
            queue.news.clear()
            if not (self._around.settled() and self._around.takes_writes(target)):
                await self._news(queue, _LOOK_AGAIN_S)
            elif await self._push(target, queue):
                backoff_s = _FIRST_BACKOFF_S
            else:
                await self._news(queue, backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _news(self, queue: _Queue, timeout_s: float) -> None:
        waiting = self._loop.create_task(queue.news.wait())
        try:
            await asyncio.wait((waiting,), timeout=timeout_s)
        finally:
            waiting.cancel()

    async def _push(self, target: int, queue: _Queue) -> bool:
        """One parcel; whether anything of it went."""
        parcel = self._next_parcel(target, queue)
        if not parcel:
            return True
        topology, catalog = self._around.versions()
        writes = [write for _, _, write in parcel]
        body = protocol.encode(ReplicaWrites(topology, catalog, writes))
        try:
            answer = await self._around.ask(target, protocol.REPLICA_WRITE, body, PUSH_TIMEOUT_S)
            results = protocol.decode_replica_written(answer).results
        except (NetError, msgspec.DecodeError) as error:
            if not (isinstance(error, RpcError) and error.code in _REFUSED_FOR_GOOD and len(parcel) == 1):
                return False
            results = [Failed(error.code, error.text)]
        went = 0
        for (key, value, write), result in zip(parcel, results, strict=False):
            if result is not None and result.code in _REFUSED_FOR_GOOD:
                self._story(f"a hint for instance {target} was refused ({result.text}); it will have to be repaired")
                self._miss(target, write.written_ms)
                self.dropped += 1
            elif result is not None and result.code not in _POINTLESS:
                continue
            self._remove(queue, key, value)
            went += 1
        self.pushed += went
        self._look_at_first(target, queue)
        return went > 0

    def _next_parcel(self, target: int, queue: _Queue) -> list[tuple[bytes, bytes, ReplicaWrite]]:
        parcel: list[tuple[bytes, bytes, ReplicaWrite]] = []
        old: list[int] = []
        bytes_, limit_ms = 0, self._around.wall_ms() - self._bounds.life_ms
        # What goes without being sent is bounded too: reading it takes time.
        for looked, (key, value) in enumerate(self._read(target, queue)):
            if parcel and bytes_ + len(value) > PUSH_BYTES:
                break
            began_ms = _BEGAN.unpack_from(value)[0]
            write = msgspec.structs.replace(_decode_hint(memoryview(value)[_BEGAN.size :]), kind=WriteKind.HINT)
            if not self._around.has_table(write.table):
                self._remove(queue, key, value)
            elif began_ms < limit_ms:
                self._remove(queue, key, value)
                old.append(began_ms)
            else:
                parcel.append((key, value, write))
                bytes_ += len(value)
            if looked + 1 >= PUSH_WRITES:
                break
        self._drop(target, old)
        self._look_at_first(target, queue)
        return parcel

    def _read(self, target: int, queue: _Queue) -> Iterator[tuple[bytes, bytes]]:
        return self._records.scan(_key(target, queue.first), _key(target, queue.next))

    def _remove(self, queue: _Queue, key: bytes, value: bytes) -> None:
        if _KEY.unpack(key)[1] < queue.first:
            return  # all were dropped while this one was on its way
        self._records.delete(key)
        queue.count -= 1
        queue.bytes -= len(value)

    def _look_at_first(self, target: int, queue: _Queue) -> None:
        """After some were removed: which is the first now?"""
        found = next(iter(self._read(target, queue)), None) if queue.count else None
        if found is None:
            queue.first, queue.count, queue.bytes = queue.next, 0, 0
        else:
            queue.first, queue.began_ms = _KEY.unpack(found[0])[1], _BEGAN.unpack_from(found[1])[0]
        self._tell_emptied()


def _key(target: int, number: int) -> bytes:
    return _KEY.pack(target, number)
