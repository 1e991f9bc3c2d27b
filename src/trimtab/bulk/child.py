"""The bulk child of an instance's supervisor: a file server that asks its node what to go by, and stays out of its way.

It runs at the lowest priority (`priority`). It holds nothing that its end could hurt: a file is
either durable under its name or a part that the next attempt goes on with. So it may be killed at any time; the
supervisor starts another, and clients come back to it.

While the node does not answer (it may be restarting) the child goes on for a while with what it was told last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
from pathlib import Path

import msgspec

from trimtab.bulk.pace import Pace
from trimtab.bulk.priority import give_way
from trimtab.bulk.server import BulkServer
from trimtab.bulk.state import Told
from trimtab.loads import protocol
from trimtab.loads.protocol import BulkReport
from trimtab.net.addresses import format_address, parse_address
from trimtab.net.client import Channel
from trimtab.net.errors import NetError
from trimtab.net.hello import Hello
from trimtab.net.tls import client_context, server_context
from trimtab.node.logs import Log
from trimtab.node.settings import Settings

ASK_EVERY_S = 0.5
_ASK_TIMEOUT_S = 2.0
# However many threads want to hear of new sessions.
_ASK_AT_MOST_EVERY_S = 0.05
_FILES = 4_096
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}


def run_bulk(settings: Settings, data_dir: Path, log: Log) -> int:
    """Serve until told to stop; the exit status."""
    give_way(leave=True)
    allow_files()
    told, pace = Told(), Pace()
    tls = settings.tls
    server = BulkServer(
        data_dir,
        told,
        pace,
        free_bytes=lambda: free_bytes(data_dir) - settings.limits.disk_reserve_bytes,
        tls=server_context(tls.authority, tls.certificate, tls.key) if tls else None,
        complain=lambda text: log.warning(text),
    )
    try:
        server.start(*parse_address(settings.bulk))
    except OSError as error:
        log.error(f"the bulk server can't listen on {settings.bulk}: {error.strerror or error}; give another --bulk")
        return 1
    log.debug("the bulk server listens", address=settings.bulk, pid=os.getpid())
    try:
        asyncio.run(_ask_until_told(settings, told, pace, server))
    finally:
        server.stop()
    return 0


async def _ask_until_told(settings: Settings, told: Told, pace: Pace, server: BulkServer) -> None:
    loop = asyncio.get_running_loop()
    stop, news = asyncio.Event(), asyncio.Event()

    def end() -> None:
        stop.set()
        news.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)

    def ask() -> None:
        with contextlib.suppress(RuntimeError):
            # The loop has just ended, and the process with it.
            loop.call_soon_threadsafe(news.set)

    told.ask = ask
    tls = settings.tls
    channel = Channel(
        _own_node(settings.listen),
        Hello(),
        random.Random(),
        ssl=client_context(tls.authority, tls.certificate, tls.key) if tls else None,
    )
    try:
        while not stop.is_set():
            await _ask(channel, settings.bulk_token, told, pace, server)
            await asyncio.sleep(_ASK_AT_MOST_EVERY_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), ASK_EVERY_S - _ASK_AT_MOST_EVERY_S)
            news.clear()
    finally:
        channel.close()


async def _ask(channel: Channel, token: bytes, told: Told, pace: Pace, server: BulkServer) -> None:
    counters = server.counters
    report = BulkReport(
        token,
        os.getpid(),
        counters.bytes_in,
        counters.bytes_out,
        counters.files_in,
        counters.files_out,
        counters.refused,
        server.open_connections,
    )
    try:
        await channel.wait_connected(_ASK_TIMEOUT_S)
        answer = await channel.call(protocol.BULK_STATE, protocol.encode(report), _ASK_TIMEOUT_S)
        state = protocol.decode_bulk_state(answer)
    except (NetError, msgspec.DecodeError) as error:
        told.failed(str(error))
        return
    pace.set_rate(state.rate_bytes_s)
    told.take(state)


def _own_node(listen: str) -> str:
    host, port = parse_address(listen)
    return format_address((_LOOPBACK.get(host, host), port))


def free_bytes(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def allow_files() -> None:
    """Each connection has a socket and a file open; the usual 1024 are too few for all that are let in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
