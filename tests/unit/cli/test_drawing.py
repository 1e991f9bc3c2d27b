from __future__ import annotations

import pytest

from trimtab.cli.drawing import in_bytes


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (68_700, "67.1 KiB"), (461_887, "451 KiB"), (1 << 41, "2.0 TiB")],
)
def test_sizes_are_short(count: int, shown: str) -> None:
    assert in_bytes(count) == shown
