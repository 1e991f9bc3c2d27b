"""What can go wrong between two peers, as the caller sees it.

The type says what is known about the outcome, because that decides whether a retry is safe:

* `NotConnected`, `Overloaded`, `FrameTooLarge`: nothing was sent; the peer knows nothing of it.
* `RpcError`: the peer answered, with a code that programs compare and a text that people read.
* `ConnectionLost`, `DeadlineExceeded`: the peer may or may not have done it.
"""

from __future__ import annotations

# Codes this layer answers with itself. Handlers add their own; a code is part of the protocol, its text is not.
UNKNOWN_METHOD = "unknown_method"
INTERNAL = "internal"
DEADLINE_EXCEEDED = "deadline_exceeded"
TOO_LARGE = "too_large"
TOO_MANY_STREAMS = "too_many_streams"


class NetError(Exception):
    """Base of everything this package raises."""


class FrameError(NetError):
    """The peer's bytes are not a frame we can accept. The connection they came on is closed with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FrameTooLarge(NetError):
    """A message was refused before it was sent, because its frame would exceed what both sides accept."""

    def __init__(self, method: str, frame_bytes: int, max_frame_bytes: int) -> None:
        what = repr(method) if method else "an answer"
        super().__init__(
            f"{what} makes a frame of {frame_bytes} bytes, the limit of this connection is {max_frame_bytes}: "
            "send less at a time"
        )
        self.method = method
        self.frame_bytes = frame_bytes
        self.max_frame_bytes = max_frame_bytes


class RpcError(NetError):
    """The peer answered the request with an error."""

    def __init__(self, code: str, text: str, details: bytes = b"") -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.details = details


class ConnectionLost(NetError):
    """The connection ended before the answer came: the request may have been carried out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NotConnected(ConnectionLost):
    """There was no connection to send on: the request was certainly not carried out."""


class DeadlineExceeded(NetError):
    """No answer came in time: the request may have been carried out."""


class Overloaded(NetError):
    """Too much is already waiting for this peer; nothing was sent."""
