"""One client of a cluster, on one event loop: its connections, what it knows of the schema, its requests under way.

The asyncio client and the blocking one both stand on a Session; it is not for applications. The schema is looked at
when the client connects, whenever a member says that ours is not the current one or a request does not fit it, and
every REFRESH_S while requests are made, because replicas move and instances come and go. A client's copy is only a
hint: members decide.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from trimtab.catalog.catalog import Catalog
from trimtab.client.asks import Ask, Reply
from trimtab.client.contact import DEFAULT_TIMEOUT_S, TRY_AGAIN, Contacts, decoded
from trimtab.client.dispatch import MAX_IN_FLIGHT, MAX_WAITING, Dispatcher
from trimtab.client.errors import Error, InvalidRequest, Timeout, Unavailable
from trimtab.client.known import Known
from trimtab.client.members import Members
from trimtab.client.moves import MoveClient
from trimtab.client.stamps import Stamps
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeReply, ChangeRequest, SchemaReply, SchemaRequest
from trimtab.tablets import sizes
from trimtab.tablets.moves_shown import MovesShown
from trimtab.tablets.sizes import SizesReply, SizesRequest

REFRESH_S = 5.0
# The schema is looked at because requests don't fit it: so often at once, and once more after each LOOK_S.
LOOKS = 5
LOOK_S = 0.25
_LOOK_WAIT_S = 2.0
CHANGE_TIMEOUT_S = 60.0  # a change of the schema waits for every instance
_SETTLE_S = 0.02
_SIZES_S = 2.0
_TRY_AGAIN = TRY_AGAIN | {"unknown_method", "starting", "not_ready"}

T = TypeVar("T")


class Session:
    """Made on the loop that it runs on, by `open`."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        rng: random.Random | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        datacenter: str | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.timeout_s = timeout_s
        self.loop = asyncio.get_running_loop()
        self.stamps = Stamps()
        self._rng = rng or random.Random(random.SystemRandom().getrandbits(64))
        self._datacenter = datacenter
        self.contacts = Contacts(
            addresses, rng=self._rng, tls=tls, timeout_s=timeout_s, follow_leader=True, try_again=_TRY_AGAIN
        )
        self.members = Members(self.contacts.learned, datacenter, addresses)
        self._versions = (0, 0)
        self._placed = 0
        self._refreshing: asyncio.Task[Known] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._asked = False
        self._refreshes = 0  # that were begun
        self._looks = float(LOOKS)  # that may be made because of what does not fit
        self._looks_at = self.loop.time()  # when they were counted
        self.dispatcher = Dispatcher(
            self.members,
            Known(Catalog()),
            refresh=self.refresh,
            look=self.look,
            reach=self._reach,
            rng=self._rng,
            max_in_flight=max_in_flight,
            max_waiting=max_waiting,
        )

    @classmethod
    async def open(cls, addresses: Sequence[str], **options: Any) -> Session:
        """Connected, with the schema at hand; Unavailable if no member answers."""
        session = cls(addresses, **options)
        try:
            await session.refresh(session.loop.time() + session.timeout_s)
            session.check_datacenter()
        except BaseException:
            await session.close()
            raise
        session._watch = session.loop.create_task(session._keep_fresh())
        return session

    async def close(self) -> None:
        """What is under way ends with an Error."""
        self.dispatcher.close()
        for task in (self._watch, self._refreshing):
            if task is not None:
                task.cancel()
        self.contacts.close()
        # The connections' ends are told in this turn; whoever waits should hear of them before the loop is gone.
        await asyncio.sleep(0)

    @property
    def known(self) -> Known:
        return self.dispatcher.known

    # Requests

    def start(self, ask: Ask[T]) -> Reply[T]:
        """Send a request; what to await."""
        reply: Reply[T] = Reply(loop=self.loop)
        ask.sink = reply
        self._asked = True
        self.dispatcher.start(ask)
        return reply

    def submit(self, ask: Ask[Any]) -> None:
        """Send a request that has its sink already."""
        self._asked = True
        self.dispatcher.start(ask)

    async def _reach(self, deadline: float) -> None:
        await self.contacts.wait_channel(deadline)

    # The schema

    async def refresh(self, deadline: float) -> Known:
        """The schema and the members as they are now. All who ask at the same time share one question."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshes += 1
            self._refreshing = self.loop.create_task(self._refresh(deadline))
            return await asyncio.shield(self._refreshing)
        try:
            return await asyncio.wait_for(asyncio.shield(self._refreshing), max(deadline - self.loop.time(), 0))
        except TimeoutError:
            raise Timeout(f"no member tells the schema in time: {self.contacts.last_failure}") from None

    async def look(self, known: Known, deadline: float) -> bool:
        """Whether there is news since `known`, which something does not fit: it may be older than what it is of.

        A look that began before we were asked may have missed the news; one that began since has not. What is simply
        wrong must not keep the cluster busy, so there are only so many looks, which all who ask share.
        """
        self._asked = True
        until, begun = min(deadline, self.loop.time() + _LOOK_WAIT_S), self._refreshes
        # If it can't be looked, what does not fit is told, not that nobody could be asked.
        if self.known.version == known.version and self._is_refreshing():
            with suppress(Error):
                await self.refresh(until)
        old = self.known.version == known.version
        # Others who waited with us may have begun a look by now.
        if old and (self._is_refreshing() or (self._refreshes == begun and self._may_look())):
            with suppress(Error):
                await self.refresh(until)
        return self.known.version != known.version

    def _is_refreshing(self) -> bool:
        return self._refreshing is not None and not self._refreshing.done()

    def _may_look(self) -> bool:
        now = self.loop.time()
        self._looks = min(self._looks + (now - self._looks_at) / LOOK_S, LOOKS)
        self._looks_at = now
        if self._looks < 1:
            return False
        self._looks -= 1
        return True

    async def _refresh(self, deadline: float) -> Known:
        body = protocol.encode(SchemaRequest(self._versions, self._placed))
        answer = await self.contacts.ask(protocol.SCHEMA, body, max(deadline - self.loop.time(), 0.001))
        self._take(decoded(protocol.decode_schema_reply, answer))
        return self.known

    def _take(self, reply: SchemaReply) -> None:
        catalog_version, topology_version = self._versions
        try:
            # A member that is behind must not take us back; what it gets from us waits there until it is not.
            if reply.catalog and reply.catalog_version >= catalog_version:
                catalog = Catalog.from_snapshot(reply.catalog)
                self.members.take_tablets(reply.tablets, reply.held, reply.reading)
                self.dispatcher.known = Known(catalog)
                catalog_version = catalog.version
                self._placed = reply.placed
            elif reply.tablets and reply.placed > self._placed:
                self.members.take_moved(reply.tablets, reply.held, reply.reading)
                self._placed = reply.placed
            if reply.instances and reply.topology_version >= topology_version:
                self.members.take_instances(reply.instances)
                topology_version = reply.topology_version
        except ValueError as error:
            raise Error(f"a member's schema can't be read: {error}; is it of another version?") from error
        self._versions = catalog_version, topology_version

    async def sizes(self, table: int) -> dict[tuple[int, int], int]:
        """Bytes of the tablets of a table, or of all (0), as far as they are known to a leader that can be asked."""
        found: dict[tuple[int, int], int] = {}
        start: tuple[int, int] | None = (0, 0)
        while start is not None:
            body = sizes.encode(SizesRequest(table, start))
            try:
                answer = await self.contacts.ask(sizes.SIZES, body, min(self.timeout_s, _SIZES_S))
            except (Timeout, Unavailable):
                # Where tablets are is known without a leader; how large they are is not.
                break
            reply: SizesReply = decoded(sizes.decode_reply, answer)
            found |= sizes.by_place(reply)
            start = reply.next if reply.next is None or reply.next > start else None
        return found

    async def moves(self, table: int) -> MovesShown:
        """The tablets under way of a table, or of all (0); as somebody knows them, where no leader tells."""
        client = MoveClient(self.contacts)
        try:
            return await client.known(table, timeout_s=min(self.timeout_s, _SIZES_S))
        except (Timeout, Unavailable, InvalidRequest):
            return MovesShown()

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S * (0.5 + self._rng.random()))
            if not self._asked:
                continue
            self._asked = False
            try:
                await self.refresh(self.loop.time() + self.timeout_s)
            except Error:
                # Requests say what is wrong when they fail; this one is only to be ahead of them.
                continue

    def check_datacenter(self) -> None:
        known = self.members.datacenters()
        if self._datacenter is not None and known and self._datacenter not in known:
            raise InvalidRequest(f"there is no data centre '{self._datacenter}'; there are {', '.join(known)}")

    async def change(self, command: bytes, timeout_s: float | None) -> ChangeReply:
        """Change the schema, and know it changed. The id makes it happen once, however often it is asked."""
        deadline = self.loop.time() + (CHANGE_TIMEOUT_S if timeout_s is None else timeout_s)
        request = ChangeRequest(command, self._rng.randbytes(16).hex())
        answer = await self.contacts.ask_until(protocol.CHANGE, protocol.encode(request), deadline, writes=True)
        reply: ChangeReply = decoded(protocol.decode_change_reply, answer.body)
        while self.known.version < reply.catalog_version:
            await self.refresh(deadline)
            if self.known.version >= reply.catalog_version:
                break
            if self.loop.time() >= deadline:
                raise Unavailable(
                    f"the schema is changed (version {reply.catalog_version}), but no member tells it yet"
                )
            await asyncio.sleep(_SETTLE_S)
        return reply
