"""Page states: opaque, checked, and good for one question only."""

from __future__ import annotations

import msgspec
import pytest

from trimtab.node.answering import Refused
from trimtab.node.router.pages import seal, shape_of, unseal
from trimtab.rows.protocol import Bound, ScanRequest, SliceRequest
from trimtab.tablets.consistency import Level

SLICE = SliceRequest(7, 3, [b"p"], [1, 2], Bound([b"a"]), None)


def test_a_state_gives_back_its_key_for_the_same_question_however_it_is_asked() -> None:
    state = seal(7, shape_of(SLICE), b"key", 3)
    again = msgspec.structs.replace(SLICE, page=state, limit=5, level=Level.ONE, columns=[1], version=4)
    assert unseal(state, 7, shape_of(again)) == (b"key", 3)


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(SLICE, partition=[b"q"]),
        msgspec.structs.replace(SLICE, reverse=True),
        msgspec.structs.replace(SLICE, start=None),
        msgspec.structs.replace(SLICE, as_of_us=5),
        ScanRequest(7, 3, [1, 2]),
    ],
)
def test_with_another_question_it_is_refused(other: SliceRequest | ScanRequest) -> None:
    state = seal(7, shape_of(SLICE), b"key", 3)
    with pytest.raises(Refused, match="another question"):
        unseal(state, 7, shape_of(other))
    with pytest.raises(Refused, match="another question"):
        unseal(state, 8, shape_of(SLICE))


def test_no_damaged_state_is_read_as_something_else() -> None:
    state = seal(7, shape_of(SLICE), b"key", 3)
    for at in range(len(state)):
        damaged = state[:at] + bytes((state[at] ^ 1,)) + state[at + 1 :]
        with pytest.raises(Refused) as refused:
            unseal(damaged, 7, shape_of(SLICE))
        assert refused.value.code == "invalid"
    for cut in range(len(state)):
        with pytest.raises(Refused):
            unseal(state[:cut], 7, shape_of(SLICE))
