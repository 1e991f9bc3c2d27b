"""Clients of loads: for whoever drives one, and for the tasks that stage its files or read snapshots.

Everything here may be asked again: a load and a snapshot have an id, sealing and committing say what is the case rather
than what to change. So where an answer is lost the same is asked again, of whoever leads then, until the deadline, and
doubt is never the caller's to resolve.

What concerns the replicas of one instance (`seal`, snapshots) is asked of that instance, by its raft id. Its address is
looked up anew when it can't be reached: it may have come back elsewhere.

`LoadClient` is for asyncio, `BlockingLoads` has the same names for threads, in Spark's drivers and tasks say.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from trimtab.catalog.catalog import Catalog
from trimtab.client.contact import BACKOFF_FIRST_S, BACKOFF_MAX_S, DEFAULT_TIMEOUT_S, TRY_AGAIN, decoded
from trimtab.client.database import Database
from trimtab.client.errors import Error, InvalidRequest, NotFound, Unavailable
from trimtab.client.loop_thread import LoopThread
from trimtab.client.members import Member
from trimtab.client.session import Session
from trimtab.loads import protocol
from trimtab.loads.protocol import (
    AbortRequest,
    BeginRequest,
    CommitRequest,
    LoadReply,
    LoadsReply,
    ReleaseSnapshot,
    RenewRequest,
    RenewSnapshot,
    RollbackReply,
    RollbackRequest,
    SealReply,
    SealRequest,
    ShowRequest,
    SnapshotReply,
    SnapshotRequest,
    TicketReply,
    TicketRequest,
    TicketsReply,
    TicketsRequest,
)
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.net.errors import FrameTooLarge, NetError, NotConnected, RpcError
from trimtab.tablets.tablet_map import TabletMap

SEAL_TIMEOUT_S = 120.0  # every file is looked at, and made durable
SNAPSHOT_TIMEOUT_S = 60.0  # a replica that is behind waits for the epoch
_ATTEMPT_S = 30.0
_CONNECT_S = 2.0
_WAIT_MS = 1_500  # of one question whether a load can be seen; less than what an attempt may take
_GRACE_S = 5.0
_HEAR_S = 2.0
_AT_ONCE = 32
_AGAIN_THERE = TRY_AGAIN | {"unknown_method", "starting", "not_ready", "no_lease"}
T = TypeVar("T")


class LoadRefused(Error):
    """A member says no. `code` is for programs; `missing`: with `moved`, raft ids of those who have yet to seal."""

    def __init__(self, text: str, code: str = "", missing: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.missing = tuple(missing)


class LoadClient:
    """On the connections of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._contacts = session.contacts

    @classmethod
    def on(cls, database: Database) -> LoadClient:
        """On the connections of a client of tables."""
        return cls(database._session)

    # The cluster, as loads need it

    async def refresh(self, timeout_s: float | None = None) -> None:
        """Look at the schema and the instances as they are now."""
        await self._session.refresh(self._contacts.deadline(timeout_s))

    @property
    def catalog(self) -> Catalog:
        return self._session.known.catalog

    @property
    def instances(self) -> Mapping[int, Member]:
        """All members by raft id, with their addresses and data centres."""
        return self._session.members.by_id

    def tablets(self, table: int) -> TabletMap:
        """Who has a replica of each tablet of a table, or gets one. NotFound: it is not known (any more)."""
        found = self._session.members.held(table)
        if found is None:
            raise NotFound(f"the tablets of table {table} are not known; was it dropped?")
        return found

    # The driver of a load

    async def begin(self, request: BeginRequest, *, timeout_s: float | None = None) -> LoadRecord:
        """A new load; the same id again is the same load. LoadRefused says what keeps it from being loaded."""
        return await self._load(protocol.BEGIN, request, timeout_s)

    async def renew(self, table: int, id: str, *, timeout_s: float | None = None) -> LoadRecord:
        """Say that the driver is there; the load as it stands: the leader may have ended it."""
        return await self._load(protocol.RENEW, RenewRequest(table, id), timeout_s)

    async def commit(self, request: CommitRequest, *, timeout_s: float | None = None) -> LoadRecord:
        """The point of no return. LoadRefused with the code `moved`: those in `missing` have yet to seal."""
        return await self._load(protocol.COMMIT, request, timeout_s)

    async def abort(self, table: int, id: str, reason: str = "", *, timeout_s: float | None = None) -> LoadRecord:
        """Give a load up. LoadRefused: it counts already."""
        return await self._load(protocol.ABORT, AbortRequest(table, id, reason), timeout_s)

    async def show(self, table: int = 0, id: str = "", *, timeout_s: float | None = None) -> LoadsReply:
        """Loads, in the order of beginning, and what can be seen of their tables."""
        return await self._show(ShowRequest(table, id), timeout_s)

    async def get(self, table: int, id: str, *, timeout_s: float | None = None) -> LoadRecord | None:
        """One load; None: there is none, or it ended long ago."""
        return next(iter((await self.show(table, id, timeout_s=timeout_s)).loads), None)

    async def visible(self, table: int, *, timeout_s: float | None = None) -> tuple[int, int]:
        """The newest epoch of a table that can be read, and the generation that is served."""
        return (await self.show(table, "-", timeout_s=timeout_s)).epochs.get(table, (0, 1))

    async def wait_ended(self, table: int, id: str, timeout_s: float) -> LoadRecord | None:
        """Wait until a load can be seen or has ended otherwise; as it is then, or when the time is up.

        If it can be seen, everybody who is up knows, as far as can be asked: whoever is read from next shows it.
        """
        deadline = self._contacts.deadline(timeout_s)
        while True:
            left_s = deadline - self._contacts.loop.time()
            wait_ms = max(min(_WAIT_MS, int(left_s * 1000)), 0)
            reply = await self._show(ShowRequest(table, id, wait_ms=wait_ms), None)
            found = next(iter(reply.loads), None)
            if found is None or found.state.final or self._contacts.loop.time() >= deadline:
                if found is not None and found.state is LoadState.PUBLISHED and not found.direct:
                    await self._let_all_hear(table, id)
                return found

    async def rollback(
        self, table: int, id: str, *, apply: bool = False, timeout_s: float | None = None
    ) -> RollbackReply:
        """What going back before this overwrite drops; with `apply` it is done."""
        answer = await self._ask(protocol.ROLLBACK, RollbackRequest(table, id, apply), timeout_s)
        reply: RollbackReply = decoded(protocol.decode_rollback_reply, answer)
        if reply.applied:
            await self._let_all_hear(table, id)
        return reply

    async def ticket(self, session: str, life_ms: int = 3_600_000, *, timeout_s: float | None = None) -> TicketReply:
        """Leave to stage files under an open session, on every instance, and where to."""
        answer = await self._ask(protocol.TICKET, TicketRequest(session, life_ms), timeout_s)
        reply: TicketReply = decoded(protocol.decode_ticket_reply, answer)
        return reply

    async def tickets(
        self, sessions: Sequence[str], life_ms: int = 3_600_000, *, timeout_s: float | None = None
    ) -> TicketsReply:
        """The same for many sessions; those that are not open have none."""
        answer = await self._ask(protocol.TICKETS, TicketsRequest(list(sessions), life_ms), timeout_s)
        reply: TicketsReply = decoded(protocol.decode_tickets_reply, answer)
        return reply

    # One instance

    async def seal(self, raft_id: int, request: SealRequest, *, timeout_s: float = SEAL_TIMEOUT_S) -> SealReply:
        """Let an instance confirm that it holds these files, durably; the answer names those it lacks."""
        answer = await self._ask_at(raft_id, protocol.SEAL, request, timeout_s)
        reply: SealReply = decoded(protocol.decode_seal_reply, answer)
        return reply

    async def snapshot(
        self, raft_id: int, request: SnapshotRequest, *, timeout_s: float = SNAPSHOT_TIMEOUT_S
    ) -> SnapshotReply:
        """Copies of an instance's replicas; they stay while they are renewed. Without a name it gets one here."""
        if not request.name:
            # So that an answer that was lost leaves no copy behind: asked again, it is the same one.
            request = msgspec.structs.replace(request, name=f"read-{self._contacts.rng.getrandbits(96):024x}")
        answer = await self._ask_at(raft_id, protocol.SNAPSHOT, request, timeout_s)
        reply: SnapshotReply = decoded(protocol.decode_snapshot_reply, answer)
        return reply

    async def renew_snapshot(
        self, raft_id: int, name: str, lease_ms: int = 60_000, *, timeout_s: float | None = None
    ) -> None:
        await self._ask_at(raft_id, protocol.SNAPSHOT_RENEW, RenewSnapshot(name, lease_ms), timeout_s)

    async def release_snapshot(self, raft_id: int, name: str, *, timeout_s: float | None = None) -> None:
        await self._ask_at(raft_id, protocol.SNAPSHOT_RELEASE, ReleaseSnapshot(name), timeout_s)

    # Asking

    async def _load(self, method: str, request: Any, timeout_s: float | None) -> LoadRecord:
        reply: LoadReply = decoded(protocol.decode_load_reply, await self._ask(method, request, timeout_s))
        return reply.load

    async def _show(self, request: ShowRequest, timeout_s: float | None) -> LoadsReply:
        reply: LoadsReply = decoded(protocol.decode_loads_reply, await self._ask(protocol.SHOW, request, timeout_s))
        return reply

    async def _ask(self, method: str, request: Any, timeout_s: float | None) -> bytes:
        try:
            return await self._contacts.ask(method, protocol.encode(request), timeout_s)
        except Error as error:
            if isinstance(error.__cause__, RpcError):
                raise _refusal(error.__cause__) from error.__cause__
            raise

    async def _ask_at(self, raft_id: int, method: str, request: Any, timeout_s: float | None) -> bytes:
        """Of one instance, until it answers or the time is up."""
        loop, body = self._contacts.loop, protocol.encode(request)
        deadline = self._contacts.deadline(timeout_s)
        backoff_s = BACKOFF_FIRST_S
        last = "it is not known to the cluster"
        while (left_s := deadline - loop.time()) > 0:
            member = self.instances.get(raft_id)
            channel = self._contacts.learned(member.address) if member is not None else None
            try:
                if channel is None:
                    raise NotConnected(last)
                channel.poke()
                await channel.wait_connected(min(left_s, _CONNECT_S))
                return await channel.call(method, body, max(min(deadline - loop.time(), _ATTEMPT_S), 0.001))
            except RpcError as error:
                if error.code not in _AGAIN_THERE:
                    raise _refusal(error) from error
                last = error.text
            except FrameTooLarge as error:
                raise InvalidRequest(str(error)) from error
            except NetError as error:
                last = await self._look_again(deadline, str(error))
            await asyncio.sleep(min(max(deadline - loop.time(), 0.0), backoff_s * (0.5 + self._contacts.rng.random())))
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)
        who = self.instances[raft_id].instance_id if raft_id in self.instances else f"instance {raft_id}"
        raise Unavailable(f"{who} does not answer {method} in time: {last}")

    async def _let_all_hear(self, table: int, id: str) -> None:
        """Returns when every instance that is up has applied how a load stands; who can't be reached is left out."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def hear(raft_id: int) -> None:
            async with turns:
                # It is down, or cut off; what it takes then is for others to confirm.
                with contextlib.suppress(Error):
                    await self._ask_at(raft_id, protocol.SHOW, ShowRequest(table, id), _HEAR_S)

        online = [raft_id for raft_id, member in self.instances.items() if member.online]
        await asyncio.gather(*map(hear, online))

    async def _look_again(self, deadline: float, last: str) -> str:
        """Where everybody is now; what to say if that can't be found out."""
        try:
            await self._session.refresh(deadline)
        except Error as error:
            return f"{last} ({error})"
        return last


