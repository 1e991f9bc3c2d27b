from __future__ import annotations

import msgspec
import pytest
from rich.console import Console
from tests.unit.cli.operator import MadeUp, Operator
from tests.unit.client.views import instance, view

from trimtab.cli.asking import Seen
from trimtab.cli.status import ago, natural, picture
from trimtab.client.errors import Timeout, Unavailable
from trimtab.topology.grades import Grade
from trimtab.topology.states import NodeState

GONE = instance(4, Grade.EXPELLED, Grade.EXPELLED, state=NodeState.LEFT, voter=False, heard_ms=None, reason="old")


def test_the_cluster_is_understood_at_once(operator: Operator) -> None:
    code, out, _ = operator(
        MadeUp(view(instance(1), instance(2, heard_ms=250), instance(10, voter=False), GONE)), "status"
    )
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert out.startswith("All is well: 3 instances Online, i1 leads.\n")
    assert "cluster shop, leader i1, topology version 12, term 3" in out
    assert ["i1", "10.0.0.1:3301", "host=h1", "normal", "Online", "★", "leader", "now"] in lines
    assert ["i2", "10.0.0.2:3301", "host=h2", "normal", "Online", "voter", "0.2", "s", "ago"] in lines
    assert lines[-1][0] == "i10" and lines[-1][5] == "learner"
    assert "i4" not in out


def test_who_has_left_is_shown_on_demand(operator: Operator) -> None:
    _, out, _ = operator(MadeUp(view(instance(1), GONE)), "status", "--all")
    assert "left" in out and "Expelled" in out


def test_a_grade_on_its_way_shows_where_to(operator: Operator) -> None:
    climbing = instance(2, Grade.RAFT_SYNCED, Grade.ONLINE, reason="it came back")
    _, out, _ = operator(MadeUp(view(instance(1), climbing)), "status")
    assert "RaftSynced → Online" in out and "it came back" in out


def test_scripts_get_the_shape_they_rely_on(operator: Operator) -> None:
    shown = operator.json(MadeUp(view()), "status")
    assert (shown["cluster_id"], shown["leader"], shown["topology_version"]) == ("shop", "i1", 12)
    wanted = {"instance_id", "raft_id", "address", "failure_domain", "state", "current_grade", "target_grade"}
    wanted |= {"incarnation", "voter", "weight", "tablets", "bytes"}
    assert wanted <= shown["instances"][0].keys()
    assert (shown["verdict"], shown["stale"]) == ("well", False)


def test_a_full_disk_is_shown_to_people_and_to_scripts(operator: Operator) -> None:
    cluster = MadeUp(view(instance(1), msgspec.structs.replace(instance(2), disk_full=True), instance(3)))
    _, out, _ = operator(cluster, "status")
    assert out.startswith("Not well: i2 takes no writes") and "its disk is full" in out
    shown = operator.json(cluster, "status")
    assert shown["verdict"] == "wrong" and "make space on the disk of i2" in shown["says"][1]
    assert [each["disk_full"] for each in shown["instances"]] == [False, True, False]


def test_without_a_majority_it_shows_what_who_answers_last_knew(operator: Operator) -> None:
    cluster = MadeUp(Timeout("no majority"))
    cluster.surveyed = {"127.0.0.1:1": view(revision=5, asked=1), "10.0.0.2:3301": view(revision=9, asked=2)}
    cluster.addresses = ["127.0.0.1:1"]
    code, out, _ = operator(cluster, "status")
    assert code == 0
    assert out.startswith("No majority: 1 of 3 voters answer")
    assert "as i2 last knew it, not confirmed by a majority" in out
    assert "leader none" in out and "no answer" in out
    shown = operator.json(cluster, "status")
    assert shown["stale"] and shown["verdict"] == "stopped"


def test_when_nobody_answers_it_says_whom_it_asked(operator: Operator) -> None:
    code, out, err = operator(MadeUp(Unavailable("nothing was executed")), "status", "--timeout", "1")
    assert (code, out) == (1, "")
    assert "no member of a cluster answers at 127.0.0.1:1 (asked for 1 s)" in err and "nobody answers" in err


@pytest.mark.parametrize(("ms", "text"), [(0, "0.0 s ago"), (60_000, "60 s ago"), (600_000, "10 min ago")])
def test_how_long_ago_is_short(ms: int, text: str) -> None:
    assert ago(ms) == text


def test_names_are_sorted_as_people_count() -> None:
    assert sorted(["i10", "i2", "a", "i1"], key=natural) == ["a", "i1", "i2", "i10"]


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [
        (60, ["role"], ["why", "failure domain", "address", "heard"]),
        (80, ["heard", "address"], ["why", "failure domain"]),
        (120, ["heard", "address", "failure domain"], []),
        (200, ["heard", "address", "failure domain", "why"], []),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns_and_whole_names(
    width: int, shown: list[str], left_out: list[str]
) -> None:
    reason = "not heard from for 6.0 s, while the leader was in office"
    places = {"region": "europe-west", "zone": "europe-west-b", "host": "h17"}
    down, climbing = instance(3, Grade.OFFLINE, Grade.OFFLINE, reason=reason), instance(4, Grade.RAFT_SYNCED)
    everybody = [
        msgspec.structs.replace(each, record=msgspec.structs.replace(each.record, failure_domain=places))
        for each in (instance(1), instance(2, state=NodeState.REBUILDING), down, climbing)
    ]
    terminal = Console(width=width, force_terminal=False, record=True)
    with terminal.capture() as captured:
        terminal.print(picture(Seen(view(*everybody)), False))
    drawn = captured.get()
    header = next(line for line in drawn.splitlines() if line.startswith("instance"))
    assert all(column.split()[0] in header for column in shown)
    assert not any(column.split()[0] in header for column in left_out)
    assert "…" not in drawn and max(len(line) for line in drawn.splitlines()) <= width
    for whole in ("rebuilding", "Offline", "RaftSynced → Online", "★ leader", "voter"):
        assert whole in drawn
    if "failure domain" in shown:
        assert all(f"{key}={value}" in drawn for key, value in places.items())


def test_who_is_silent_is_asked_of_the_leader_where_a_follower_answers(operator: Operator) -> None:
    untold = [instance(number, heard_ms=None) for number in (1, 2, 3)]
    cluster = MadeUp(view(*untold, leader=2, asked=1))
    cluster.surveyed = {"10.0.0.2:3301": view(instance(1), instance(2), instance(3, heard_ms=3_000), leader=2, asked=2)}
    assert operator(cluster, "status")[1].startswith("Not well: i3 has not been heard of lately")
    # One that was deposed meanwhile, and does not answer at all.
    for told in (view(leader=2, asked=2, revision=3), view(leader=1, asked=2), "no answer"):
        cluster.surveyed = {"10.0.0.2:3301": told}
        out = operator(cluster, "status")[1]
        assert out.startswith("All is well") and "i2 did not answer; i1 did, but can't tell who is silent" in out


def test_a_newcomer_that_was_not_heard_of_yet_has_no_age(operator: Operator) -> None:
    off = Grade.OFFLINE
    coming = instance(4, off, off, state=NodeState.NONE, voter=False, heard_ms=40_000, applied=0)
    out = operator(MadeUp(view(instance(1), instance(2), instance(3), coming)), "status")[1]
    assert out.splitlines()[-1].rstrip().endswith("not yet") and "40 s" not in out
