"""The decisions about the bulk child: it comes with the node's first Ready, and comes back whenever it ends."""

from __future__ import annotations

from trimtab.node.supervision import Attendance, Exited, Fatal, Online, Patience, Ready, StartBulk

PATIENCE = Patience(first_backoff_s=0.2, longest_backoff_s=1.0, long_life_s=30.0)


def test_it_is_started_once_when_the_node_is_ready() -> None:
    attendance = Attendance(PATIENCE)
    assert attendance.node_said(Online()) == [] and attendance.node_said(Fatal("x")) == []
    assert attendance.node_said(Ready()) == [StartBulk()]
    assert attendance.node_said(Ready()) == [], "the node was started again; the child has gone on meanwhile"


def test_it_is_started_again_later_each_time_and_soon_after_a_long_life() -> None:
    attendance = Attendance(PATIENCE)
    attendance.node_said(Ready())
    waits = [attendance.exited(Exited(1, 0.1))[0].after_s for _ in range(5)]
    assert waits == [0.2, 0.4, 0.8, 1.0, 1.0]
    (start,) = attendance.exited(Exited(-9, 31.0))
    assert start == StartBulk(0.2, "it was ended by SIGKILL")


def test_it_is_not_wanted_while_the_database_is_dropped() -> None:
    attendance = Attendance(PATIENCE)
    attendance.node_said(Ready())
    attendance.leave_off()
    assert attendance.exited(Exited(-9, 1.0)) == []
    assert attendance.node_said(Ready()) == [StartBulk()]
