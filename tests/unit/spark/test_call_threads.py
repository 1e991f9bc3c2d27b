"""Calls that wait, in a few threads."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import pytest

from trimtab.spark.call_threads import CallThreads

WAIT_S = 60.0


def test_what_comes_of_calls_is_told_in_their_order() -> None:
    with CallThreads(2, "calls") as calls:
        second = threading.Event()

        def call(number: int) -> int:
            if number == 1:
                assert second.wait(WAIT_S)
            second.set()
            return 10 * number

        assert calls.each(call, [1, 2, 3]) == [10, 20, 30] and calls.each(call, []) == []


def test_a_call_that_fails_raises_it_where_it_is_waited_for() -> None:
    with CallThreads(1, "calls") as calls:
        with pytest.raises(KeyError, match="a row"):
            calls.submit(dict[str, int]().__getitem__, "a row").result(WAIT_S)
        assert calls.submit(len, "as before").result(WAIT_S) == 9


def test_no_more_threads_are_made_than_there_are_calls_nor_than_may_be() -> None:
    go_on, calls = threading.Event(), CallThreads(3, "a few")

    def threads() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name.startswith("a few")]

    with calls:
        for count in (1, 2, 3, 3):
            calls.submit(go_on.wait, WAIT_S)
            assert len(threads()) == count and all(each.daemon for each in threads())
        go_on.set()
    assert not threads()


def test_what_has_not_begun_when_they_are_closed_is_cancelled() -> None:
    began, go_on, calls = threading.Event(), threading.Event(), CallThreads(1, "calls")

    def call() -> str:
        began.set()
        assert go_on.wait(WAIT_S)
        return "done"

    first, second = calls.submit(call), calls.submit(call)
    assert began.wait(WAIT_S)
    calls.close()
    assert wait([second], WAIT_S).done == {second}
    with pytest.raises(CancelledError):
        second.result()
    go_on.set()
    assert first.result(WAIT_S) == "done"
    with pytest.raises(AssertionError, match="told to end"):
        calls.submit(call)
