"""What attempts at one load are called."""

from __future__ import annotations

from itertools import islice

from trimtab.loads.attempts import MAX_ATTEMPTS, MAX_BASE_CHARACTERS, attempt_ids, later_attempts
from trimtab.loads.records import MAX_ID_CHARACTERS


def test_every_attempt_has_a_name_of_its_own_that_is_not_too_long() -> None:
    names = list(attempt_ids("n" * MAX_BASE_CHARACTERS))
    assert len(set(names)) == MAX_ATTEMPTS and names[0] == "n" * MAX_BASE_CHARACTERS
    assert max(map(len, names)) == MAX_ID_CHARACTERS


def test_later_attempts_are_those_that_follow_whichever_way_a_name_is_read() -> None:
    (only,) = later_attempts("b-f")
    assert list(islice(only, 2)) == ["b-f-1", "b-f-2"]
    own, attempts = later_attempts("nightly-97")
    assert next(own) == "nightly-97-1"
    assert list(attempts) == ["nightly-98", "nightly-99"]
