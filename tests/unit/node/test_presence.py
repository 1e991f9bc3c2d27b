"""The leader's desk for heartbeats: who gets a lease, and what the leader knows of whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trimtab.node.office import Office
from trimtab.node.presence import HeartbeatDesk
from trimtab.raft.roles import StateType
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.protocol import Grant, Heartbeat
from trimtab.topology.records import InstanceRecord, instance_key
from trimtab.topology.view import View


class Desk:
    """A leader in office; a majority answers when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.view = View()
        self.stand(2, Grade.ONLINE)
        self.raft = SimpleNamespace(state=StateType.LEADER, term=3, lead=1, log=SimpleNamespace(committed=20))
        self.rounds: list[Any] = []
        self.news = 0
        self.off: list[tuple[int, int]] = []
        self.machine = SimpleNamespace(applied_term=3, applied_index=20)
        group: Any = SimpleNamespace(raw=SimpleNamespace(raft=self.raft), machine=self.machine)
        host: Any = SimpleNamespace(read=lambda _group, done: self.rounds.append(done))
        self.office = office = Office(host, group, lambda: self.now, gap_s=2.0)
        office.look()
        self.desk = HeartbeatDesk(
            group,
            self.view,
            office,
            lambda: self.now,
            lease_ms=3_000,
            election_ms=1_000,
            election_max_ms=2_000,
            offline_after_ms=6_000,
            address_of=lambda _raft_id: "h:1",
            news=self._news,
            max_skew_ms=500,
            clock_off=lambda raft_id, off_ms: self.off.append((raft_id, off_ms)),
        )
        self.desk.took_office()
        self.grants: list[Grant] = []

    def _news(self) -> None:
        self.news += 1

    def stand(self, raft_id: int, grade: Grade, target: Grade = Grade.ONLINE) -> None:
        grades = Grades(Standing(grade, 1), Standing(target, 1))
        self.view.instances[raft_id] = InstanceRecord(f"i{raft_id}", "h:2", uuid="u2", grades=grades)

    def beat(self, number: int = 1, uuid: str = "u2", applied: int = 20, surrendered: bool = False) -> None:
        self.desk.take(Heartbeat(2, uuid, number, 3, applied, 5, surrendered), self.grants.append)

    def confirm(self, error: Exception | None = None) -> None:
        self.rounds.pop()(error)


def test_a_lease_is_granted_after_a_majority_has_confirmed_the_leader_and_that_serves_for_a_while() -> None:
    desk = Desk()
    desk.beat(1)
    assert desk.grants == []
    desk.confirm()
    assert desk.grants[-1] == Grant(1, 3, 3_000, 20, steady_ms=1_000_000)
    desk.now += 0.4
    desk.beat(2)
    assert desk.grants[-1].number == 2 and desk.rounds == []


def test_a_majority_that_answers_too_late_confirms_no_lease() -> None:
    desk = Desk()
    desk.beat()
    desk.now += 1.5
    desk.confirm()
    assert desk.grants[-1].lease_ms == 0 and "majority" in desk.grants[-1].reason


def test_a_leader_without_a_majority_grants_nothing() -> None:
    desk = Desk()
    desk.beat()
    desk.confirm(RuntimeError("no quorum"))
    assert desk.grants[-1].lease_ms == 0


def test_who_should_be_offline_is_withheld_or_is_not_what_it_says_gets_none() -> None:
    desk = Desk()
    desk.beat()
    desk.confirm()
    desk.stand(2, Grade.ONLINE, Grade.OFFLINE)
    desk.beat(2)
    assert desk.grants[-1].lease_ms == 0 and "should be Offline" in desk.grants[-1].reason
    desk.stand(2, Grade.ONLINE)
    desk.beat(3, uuid="other")
    assert desk.grants[-1].lease_ms == 0
    withheld = desk.desk.withhold([2])
    again = desk.desk.withhold([2])
    desk.beat(4)
    assert desk.grants[-1].lease_ms == 0 and "about to" in desk.grants[-1].reason
    desk.desk.grant_again(again)
    desk.beat(5)
    assert desk.grants[-1].lease_ms == 0, "another write is still under way"
    desk.desk.grant_again(withheld)
    desk.beat(6)
    assert desk.grants[-1].lease_ms == 3_000


