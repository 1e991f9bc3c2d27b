"""Clusters of real processes for a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.instances import BRISK, STEADY, Instances, loopback
from tests.cluster.members import Members
from tests.conftest import Processes


@pytest.fixture
def members(processes: Processes, free_ports: Callable[[int], list[int]], tmp_path: Path) -> Members:
    """Three members that are not started yet."""
    return Members(processes, tmp_path, free_ports(3), *STEADY)


@pytest.fixture
def three(processes: Processes, tmp_path: Path) -> Instances:
    """Three instances that are not started yet."""
    return Instances(processes, tmp_path, loopback(3))


@pytest.fixture
def brisk_three(processes: Processes, tmp_path: Path) -> Instances:
    """The same, where it is waited for that a silent one is marked Offline."""
    return Instances(processes, tmp_path, loopback(3), options=BRISK)
