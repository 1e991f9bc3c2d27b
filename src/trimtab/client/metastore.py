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

import msgspec

from trimtab.client.contact import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    DEFAULT_TIMEOUT_S,
    MAYBE_DONE,
    NOT_AGAIN,
    Contacts,
    decoded,
)
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
    decode_members_reply,
    decode_range_reply,
    decode_status,
    encode,
)
from trimtab.metastore.results import CompactResult, Failed, FailureCode, InvokeResult, decode_result
from trimtab.net.errors import ConnectionLost, FrameTooLarge, RpcError
from trimtab.net.errors import Overloaded as NetOverloaded

_REISSUES = 2


class MetastoreClient:
    """A connection to a cluster's metastore. Make it with `await MetastoreClient.connect([...])`."""

    def __init__(self, contacts: Contacts, wall_ms: Callable[[], int] | None = None) -> None:
        self._contacts = contacts
        self._ids = CommandIds(wall_ms or (lambda: time.time_ns() // 1_000_000), contacts.rng.randbytes)

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
        contacts = Contacts(
            addresses,
            rng=rng or random.Random(random.SystemRandom().getrandbits(64)),
            tls=tls,
            timeout_s=timeout_s,
            follow_leader=follow_leader,
        )
        client = cls(contacts, wall_ms)
        try:
            await contacts.find_leader()
        except BaseException:
            await client.close()
            raise
        return client

    async def close(self) -> None:
        """Close all connections; watches end."""
        self._contacts.close()

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
        deadline = self._contacts.deadline(timeout_s)
        # An id that the caller brought may have been tried before, by whomever; only ours may be replaced by another.
        ours = not command.id
        failure = ""
        for reissued in range(_REISSUES + 1):
            if ours:
                command = msgspec.structs.replace(command, id=self._ids.next())
            try:
                body = commands.encode(command)
            except InvalidCommand as error:
                raise InvalidRequest(str(error)) from error
            answer = await self._contacts.ask_until(INVOKE, body, deadline, writes=True)
            result = decoded(decode_result, answer.body)
            if not isinstance(result, Failed):
                return result
            if result.code is not FailureCode.EXPIRED:
                raise InvalidRequest(result.text) if answer.certain else Timeout(f"{MAYBE_DONE}: {result.text}")
            # Our clock lags behind the cluster's time, which may itself be wrong; what counts is that it is one.
            self._ids.observe(result.time_ms)
            if not ours or not answer.certain:
                raise Expired(result.text)
            failure = f"after {reissued + 1} ids, each too old: {result.text}"
        raise Unavailable(f"the command was not executed {failure}")

    # Reading

    async def get(
        self, key: bytes, *, revision: int = 0, linearizable: bool = True, timeout_s: float | None = None
    ) -> Entry | None:
        """A key's entry, or None."""
        answer = await self._contacts.ask(GET, encode(GetRequest(key, revision, linearizable)), timeout_s)
        return decoded(decode_get_reply, answer).entry

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
        return decoded(decode_range_reply, await self._contacts.ask(RANGE, encode(request), timeout_s))

    async def status(self, *, timeout_s: float | None = None) -> StatusReply:
        """How the asked member stands, and who leads as far as it knows."""
        return decoded(decode_status, await self._contacts.ask(STATUS, b"", timeout_s))

    async def change_members(self, request: MembersRequest, *, timeout_s: float | None = None) -> MembersReply:
        """Add, promote, demote or remove members, or hand leadership over. What is so already is a success."""
        deadline = self._contacts.deadline(timeout_s)
        answer = await self._contacts.ask_until(MEMBERS, encode(request), deadline, writes=True)
        return decoded(decode_members_reply, answer.body)

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
        contacts, loop = self._contacts, self._contacts.loop
        next_revision = from_revision
        backoff_s = BACKOFF_FIRST_S
        reached_at = loop.time()
        while not contacts.closed:
            wait_s = contacts.timeout_s
            if patience_s is not None:
                wait_s = min(wait_s, reached_at + patience_s - loop.time())
                if wait_s <= 0:
                    raise Unavailable(f"no member served the watch for {patience_s:g} s: {contacts.last_failure}")
            try:
                channel = await contacts.wait_channel(loop.time() + wait_s)
                stream = WatchStream(channel, WatchRequest(kind, low, high, next_revision))
            except ConnectionLost as error:
                contacts.last_failure = str(error)
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
                    reached_at = loop.time()
                if next_revision > began_at:
                    backoff_s = BACKOFF_FIRST_S
                if stream.error is not None:
                    contacts.distrust(channel, str(stream.error))
                    if isinstance(stream.error, RpcError) and stream.error.code in NOT_AGAIN:
                        raise InvalidRequest(stream.error.text)
            await asyncio.sleep(backoff_s * (0.5 + contacts.rng.random()))
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    async def _next_item(self, stream: WatchStream) -> WatchItem | None:
        try:
            return await stream.next()
        except msgspec.DecodeError as error:
            raise Error(f"a member's watch can't be read: {error}; is it of another version?") from error
