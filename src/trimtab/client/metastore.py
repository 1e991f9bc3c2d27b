"""The metastore's client: put, delete, invoke, get, range, watch, from any number of known members.

Requests go to the leader when it is known, else to any member, which sends them on. A request whose outcome is unknown
is tried again with the same command id, so that it happens once; reads are tried again freely; all of it within one
deadline. A watch goes on across members and restarts from the revision after the last one it gave.

Everything it raises is an `Error` of this package, and says what is known about the outcome. "Not carried out" is only
said when every attempt is known to have failed.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from trimtab.client.errors import Error, Expired, InvalidRequest, Overloaded, Timeout, Unavailable
from trimtab.client.watch_stream import WatchStream
from trimtab.metastore import commands
from trimtab.metastore.command_ids import CommandIds
from trimtab.metastore.commands import Command
from trimtab.metastore.errors import InvalidCommand
from trimtab.metastore.history import Change
from trimtab.metastore.layout import Entry
from trimtab.metastore.requests import (
    GET,
    INVOKE,
    MEMBERS,
    RANGE,
    STATUS,
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
    encode,
)
from trimtab.metastore.results import CompactResult, Failed, FailureCode, InvokeResult, decode_result
from trimtab.net.client import Channel
from trimtab.net.errors import (
    ConnectionLost,
    DeadlineExceeded,
    FrameTooLarge,
    NotConnected,
    RpcError,
)
from trimtab.net.errors import Overloaded as NetOverloaded
from trimtab.net.hello import Hello

DEFAULT_TIMEOUT_S = 10.0
_ATTEMPT_S = 2.0
_BACKOFF_FIRST_S = 0.01
_BACKOFF_MAX_S = 0.3
_REISSUES = 2
# Worth another try: the cluster is between leaders, or short of room for a moment.
_OUTCOME_UNKNOWN = {"stopped", "leadership_lost", "no_answer", "stalled"}
_TRY_AGAIN = {"not_leader", "removed", "refused", "overwritten", "overloaded", "disk_full", *_OUTCOME_UNKNOWN}
# The request itself is at fault.
_NOT_AGAIN = {"invalid", "compacted", "future_revision", "unknown_method", "too_large"}
_WRITES = {INVOKE, MEMBERS}
_MAYBE_DONE = "an earlier attempt may have been carried out, this one was not"
_T = TypeVar("_T")


class _Answer(NamedTuple):
    """What a member answered, and whether every attempt before is known to have done nothing."""

    body: bytes
    certain: bool


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
        self._closed = False
        for address in addresses:
            try:
                self._channel(address)
            except ValueError as error:
                for channel in self._channels.values():
                    channel.close()
                raise InvalidRequest(str(error)) from error

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
        self._closed = True
        if self._finding is not None:
            self._finding.cancel()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._leader = None

    # Writing

    async def put(self, key: bytes, value: bytes, *, timeout_s: float | None = None) -> int:
        """Set a key; the revision that did it."""
        return (await self._execute(commands.put(key, value), timeout_s)).revision

    async def put_all(self, values: Mapping[bytes, bytes], *, timeout_s: float | None = None) -> int:
        """Set several keys in one revision."""
        return (await self._execute(commands.put_all(values), timeout_s)).revision

    async def delete(self, key: bytes, *, timeout_s: float | None = None) -> int:
        """Delete a key; the revision after it."""
        return (await self._execute(commands.delete(key), timeout_s)).revision

    async def invoke(self, command: Command, *, timeout_s: float | None = None) -> InvokeResult:
        """Run a conditional command, once: a command without an id gets one."""
        result = await self._execute(command, timeout_s)
        assert isinstance(result, InvokeResult)
        return result

    async def compact(self, revision: int, *, timeout_s: float | None = None) -> int:
        """Forget history below a revision; the revision it is compacted to."""
        result = await self._execute(commands.compact(revision), timeout_s)
        assert isinstance(result, CompactResult)
        return result.compacted_revision

    async def _execute(self, command: Command, timeout_s: float | None) -> InvokeResult | CompactResult:
        deadline = self._deadline(timeout_s)
        # An id that the caller brought may have been tried before, by whomever; only ours may be replaced by another.
        ours = not command.id
        for reissued in range(_REISSUES + 1):
            if ours:
                command = msgspec.structs.replace(command, id=self._ids.next())
            try:
                body = commands.encode(command)
            except InvalidCommand as error:
                raise InvalidRequest(str(error)) from error
            answer = await self._ask_until(INVOKE, body, deadline)
            result = _decoded(decode_result, answer.body)
            if not isinstance(result, Failed):
                return result
            if result.code is not FailureCode.EXPIRED:
                raise InvalidRequest(result.text) if answer.certain else Timeout(f"{_MAYBE_DONE}: {result.text}")
            # Our clock lags behind the cluster's time, which may itself be wrong; what counts is that it is one.
            self._ids.observe(result.time_ms)
            if not ours or not answer.certain:
                raise Expired(result.text)
            self._last_failure = f"after {reissued + 1} ids, each too old: {result.text}"
        raise Unavailable(f"the command was not executed {self._last_failure}")

    # Reading

    async def get(
        self, key: bytes, *, revision: int = 0, linearizable: bool = True, timeout_s: float | None = None
    ) -> Entry | None:
        """A key's entry, or None."""
        answer = await self._ask(GET, encode(GetRequest(key, revision, linearizable)), timeout_s)
        return _decoded(decode_get_reply, answer).entry

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
        return _decoded(decode_range_reply, await self._ask(RANGE, encode(request), timeout_s))

    async def status(self, *, timeout_s: float | None = None) -> StatusReply:
        """How the asked member stands, and who leads as far as it knows."""
        return _decoded(decode_status, await self._ask(STATUS, b"", timeout_s))

    async def change_members(self, request: MembersRequest, *, timeout_s: float | None = None) -> MembersReply:
        """Add, promote, demote or remove members, or hand leadership over. What is so already is a success."""
        return _decoded(decode_members_reply, await self._ask(MEMBERS, encode(request), timeout_s))

    async def watch(
        self,
        low: bytes,
        *,
        kind: WatchKind = WatchKind.PREFIX,
        high: bytes | None = None,
        from_revision: int = 0,
        patience_s: float | None = None,
    ) -> AsyncIterator[WatchItem]:
        """Changes revision by revision, until the client is closed; across members without gap or repetition.

        When no member can be reached it goes on trying: for ever, or for `patience_s`, and then raises Unavailable.
        InvalidRequest when compaction has overtaken it.
        """
        next_revision = from_revision
        backoff_s = _BACKOFF_FIRST_S
        reached_at = self._loop.time()
        while not self._closed:
            wait_s = self._timeout_s
            if patience_s is not None:
                wait_s = min(wait_s, reached_at + patience_s - self._loop.time())
                if wait_s <= 0:
                    raise Unavailable(f"no member served the watch for {patience_s:g} s: {self._last_failure}")
            try:
                channel = await self._wait_channel(self._loop.time() + wait_s)
                stream = WatchStream(channel, WatchRequest(kind, low, high, next_revision))
            except ConnectionLost as error:
                self._last_failure = str(error)
            except (FrameTooLarge, NetOverloaded) as error:
                raise (InvalidRequest if isinstance(error, FrameTooLarge) else Overloaded)(str(error)) from error
            else:
                # A revision that came in part is asked for again: `parts` do not outlive their stream.
                parts: list[Change] = []
                began_at = next_revision
                try:
                    while (item := await self._next_item(stream)) is not None:
                        parts += item.changes
                        if item.partial:
                            continue
                        next_revision = item.revision + 1
                        if parts:
                            changes, parts = parts, []
                            yield WatchItem(item.revision, changes)
                finally:
                    stream.close()
                if stream.heard:
                    reached_at = self._loop.time()
                if next_revision > began_at:
                    backoff_s = _BACKOFF_FIRST_S
                if stream.error is not None:
                    self._last_failure = str(stream.error)
                    if self._leader is channel:
                        self._leader = None
                    if isinstance(stream.error, RpcError) and stream.error.code in _NOT_AGAIN:
                        raise InvalidRequest(stream.error.text)
            await asyncio.sleep(backoff_s * (0.5 + self._rng.random()))
            backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)

    async def _next_item(self, stream: WatchStream) -> WatchItem | None:
        try:
            return await stream.next()
        except msgspec.DecodeError as error:
            raise Error(f"a member's watch can't be read: {error}; is it of another version?") from error

    # Getting through

    async def find_leader(self) -> None:
        """Ask any member who leads, and prefer that one from now on."""
        status = await self.status()
        if not self._follow_leader:
            return
        for member in status.members:
            if member.voter and member.address:
                self._learned(member.address)
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

    def _learned(self, address: str) -> Channel | None:
        """A channel to an address that a member named. One that makes no sense must not keep us from the others."""
        try:
            return self._channel(address)
        except ValueError as error:
            self._last_failure = f"a member names an unusable address: {error}"
            return None

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
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # In the order of the channels, not of asyncio's sets: a simulated run must repeat itself.
                for task in waiting:
                    if not task.done():
                        task.cancel()
                    elif error := task.exception():
                        self._last_failure = str(error)
        return channel

    def _deadline(self, timeout_s: float | None) -> float:
        return self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)

    async def _ask(self, method: str, body: bytes, timeout_s: float | None) -> bytes:
        return (await self._ask_until(method, body, self._deadline(timeout_s))).body

    async def _ask_until(self, method: str, body: bytes, deadline: float) -> _Answer:
        backoff_s = _BACKOFF_FIRST_S
        sent = False
        while True:
            try:
                channel = self._pick() or await self._wait_channel(deadline)
                remaining_s = deadline - self._loop.time()
                if remaining_s > 0:
                    answer = await channel.call(method, body, min(remaining_s, _ATTEMPT_S))
                    if self._leader is None and method != STATUS:
                        self._look_for_leader()
                    return _Answer(answer, not sent)
            except RpcError as error:
                if error.code not in _TRY_AGAIN:
                    if sent and method in _WRITES:
                        raise Timeout(f"{_MAYBE_DONE}: {error.text}") from error
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
                if sent:
                    raise Timeout(
                        "no answer came in time, so it may or may not have been executed; "
                        f"the last reason: {self._last_failure}"
                    )
                raise Unavailable(
                    f"no member could do it in time, and nothing was executed; the last reason: {self._last_failure}"
                )
            await asyncio.sleep(min(remaining_s, backoff_s * (0.5 + self._rng.random())))
            backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)

    def _follow(self, error: RpcError) -> None:
        self._leader = None
        if self._follow_leader and error.code == "not_leader" and error.details:
            hint = decode_leader_hint(error.details)
            if hint.address:
                self._leader = self._learned(hint.address)


def _translated(error: RpcError) -> Error:
    return InvalidRequest(error.text) if error.code in _NOT_AGAIN else Error(str(error))


def _decoded(decode: Callable[[bytes], _T], answer: bytes) -> _T:
    try:
        return decode(answer)
    except msgspec.DecodeError as error:
        raise Error(f"a member's answer can't be read: {error}; is it of another version?") from error
