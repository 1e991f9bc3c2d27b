"""Every bound of the RPC layer in one place, so that an operator can read what a peer may cost us.

Nothing here is per process: a connection can hold at most what its own row says, and the number of connections is
bounded, so the product is the worst case.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

MIN_FRAME_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds and timeouts of one server or channel. Each end checks its own; for frame sizes the smaller one holds."""

    # Frames. Before the peer said hello, a smaller bound holds: nobody unknown may make us buffer megabytes.
    max_frame_bytes: int = 4 * 1024 * 1024
    max_hello_bytes: int = 16 * 1024
    # Of an answer, where it may be larger than what is asked: a server sends that much, a channel takes it. What others
    # make us buffer unasked stays bounded by the above.
    max_answer_bytes: int | None = None

    # Writing. The transport asks us to pause above `write_high_bytes`; from then on frames wait on our side.
    write_high_bytes: int = 1024 * 1024
    write_low_bytes: int = 256 * 1024
    max_buffered_bytes: int = 32 * 1024 * 1024  # client: Overloaded above; server: a peer this slow is disconnected
    max_push_buffered_bytes: int = 4 * 1024 * 1024  # server: push() says no above this

    # Work under way per connection.
    max_in_flight: int = 4096  # client: Overloaded above
    max_server_in_flight: int = 1024  # server: stops reading the connection at this many unanswered requests
    max_streams: int = 1024  # both: long-lived, so they are counted apart from requests

    # Connections of a server.
    max_connections: int = 4096
    max_unauthenticated: int = 256  # of those, how many may still owe us a hello (TLS handshakes included)

    # Time.
    connect_timeout_s: float = 3.0
    hello_timeout_s: float = 5.0  # from the accepted socket to a valid hello, the TLS handshake included
    keepalive_s: float = 1.0  # PING when nothing was sent or received for this long
    dead_after_s: float = 5.0  # nothing at all received for this long: the peer is gone
    write_stall_s: float = 30.0  # the transport stayed full for this long: the peer doesn't read
    goodbye_linger_s: float = 0.25  # how long a refused peer gets to read the reason before the socket closes

    # Reconnecting.
    backoff_first_s: float = 0.035
    backoff_max_s: float = 2.0
    stable_after_s: float = 5.0  # a connection that lived this long forgives the failures before it

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value <= 0:
                raise ValueError(f"{field.name} must be positive, not {value}")
        if self.max_frame_bytes < MIN_FRAME_BYTES:
            raise ValueError(f"max_frame_bytes must be at least {MIN_FRAME_BYTES}, not {self.max_frame_bytes}")
        if max(self.max_frame_bytes, self.answer_bytes) >= 2**32:
            raise ValueError("max_frame_bytes must fit the 32-bit length of a frame")
        if self.write_low_bytes >= self.write_high_bytes:
            raise ValueError("write_low_bytes must be below write_high_bytes")
        if self.dead_after_s < 3 * self.keepalive_s:
            # An idle peer is asked after one to two keepalives; its answer needs time too.
            raise ValueError("dead_after_s must be at least three times keepalive_s, or an idle peer is declared dead")

    @property
    def answer_bytes(self) -> int:
        """Of a frame that answers."""
        return max(self.max_frame_bytes, self.max_answer_bytes or 0)


MAX_ANSWER_BYTES = 16 * 1024 * 1024
DEFAULT_LIMITS = Limits(max_answer_bytes=MAX_ANSWER_BYTES)


@dataclass(slots=True)
class Counters:
    """What happened on a server or channel since it was made; metrics read it."""

    bytes_in: int = 0
    bytes_out: int = 0
    writes: int = 0
    accepted: int = 0  # connections that passed the hello
    refused: int = 0  # connections turned away: limits, TLS, hello
    malformed: int = 0  # connections closed for what they sent
    dead_peers: int = 0
    expired: int = 0  # requests dropped because their deadline had passed
    handler_errors: int = 0
    unknown_answers: int = 0  # answers to calls that are over: late, cancelled, or never made
    dropped_oneway: int = 0
    overloaded: int = 0
    reading_paused: int = 0
    connects: int = 0
    connect_failures: int = 0
