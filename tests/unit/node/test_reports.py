"""Whose disk is full, and whom a leader with a full one hands over to."""

from types import SimpleNamespace
from typing import Any

from trimtab.metastore import requests
from trimtab.metastore.errors import FutureRevision
from trimtab.node.reports import Reports, successor


def leader(*, match: dict[int, int], voters: set[int], transferee: int = 0, silent: tuple[int, ...] = ()) -> Any:
    progress = {peer: SimpleNamespace(match=index, recent_active=peer not in silent) for peer, index in match.items()}
    tracker = SimpleNamespace(progress=progress, config=SimpleNamespace(voters=voters))
    return SimpleNamespace(id=1, lead=1, lead_transferee=transferee, tracker=tracker, log=SimpleNamespace(committed=10))


def test_it_is_a_voter_that_is_heard_from_and_has_everything_committed() -> None:
    assert successor(leader(match={1: 12, 2: 9, 3: 12, 4: 10, 5: 10}, voters={1, 2, 3, 4}, silent=(3,)), set()) == 4


def test_it_is_none_whose_own_disk_is_full() -> None:
    assert successor(leader(match={1: 10, 2: 10, 3: 10}, voters={1, 2, 3}), {2}) == 3
    assert successor(leader(match={1: 10, 2: 10, 3: 10}, voters={1, 2, 3}), {2, 3}) is None


def test_only_a_leader_that_is_not_handing_over_already_asks() -> None:
    assert successor(leader(match={1: 10, 2: 10}, voters={1, 2}, transferee=2), set()) is None
    follower = leader(match={1: 10, 2: 10}, voters={1, 2})
    follower.lead = 2
    assert successor(follower, set()) is None


def test_everybody_knows_whose_disk_is_full_until_it_says_otherwise() -> None:
    def checksum_at(revision: int) -> bytes:
        raise FutureRevision(revision, 0)

    space = SimpleNamespace(full="")
    metastore = SimpleNamespace(checksum_at=checksum_at)
    instance: Any = SimpleNamespace(
        raft_id=1, host=SimpleNamespace(full=lambda: space.full), machine=SimpleNamespace(metastore=metastore)
    )
    reports = Reports(instance)

    def say(peer: int, full: bool) -> None:
        body = requests.encode(requests.MemberReport(5, b"", full))
        told: Any = SimpleNamespace(peer=SimpleNamespace(raft_id=peer), body=body)
        reports.receive(told)

    assert reports.full() == frozenset()
    say(2, True)
    space.full = "disk full"
    assert reports.full() == {1, 2}
    say(2, False)
    assert reports.full() == {1}
