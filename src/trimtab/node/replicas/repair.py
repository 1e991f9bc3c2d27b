"""Repair: a replica takes from another one what it does not have; and lets itself be asked for the same.

Both merge their rows as a read would (`rows.comparing`) and compare digests of ranges of tokens: 64 ranges at
first, those that differ 16 times finer, until few enough rows are left to be taken as they are. Equal replicas exchange
a few kilobytes; an empty one asks for everything. What was taken is logged and synced like any write. Everything may be
done twice or be left half done: rows are pairs that are put, in whatever order.

One page at a time is taken, in the order of keys. A partition's and a range's deletion come before the rows that they
delete, so nothing comes back in between. A page that was asked for longer ago than a hint lives is thrown away, however
that came about (a machine that slept): the deletion of what is in it may be forgotten by now (see `tablets.missed`).

Being asked: from RaftSynced on, because replicas that catch up after a full restart have only each other. A replica
that is being rebuilt does not answer, for it does not have what it once acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from trimtab.net.errors import NetError
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.errors import GroupError
from trimtab.node.replicas.walking import MAX_PAIRS_PER_REQUEST, Walk
from trimtab.node.waits import WaitedTooLong
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.errors import BadRow
from trimtab.rows.repair_protocol import DigestsReply, DigestsRequest, PageReply, PageRequest
from trimtab.storage.port import StorageError
from trimtab.tablets.missed import compare, cut_range

FIRST_PARTS = 64
FINER_PARTS = 16
FEW_PAIRS = 1_000
PAGE_BYTES = 128 << 10
MAX_PAGE_BYTES = 512 << 10
_TIMEOUT_S = 20.0
# So finely a range of 2^64 tokens can be cut in the end; a comparison that goes on for longer is a defect.
_MAX_DEPTH = 17
_FAILURES = (Refused, NetError, GroupError, WaitedTooLong, msgspec.DecodeError, StorageError, BadRow)


class RepairFailed(Exception):
    """A replica could not be repaired from another one now; the text says why. It may be tried again."""


class Subject(Protocol):
    """A replica of this instance, as repair sees it. `low` and `high` are the ends of its keys."""

    @property
    def table(self) -> int: ...

    @property
    def tablet(self) -> int: ...

    @property
    def generation(self) -> int: ...

    @property
    def adopted(self) -> int:
        """The epoch up to which it has taken over loads."""
        ...

    @property
    def needs(self) -> int:
        """It lacks loads up to this epoch, so only who has these can repair it; 0: it lacks none."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def low(self) -> bytes: ...

    @property
    def high(self) -> bytes: ...

    @property
    def repaired_through_ms(self) -> int:
        """Deletions from before are on every replica, or forgotten."""
        ...

    @property
    def gone(self) -> bool:
        """Whether it was closed: the table was dropped, or it was damaged and another one is in its place."""
        ...

    @property
    def answers(self) -> bool:
        """Whether it has everything that it acknowledged: it is not being rebuilt."""
        ...

    def walk(self, forget_ms: int, *, gentle: bool) -> Walk: ...

    async def put(self, pairs: list[bytes]) -> None:
        """Returns when they are synced and applied."""
        ...

    async def mended(self) -> None:
        """It has been repaired against enough others: returns when it is durable that it has the loads it lacked."""
        ...


@dataclass
class Taken:
    """What repairs have done since the start of the instance."""

    comparisons: int = 0
    ranges: int = 0
    pages: int = 0
    pairs: int = 0
    bytes: int = 0


