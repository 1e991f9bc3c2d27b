"""Asking another instance something, by its raft id, or itself: always with a timeout.

What is asked of this instance itself takes no network, but the same way through the same method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from trimtab.net.errors import DeadlineExceeded, NotConnected
from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Method
from trimtab.node.links import Link


class Calls:
    """The way to every member. `methods` are this instance's own."""

    def __init__(self, hello: Hello, links: Mapping[int, Link], methods: Mapping[str, Method]) -> None:
        self._hello = hello
        self._links = links
        self._methods = methods
        self._loop = asyncio.get_running_loop()

    async def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        """The answer. Raises what the channel raises (NetError), or what the own method does."""
        if raft_id == self._hello.raft_id:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._methods[method](Asked(body, self._loop.time() + timeout_s, self._hello))
            except TimeoutError as error:
                raise DeadlineExceeded(f"{method} was not answered within {timeout_s:.3f} s") from error
        link = self._links.get(raft_id)
        if link is None:
            raise NotConnected(f"the address of member {raft_id} is not known here yet")
        return await link.channel.call(method, body, timeout_s)
