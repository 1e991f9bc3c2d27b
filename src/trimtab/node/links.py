"""One-way Raft traffic to the other members: everything for one member that arises in a turn leaves as one frame.

Heartbeats of thousands of groups are coalesced by that alone. A message that can't be sent is dropped, which Raft
expects; appends that were dropped are told to the caller, so that their group falls back to probing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from trimtab.net.client import Channel
from trimtab.raft.messages import Message

Parcel = list[tuple[int, Message]]
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Parcel] = msgspec.msgpack.Decoder(Parcel)
_OVERHEAD_BYTES = 64
_ENTRY_OVERHEAD_BYTES = 24


def decode_parcel(body: bytes | memoryview) -> Parcel:
    """The (group, message) pairs of one frame; msgspec.ValidationError or DecodeError on anything else."""
    return _decoder.decode(body)


class Link:
    """The way to one member."""

    __slots__ = ("_limit_bytes", "_waiting", "address", "channel", "raft_id")

    def __init__(self, raft_id: int, address: str, channel: Channel, limit_bytes: int) -> None:
        self.raft_id = raft_id
        self.address = address
        self.channel = channel
        self._limit_bytes = limit_bytes
        self._waiting: Parcel = []

    def put(self, group: int, message: Message) -> bool:
        """Queue a message for this turn; True for the first one, so the caller knows to flush this link."""
        self._waiting.append((group, message))
        return len(self._waiting) == 1

    def flush(self, dropped: Callable[[int, int], None]) -> None:
        """Send what is queued, in frames within the limit; `dropped(group, raft_id)` for what could not be sent."""
        waiting, self._waiting = self._waiting, []
        if not self.channel.connected:
            self._drop(waiting, dropped)
            return
        start, size = 0, 0
        for position, (_, message) in enumerate(waiting):
            this = _OVERHEAD_BYTES
            for entry in message.entries:
                this += len(entry.data) + _ENTRY_OVERHEAD_BYTES
            if size and size + this > self._limit_bytes:
                self._send(waiting[start:position], dropped)
                start, size = position, 0
            size += this
        self._send(waiting[start:] if start else waiting, dropped)

    def _send(self, parcel: Parcel, dropped: Callable[[int, int], None]) -> None:
        if not self.channel.send("raft", _encoder.encode(parcel)):
            self._drop(parcel, dropped)

    def _drop(self, parcel: Parcel, dropped: Callable[[int, int], None]) -> None:
        for group, message in parcel:
            if message.entries:
                dropped(group, self.raft_id)
