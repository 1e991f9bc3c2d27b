"""Settings that can't work are refused with the reason."""

import pytest

from trimtab.raft.config import NO_LIMIT, Config
from trimtab.raft.messages import LOCAL_APPEND, LOCAL_APPLY
from trimtab.raft.storage import MemoryStorage


def config(**changed: object) -> Config:
    settings: dict[str, object] = {
        "id": 1,
        "election_tick": 10,
        "heartbeat_tick": 1,
        "storage": MemoryStorage(),
        "random": lambda n: 0,
    }
    return Config(**settings | changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"id": 0}, "reserved"),
        ({"id": LOCAL_APPEND}, "reserved"),
        ({"id": LOCAL_APPLY}, "reserved"),
        ({"heartbeat_tick": 0}, "heartbeat_tick"),
        ({"election_tick": 1}, "election_tick"),
        ({"max_inflight_msgs": 0}, "max_inflight_msgs"),
        ({"max_inflight_bytes": 10, "max_size_per_msg": 11}, "max_inflight_bytes"),
        ({"read_only": "lease", "check_quorum": False}, "check_quorum"),
    ],
)
def test_what_can_not_work_is_refused(changed: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        config(**changed)


def test_zero_means_no_limit_or_the_same_as_a_message() -> None:
    made = config(max_uncommitted_entries_size=0, max_inflight_bytes=0, max_size_per_msg=77)
    assert made.max_uncommitted_entries_size == made.max_inflight_bytes == NO_LIMIT
    assert made.max_committed_size_per_ready == 77


def test_the_careful_choice_is_the_default() -> None:
    made = config()
    assert made.pre_vote and made.check_quorum and made.step_down_on_removal and made.read_only == "safe"