def test_while_nobody_knows_whether_it_will_be_marked_it_gets_none_until_its_row_moves_or_the_term_ends() -> None:
    desk = Desk()
    desk.beat()
    desk.confirm()
    desk.desk.withhold([2]).in_doubt = True
    desk.desk.took_office()  # after a stop of the process, in the same term
    desk.beat(2)
    assert desk.grants[-1].lease_ms == 0
    desk.view.revisions[instance_key(2)] = 77
    desk.beat(3)
    assert desk.grants[-1].lease_ms == 3_000
    desk.desk.withhold([2]).in_doubt = True
    desk.raft.term = desk.machine.applied_term = 4
    desk.office.look()
    desk.desk.took_office()
    desk.beat(4)
    desk.confirm()
    assert desk.grants[-1].lease_ms == 3_000


def test_the_leader_knows_how_long_a_lease_may_be_out_and_that_one_was_given_up() -> None:
    desk = Desk()
    desk.now += 20
    assert desk.desk.lease_left_ms(2) == 0
    desk.beat()
    desk.confirm()
    assert 3_000 <= desk.desk.lease_left_ms(2) < 3_200
    desk.beat(2, surrendered=True)
    assert desk.desk.lease_left_ms(2) == 0


def test_an_instance_that_speaks_for_itself_was_heard_from() -> None:
    desk = Desk()
    desk.now += 10
    assert desk.desk.heard()[2].age_ms == 10_000
    desk.desk.spoke(2)
    desk.now += 1
    assert desk.desk.heard()[2].age_ms == 1_000 and desk.news == 1


def test_a_heartbeat_is_news_when_the_instance_was_silent_or_has_caught_up_on_its_way_and_else_is_not() -> None:
    desk = Desk()
    desk.beat()
    assert desk.news == 0
    desk.now += 4
    desk.beat(2)
    assert desk.news == 1
    desk.stand(2, Grade.RAFT_SYNCED)
    for number in range(3, 20):
        desk.beat(number)
    assert desk.news == 1, "nothing is new"
    desk.raft.log.committed = 30
    desk.beat(20, applied=25)
    assert desk.news == 1
    desk.beat(21, applied=30)
    assert desk.news == 2


def test_a_wrong_clock_is_told_once_and_every_grant_says_what_time_it_is() -> None:
    desk = Desk()
    wall_ms = 1_700_000_000_000

    def beat(raft_id: int, ahead_ms: int, term: int = 3) -> None:
        low_ms = wall_ms - 1_000_000 + ahead_ms
        desk.desk.take(Heartbeat(raft_id, "u2", 1, term, 20, 5, False, low_ms - 1, low_ms + 1), desk.grants.append)

    for raft_id in (1, 3):
        desk.stand(raft_id, Grade.ONLINE)
    beat(1, 60_000)
    desk.confirm()
    assert desk.grants[-1].time_high_ms == 0  # one of three knows
    beat(2, 5)
    beat(3, 0, term=2)  # it speaks of an earlier leader's clock
    # Two of three disagree, and the third will decide.
    assert desk.off == [] and desk.grants[-1].time_high_ms - desk.grants[-1].time_low_ms > 59_000
    beat(3, 0)
    assert desk.grants[-1].time_low_ms == wall_ms + 5 - 1 and desk.grants[-1].time_high_ms == wall_ms + 5 + 1
    for _ in range(3):
        beat(1, 60_000)
    assert [raft_id for raft_id, _ in desk.off] == [1] and set(desk.desk.clocks_off()) == {1}
    beat(1, 0)
    assert desk.desk.clocks_off() == {}
