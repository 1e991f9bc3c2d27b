"""The RPC door for rows: data.put, data.delete, data.batch, data.get, data.slice and data.scan.

It decodes, lets the overload limits judge, and gives the request to the executor; the answer goes out the moment it is
there. A request whose asker has gone is carried on: a write that was sent can't be called back, and is worth finishing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from trimtab.net.server import Handler, Request
from trimtab.node.answering import DEFAULT_DEADLINE_S, Refused
from trimtab.node.router import refusals
from trimtab.node.router.executor import Answer, Executor
from trimtab.node.router.large_rows import MAX_ANSWER_BYTES
from trimtab.node.router.overload import Overload
from trimtab.rows import protocol

_DECODERS: dict[str, Callable[[bytes], Any]] = {
    protocol.PUT: protocol.decode_put,
    protocol.DELETE: protocol.decode_delete,
    protocol.BATCH: protocol.decode_batch,
    protocol.GET: protocol.decode_get,
    protocol.SLICE: protocol.decode_slice,
    protocol.SCAN: protocol.decode_scan,
}


_FRAME_BYTES = 64  # what a frame has beside its body


class RowsDoor:
    """Of one node."""

    def __init__(self, executor: Executor, overload: Overload, answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._executor = executor
        self._overload = overload
        self._answer_bytes = answer_bytes - _FRAME_BYTES
        self._loop = asyncio.get_running_loop()
        self.answers: defaultdict[tuple[str, str], int] = defaultdict(int)  # by method and code; "" if it was done

    def handlers(self) -> dict[str, Handler]:
        return dict.fromkeys(_DECODERS, self.take)

    def take(self, request: Request) -> None:
        size = len(request.body)
        connection = request.connection
        refused = self._overload.enter(connection, size)
        if refused is not None:
            self.answers[request.method, refused.code] += 1
            request.fail(refused.code, refused.text, refused.details)
            return
        try:
            asked = _DECODERS[request.method](request.body)
        except msgspec.DecodeError as error:
            self._overload.leave(connection, size)
            self.answers[request.method, refusals.INVALID] += 1
            request.fail(refusals.INVALID, f"the body of {request.method} can't be read: {error}")
            return
        deadline = request.deadline if request.deadline is not None else self._loop.time() + DEFAULT_DEADLINE_S

        answered = False

        def done(answer: Answer) -> None:
            nonlocal answered
            if answered:
                return
            answered = True
            self._overload.leave(connection, size)
            body = b""
            if not isinstance(answer, Refused):
                body = protocol.encode(answer)
                if len(body) > self._answer_bytes:
                    answer = self._executor.too_large(asked, answer, len(body), self._answer_bytes)
            if isinstance(answer, Refused):
                self.answers[request.method, answer.code] += 1
                request.fail(answer.code, answer.text, answer.details)
            else:
                code = ""
                if isinstance(answer, protocol.WriteReply) and answer.refused:
                    code = next(iter(answer.refused.values())).code
                self.answers[request.method, code] += 1
                request.reply(body)

        self._executor.execute(asked, deadline, done)
