"""Methods that take their time: each request becomes a task that ends with an answer, a refusal or its deadline.

The doors of the cluster's control are asked rarely and wait a lot (for Raft, for others), so they are written as
coroutines. The same coroutine answers the instance itself, without a network. A task ends when nobody waits for its
answer any more, and all of them end with the instance.

Each pool of requests has room for so many at a time. What keeps the cluster going (the governor's orders, an instance's
word about itself) has a pool of its own: clients can't crowd it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import msgspec

from trimtab.metastore.errors import MetastoreError
from trimtab.metastore.requests import LeaderHint
from trimtab.metastore.requests import encode as encode_hint
from trimtab.net.errors import INTERNAL, ConnectionLost, DeadlineExceeded, NetError, RpcError
from trimtab.net.hello import Hello
from trimtab.net.server import Handler, Request
from trimtab.node.background import defect_of
from trimtab.node.errors import GroupError, NotLeader
from trimtab.node.waits import WaitedTooLong

MAX_OPEN = 4_000
MAX_OPEN_VITAL = 1_000
DEFAULT_DEADLINE_S = 10.0


class Refused(Exception):
    """An answer that says no, with a code for programs and a text for people."""

    def __init__(self, code: str, text: str, details: bytes = b"") -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.details = details


@dataclass(frozen=True)
class Asked:
    """A request without its connection. `deadline` is loop time."""

    body: bytes
    deadline: float
    peer: Hello


Method = Callable[[Asked], Coroutine[Any, Any, bytes]]


class Answering:
    """Turns methods into handlers, and keeps their tasks."""

    def __init__(self, report: Callable[[str], None], address_of: Callable[[int], str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._report = report
        self._address_of = address_of
        # By pool; dicts as ordered sets, so that they end in the order in which they came.
        self._vital: dict[asyncio.Task[None], None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def handler(self, method: Method, *, vital: bool = False) -> Handler:
        """A handler that runs `method` for each request; `vital`: in the pool of what keeps the cluster going."""
        pool, room = (self._vital, MAX_OPEN_VITAL) if vital else (self._tasks, MAX_OPEN)

        def handle(request: Request) -> None:
            if len(pool) >= room:
                request.fail("overloaded", f"{room} requests wait here already; try again shortly")
                return
            deadline = request.deadline if request.deadline is not None else self._loop.time() + DEFAULT_DEADLINE_S
            task = self._loop.create_task(self._answer(method, request, deadline))
            pool[task] = None
            task.add_done_callback(self._ended)

            def give_up(_reason: str) -> None:
                task.cancel()

            request.on_cancel(give_up)

        return handle

    def close(self) -> None:
        """End everything that is open."""
        for task in [*self._vital, *self._tasks]:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._vital.pop(task, None)
        self._tasks.pop(task, None)
        if (error := defect_of(task)) is not None:
            self._report(f"a request could not be answered: {error!r}")

    async def _answer(self, method: Method, request: Request, deadline: float) -> None:
        try:
            body = await method(Asked(bytes(request.body), deadline, request.peer))
        except Exception as error:
            refused = self._refusal(request.method, error)
            request.fail(refused.code, refused.text, refused.details)
        else:
            request.reply(body)

    def _refusal(self, method: str, error: Exception) -> Refused:
        if isinstance(error, Refused):
            return error
        if isinstance(error, NotLeader):
            hint = encode_hint(LeaderHint(error.leader, self._address_of(error.leader)))
            return Refused(error.code, str(error), hint)
        if isinstance(error, GroupError):
            return Refused(error.code, str(error))
        if isinstance(error, msgspec.DecodeError):
            return Refused("invalid", f"the body of {method} can't be read: {error}")
        if isinstance(error, RecursionError):
            return Refused("invalid", f"the body of {method} can't be read: it is nested too deeply")
        if isinstance(error, MetastoreError):
            return Refused("invalid", str(error))
        if isinstance(error, WaitedTooLong):
            return Refused("no_answer", str(error))
        if isinstance(error, RpcError):
            return Refused(error.code, error.text, error.details)
        if isinstance(error, ConnectionLost | DeadlineExceeded):
            return Refused("no_answer", f"another member did not answer: {error}; the outcome is unknown")
        if isinstance(error, NetError):
            return Refused("overloaded", str(error))
        self._report(f"a request for {method!r} met a defect: {error!r}")
        return Refused(INTERNAL, f"{type(error).__name__}: {error}"[:300])
