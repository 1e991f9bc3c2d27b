"""Whom a leader with a full disk hands over to."""

from types import SimpleNamespace
from typing import Any

from trimtab.node.reports import successor


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
