"""What tests of stores on a real disk share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.storage.rocks import RocksDisk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RocksDisk]:
    disk = RocksDisk(tmp_path / "disk", reserve_bytes=0)
    yield disk
    disk.close()


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as quickly as they do in a node."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.000_2)
    yield
    sys.setswitchinterval(usual)
