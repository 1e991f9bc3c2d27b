"""The operator's client: how the cluster stands, what happened in it, and requests to change it.

Looking is free and asked again at will. A request to change something is created on the leader; where an attempt's
outcome is unknown it is asked again, which is safe: an equal request that is under way is the same request. When such
an attempt is then refused (say, because the instance has left meanwhile), the error says that it may have been done.

A view can be had without a majority (`linearizable=False`), and from every member apart (`survey`): that is what is
left to look at when there is no leader.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Sequence

from trimtab.client.contact import DEFAULT_TIMEOUT_S, TRY_AGAIN, Contacts, decoded
from trimtab.client.errors import InvalidRequest
from trimtab.client.jobs import JobClient
from trimtab.client.metastore import MetastoreClient
from trimtab.client.moves import MoveClient
from trimtab.loads import protocol as loads
from trimtab.loads.protocol import LimitReply, LimitRequest
from trimtab.net.errors import NetError, RpcError
from trimtab.topology import protocol
from trimtab.topology.protocol import (
    CancelRequest,
    CreateRequest,
    Level,
    ProbeReply,
    ProbeRequest,
    RequestReply,
    ViewReply,
    ViewRequest,
)
from trimtab.topology.records import EVENTS, EventRecord, RequestKind, RequestRecord, decode_event, number_of

EVENTS_PAGE = 500
_POLL_S = 0.2
# A member that is still starting knows few methods yet; another may, and it will.
_TRY_AGAIN = TRY_AGAIN | {"unknown_method", "starting"}

Event = tuple[int, EventRecord]


class ClusterClient:
    """A connection to a cluster. Make it with `await ClusterClient.connect([...])`."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts
        self.metastore = MetastoreClient(contacts)
        self.jobs = JobClient(contacts)
        self.moves = MoveClient(contacts)

    @classmethod
    async def connect(
        cls,
        addresses: Sequence[str],
        *,
        rng: random.Random | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        follow_leader: bool = True,
    ) -> ClusterClient:
        """A client of the cluster that any of these addresses (HOST:PORT) belongs to; Unavailable if none answers."""
        client = cls.unconnected(addresses, rng=rng, tls=tls, timeout_s=timeout_s, follow_leader=follow_leader)
        try:
            await client.find_leader()
        except BaseException:
            await client.close()
            raise
        return client

    @classmethod
    def unconnected(
        cls,
        addresses: Sequence[str],
        *,
        rng: random.Random | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        follow_leader: bool = True,
    ) -> ClusterClient:
        """A client that does not wait until somebody answers: for members that are only starting."""
        return cls(
            Contacts(
                addresses,
                rng=rng or random.Random(random.SystemRandom().getrandbits(64)),
                tls=tls,
                timeout_s=timeout_s,
                follow_leader=follow_leader,
                try_again=_TRY_AGAIN,
            )
        )

    async def close(self) -> None:
        """Close all connections; streams end."""
        self._contacts.close()

    @property
    def addresses(self) -> list[str]:
        """The members known so far."""
        return self._contacts.addresses

    @property
    def last_failure(self) -> str:
        """Why the last attempt that failed did."""
        return self._contacts.last_failure

    async def find_leader(self) -> None:
        """Ask any member who leads, and prefer that one from now on; Unavailable if none answers."""
        await self._contacts.find_leader()

    # Looking

    async def view(
        self,
        *,
        linearizable: bool = True,
        events_after: int = -1,
        events_limit: int = EVENTS_PAGE,
        timeout_s: float | None = None,
    ) -> ViewReply:
        """The cluster as it is now; without `linearizable`, as whoever answers last heard of it."""
        body = protocol.encode(ViewRequest(linearizable, events_after, events_limit))
        reply = decoded(protocol.decode_view_reply, await self._contacts.ask(protocol.VIEW, body, timeout_s))
        self._contacts.know([each.record.address for each in reply.instances if each.voter])
        return reply

    async def survey(self, addresses: Sequence[str], *, timeout_s: float) -> dict[str, ViewReply | str]:
        """What each of these members sees, asked for itself, or why it does not answer."""
        body = protocol.encode(ViewRequest(linearizable=False))
        answers = await self._contacts.ask_each(protocol.VIEW, body, addresses, timeout_s)
        found: dict[str, ViewReply | str] = {}
        for address, answer in answers.items():
            if isinstance(answer, NetError):
                found[address] = answer.text if isinstance(answer, RpcError) else str(answer)
            else:
                found[address] = decoded(protocol.decode_view_reply, answer)
        return found

    async def probe(
        self, target: int = 0, level: Level = Level.QUORUM, *, timeout_s: float | None = None
    ) -> ProbeReply:
        """Send a request without data to an instance, by way of whoever is asked. Error when it was not served."""
        body = protocol.encode(ProbeRequest(target, level))
        return decoded(protocol.decode_probe_reply, await self._contacts.ask(protocol.PROBE, body, timeout_s))

    # Events

    async def events(self, *, limit: int, linearizable: bool = True, timeout_s: float | None = None) -> list[Event]:
        """The newest events, oldest first."""
        last = (await self.view(linearizable=linearizable, timeout_s=timeout_s)).last_event
        found: list[Event] = []
        after = max(last - limit, 0)
        while after < last:
            reply = await self.view(
                linearizable=linearizable, events_after=after, events_limit=EVENTS_PAGE, timeout_s=timeout_s
            )
            page = [event for event in reply.events if event[0] > after]
            if not page:
                break
            found += page
            after = page[-1][0]
        return found[-limit:]

    async def follow_events(self, after: int) -> AsyncIterator[Event]:
        """Every event after the one of that number, then those that happen, until the client is closed."""
        while True:
            reply = await self.view(events_after=after)
            for number, event in reply.events:
                yield number, event
            if not reply.events or reply.events[-1][0] >= reply.last_event:
                break
            after = reply.events[-1][0]
        async for item in self.metastore.watch(EVENTS, from_revision=reply.revision + 1):
            for change in item.changes:
                # The oldest are deleted as new ones come; that is no news.
                if change.new is not None:
                    yield number_of(change.key, EVENTS), decode_event(change.new.value)

    # Changing

    async def create(
        self,
        kind: RequestKind,
        instance_id: str = "",
        *,
        expel: bool = False,
        drain: bool = False,
        deadline_ms: int = 0,
        ignore: Sequence[str] = (),
        source: str = "",
        timeout_s: float | None = None,
    ) -> RequestReply:
        """Ask for a change of the topology; the request as it was written. InvalidRequest: it makes no sense."""
        asked = CreateRequest(kind, instance_id, expel, drain, deadline_ms, list(ignore), source)
        return await self._write(protocol.CREATE, protocol.encode(asked), timeout_s)

    async def cancel(self, number: int, reason: str = "", *, timeout_s: float | None = None) -> RequestReply:
        """Ask for a request to be cancelled; the request as it is now."""
        return await self._write(protocol.CANCEL, protocol.encode(CancelRequest(number, reason)), timeout_s)

    async def limit(self, rate_bytes_s: int | None = None, *, timeout_s: float | None = None) -> LimitReply:
        """The limit of all bulk transfers, after it was set (0: none) if a rate is given. InvalidRequest: too small."""
        body = loads.encode(LimitRequest(-1 if rate_bytes_s is None else rate_bytes_s))
        deadline = self._contacts.deadline(timeout_s)
        answer = await self._contacts.ask_until(loads.LIMIT, body, deadline, writes=rate_bytes_s is not None)
        reply: LimitReply = decoded(loads.decode_limit_reply, answer.body)
        return reply

    async def _write(self, method: str, body: bytes, timeout_s: float | None) -> RequestReply:
        deadline = self._contacts.deadline(timeout_s)
        answer = await self._contacts.ask_until(method, body, deadline, writes=True)
        return decoded(protocol.decode_request_reply, answer.body)

    async def wait(self, number: int, seen: Callable[[RequestRecord, ViewReply], None] | None = None) -> RequestRecord:
        """Wait for a request's end, however long it takes; `seen` is told each state of it and of the cluster.

        Bounded by the cluster alone: it goes on while somebody answers, and raises Unavailable or Timeout when nobody
        has for the client's timeout. Leaving the wait does not touch the request.
        """
        while True:
            view = await self.view()
            record = dict(view.requests).get(number)
            if record is None:
                raise InvalidRequest(f"there is no task {number}; `trimtab tasks list` shows those there are")
            if seen is not None:
                seen(record, view)
            if record.state.final:
                return record
            await asyncio.sleep(_POLL_S)
