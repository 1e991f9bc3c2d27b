"""A row in parts is the same row."""

from __future__ import annotations

import random

from tests.unit.rows.world import World

from trimtab.rows.keys import STATIC, TAIL, partition_end
from trimtab.rows.merge import canonical
from trimtab.rows.splitting import parts_of


def test_any_stored_pair_taken_apart_merges_to_what_it_was() -> None:
    assert sum(_taken_apart(seed) for seed in range(25)) > 100


def _taken_apart(seed: int) -> int:
    """How many pairs of a random table were more than one."""
    world = World(random.Random(seed))
    for _ in range(60):
        world.step()
    layout, count = world.layout, 0
    for replica in world.replicas:
        for key, value in replica.items():
            parts = parts_of(layout, key, value, 40)
            at = partition_end(layout, key)
            static = bool(layout.clustering) and at is not None and key[at : at + 1] == STATIC
            if parts == [key, value]:
                continue
            count += len(parts) > 2
            assert {each[:-TAIL] for each in parts[::2]} <= {key[:-TAIL]}
            whole = canonical(layout, [key, value], static=static)
            assert canonical(layout, parts, static=static) == whole
            assert canonical(layout, [*parts, key, value], static=static) == whole
    return count
