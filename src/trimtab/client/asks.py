"""One request from its making to its answer, and the two ways to wait for one.

An `Ask` knows how to make its message from what is known of the schema, again if that changes meanwhile, and how to
read the answer. It is what a connection tells the answer to, so that a request costs neither a task nor a future of the
network layer. The dispatcher moves it along; its sink is told the end, once.

`Reply` is the sink of asyncio: a future, so that `asyncio.gather` makes no task of it, and at the same time a
coroutine, because that is what `create_task` and task groups take.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from trimtab.net.errors import NetError

if TYPE_CHECKING:
    from trimtab.client.dispatch import Dispatcher
    from trimtab.client.known import Known
    from trimtab.client.members import Member

T = TypeVar("T")


class Sink(Protocol):
    """Who waits for an ask. Told once, on the loop; must not raise. `gone`: it does not wait any more."""

    @property
    def gone(self) -> bool: ...
    def answered(self, ask: Ask[Any], body: bytes) -> None: ...
    def failed(self, ask: Ask[Any], error: Exception) -> None: ...


class Ask(ABC, Generic[T]):
    """`repeatable`: carrying it out twice is the same as once. `doubt`: an attempt may have been carried out.

    `alike`: what it has in common with others that take alike long. Where it takes longer, somebody else may be asked
    at the same time; None: never. `joins`: what it has in common with others that may go as one request with it (see
    `joining`); nothing: it goes alone. `under_way`: a member has it.

    Most of it never changes in the life of most asks, and making one should cost little: so defaults are the class's.
    """

    method: ClassVar[str]
    writes: ClassVar[bool]
    timeout_s: float
    repeatable: bool
    deadline: float
    sink: Sink
    dispatcher: Dispatcher
    attempts = 0
    lapsed = 0  # attempts that were given too little time
    doubt = False
    goes_on = False  # a put that was stamped together with others, and is sent again alone
    alike: object | None = None
    joins: tuple[object, ...] = ()
    over = False
    under_way = False
    member: Member | None = None  # who has it, or had it last
    prefer: Member | None = None  # who holds more of it than one tablet
    table = 0  # with the tablet: where it should go
    tablet = -1  # anywhere
    body = b""  # its message, where that is made when it is prepared; empty: not yet

    def __init__(self, timeout_s: float, repeatable: bool) -> None:
        self.timeout_s = timeout_s
        self.repeatable = repeatable

    @abstractmethod
    def prepare(self, known: Known) -> None:
        """Make the message and say where it should go. InvalidRequest: it makes no sense. UnknownTable: not yet."""

    @property
    def ready(self) -> bool:
        """Whether it is prepared."""
        return bool(self.body)

    def message(self) -> bytes:
        """What a member is sent, once it is prepared."""
        return self.body

    @abstractmethod
    def read(self, body: bytes) -> T:
        """What the answer says."""

    # For the connection, in the place of a future. An attempt is done only when the connection has said so, which it
    # does once: one whose sink has gone away, or has its answer from somebody else, still counts as under way.

    def done(self) -> bool:
        return False

    def set_result(self, result: bytes) -> None:
        self.dispatcher.answered(self, result)

    def set_exception(self, exception: NetError) -> None:
        self.dispatcher.failed(self, exception)


class SecondAttempt:
    """An ask that another member was sent as well, as the connection to that one knows it.

    `body`: what it was sent. The ask may have been made anew since, because the table has changed; this answers the
    message before.
    """

    __slots__ = ("ask", "body", "member")

    def __init__(self, ask: Ask[Any], member: Member) -> None:
        self.ask = ask
        self.body = ask.body
        self.member = member

    def done(self) -> bool:
        return False

    def set_result(self, result: bytes) -> None:
        self.ask.dispatcher.second_answered(self, result)

    def set_exception(self, exception: NetError) -> None:
        self.ask.dispatcher.second_failed(self, exception)


class Nobody:
    """The sink of an ask that is over: whoever waited has the answer, and the ask does not keep it."""

    gone = True

    def answered(self, ask: Ask[Any], body: bytes) -> None:
        raise AssertionError("an ask is answered once")

    def failed(self, ask: Ask[Any], error: Exception) -> None:
        raise AssertionError("an ask fails once")


NOBODY = Nobody()


class Reply(asyncio.Future[T], Coroutine[Any, Any, T]):
    """What an asyncio client gives at once: await it, gather it, or make a task of it."""

    @property
    def gone(self) -> bool:
        return self.done()

    def answered(self, ask: Ask[T], body: bytes) -> None:
        if self.done():
            return
        try:
            self.set_result(ask.read(body))
        except Exception as error:
            self.set_exception(error)

    def failed(self, ask: Ask[T], error: Exception) -> None:
        if not self.done():
            self.set_exception(error)

    # What makes it a coroutine, for those who insist on one.

    def _steps(self) -> Generator[Any, Any, T]:
        steps: Generator[Any, Any, T] | None = getattr(self, "_stepping", None)
        if steps is None:
            steps = self._stepping = self.__await__()
        return steps

    def send(self, value: Any) -> Any:
        return self._steps().send(value)

    def throw(self, *error: Any) -> Any:
        return self._steps().throw(*error)

    def close(self) -> None:
        self.cancel()
