"""Calls to one instance or another, from code that waits: a task of Spark, and the thread that keeps its leases.

The connections live on a loop in a thread of its own, which ends with `close`. Made in the process that uses it, never
before a fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from trimtab.net.client import Channel
from trimtab.net.errors import NetError, NotConnected, RpcError
from trimtab.net.hello import Hello
from trimtab.spark.options import Connection

T = TypeVar("T")
_CONNECT_S = 2.0  # whoever is there answers sooner, and others can be asked
_GRACE_S = 5.0
_STOP_S = 5.0
_PAUSE_S = 0.5
# What passes by itself: an instance that had no processor for a while has lost its lease, and gets a new one.
_PASSING = frozenset({"not_ready", "overloaded", "no_answer"})


class Instances:
    """`with Instances(tls) as instances: instances.call("127.0.0.1:3301", method, body, 10.0)`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._channels: dict[str, Channel] = {}
        self._kept: dict[str, asyncio.Task[None]] = {}
        self._tired_of: set[str] = set()  # who has used up all patience
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="trimtab-instances", daemon=True)
        self._thread.start()

    def __enter__(self) -> Instances:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all connections, and what is still kept up over them."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_S)

    def call(self, address: str, method: str, body: bytes, timeout_s: float) -> bytes:
        """The answer of the instance there. Raises NetError: it can't be reached, or it refused (RpcError)."""
        return self._wait(self._call(address, method, body, timeout_s), timeout_s)

    def ask(self, address: str, method: str, body: bytes, timeout_s: float, patience_s: float) -> bytes:
        """The same, again and again for that long where the instance can't be reached, or can't answer now.

        That is worth while once: whoever did not answer in all that time is called just once from then on.
        """
        until_s = time.monotonic() + patience_s
        while True:
            try:
                answer = self.call(address, method, body, timeout_s)
            except (NetError, TimeoutError) as error:
                if isinstance(error, RpcError) and error.code not in _PASSING:
                    raise
                if address in self._tired_of or time.monotonic() >= until_s:
                    self._tired_of.add(address)
                    raise
                time.sleep(_PAUSE_S)
            else:
                self._tired_of.discard(address)
                return answer

    def keep(self, name: str, address: str, method: str, body: bytes, every_s: float) -> None:
        """Call again and again, until `let_go` of the same name. A call that fails is made again the next time."""
        self._wait(self._begin(name, address, method, body, every_s), _GRACE_S)

    def let_go(self, name: str) -> None:
        self._wait(self._end(name), _GRACE_S)

    def _wait(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s + _GRACE_S)

    # On the loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            for task in self._kept.values():
                task.cancel()
            for channel in self._channels.values():
                channel.close()
            left = asyncio.all_tasks(self._loop)
            for each in left:
                each.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()

    async def _call(self, address: str, method: str, body: bytes, timeout_s: float) -> bytes:
        channel = self._channels.get(address)
        if channel is None:
            try:
                channel = Channel(address, Hello(), random.Random(), ssl=self._tls)
            except ValueError as error:
                raise NotConnected(str(error)) from error
            self._channels[address] = channel
        deadline = self._loop.time() + timeout_s
        channel.poke()
        await channel.wait_connected(min(timeout_s, _CONNECT_S))
        return await channel.call(method, body, max(deadline - self._loop.time(), 0.001))

    async def _begin(self, name: str, address: str, method: str, body: bytes, every_s: float) -> None:
        async def again() -> None:
            while True:
                await asyncio.sleep(every_s)
                with contextlib.suppress(NetError):
                    await self._call(address, method, body, every_s)

        self._kept[name] = self._loop.create_task(again())

    async def _end(self, name: str) -> None:
        task = self._kept.pop(name, None)
        if task is not None:
            task.cancel()


def tls_context(connection: Connection) -> ssl.SSLContext | None:
    """What to connect with; None: plainly."""
    if connection.tls_files is None:
        return None
    from trimtab.net.tls import client_context

    return client_context(*connection.tls_files)
