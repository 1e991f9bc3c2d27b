"""A driver as a process: its signals, its priority, and its end.

SIGTERM and SIGINT end it cleanly: jobs go back to the queue with what they noted, the driver leaves, Spark stops. When
jobs don't stop although they must, the process ends at once instead: whatever they do would not count, and must not go
on. It runs at the lowest priority, and so does all that it starts: point reads of the nodes beside it come first. On a
machine of its own TRIMTAB_SPARK_PRIORITY=normal lets it run like anything else.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from trimtab.bulk.priority import give_way
from trimtab.pipeline.driver import Driver, DriverSettings, Stuck
from trimtab.pipeline.registry import Registry
from trimtab.pipeline.sessions import Sessions
from trimtab.spark.sessions import PRIORITY_VARIABLE

if TYPE_CHECKING:
    import ssl


def run_driver(
    settings: DriverSettings,
    *,
    story: Callable[[str], None],
    tls: ssl.SSLContext | None = None,
    environment: Mapping[str, str] = os.environ,
    forked: bool = False,
) -> int:
    """Drive jobs until told to stop, or until there is nothing to do; the exit code. It may end the process itself.

    `forked`: by a supervisor, which alone tells it to stop; it has a session of its own then.
    """
    import uvloop

    # A Java that died is noticed and told of in a sentence; py4j would print a stack for every call that met it, and
    # logs it as the root of all loggers.
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(lambda record: "while sending command" not in record.getMessage())
    registry = Registry.from_environment(environment)
    sessions = Sessions(settings.peers, settings.master)
    if environment.get(PRIORITY_VARIABLE) != "normal":
        give_way(leave=forked)

    async def drive() -> None:
        import asyncio

        driver = Driver(settings, registry, sessions, story=story, tls=tls)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, driver.stop)
        await driver.run()

    try:
        uvloop.run(drive())
    except Stuck as error:
        story(f"{error}; ending the process")
        _end(1)
    if sessions.made:
        # Its Java writes its archive of classes when it ends in an orderly way; that is worth a moment.
        sessions.close()
    return 0


def _end(code: int) -> NoReturn:
    """At once, whatever threads are doing."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
