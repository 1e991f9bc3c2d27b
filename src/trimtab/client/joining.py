"""Puts of a moment as one request: those of one turn of the loop that the same member can coordinate.

An application that has many puts under way, each awaited by itself, makes them in clusters, because the answers before
them came together. Sent one by one, each costs a frame, a turn of the executor, a write of a replica and an answer;
together they cost little more than one. They stay puts of their own: the rows of each tablet are answered for
themselves, and where one row may be the reason for a refusal, or a tablet takes long, its puts go on alone.

Rows of a request have one stamp, so two puts of the same row would be merged cell by cell: the later one goes later.

Nothing waits for company: what is alone at the end of its turn goes alone, and so does a put while nothing else is
under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trimtab.client.writes import Put
from trimtab.net.errors import NetError

if TYPE_CHECKING:
    from trimtab.client.dispatch import Dispatcher
    from trimtab.client.members import Member

MAX_ROWS = 64
MAX_BYTES = 64 * 1024  # with so many rows a few milliseconds of a member's loop
LOST_SHARE = 0.1  # of its time a put may lose, because others have less left
MAX_OPEN = 64  # requests of a kind; where tablets are spread more widely, what is left goes alone


class Joint:
    """Puts that a member is to get, or has, as one request. The connection tells it the answer."""

    __slots__ = ("_dispatcher", "bytes", "deadline", "member", "puts")

    def __init__(self, dispatcher: Dispatcher, member: Member) -> None:
        self._dispatcher = dispatcher
        self.member = member
        self.puts: list[Put] = []
        self.bytes = 0
        self.deadline = 0.0

    def another(self) -> Joint:
        """An empty one to the same member."""
        return Joint(self._dispatcher, self.member)

    def add(self, put: Put) -> None:
        if not self.puts or put.deadline < self.deadline:
            self.deadline = put.deadline
        self.puts.append(put)
        self.bytes += put.size_bytes

    def has_room(self, put: Put) -> bool:
        if not self.puts:
            return True
        if len(self.puts) >= MAX_ROWS or self.bytes + put.size_bytes > MAX_BYTES:
            return False
        # Some have waited longer than others; none may lose much of its time.
        return abs(put.deadline - self.puts[0].deadline) <= put.timeout_s * LOST_SHARE / 2

    # For the connection, in the place of a future

    def done(self) -> bool:
        return False

    def set_result(self, result: bytes) -> None:
        self._dispatcher.joint_answered(self, result)

    def set_exception(self, exception: NetError) -> None:
        self._dispatcher.joint_failed(self, exception)


class Joining:
    """Of one dispatcher. `send` gets what goes as one request, at the end of the turn or before."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        begin: Callable[[Put], Joint | None],
        holding: Callable[[int, int], Sequence[Member]],
        send: Callable[[Joint], None],
    ) -> None:
        """`begin`: an empty request to whom a put should go, None where that is no good place for others. `holding`:
        who could take it.
        """
        self.count = 0  # puts that are held here
        self._loop = loop
        self._begin = begin
        self._holding = holding
        self._send = send
        self._open: dict[tuple[object, ...], list[Joint]] = {}
        self._rows: set[tuple[int, tuple[bytes | None, ...]]] = set()

    def add(self, put: Put) -> bool:
        """Hold a put until the end of this turn. False: it has to go alone."""
        row = (put.table, put.row_key)
        if not self._open:
            self._loop.call_soon(self.flush)
        going: list[Joint] = []
        if row in self._rows:
            # The later one goes later, and to the same member, whose clock puts them in order (unless it is refused
            # because of others, and sent again).
            members = {name: [joint.another() for joint in kind] for name, kind in self._open.items()}
            going = self.taken()
            self._open = members
        kind = self._open.setdefault(put.joins, [])
        holders = self._holding(put.table, put.tablet)
        joint: Joint | None
        for place, joint in enumerate(kind):
            if joint.member in holders:
                if not joint.has_room(put):
                    # To the same member: it sends the replicas what it gets in one turn as one message each.
                    going.append(joint)
                    self.count -= len(joint.puts)
                    joint = kind[place] = joint.another()
                break
        else:
            begun = self._begin(put) if len(kind) < MAX_OPEN else None
            if begun is not None:
                kind.append(begun)
            joint = begun
        if joint is not None:
            joint.add(put)
            self._rows.add(row)
            self.count += 1
        for each in going:
            self._send(each)
        return joint is not None

    def flush(self) -> None:
        """Send what is held."""
        for joint in self.taken():
            self._send(joint)

    def taken(self) -> list[Joint]:
        """Let go of what is held."""
        held, self._open = self._open, {}
        self._rows = set()
        self.count = 0
        return [joint for kind in held.values() for joint in kind if joint.puts]
