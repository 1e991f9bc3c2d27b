"""The ledger against the obvious: a sorted dict. Its windows in memory must never decide anything."""

from __future__ import annotations

import random

import pytest
from tests.unit.metastore.dict_store import DictStore

from trimtab.metastore import ledger as module
from trimtab.metastore.ledger import ResultLedger
from trimtab.metastore.limits import Memory


def an_id(time_ms: int, number: int) -> bytes:
    return time_ms.to_bytes(8, "big") + bytes(16) + number.to_bytes(8, "big")


@pytest.mark.parametrize("seed", range(25))
def test_any_order_of_ids_batches_and_restarts_agrees_with_a_sorted_dict(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    # Small windows, so that every way in and out of them is taken.
    monkeypatch.setattr(module, "_RECENT", rng.choice([1, 4, 50]))
    monkeypatch.setattr(module, "_REFILL", rng.choice([1, 3, 40]))
    monkeypatch.setattr(module, "_OLDEST", rng.choice([4, 8, 60]))
    memory = Memory(expiry_ms=300, max_results=rng.choice([5, 20, 1000]), evicted_per_command=rng.choice([1, 2, 4]))
    store = DictStore()
    ledger = ResultLedger(store, memory, 0, b"")
    batch = store.batch()
    model: dict[bytes, bytes] = {}
    horizon = b""
    now = 1000
    seen: list[bytes] = []
    for number in range(400):
        now += rng.choice([0, 1, 1, 10, rng.choice([1, 500])])
        command_id = rng.choice(seen[-40:]) if seen and rng.random() < 0.3 else an_id(now - rng.randrange(60), number)
        if command_id > horizon:
            assert ledger.find(command_id) == model.get(command_id)
            if command_id not in model:
                result = b"%d" % number
                ledger.record(command_id, result, batch)
                model[command_id] = result
                seen.append(command_id)
        ledger.forget(now, batch)
        for _ in range(memory.evicted_per_command):
            oldest = min(model, default=None)
            if oldest is None:
                break
            if int.from_bytes(oldest[:8], "big") + memory.expiry_ms > now and len(model) <= memory.max_results:
                break
            del model[oldest]
            horizon = oldest
        assert (ledger.count, ledger.horizon) == (len(model), horizon)
        if rng.random() < 0.3:
            store.write(batch)
            batch = store.batch()
            ledger.committed()
            assert {key[1:]: value for key, value in store.data.items()} == model
            if rng.random() < 0.2:
                ledger = ResultLedger(store, memory, ledger.count, ledger.horizon)


def test_forgetting_is_a_few_at_a_time() -> None:
    store = DictStore()
    ledger = ResultLedger(store, Memory(expiry_ms=10, evicted_per_command=4), 0, b"")
    batch = store.batch()
    for number in range(100):
        ledger.record(an_id(1, number), b"", batch)
    counts = []
    for _ in range(26):
        ledger.forget(1000, batch)
        counts.append(ledger.count)
    assert counts == [*range(96, -1, -4), 0]


def test_the_windows_stay_bounded() -> None:
    store = DictStore()
    ledger = ResultLedger(store, Memory(), 0, b"")
    for number in range(30_000):
        batch = store.batch()
        ledger.record(an_id(number, number), b"", batch)
        store.write(batch)
        ledger.committed()
    assert len(ledger._recent) + len(ledger._older) <= 2 * module._RECENT
    assert len(ledger._oldest) <= module._OLDEST
    assert ledger.find(an_id(3, 3)) == b"" and ledger.find(an_id(29_999, 29_999)) == b""
