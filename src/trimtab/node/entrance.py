"""The doors of an instance that is no member yet: a server that others ask, and channels to ask others.

It says who it is without a raft id, so members treat it as they treat clients: it can ask, and speaks for nobody.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

from trimtab.net.client import Channel
from trimtab.net.hello import Hello
from trimtab.net.server import Handler, Server
from trimtab.net.tls import client_context, server_context
from trimtab.node.admission import NO_MEMBER_ANSWERS
from trimtab.node.identity import Identity
from trimtab.node.settings import Settings, split_address

# Channels to instances that were asked once stay open; more than this are not kept.
_MAX_CHANNELS = 1_000
_ERRNO = re.compile(r"\[Errno \d+\] (\w?)")


def in_short(text: str, address: str) -> str:
    """A failure to reach `address`, for a sentence that names the address anyway."""
    for said_before in (f"not connected to {address}: ", f"cannot connect to {address}: "):
        text = text.removeprefix(said_before)
    return _ERRNO.sub(lambda found: found[1].lower(), text)


class Entrance:
    """Made inside a running loop; `open` it, and `close` it when the instance goes on as a member."""

    def __init__(
        self, settings: Settings, identity: Identity, rng: random.Random, complain: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._rng = rng
        self._complain = complain
        self._hello = Hello(
            cluster_id=settings.cluster_id,
            instance_id=settings.instance_id,
            incarnation=rng.getrandbits(63),
            address=settings.address,
            data_id=identity.uuid,
        )
        tls = settings.tls
        self._client_tls = client_context(tls.authority, tls.certificate, tls.key) if tls else None
        self._server_tls = server_context(tls.authority, tls.certificate, tls.key) if tls else None
        self._channels: dict[str, Channel] = {}
        self._server: Server | None = None

    async def open(self, handlers: Mapping[str, Handler]) -> None:
        """Listen. OSError: the address can't be had."""
        self._server = Server(
            handlers,
            self._hello,
            self._settings.net_limits,
            ssl=self._server_tls,
            on_error=self._failed,
        )
        await self._server.start(*split_address(self._settings.listen))

    def _failed(self, text: str, _error: BaseException | None) -> None:
        # The cluster has let it in and calls it before it knows: they find no member yet, and call again.
        if not text.endswith(NO_MEMBER_ANSWERS):
            self._complain(text)

    async def ask(self, address: str, method: str, body: bytes, timeout_s: float) -> bytes:
        """The answer. NetError: there is none, or it says no (RpcError)."""
        channel = self._channels.get(address)
        if channel is None:
            while len(self._channels) >= _MAX_CHANNELS:
                self._channels.pop(next(iter(self._channels))).close()
            channel = self._channels[address] = Channel(
                address, self._hello, self._rng, ssl=self._client_tls, limits=self._settings.net_limits
            )
        # Whoever is asked has often just been started.
        channel.poke()
        await channel.wait_connected(timeout_s)
        return await channel.call(method, body, timeout_s)

    async def close(self) -> None:
        """Give the address back. What was answered before still goes out."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
