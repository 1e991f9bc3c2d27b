"""Why somebody is not reached, as an operator wants to read it."""

from __future__ import annotations

import pytest

from trimtab.node.entrance import in_short


@pytest.mark.parametrize(
    ("said", "short"),
    [
        ("not connected to h:1: cannot connect to h:1: [Errno 111] Connection refused", "connection refused"),
        ("not connected to h:1: no connection to h:1 within 2 s", "no connection to h:1 within 2 s"),
        ("not connected to h:2: not tried yet", "not connected to h:2: not tried yet"),
        ("of another cluster", "of another cluster"),
    ],
)
def test_the_reason_does_not_repeat_the_address_nor_numbers_of_the_system(said: str, short: str) -> None:
    assert in_short(said, "h:1") == short
