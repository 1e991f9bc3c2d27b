"""Any life of a table, beside a model made of a list: puts, updates, deletes, expiry, columns that come and go, with
versions arriving in any order, replicas folded and repaired in between, and read by key, slice and scan."""

from __future__ import annotations

import random

import pytest
from tests.unit.rows.tables import KEY_TYPES, MULTICELL, table
from tests.unit.rows.world import World

STEPS = 60


@pytest.mark.parametrize("block", range(12))
def test_any_life_of_a_table_reads_as_the_model_says(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        world = World(random.Random(seed))
        for step in range(STEPS):
            try:
                world.step()
            except Exception as error:
                error.add_note(f"seed {seed}, step {step}")
                raise


@pytest.mark.parametrize("key", KEY_TYPES)
def test_a_table_with_descending_keys_of_each_type(key: str) -> None:
    made = table([key], [f"{key} desc", "int"], ["text", "frozen<place>"], ["bigint"])
    for seed in range(2):
        world = World(random.Random(seed), made)
        for _ in range(STEPS):
            world.step()


@pytest.mark.parametrize("collection", MULTICELL)
def test_a_table_of_collections(collection: str) -> None:
    made = table(["int"], ["int desc"], [collection, collection], [collection])
    for seed in range(4):
        world = World(random.Random(seed), made)
        for _ in range(STEPS):
            world.step()
