"""The metastore's client: put, delete, invoke, get, range, watch, from any number of known members.

Requests go to the leader when it is known, else to any member, which sends them on. A request whose outcome is unknown
is tried again with the same command id, so that it happens once; reads are tried again freely; all of it within one
deadline. A watch goes on across members and restarts from the revision after the last one it gave.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import msgspec

from trimtab.client.errors import Error, InvalidRequest, Overloaded, Timeout, Unavailable
from trimtab.metastore import commands
from trimtab.metastore.command_ids import CommandIds
from trimtab.metastore.commands import Command
from trimtab.metastore.history import Change
from trimtab.metastore.layout import Entry
from trimtab.metastore.requests import (
    GET,
    INVOKE,
    MEMBERS,
    RANGE,
    STATUS,
    WATCH,
    GetRequest,
    MembersReply,
    MembersRequest,
    RangeReply,
    RangeRequest,
    StatusReply,
    WatchItem,
    WatchKind,
    WatchRequest,
    decode_get_reply,
    decode_leader_hint,
    decode_members_reply,
    decode_range_reply,
    decode_status,
    decode_watch_item,
    encode,
)
from trimtab.metastore.results import CompactResult, InvokeResult, decode_result, outcome
from trimtab.net.client import Channel
from trimtab.net.errors import (
    ConnectionLost,
    DeadlineExceeded,
    FrameTooLarge,
    NetError,
    NotConnected,
    RpcError,
)
from trimtab.net.errors import Overloaded as NetOverloaded
from trimtab.net.hello import Hello

DEFAULT_TIMEOUT_S = 10.0
_ATTEMPT_S = 2.0
_BACKOFF_FIRST_S = 0.01
_BACKOFF_MAX_S = 0.3
_WATCH_QUEUE = 10_000
# Worth another try: the cluster is between leaders, or short of room for a moment.
_OUTCOME_UNKNOWN = {"stopped", "leadership_lost", "no_answer", "stalled"}
_TRY_AGAIN = {"not_leader", "refused", "overwritten", "overloaded", "disk_full", *_OUTCOME_UNKNOWN}
_MAYBE_DONE = "an earlier attempt may have been carried out, this one was not"


class MetastoreClient:
    """A connection to a cluster's metastore. Make it with `await MetastoreClient.connect([...])`."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        rng: random.Random,
        wall_ms: Callable[[], int],
        tls: ssl.SSLContext | None,
        timeout_s: float,
        follow_leader: bool,
    ) -> None:
        self._rng = rng
        self._wall_ms = wall_ms
        self._tls = tls
        self._timeout_s = timeout_s
        self._follow_leader = follow_leader
        self._loop = asyncio.get_running_loop()
        self._ids = CommandIds(wall_ms, rng.randbytes)
        self._channels: dict[str, Channel] = {}
        self._leader: Channel | None = None
        self._turn = 0
        self._finding: asyncio.Task[None] | None = None
        self._last_failure = "no member has answered yet"
        for address in addresses:
            self._channel(address)

    @classmethod
    async def connect(
        cls,
        addresses: Sequence[str],
        *,
        rng: random.Random | None = None,
        wall_ms: Callable[[], int] | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        follow_leader: bool = True,
    ) -> MetastoreClient:
        """A client of the cluster that any of these addresses (HOST:PORT) belongs to; Unavailable if none answers.

        Without `follow_leader` only these addresses are ever asked: to see what one member has, and says of itself.
        """
        if not addresses:
            raise InvalidRequest("at least one address is needed: HOST:PORT of any member")
        client = cls(
            addresses,
            rng=rng or random.Random(random.SystemRandom().getrandbits(64)),
            wall_ms=wall_ms or (lambda: time.time_ns() // 1_000_000),
            tls=tls,
            timeout_s=timeout_s,
            follow_leader=follow_leader,
        )
        try:
            await client.find_leader()
        except BaseException:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        """Close all connections; watches end."""
        if self._finding is not None:
            self._finding.cancel()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._leader = None

    # Writing

    async def put(self, key: bytes, value: bytes, *, timeout_s: float | None = None) -> int:
        """Set a key; the revision that did it."""
        return (await self._execute(commands.put(key, value, id=self._ids.next()), timeout_s)).revision

    async def put_all(self, values: Mapping[bytes, bytes], *, timeout_s: float | None = None) -> int:
        """Set several keys in one revision."""
        return (await self._execute(commands.put_all(values, id=self._ids.next()), timeout_s)).revision

    async def delete(self, key: bytes, *, timeout_s: float | None = None) -> int:
        """Delete a key; the revision after it."""
        return (await self._execute(commands.delete(key, id=self._ids.next()), timeout_s)).revision

    async def invoke(self, command: Command, *, timeout_s: float | None = None) -> InvokeResult:
        """Run a conditional command, once: a command without an id gets one."""
        result = await self._execute(command, timeout_s)
        assert isinstance(result, InvokeResult)
        return result

    async def compact(self, revision: int, *, timeout_s: float | None = None) -> int:
        """Forget history below a revision; the revision it is compacted to."""
        result = await self._execute(commands.compact(revision, id=self._ids.next()), timeout_s)
        assert isinstance(result, CompactResult)
        return result.compacted_revision

    async def _execute(self, command: Command, timeout_s: float | None) -> InvokeResult | CompactResult:
        if not command.id:
            command = msgspec.structs.replace(command, id=self._ids.next())
        answer = await self._ask(INVOKE, commands.encode(command), timeout_s)
        return outcome(decode_result(answer))

    # Reading

    async def get(
        self, key: bytes, *, revision: int = 0, linearizable: bool = True, timeout_s: float | None = None
    ) -> Entry | None:
        """A key's entry, or None."""
        answer = await self._ask(GET, encode(GetRequest(key, revision, linearizable)), timeout_s)
        return decode_get_reply(answer).entry

    async def range(
        self,
        low: bytes,
        high: bytes | None,
        *,
        revision: int = 0,
        limit: int = 1_000,
        keys_only: bool = False,
        linearizable: bool = True,
        timeout_s: float | None = None,
    ) -> RangeReply:
        """A page of keys from `low` up to `high`; go on from its `next_key`, at its `revision`."""
        request = RangeRequest(low, high, revision, limit, keys_only, linearizable)
        return decode_range_reply(await self._ask(RANGE, encode(request), timeout_s))

    async def status(self, *, timeout_s: float | None = None) -> StatusReply:
        """How the asked member stands, and who leads as far as it knows."""
        return decode_status(await self._ask(STATUS, b"", timeout_s))

    async def change_members(self, request: MembersRequest, *, timeout_s: float | None = None) -> MembersReply:
        """Add, promote, demote or remove members, or hand leadership over."""
        return decode_members_reply(await self._ask(MEMBERS, encode(request), timeout_s))

    async def watch(
        self, low: bytes, *, kind: WatchKind = WatchKind.PREFIX, high: bytes | None = None, from_revision: int = 0
    ) -> AsyncIterator[WatchItem]:
        """Changes revision by revision, for ever; across members and reconnects without gap or repetition."""
        next_revision = from_revision
        backoff_s = _BACKOFF_FIRST_S
        while True:
            queue: deque[WatchItem] = deque()
            arrived = asyncio.Event()
            ended: list[NetError | None] = []

            def take(body: bytes, queue: deque[WatchItem] = queue, arrived: asyncio.Event = arrived) -> None:
                queue.append(decode_watch_item(body))
                arrived.set()

            def end(
                error: NetError | None, ended: list[NetError | None] = ended, arrived: asyncio.Event = arrived
            ) -> None:
                ended.append(error)
                arrived.set()

            try:
                channel = await self._wait_channel(self._loop.time() + self._timeout_s)
                cancel = channel.stream(WATCH, encode(WatchRequest(kind, low, high, next_revision)), take, end)
            except ConnectionLost:
                await asyncio.sleep(backoff_s)
                continue
            try:
                parts: list[Change] = []
                while not ended or queue:
                    while queue:
                        item = queue.popleft()
                        backoff_s = _BACKOFF_FIRST_S
                        parts += item.changes
                        if item.partial:
                            continue
                        next_revision = item.revision + 1
                        if parts:
                            yield WatchItem(item.revision, parts)
                            parts = []
                    if len(ended) == 0:
                        arrived.clear()
                        await arrived.wait()
                    if len(queue) > _WATCH_QUEUE:
                        break
            finally:
                cancel()
            error = ended[0] if ended else None
            if isinstance(error, RpcError) and error.code in ("compacted", "invalid"):
                raise InvalidRequest(error.text)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)

    # Getting through

    async def find_leader(self) -> None:
        """Ask any member who leads, and prefer that one from now on."""
        status = await self.status()
        if not self._follow_leader:
            return
        for member in status.members:
            if member.voter and member.address:
                self._channel(member.address)
        self._leader = self._channels.get(status.leader_address)

    def _look_for_leader(self) -> None:
        """After a failure another member answered: find out, beside the requests, who leads now."""
        if self._follow_leader and (self._finding is None or self._finding.done()):
            self._finding = asyncio.ensure_future(self._find_quietly())

    async def _find_quietly(self) -> None:
        try:
            await self.find_leader()
        except Error as error:
            self._last_failure = str(error)

    def _channel(self, address: str) -> Channel:
        if address not in self._channels:
            self._channels[address] = Channel(address, Hello(), self._rng, ssl=self._tls)
        return self._channels[address]

    def _pick(self) -> Channel | None:
        if self._leader is not None and self._leader.connected:
            return self._leader
        connected = [channel for channel in self._channels.values() if channel.connected]
        if not connected:
            return None
        self._turn += 1
        return connected[self._turn % len(connected)]

    async def _wait_channel(self, deadline: float) -> Channel:
        while (channel := self._pick()) is None:
            remaining_s = deadline - self._loop.time()
            if remaining_s <= 0 or not self._channels:
                raise NotConnected(self._last_failure)
            waiting = [
                asyncio.ensure_future(channel.wait_connected(remaining_s)) for channel in self._channels.values()
            ]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            # In the order of the channels, not of asyncio's sets: a simulated run must repeat itself.
            for task in waiting:
                if not task.done():
                    task.cancel()
                elif error := task.exception():
                    self._last_failure = str(error)
        return channel

    async def _ask(self, method: str, body: bytes, timeout_s: float | None) -> bytes:
        deadline = self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        backoff_s = _BACKOFF_FIRST_S
        sent = False
        while True:
            try:
                channel = self._pick() or await self._wait_channel(deadline)
                remaining_s = deadline - self._loop.time()
                if remaining_s <= 0:
                    raise NotConnected("the time was up before a member could be asked")
                answer = await channel.call(method, body, min(remaining_s, _ATTEMPT_S))
                if self._leader is None and method != STATUS:
                    self._look_for_leader()
                return answer
            except RpcError as error:
                if error.code not in _TRY_AGAIN:
                    raise _translated(error) from error
                sent = sent or error.code in _OUTCOME_UNKNOWN
                self._last_failure = error.text
                self._follow(error)
            except NotConnected as error:
                self._last_failure = str(error)
                self._leader = None
            except (ConnectionLost, DeadlineExceeded) as error:
                sent = True
                self._last_failure = str(error)
                self._leader = None
            except FrameTooLarge as error:
                raise InvalidRequest(str(error)) from error
            except NetOverloaded as error:
                raise (Timeout(f"{_MAYBE_DONE}: {error}") if sent else Overloaded(str(error))) from error
            remaining_s = deadline - self._loop.time()
            if remaining_s <= 0:
                kind = Timeout if sent else Unavailable
                raise kind(f"{method} got no answer in time; the last reason: {self._last_failure}")
            await asyncio.sleep(min(remaining_s, backoff_s * (0.5 + self._rng.random())))
            backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)

    def _follow(self, error: RpcError) -> None:
        self._leader = None
        if self._follow_leader and error.code == "not_leader" and error.details:
            hint = decode_leader_hint(error.details)
            if hint.address:
                self._leader = self._channel(hint.address)


def _translated(error: RpcError) -> Error:
    if error.code in ("invalid", "compacted", "future_revision", "unknown_method", "too_large"):
        return InvalidRequest(error.text)
    return Error(str(error))
