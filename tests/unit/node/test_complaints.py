"""The same complaint again and again is told once in a while."""

from trimtab.node.complaints import Complaints


def test_a_repeated_complaint_is_told_once_and_counted() -> None:
    told: list[str] = []
    now = 0.0
    complaints = Complaints(told.append, lambda: now, quiet_s=60)
    for port in range(5):
        complaints.add(f"connection from port {port} was refused")
    complaints.add("something else")
    assert told == ["connection from port 0 was refused", "something else"]
    now = 61.0
    complaints.add("connection from port 9 was refused")
    assert told[-1] == "connection from port 9 was refused (and 4 more like it)"


def test_what_is_remembered_is_bounded() -> None:
    told: list[str] = []
    complaints = Complaints(told.append, lambda: 0.0)
    for number in range(10_000):
        complaints.add("x" * number)
    assert len(told) == 10_000
    assert len(complaints._kinds) <= 256
