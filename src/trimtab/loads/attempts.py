"""What the attempts at one load are called. A load that was aborted can't go on; the next attempt has its own name.

    nightly, nightly-1, nightly-2, …

Everybody who asks for a load by its id walks along these names, from the first, and passes over attempts that have
ended. So of a load nobody may forget an earlier attempt while a later one is remembered: the walk would end before it,
and begin the load a second time (`generations.forgettable`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trimtab.loads.records import MAX_ID_CHARACTERS

MAX_ATTEMPTS = 100  # at one load
MAX_BASE_CHARACTERS = MAX_ID_CHARACTERS - len(f"-{MAX_ATTEMPTS - 1}")  # of an id, so that all attempts have one
_LATER = re.compile(r"(.+)-([1-9][0-9]?)")


def attempt_ids(id: str) -> Iterator[str]:
    """In order."""
    yield id
    for attempt in range(1, MAX_ATTEMPTS):
        yield f"{id}-{attempt}"


def later_attempts(id: str) -> list[Iterator[str]]:
    """What attempts after this one are called. A name that ends in a number may be an attempt, or a load's own."""
    found: list[Iterator[str]] = [(f"{id}-{attempt}" for attempt in range(1, MAX_ATTEMPTS))]
    if (parts := _LATER.fullmatch(id)) is not None:
        base, number = parts[1], int(parts[2])
        found.append(f"{base}-{attempt}" for attempt in range(number + 1, MAX_ATTEMPTS))
    return found
