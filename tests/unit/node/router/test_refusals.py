"""What a refusal is called, from what the replicas said."""

from __future__ import annotations

import pytest

from trimtab.node.router.refusals import failed
from trimtab.tablets.consistency import Level


@pytest.mark.parametrize(
    ("write", "codes", "nothing_done", "said"),
    [
        (False, ["overloaded", "overloaded"], False, "overloaded"),
        (False, ["overloaded", "corrupt"], False, "read_failed"),
        (True, ["overloaded", "overloaded"], True, "overloaded"),
        (True, ["overloaded", "overloaded"], False, "write_failed"),
        (True, ["disk_full", "disk_full"], False, "disk_full"),
        (True, ["disk_full", "overloaded"], False, "write_failed"),
    ],
)
def test_what_all_replicas_say_is_passed_on_where_it_is_true_of_the_whole(
    write: bool, codes: list[str], nothing_done: bool, said: str
) -> None:
    failures = {number: (code, "no") for number, code in enumerate(codes, 1)}
    refused = failed(write, Level.QUORUM, 2, 0, "", failures, nothing_done=nothing_done)
    assert refused.code == said
    assert ("nothing was done" in refused.text) is nothing_done
