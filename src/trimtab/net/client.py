"""The asking end (skeleton: signatures only, see the docstrings)."""

from __future__ import annotations

import asyncio
import random
import ssl as ssl_module
from collections.abc import Callable

from trimtab.net.errors import NetError
from trimtab.net.hello import Hello
from trimtab.net.limits import DEFAULT_LIMITS, Counters, Limits

Address = tuple[str, int]
OnUp = Callable[[Hello], None]
OnDown = Callable[[str, bool], None]
OnItem = Callable[[bytes], None]
OnEnd = Callable[[NetError | None], None]


def parse_address(text: str) -> Address:
    """'host:port' or '[v6]:port'."""
    raise NotImplementedError


class Channel:
    """Connects at once and for ever until close(). Made inside a running loop.

    on_up(hello) when a connection passed the hello; on_down(reason, refused) when it was lost AND on every failed attempt
    to connect; refused=True only when the attempt got ECONNREFUSED (nobody listens there).
    """

    def __init__(
        self,
        address: Address | str,
        hello: Hello,
        rng: random.Random,
        ssl: ssl_module.SSLContext | None = None,
        on_up: OnUp | None = None,
        on_down: OnDown | None = None,
        *,
        limits: Limits = DEFAULT_LIMITS,
        check_hello: Callable[[Hello], str | None] | None = None,
        on_error: Callable[[str, BaseException | None], None] | None = None,
    ) -> None:
        self.counters = Counters()
        raise NotImplementedError

    @property
    def connected(self) -> bool:
        raise NotImplementedError

    @property
    def peer(self) -> Hello | None:
        """The other side's hello while connected."""
        raise NotImplementedError

    def send(self, method: str, body: bytes) -> bool:
        """One-way. False: dropped and counted. FrameTooLarge is raised."""
        raise NotImplementedError

    def call(self, method: str, body: bytes, timeout_s: float) -> asyncio.Future[bytes]:
        """Raises NotConnected, Overloaded, FrameTooLarge at once (nothing was sent). The future gives the body, or
        RpcError, ConnectionLost, DeadlineExceeded."""
        raise NotImplementedError

    def stream(self, method: str, body: bytes, on_item: OnItem, on_end: OnEnd) -> Callable[[], None]:
        """Raises like call(). on_end(None) = ended well; on_end(error) otherwise; not called after cancel()."""
        raise NotImplementedError

    async def wait_connected(self, timeout_s: float) -> Hello:
        raise NotImplementedError

    def poke(self) -> None:
        """Try to connect now instead of when the backoff ends."""
        raise NotImplementedError

    def close(self, reason: str = "the channel was closed") -> None:
        raise NotImplementedError
