"""Who may talk to a member as a member, in either direction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trimtab.net.hello import Hello
from trimtab.node.acquaintances import Acquaintances, lost_data, was_removed
from trimtab.node.admission import Admission
from trimtab.node.identity import FORMAT, Identity, Phase
from trimtab.storage.model import ModelDisk
from trimtab.topology.records import InstanceRecord
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

FOUNDERS = {1: "10.0.0.1:1", 2: "10.0.0.2:1", 3: "10.0.0.3:1"}
IDENTITY = Identity(FORMAT, "trimtab", "i1", "mine", Phase.MEMBER, raft_id=1, genesis="g", founders=FOUNDERS)


def hello(raft_id: int, data_id: str = "d", **changed: Any) -> Hello:
    of = Hello(
        cluster_id="trimtab",
        instance_id=f"i{raft_id}",
        raft_id=raft_id,
        genesis=IDENTITY.genesis,
        address=f"10.0.0.{raft_id}:1",
        data_id=data_id,
    )
    return msgspec.structs.replace(of, **changed)


class Door:
    """An admission whose configuration a test can change."""

    def __init__(self, *members: int, disk: ModelDisk | None = None) -> None:
        self.members = set(members)
        self.disk = disk or ModelDisk(call_later=lambda _seconds, _callback: None, sync_latency=lambda: 0.0)
        self.acquaintances = Acquaintances(self.disk)
        self.view = View()
        self.admission = Admission(IDENTITY, self.acquaintances, self.view, lambda: self.members)


def test_clients_and_members_of_the_configuration_are_welcome() -> None:
    door = Door(1, 2, 3)
    assert door.admission.refusal(Hello()) is None
    assert door.admission.refusal(hello(2)) is None


@pytest.mark.parametrize(
    ("stranger", "reason"),
    [
        (hello(2, cluster_id="other"), "belongs to cluster 'trimtab', not 'other'"),
        (hello(2, genesis="other"), "two clusters named 'trimtab'"),
        (hello(1, instance_id="i1"), "raft id 1 is mine"),
    ],
)
def test_who_does_not_belong_here_is_told_why(stranger: Hello, reason: str) -> None:
    refusal = Door(1, 2, 3).admission.refusal(stranger)
    assert refusal is not None and reason in refusal


def test_a_member_with_another_directory_than_before_is_refused() -> None:
    door = Door(1, 2, 3)
    assert door.admission.refusal(hello(2, "old")) is None
    assert door.admission.refusal(hello(2, "new")) == lost_data(2)
    assert Door(1, 2, 3, disk=door.disk).admission.refusal(hello(2, "new")) == lost_data(2)
    assert not door.admission.speaks_for(hello(2, "new"))


def test_a_founder_that_is_not_in_the_configuration_was_removed() -> None:
    assert Door(1, 3).admission.refusal(hello(2)) == was_removed(2)


def test_a_newcomer_without_a_configuration_knows_of_no_removal() -> None:
    assert Door().admission.refusal(hello(2)) is None


def test_a_later_member_counts_as_removed_only_when_that_is_certain() -> None:
    """It may be about to be added, or lead a cluster that went on while this member was down."""
    door = Door(1, 2, 3)
    assert door.admission.refusal(hello(4)) is None
    door.acquaintances.note_removed([4])
    assert door.admission.refusal(hello(4)) == was_removed(4)


def test_whose_record_says_that_it_left_was_removed_once_it_is_out_of_the_configuration() -> None:
    door = Door(1, 2, 3, 4)
    door.view.instances[4] = InstanceRecord("i4", "10.0.0.4:1", uuid="d", state=NodeState.LEFT)
    assert door.admission.refusal(hello(4)) is None, "its vote may still be needed"
    door.members.remove(4)
    assert door.admission.refusal(hello(4)) == was_removed(4)


def test_the_record_says_which_directory_a_member_has_also_to_one_that_never_met_it() -> None:
    door = Door(1, 2, 3, 4)
    door.view.instances[4] = InstanceRecord("i4", "10.0.0.4:1", uuid="joined with")
    assert door.admission.refusal(hello(4, "joined with")) is None
    assert door.admission.speaks_for(hello(4, "joined with"))
    assert door.admission.refusal(hello(4, "another")) == lost_data(4)
    assert not door.admission.speaks_for(hello(4, "another"))
    assert door.acquaintances.data_ids == {}


def test_strangers_are_not_written_down() -> None:
    door = Door(1, 2, 3)
    for number in range(4, 50):
        assert door.admission.refusal(hello(number)) is None
        assert door.admission.speaks_for(hello(number))
    assert door.acquaintances.data_ids == {}


def test_a_stranger_that_becomes_a_member_is_noted_with_its_first_message() -> None:
    door = Door(1, 2, 3)
    door.admission.refusal(hello(4, "old"))
    door.members.add(4)
    assert door.admission.speaks_for(hello(4, "old"))
    assert door.acquaintances.data_ids == {4: "old"}
    assert not door.admission.speaks_for(hello(4, "new"))


def test_clients_speak_for_nobody() -> None:
    assert not Door(1, 2, 3).admission.speaks_for(Hello())


def test_another_member_than_expected_at_an_address_is_refused() -> None:
    door = Door(1, 2, 3)
    assert door.admission.refusal_at(2, hello(2)) is None
    refusal = door.admission.refusal_at(2, hello(3))
    assert refusal == "member 2 should be at this address, but member 3 (i3) answers"
    refusal = door.admission.refusal_at(2, Hello())
    assert refusal is not None and "no member answers" in refusal
