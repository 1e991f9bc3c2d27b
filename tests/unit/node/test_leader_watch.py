"""That nobody leads is told once, late enough to be news, and so is its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trimtab.node.leader_watch import LeaderWatch
from trimtab.topology.records import InstanceRecord
from trimtab.topology.view import View


class Seen:
    """Member 1 of three, which is connected to member 2."""

    def __init__(self) -> None:
        self.now_s = 100.0
        voters = SimpleNamespace(ids=lambda: frozenset((1, 2, 3)))
        config = SimpleNamespace(voters=voters)
        self.raft = SimpleNamespace(lead=2, tracker=SimpleNamespace(config=config))
        self.lines: list[str] = []
        view = View()
        view.instances[2] = InstanceRecord("i2", "h:2")
        group: Any = SimpleNamespace(raw=SimpleNamespace(raft=self.raft))
        links: Any = {2: SimpleNamespace(channel=SimpleNamespace(connected=True))}
        self.watch = LeaderWatch(1, group, view, links, lambda: self.now_s, self.lines.append)

    def after(self, seconds: float, leader: int) -> list[str]:
        """The lines that are new by then."""
        self.now_s += seconds
        self.raft.lead = leader
        self.lines.clear()
        self.watch.look()
        return list(self.lines)


def test_an_election_is_no_news() -> None:
    seen = Seen()
    assert seen.after(1, 0) == [] and seen.after(2.9, 0) == [] and seen.after(0.05, 2) == []
    assert seen.after(5, 0) == [] and seen.after(1, 1) == []


def test_a_lasting_lack_is_told_once_and_so_is_its_end() -> None:
    seen = Seen()
    seen.after(1, 0)
    (line,) = seen.after(3, 0)
    assert line.startswith("no leader is known: writes are refused") and "1 of 2 other voters, not to member 3" in line
    assert seen.after(50, 0) == []
    assert seen.after(51, 2) == ["a leader again: i2, after 104 s"]
    assert seen.after(1, 2) == []


def test_who_was_put_out_says_nothing_of_leaders() -> None:
    seen = Seen()
    seen.after(1, 0)
    seen.watch.closed = True
    assert seen.after(30, 0) == []
