"""Consistency levels: how many replicas must answer, and where.

`Level` is shared by every door. What a level needs of a replica set is a pure question: see `needed`.
"""

from __future__ import annotations

import enum


class Level(enum.IntEnum):
    """Numbered as in CQL's protocol."""

    ANY = 0
    ONE = 1
    TWO = 2
    THREE = 3
    QUORUM = 4
    ALL = 5
    LOCAL_QUORUM = 6
    EACH_QUORUM = 7
    LOCAL_ONE = 10
