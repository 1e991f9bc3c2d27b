"""How much may be under way: requests and their bytes, of one connection and of all together.

What comes above a limit is refused at once with `overloaded` and was not begun, so asking again is safe. One connection
can't take more than its share, so that a client that never stops asking does not keep the others out. (How many
requests of one connection wait unanswered is bounded before this: the server stops reading from it.)
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.node.answering import Refused
from trimtab.node.router.refusals import numbers


@dataclass(frozen=True)
class Room:
    """The limits. Bytes are those of the requests as they came."""

    requests: int = 10_000
    bytes: int = 256 << 20
    connection_bytes: int = 32 << 20


class Overload:
    """Counts what is under way on this node."""

    def __init__(self, room: Room | None = None) -> None:
        self.room = room or Room()
        self.requests = 0
        self.bytes = 0
        self.refused = 0
        self._by_connection: dict[object, int] = {}

    def enter(self, connection: object, size_bytes: int) -> Refused | None:
        """A request begins, and must `leave`; or the refusal to answer it with."""
        room = self.room
        if self.requests >= room.requests:
            return self._refuse("requests are under way on this node", self.requests, room.requests)
        if self.bytes + size_bytes > room.bytes:
            return self._refuse("bytes of requests are under way on this node", self.bytes, room.bytes)
        own = self._by_connection.get(connection, 0) + size_bytes
        if own > room.connection_bytes and own > size_bytes:
            text = "bytes of requests are under way on this connection"
            return self._refuse(text, own - size_bytes, room.connection_bytes)
        self.requests += 1
        self.bytes += size_bytes
        self._by_connection[connection] = own
        return None

    def leave(self, connection: object, size_bytes: int) -> None:
        """A request has ended, however it did."""
        self.requests -= 1
        self.bytes -= size_bytes
        left = self._by_connection[connection] - size_bytes
        if left:
            self._by_connection[connection] = left
        else:
            del self._by_connection[connection]

    def _refuse(self, what: str, under_way: int, limit: int) -> Refused:
        self.refused += 1
        text = f"{under_way} {what}, the limit is {limit}; nothing was begun, try again shortly"
        return Refused("overloaded", text, numbers(under_way=under_way, limit=limit))