def _refusal(error: RpcError) -> LoadRefused:
    missing: tuple[int, ...] = ()
    if error.code == "moved" and error.details:
        missing = decoded(protocol.decode_moved, error.details).missing
    return LoadRefused(error.text, error.code, missing)


class BlockingLoads:
    """The same for programs without a loop; any thread may use it. Close it, or use it in a `with`.

    Not across a fork: connect in the new process.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._thread = LoopThread()

        async def connect() -> LoadClient:
            self._thread.session = await Session.open(addresses, tls=tls, timeout_s=timeout_s)
            return LoadClient(self._thread.session)

        try:
            self._client = self._thread.call(connect, timeout_s + _GRACE_S)
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> BlockingLoads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.close()

    # The cluster

    def refresh(self) -> None:
        self._call(self._client.refresh)

    @property
    def catalog(self) -> Catalog:
        return self._client.catalog

    @property
    def instances(self) -> Mapping[int, Member]:
        return self._client.instances

    def tablets(self, table: int) -> TabletMap:
        return self._client.tablets(table)

    # Loads; as LoadClient has them

    def begin(self, request: BeginRequest) -> LoadRecord:
        return self._call(lambda: self._client.begin(request))

    def renew(self, table: int, id: str) -> LoadRecord:
        return self._call(lambda: self._client.renew(table, id))

    def commit(self, request: CommitRequest) -> LoadRecord:
        return self._call(lambda: self._client.commit(request))

    def abort(self, table: int, id: str, reason: str = "") -> LoadRecord:
        return self._call(lambda: self._client.abort(table, id, reason))

    def show(self, table: int = 0, id: str = "") -> LoadsReply:
        return self._call(lambda: self._client.show(table, id))

    def get(self, table: int, id: str) -> LoadRecord | None:
        return self._call(lambda: self._client.get(table, id))

    def visible(self, table: int) -> tuple[int, int]:
        return self._call(lambda: self._client.visible(table))

    def wait_ended(self, table: int, id: str, timeout_s: float) -> LoadRecord | None:
        return self._call(lambda: self._client.wait_ended(table, id, timeout_s), timeout_s + self._timeout_s)

    def rollback(self, table: int, id: str, *, apply: bool = False) -> RollbackReply:
        return self._call(lambda: self._client.rollback(table, id, apply=apply))

    def ticket(self, session: str, life_ms: int = 3_600_000) -> TicketReply:
        return self._call(lambda: self._client.ticket(session, life_ms))

    def tickets(self, sessions: Sequence[str], life_ms: int = 3_600_000) -> TicketsReply:
        return self._call(lambda: self._client.tickets(sessions, life_ms))

    def seal(self, raft_id: int, request: SealRequest, *, timeout_s: float = SEAL_TIMEOUT_S) -> SealReply:
        return self._call(lambda: self._client.seal(raft_id, request, timeout_s=timeout_s), timeout_s)

    def snapshot(
        self, raft_id: int, request: SnapshotRequest, *, timeout_s: float = SNAPSHOT_TIMEOUT_S
    ) -> SnapshotReply:
        return self._call(lambda: self._client.snapshot(raft_id, request, timeout_s=timeout_s), timeout_s)

    def renew_snapshot(self, raft_id: int, name: str, lease_ms: int = 60_000) -> None:
        self._call(lambda: self._client.renew_snapshot(raft_id, name, lease_ms))

    def release_snapshot(self, raft_id: int, name: str) -> None:
        self._call(lambda: self._client.release_snapshot(raft_id, name))

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float | None = None) -> T:
        return self._thread.call(work, (self._timeout_s if timeout_s is None else timeout_s) + _GRACE_S)
