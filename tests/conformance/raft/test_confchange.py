"""Membership tables of etcd's raft: simple and joint changes, what they lead to, and what is refused.

The log grows by one with each case, so that `next` tells in which case a peer's progress was made.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.raft.datadriven import Case, read_cases, vector_files
from trimtab.raft.confchange import Changer
from trimtab.raft.describe import parse_changes
from trimtab.raft.errors import ConfChangeRefused
from trimtab.raft.progress import describe_progress
from trimtab.raft.tracker import Tracker


def run(case: Case, changer: Changer) -> str:
    try:
        changes = parse_changes(case.input)
    except ValueError as error:
        return f"{error}\n"
    try:
        if case.command == "simple":
            changed = changer.simple(changes)
        elif case.command == "enter-joint":
            auto_leave = case.argument("autoleave")
            changed = changer.enter_joint(changes, auto_leave=auto_leave is not None and auto_leave.values == ["true"])
        elif case.command == "leave-joint":
            if changes:
                return "this command takes no input\n"
            changed = changer.leave_joint()
        else:
            return "unknown command\n"
    except ConfChangeRefused as refused:
        return f"{refused}\n"
    changer.tracker.switch(*changed)
    return f"{changer.tracker.config}\n{describe_progress(changer.tracker.progress)}"


@pytest.mark.parametrize("path", vector_files("raft/confchange") or [None], ids=lambda path: path and path.stem)
def test_memberships_change_as_in_the_table(path: Path | None, vectors: Callable[[str], Path]) -> None:
    vectors("raft/confchange")
    assert path is not None, "the folder of membership tables is empty"
    changer = Changer(Tracker(max_inflight_messages=10, max_inflight_bytes=0), last_index=0)
    for case in read_cases(path):
        assert run(case, changer) == case.expected, case.where
        changer.last_index += 1
