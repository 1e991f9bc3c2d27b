"""Whose data a directory holds: written before it is said to anybody, and never taken for somebody else's."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from trimtab.node import identity as identities
from trimtab.node.identity import FORMAT, IDENTITY_FILE, Identity, Phase
from trimtab.node.settings import Settings, SettingsError
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import Corrupt
from trimtab.topology.protocol import Address

SETTINGS = Settings("i1", "10.0.0.1:1", ("10.0.0.1:1",), cluster_id="c")


def empty_disk() -> ModelDisk:
    return ModelDisk(call_later=lambda _seconds, _callback: None, sync_latency=lambda: 0.0)


def begin(disk: ModelDisk, seed: int = 1) -> Identity:
    return identities.open_or_begin(disk, SETTINGS, random.Random(seed))


def test_an_empty_directory_gets_a_uuid_and_keeps_it() -> None:
    disk = empty_disk()
    first = begin(disk)
    assert first.phase is Phase.NEW and first.uuid and first.raft_id == 0
    disk.crash(random.Random(1))
    assert begin(disk, seed=2) == first
    assert begin(empty_disk(), seed=2).uuid != first.uuid


def test_everything_it_says_comes_back() -> None:
    disk = empty_disk()
    member = Identity(
        FORMAT, "c", "i1", "u", Phase.MEMBER, "n", 3, "g", {1: "a:1"}, [Address(1, "a:1", 7), Address(2, "b:1", 9)]
    )
    identities.store(disk, member)
    assert begin(disk) == member


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"cluster_id": "other"}, "belongs to cluster 'other', but this is cluster 'c'"),
        ({"instance_id": "i9"}, "belongs to instance 'i9', but this is instance 'i1'"),
        ({"format": 1}, "made by an earlier development version"),
        ({"format": 3}, "made by a newer version"),
    ],
)
def test_the_directory_of_another_is_refused_and_left_alone(changed: dict[str, Any], says: str) -> None:
    disk = empty_disk()
    identities.store(disk, msgspec.structs.replace(begin(disk), **changed))
    before = disk.read_file(IDENTITY_FILE)
    with pytest.raises(SettingsError, match=says):
        begin(disk)
    assert disk.read_file(IDENTITY_FILE) == before


def test_a_directory_of_the_first_format_is_refused_by_its_number_alone() -> None:
    disk = empty_disk()
    disk.write_file(IDENTITY_FILE, b'{"format": 1, "raft_id": 2, "data_id": "d"}')
    with pytest.raises(SettingsError, match="earlier development version"):
        begin(disk)


@pytest.mark.parametrize(
    "stored",
    [b"", b"{", b"[]", b'{"format": 2}', b'{"format": "2"}', b'{"format": 2, "phase": "member", "raft_id": 0}'],
)
def test_what_can_not_be_read_is_not_guessed(stored: bytes) -> None:
    disk = empty_disk()
    disk.write_file(IDENTITY_FILE, stored)
    with pytest.raises(Corrupt, match=IDENTITY_FILE):
        begin(disk)


@pytest.mark.parametrize(("phase", "raft_id"), [(Phase.MEMBER, 0), (Phase.JOIN, 3)])
def test_a_member_has_a_raft_id_and_nobody_else_has(phase: Phase, raft_id: int) -> None:
    disk = empty_disk()
    identities.store(disk, Identity(FORMAT, "c", "i1", "u", phase, raft_id=raft_id))
    with pytest.raises(Corrupt, match="its phase is"):
        begin(disk)


def test_a_log_without_an_identity_belongs_to_nobody() -> None:
    disk = empty_disk()
    disk.open("log", wal=True)
    with pytest.raises(Corrupt, match="unknown whose data this is"):
        begin(disk)


def test_a_directory_whose_recovery_was_interrupted_is_not_started() -> None:
    disk = empty_disk()
    identities.store(disk, Identity(FORMAT, "c", "i1", "u", Phase.MEMBER, raft_id=1, genesis="new", recovering="old"))
    with pytest.raises(SettingsError, match="run `trimtab recover` again"):
        begin(disk)