class Repair:
    """Repairs replicas of this instance from those of others, one peer at a time.

    `known` returns when this instance knows of the loads of a table up to an epoch.
    """

    def __init__(
        self,
        ask: Callable[[int, str, bytes, float], Awaitable[bytes]],
        *,
        catalog: Callable[[], int],
        wall_ms: Callable[[], int],
        hint_life_ms: int,
        known: Callable[[int, int], Awaitable[None]] | None = None,
    ) -> None:
        self._ask = ask
        self._known = known
        self._catalog = catalog
        self._wall_ms = wall_ms
        self._hint_life_ms = hint_life_ms
        self.taken = Taken()

    async def against(self, subject: Subject, peer: int, *, gentle: bool = False) -> None:
        """Returns when the replica has everything that the peer had when this began; RepairFailed: it has not."""
        try:
            await self._against(subject, peer, gentle)
        except _FAILURES as error:
            raise RepairFailed(str(error) or type(error).__name__) from error

    async def _against(self, subject: Subject, peer: int, gentle: bool) -> None:
        forget_ms = subject.repaired_through_ms
        self.taken.comparisons += 1
        work = deque([(subject.low, subject.high, 0)])
        while work:
            low, high, depth = work.popleft()
            if depth > _MAX_DEPTH:
                raise RepairFailed(f"the ranges of {subject.name} can't be cut any finer; this is a defect")
            cuts = cut_range(low, high, FINER_PARTS if depth else FIRST_PARTS)
            while len(cuts) > 1:
                theirs = await self._digests(subject, peer, cuts, forget_ms, gentle)
                done = len(theirs.digests)
                self.taken.ranges += done
                if any(theirs.digests):
                    mine = await subject.walk(forget_ms, gentle=gentle).digests(cuts[: done + 1])
                    found = compare(cuts, mine, theirs.digests, theirs.pairs, FEW_PAIRS)
                    for each in found.take:
                        await self._take(subject, peer, *each, forget_ms, gentle)
                    work.extend((*each, depth + 1) for each in found.closer)
                cuts = cuts[done:]

    async def _digests(
        self, subject: Subject, peer: int, cuts: list[bytes], forget_ms: int, gentle: bool
    ) -> DigestsReply:
        request = DigestsRequest(
            subject.table, subject.tablet, self._catalog(), cuts, forget_ms, gentle, subject.generation
        )
        answer = await self._ask(peer, protocol.DIGESTS, protocol.encode(request), _TIMEOUT_S)
        reply: DigestsReply = protocol.decode_digests_reply(answer)
        if not 0 < len(reply.digests) < len(cuts) or len(reply.pairs) != len(reply.digests):
            raise RepairFailed(f"{len(reply.digests)} digests came for {len(cuts) - 1} ranges")
        if reply.adopted < subject.needs:
            raise RepairFailed(f"it has loads up to epoch {reply.adopted} only, and {subject.needs} is needed")
        return reply

    async def _take(self, subject: Subject, peer: int, low: bytes, high: bytes, forget_ms: int, gentle: bool) -> None:
        while True:
            asked_ms = self._wall_ms()
            request = PageRequest(
                subject.table,
                subject.tablet,
                self._catalog(),
                low,
                high,
                forget_ms,
                PAGE_BYTES,
                gentle,
                subject.generation,
            )
            answer = await self._ask(peer, protocol.PAGE, protocol.encode(request), _TIMEOUT_S)
            page: PageReply = protocol.decode_page_reply(answer)
            if not 0 <= self._wall_ms() - asked_ms < self._hint_life_ms:
                raise RepairFailed("a page took longer than a hint lives; what is in it may have been deleted since")
            self.taken.pages += 1
            if page.committed and self._known is not None:
                await self._known(subject.table, page.committed)
            if page.pairs:
                pairs = await subject.walk(forget_ms, gentle=gentle).lacking(page.pairs)
                if pairs:
                    await subject.put(pairs)
                self.taken.pairs += len(pairs) // 2
                self.taken.bytes += sum(map(len, pairs))
            if not page.next:
                return
            if page.next <= low:
                raise RepairFailed("the pages of the peer don't go on")
            low = page.next


class RepairService:
    """Answers repair.digests and repair.page for one instance.

    `find` gives a replica that is open here, of a generation (0: the one served), or raises Refused; `synced` says
    whether this instance is RaftSynced in the life it lives; `committed`: the newest epoch of a table that it knows of.
    """

    def __init__(
        self,
        find: Callable[[int, int, int], Subject],
        *,
        synced: Callable[[], bool],
        catalog: Callable[[], int],
        committed: Callable[[int], int] = lambda _table: 0,
        at_once: int = 2,
    ) -> None:
        self._find = find
        self._synced = synced
        self._catalog = catalog
        self._committed = committed
        # Walking over rows is work for the one loop there is.
        self._turns = asyncio.Semaphore(at_once)

    def methods(self) -> dict[str, Method]:
        return {protocol.DIGESTS: self.digests, protocol.PAGE: self.page}

    async def digests(self, asked: Asked) -> bytes:
        request: DigestsRequest = protocol.decode_digests(asked.body)
        if len(request.cuts) < 2 or any(a >= b for a, b in zip(request.cuts, request.cuts[1:-1], strict=False)):
            raise Refused("invalid", "ranges to compare must ascend, and there must be one")
        subject = self._subject(request.table, request.tablet, request.catalog, request.generation)
        # From before it is read: what is taken over meanwhile may be in it or not.
        adopted = subject.adopted
        async with self._turns:
            walk = subject.walk(request.forget_ms, gentle=request.gentle)
            digests, pairs = await walk.first_digests(request.cuts, MAX_PAIRS_PER_REQUEST)
        return protocol.encode(DigestsReply(digests, pairs, adopted))

    async def page(self, asked: Asked) -> bytes:
        request: PageRequest = protocol.decode_page(asked.body)
        subject = self._subject(request.table, request.tablet, request.catalog, request.generation)
        async with self._turns:
            limit_bytes = min(request.limit_bytes, MAX_PAGE_BYTES)
            walk = subject.walk(request.forget_ms, gentle=request.gentle)
            pairs, following = await walk.page(request.low, request.high, limit_bytes)
        return protocol.encode(PageReply(pairs, following, self._committed(request.table)))

    def _subject(self, table: int, tablet: int, catalog: int, generation: int) -> Subject:
        if not self._synced():
            raise Refused("not_ready", "this instance does not know the cluster's state yet; ask again")
        if catalog != self._catalog():
            text = f"the schema is at version {self._catalog()} here and at {catalog} there; ask again when they agree"
            raise Refused("version_mismatch", text)
        subject = self._find(table, tablet, generation)
        if not subject.answers:
            raise Refused("rebuilding", f"{subject.name} is being rebuilt here and can't repair others")
        return subject
