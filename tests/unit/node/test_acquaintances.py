"""Another data directory behind a known raft id is refused, also after a restart."""

from __future__ import annotations

import pytest

from trimtab.node.acquaintances import PEERS_FILE, Acquaintances, lost_data
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import Corrupt


def disk() -> ModelDisk:
    return ModelDisk(call_later=lambda _seconds, _callback: None, sync_latency=lambda: 0.0)


def test_whom_it_met_once_it_knows_after_a_restart() -> None:
    machine = disk()
    assert Acquaintances(machine).meet(2, "first") is None
    again = Acquaintances(machine)
    assert again.meet(2, "first") is None
    assert again.meet(2, "second") == lost_data(2)
    assert again.data_ids == {2: "first"}


def test_who_can_not_be_written_down_is_not_accepted_and_not_remembered_by_half() -> None:
    machine = disk()
    known = Acquaintances(machine)
    machine.full = True
    refusal = known.meet(2, "first")
    assert refusal is not None and "disk full" in refusal
    machine.full = False
    assert known.meet(2, "other") is None


def test_on_a_full_disk_it_still_knows_whom_it_has_met() -> None:
    machine = disk()
    known = Acquaintances(machine)
    known.meet(2, "first")
    machine.full = True
    assert known.meet(2, "first") is None


def test_removed_ids_are_remembered() -> None:
    machine = disk()
    Acquaintances(machine).note_removed([4, 3])
    assert Acquaintances(machine).removed == {3, 4}


def test_a_damaged_memory_is_an_error_that_names_the_file() -> None:
    machine = disk()
    machine.write_file(PEERS_FILE, b"{")
    with pytest.raises(Corrupt, match=PEERS_FILE):
        Acquaintances(machine)
