"""Getting through to a cluster: which member to ask, when to ask again, and what is known when it failed.

Requests go to the leader when it is known, else to any member, which sends them on. All attempts of one request share
one deadline. What may be tried again is tried again, at another member if need be, with growing pauses; whether an
earlier attempt may have been carried out is remembered, because only the certain may be called "not carried out".

Every client of a cluster stands on one `Contacts`, and clients may share one.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from trimtab.client.errors import Error, InvalidRequest, NotFound, Overloaded, SchemaError, Timeout, Unavailable
from trimtab.metastore.requests import STATUS, StatusReply, decode_leader_hint, decode_status
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
BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 0.3
# Enough to get through from, however large the cluster is.
MAX_LEARNED = 256
_ATTEMPT_S = 2.0
# Worth another try: the cluster is between leaders, or short of room for a moment.
_OUTCOME_UNKNOWN = {"stopped", "leadership_lost", "no_answer", "stalled"}
TRY_AGAIN = frozenset({"not_leader", "removed", "refused", "overwritten", "overloaded", "disk_full", *_OUTCOME_UNKNOWN})
# The request itself is at fault.
NOT_AGAIN = frozenset(
    {"invalid", "not_found", "conflict", "compacted", "future_revision", "unknown_method", "too_large"}
)
MAYBE_DONE = "an earlier attempt may have been carried out, this one was not"
_T = TypeVar("_T")


class Answer(NamedTuple):
    """What a member answered, and whether every attempt before is known to have done nothing."""

    body: bytes
    certain: bool


class Contacts:
    """The members that a client knows, and its connections to them."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        rng: random.Random,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        follow_leader: bool,
        try_again: frozenset[str] = TRY_AGAIN,
    ) -> None:
        if not addresses:
            raise InvalidRequest("at least one address is needed: HOST:PORT of any member")
        self.rng = rng
        self.timeout_s = timeout_s
        self.loop = asyncio.get_running_loop()
        self.last_failure = "no member has answered yet"
        self.closed = False
        self._tls = tls
        self._follow_leader = follow_leader
        self._try_again = try_again
        self._channels: dict[str, Channel] = {}
        self._leader: Channel | None = None
        self._turn = 0
        self._finding: asyncio.Task[None] | None = None
        for address in addresses:
            try:
                self._channel(address)
            except ValueError as error:
                self.close()
                raise InvalidRequest(str(error)) from error

    def close(self) -> None:
        """Close all connections; what is under way ends."""
        self.closed = True
        if self._finding is not None:
            self._finding.cancel()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        self._leader = None

    # Asking

    def deadline(self, timeout_s: float | None) -> float:
        return self.loop.time() + (self.timeout_s if timeout_s is None else timeout_s)

    async def ask(self, method: str, body: bytes, timeout_s: float | None) -> bytes:
        """A read's answer: asked again freely."""
        return (await self.ask_until(method, body, self.deadline(timeout_s))).body

    async def ask_until(self, method: str, body: bytes, deadline: float, *, writes: bool = False) -> Answer:
        """An answer, from whoever has one. `writes`: it changes something, so doubt about an attempt must be told."""
        backoff_s = BACKOFF_FIRST_S
        sent = False
        while True:
            try:
                channel = self._pick() or await self.wait_channel(deadline)
                remaining_s = deadline - self.loop.time()
                if remaining_s > 0:
                    answer = await channel.call(method, body, min(remaining_s, _ATTEMPT_S))
                    if self._leader is None and method != STATUS:
                        self._look_for_leader()
                    return Answer(answer, not sent)
            except RpcError as error:
                if error.code not in self._try_again:
                    if sent and writes:
                        raise Timeout(f"{MAYBE_DONE}: {error.text}") from error
                    raise translated(error) from error
                sent = sent or error.code in _OUTCOME_UNKNOWN
                self.last_failure = error.text
                self._follow(error)
            except NotConnected as error:
                self.last_failure = str(error)
                self._leader = None
            except (ConnectionLost, DeadlineExceeded) as error:
                sent = True
                self.last_failure = str(error)
                self._leader = None
            except FrameTooLarge as error:
                raise InvalidRequest(str(error)) from error
            except NetOverloaded as error:
                raise (Timeout(f"{MAYBE_DONE}: {error}") if sent else Overloaded(str(error))) from error
            remaining_s = deadline - self.loop.time()
            if remaining_s <= 0:
                raise self._out_of_time(sent, writes)
            await asyncio.sleep(min(remaining_s, backoff_s * (0.5 + self.rng.random())))
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    def _out_of_time(self, sent: bool, writes: bool) -> Error:
        if not sent:
            return Unavailable(
                f"no member could do it in time, and nothing was executed; the last reason: {self.last_failure}"
            )
        doubt = ", so it may or may not have been executed" if writes else ""
        return Timeout(f"no answer came in time{doubt}; the last reason: {self.last_failure}")

    async def ask_each(
        self, method: str, body: bytes, addresses: Sequence[str], timeout_s: float
    ) -> dict[str, bytes | NetError]:
        """What each of these members answers for itself, or why it does not; all are asked at once, each once."""

        async def ask_one(address: str) -> bytes | NetError:
            channel = self.learned(address)
            if channel is None:
                return NotConnected(self.last_failure)
            deadline = self.loop.time() + timeout_s
            # Whoever is asked by name may just have started; a pause after earlier failures would only hide that.
            channel.poke()
            try:
                await channel.wait_connected(timeout_s)
                return await channel.call(method, body, max(deadline - self.loop.time(), 0.001))
            except NetError as error:
                return error

        answers = await asyncio.gather(*(ask_one(address) for address in addresses))
        return dict(zip(addresses, answers, strict=True))

    # Whom to ask

    @property
    def addresses(self) -> list[str]:
        """All members known so far."""
        return list(self._channels)

    async def find_leader(self) -> None:
        """Ask any member who leads, and prefer that one from now on."""
        status = decoded(decode_status, await self.ask(STATUS, b"", None))
        if self._follow_leader:
            self._take_status(status)

    def _take_status(self, status: StatusReply) -> None:
        for member in status.members:
            if member.voter and member.address:
                self.learned(member.address)
        self._leader = self._channels.get(status.leader_address)

    def _look_for_leader(self) -> None:
        """After a failure another member answered: find out, beside the requests, who leads now."""
        if self._follow_leader and (self._finding is None or self._finding.done()):
            self._finding = asyncio.ensure_future(self._find_quietly())

    async def _find_quietly(self) -> None:
        try:
            await self.find_leader()
        except Error as error:
            self.last_failure = str(error)

    def _channel(self, address: str) -> Channel:
        if address not in self._channels:
            self._channels[address] = Channel(address, Hello(), self.rng, ssl=self._tls)
        return self._channels[address]

    def learned(self, address: str) -> Channel | None:
        """A channel to an address that a member named. One that makes no sense must not keep us from the others."""
        if address not in self._channels and len(self._channels) >= MAX_LEARNED:
            self.last_failure = f"{MAX_LEARNED} members are known already, so {address} was not added"
            return None
        try:
            return self._channel(address)
        except ValueError as error:
            self.last_failure = f"a member names an unusable address: {error}"
            return None

    def know(self, addresses: Sequence[str]) -> None:
        """Take note of members that a member named, so that there is somebody to ask when those at hand are gone."""
        if self._follow_leader:
            for address in addresses:
                self.learned(address)

    def distrust(self, channel: Channel, why: str) -> None:
        """A stream on this channel failed: ask another member next, if this one was thought to lead."""
        self.last_failure = why
        if self._leader is channel:
            self._leader = None

    def _follow(self, error: RpcError) -> None:
        self._leader = None
        if self._follow_leader and error.code == "not_leader" and error.details:
            hint = decode_leader_hint(error.details)
            if hint.address:
                self._leader = self.learned(hint.address)

    def _pick(self) -> Channel | None:
        if self._leader is not None and self._leader.connected:
            return self._leader
        connected = [channel for channel in self._channels.values() if channel.connected]
        if not connected:
            return None
        self._turn += 1
        return connected[self._turn % len(connected)]

    async def wait_channel(self, deadline: float) -> Channel:
        """A connected member; NotConnected, with the last reason, when there is none in time."""
        while (channel := self._pick()) is None:
            remaining_s = deadline - self.loop.time()
            if remaining_s <= 0 or not self._channels:
                raise NotConnected(self.last_failure)
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
                        self.last_failure = str(error)
        return channel


def translated(error: RpcError) -> Error:
    """A member's refusal as a client's error."""
    if error.code in ("schema", "not_found"):
        return (SchemaError if error.code == "schema" else NotFound)(error.text)
    return InvalidRequest(error.text) if error.code in NOT_AGAIN else Error(str(error))


def decoded(decode: Callable[[bytes], _T], answer: bytes) -> _T:
    """An answer taken apart; Error when it is of a shape this version does not know."""
    try:
        return decode(answer)
    except msgspec.DecodeError as error:
        raise Error(f"a member's answer can't be read: {error}; is it of another version?") from error
