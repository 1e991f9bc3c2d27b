"""Calls from tasks: what passes is waited for, once; what does not is told at once."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from trimtab.net.errors import NetError, NotConnected, RpcError
from trimtab.spark import instances as module
from trimtab.spark.instances import Instances


class Scripted(Instances):
    """Answers what it was told to, one after the other; the last for ever."""

    def __init__(self, *answers: bytes | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.calls = 0

    def call(self, address: str, method: str, body: bytes, timeout_s: float) -> bytes:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_pause() -> Iterator[None]:
    with patch.object(module, "_PAUSE_S", 0.0):
        yield


def test_one_that_lost_its_lease_for_a_moment_is_asked_again() -> None:
    """A starved instance said that it is not ready, and its replica was told as one that lacks rows."""
    not_ready, away = RpcError("not_ready", "it has no lease"), NotConnected("it says nothing")
    with Scripted(not_ready, away, TimeoutError(), b"here") as instances:
        assert instances.ask("a:1", "m", b"", 1.0, 60.0) == b"here"
        assert instances.calls == 4


def test_what_does_not_pass_is_told_at_once() -> None:
    with Scripted(RpcError("not_found", "no such table")) as instances:
        with pytest.raises(RpcError, match="no such table"):
            instances.ask("a:1", "m", b"", 1.0, 60.0)
        assert instances.calls == 1


def test_patience_with_somebody_ends_and_is_not_had_twice() -> None:
    with Scripted(NotConnected("it says nothing")) as instances:
        with pytest.raises(NetError):
            instances.ask("a:1", "m", b"", 1.0, 0.01)
        calls = instances.calls
        with pytest.raises(NetError):
            instances.ask("a:1", "m", b"", 1.0, 60.0)
        assert instances.calls == calls + 1
        instances.answers = [b"back"]
        assert instances.ask("a:1", "m", b"", 1.0, 0.0) == b"back"
        instances.answers = [NotConnected("it says nothing"), b"again"]
        assert instances.ask("a:1", "m", b"", 1.0, 60.0) == b"again"
