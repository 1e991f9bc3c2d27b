"""`trimtab tasks` with tablets under way, and `trimtab rebalance`: what is shown, what is asked, what is refused."""

from __future__ import annotations

import json

import msgspec
import pytest
from tests.unit.cli.operator import MadeUp, MadeUpMoves, Operator
from tests.unit.client.views import view

from trimtab.client.errors import InvalidRequest
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.tablets.moves_shown import MovesShown, ShownMove
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import (
    Cause,
    RebalanceRecord,
    RebalanceState,
    TabletTransition,
    TransitionKind,
)

COPIED = TabletTransition(
    (3, 2), TransitionKind.MIGRATION, Stage.STREAMING, "s", job=9, why="i3 is new", began_ms=1_700_000_000_000
)
MOVE = ShownMove(1, 17, (1, 2), COPIED, 42 << 20, 100 << 20, 6.0, "running")
RUNNING = RebalanceRecord(RebalanceState.RUNNING, 1, 5, began_ms=1_700_000_000_000, moves=2, moved_bytes=200 << 20)
SHOWN = MovesShown([MOVE], {1: RUNNING}, names={1: "shop.users"}, rates={1: float(10 << 20)}, told=True)
GONE = MovesShown(names={1: "shop.users"}, told=True)


def cluster(*states: MovesShown) -> MadeUp:
    made = MadeUp(view())
    made.moves = MadeUpMoves(*(states or (SHOWN,)))
    return made


def test_tablets_under_way_are_tasks(operator: Operator) -> None:
    whole, one = operator.json(cluster(), "tasks", "list")
    assert (whole["id"], whole["kind"], whole["progress_tablets"], whole["total_tablets"]) == (
        "shop.users",
        "rebalance",
        2,
        3,
    )
    assert (one["id"], one["kind"], one["state"], one["eta_s"]) == ("shop.users:17", "migration", "running", 6.0)
    _, out, _ = operator(cluster(), "tasks", "list")
    assert "running, 2 of 3 tablets, 242 of 300 MiB, 10.0 MiB/s, 6 s left" in out
    assert "running, streaming, 42 of 100 MiB, 6 s left" in out
    assert "i3 is new" in out


def test_of_many_tablets_the_first_are_listed_and_scripts_get_all(operator: Operator) -> None:
    many = msgspec.structs.replace(
        SHOWN, moves=[msgspec.structs.replace(MOVE, tablet=number) for number in range(30)], left_out=5
    )
    _, out, _ = operator(cluster(many), "tasks", "list")
    assert "shop.users:19" in out and "shop.users:20" not in out
    assert "15 more tablets are under way; `trimtab tablets` shows them all." in out
    assert len(operator.json(cluster(many), "tasks", "list")) == 31


def test_one_tablet_is_shown_with_all_that_is_known(operator: Operator) -> None:
    shown = operator.json(cluster(), "tasks", "show", "shop.users:17")
    assert (shown["move"]["from"], shown["move"]["to"], shown["move"]["job"]) == (["i1"], ["i3"], 9)
    assert operator.json(cluster(), "tasks", "show", "shop.users/17") == shown
    assert operator.json(cluster(), "tasks", "show", "shop.users")["kind"] == "rebalance"
    code, _, err = operator(cluster(), "tasks", "show", "shop.users:18")
    assert code == 1 and "there is no task shop.users:18" in err


@pytest.mark.parametrize("wrong", ["users:17", "shop.users:x", "shop.users:", "0", "9" * 30, "a.b.c", "twelve", ""])
@pytest.mark.parametrize("order", ["show", "wait", "pause", "resume", "cancel"])
def test_what_is_no_task_is_wrong_usage(operator: Operator, order: str, wrong: str) -> None:
    made = cluster()
    code, out, err = operator(made, "tasks", order, wrong)
    assert (code, out) == (2, "") and "no task" in err
    assert made.moves.asked == [] and made.jobs.asked == []


def test_to_pause_a_tablet_is_to_pause_the_job_that_copies_it(operator: Operator) -> None:
    other = msgspec.structs.replace(MOVE, tablet=18)
    made = cluster(msgspec.structs.replace(SHOWN, moves=[MOVE, other]))
    made.jobs.steered = JobRecord(9, Command(JobKind.STREAM), JobState.RUNNING, wanted="pause")
    code, out, _ = operator(made, "tasks", "pause", "shop.users:17")
    assert code == 0 and made.jobs.asked == [(9, "pause", "")]
    assert "shop.users:17 will pause (job 9, and with it 1 other tablet); `trimtab tasks resume shop.users:17`" in out
    code, out, _ = operator(made, "tasks", "resume", "shop.users")
    assert code == 0 and "shop.users goes on (job 9)." in out


def test_only_a_copy_can_be_paused(operator: Operator) -> None:
    late = msgspec.structs.replace(
        MOVE, transition=msgspec.structs.replace(COPIED, stage=Stage.USE_NEW, locked=True, job=0)
    )
    code, _, err = operator(cluster(msgspec.structs.replace(SHOWN, moves=[late])), "tasks", "pause", "shop.users:17")
    assert code == 1 and "shop.users:17 copies nothing now (it is in use_new)" in err


def test_to_cancel_a_tablet_is_to_undo_its_move(operator: Operator) -> None:
    made = cluster()
    code, out, _ = operator(made, "tasks", "cancel", "shop.users:17", "--reason", "not today")
    assert code == 0 and made.moves.asked == [(1, 17, "not today")]
    assert out.startswith("shop.users:17 goes back to where it was. Balancing may choose it again")
    made.moves.refusal = InvalidRequest("it only goes forward")
    assert operator(made, "tasks", "cancel", "shop.users:17")[::2] == (1, "trimtab: it only goes forward.\n")
    code, _, err = operator(cluster(), "tasks", "cancel", "shop.users:18")
    assert code == 1 and "shop.users:18 is not under way" in err
    code, _, err = operator(cluster(), "tasks", "cancel", "shop.orders:1")
    assert code == 1 and "nothing is under way with that table" in err


def test_a_tablet_is_waited_for_until_it_has_arrived_or_gone_back(operator: Operator) -> None:
    made = cluster(SHOWN, SHOWN)
    made.moves.replicas = (3, 2)
    code, out, _ = operator(made, "tasks", "wait", "shop.users:17")
    assert code == 0 and out.startswith("shop.users:17 is on i3 and i2 (")
    undone = msgspec.structs.replace(
        SHOWN,
        moves=[
            msgspec.structs.replace(
                MOVE, transition=msgspec.structs.replace(COPIED, stage=Stage.CLEANUP_TARGET, error="i3 is down")
            )
        ],
    )
    made = cluster(undone, undone)
    made.moves.replicas = (1, 2)
    code, _, err = operator(made, "tasks", "wait", "shop.users:17")
    assert (code, err) == (1, "trimtab: shop.users:17 is on i1 and i2, not where it was to go: i3 is down.\n")
    code, out, _ = operator(made, "tasks", "wait", "shop.users:17", "--json")
    assert code == 1 and json.loads(out)["state"] == "undone"


def test_a_tablet_that_has_arrived_already_need_not_be_waited_for(operator: Operator) -> None:
    made = cluster(GONE, GONE)
    made.moves.replicas = (3, 2)
    code, out, _ = operator(made, "tasks", "wait", "shop.users:17")
    assert code == 0 and out.startswith("shop.users:17 is on i3 and i2 (")
    made.moves.replicas = ()
    code, _, err = operator(made, "tasks", "wait", "shop.users:99")
    assert code == 1 and "shop.users has no such tablet" in err


def test_waiting_for_a_rebalance_that_is_over_tells_how_it_ended(operator: Operator) -> None:
    """It said that nothing had arrived."""
    over = msgspec.structs.replace(RUNNING, state=RebalanceState.COMPLETED, ended_ms=1_700_000_001_000)
    ended = msgspec.structs.replace(GONE, rebalances={1: over})
    said = "shop.users: completed, 2 of 2 tablets, 200 of 200 MiB.\n"
    assert operator(cluster(ended), "tasks", "wait", "shop.users") == (0, said, "")
    shape = {"id": "shop.users", "state": "done", "tablets": 2, "undone": []}
    assert operator.json(cluster(ended), "tasks", "wait", "shop.users") == shape
    failed = msgspec.structs.replace(over, state=RebalanceState.FAILED, reason="no disk has room")
    code, out, err = operator(
        cluster(msgspec.structs.replace(GONE, rebalances={1: failed})), "tasks", "wait", "shop.users"
    )
    assert (code, out) == (1, "") and err.endswith("no disk has room.\n")
    code, _, err = operator(cluster(GONE), "tasks", "wait", "shop.users")
    assert code == 1 and "there is no task shop.users" in err


def test_a_rebalance_between_two_moves_is_waited_for(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.cli.tasks._LOOK_AGAIN_S", 0.0)
    between = msgspec.structs.replace(SHOWN, moves=[])
    over = msgspec.structs.replace(RUNNING, state=RebalanceState.COMPLETED, moves=3)
    ended = msgspec.structs.replace(GONE, rebalances={1: over})
    code, out, _ = operator(cluster(between, between, ended), "tasks", "wait", "shop.users")
    assert code == 0 and "completed, 3 of 3 tablets" in out


def test_how_balancing_is_set_is_told_in_sentences(operator: Operator) -> None:
    made = cluster()
    code, out, _ = operator(made, "rebalance", "status")
    assert code == 0 and out.splitlines() == [
        "Balancing is on, at any time.",
        "An instance that is down for 10 min is not waited for: its replicas are made anew elsewhere.",
        "At most 256 tablets move at a time, and 8.0 GiB to or from one instance.",
    ]
    made.moves.settings = RebalanceSettings(enabled=False, window=(22 * 60, 6 * 60))
    made.moves.problems = ["tablet 3 of shop.users has lost all its replicas"]
    _, out, _ = operator(made, "rebalance", "off")
    assert out.startswith("Balancing is off: nothing is moved for balance. `trimtab rebalance on`")
    assert "Problem: tablet 3 of shop.users has lost all its replicas" in out
    assert operator.json(made, "rebalance", "status")["window"] == "22:00-06:00"


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["on"], {"enabled": True}),
        (["off"], {"enabled": False}),
        (["window", "22:00-06:00"], {"window": "22:00-06:00"}),
        (["window", "always"], {"window": "always"}),
        (["at-once", "64"], {"moving": 64, "moving_bytes": None}),
        (["at-once", "--instance-mb", "512"], {"moving": None, "moving_bytes": 512 << 20}),
        (["at-once", "8", "--instance-mb", "1"], {"moving": 8, "moving_bytes": 1 << 20}),
        (["heal-after", "90s"], {"heal_after_s": 90.0}),
        (["heal-after", "10min"], {"heal_after_s": 600.0}),
        (["heal-after", "2h"], {"heal_after_s": 7200.0}),
        (["heal-after", "30"], {"heal_after_s": 30.0}),
    ],
)
def test_balancing_is_set(operator: Operator, arguments: list[str], asked: dict[str, object]) -> None:
    made = cluster()
    assert operator(made, "rebalance", *arguments)[0] == 0
    assert made.moves.asked == [tuple(asked.items())]


@pytest.mark.parametrize(
    "arguments",
    [
        ["window", "22-06"],
        ["window", "24:00-06:00"],
        ["window", "25:00-26:00"],
        ["window", "22:60-06:00"],
        ["window", "22:00-06:00-07:00"],
        ["window", "-1:00-06:00"],
        ["window", "10:00-10:00"],
        ["window", ""],
        ["at-once"],
        ["at-once", "0"],
        ["at-once", "many"],
        ["at-once", "--instance-mb", "-1"],
        ["at-once", "9" * 400],
        ["heal-after", "soon"],
        ["heal-after", "0"],
        ["heal-after", "31d"],
        ["heal-after", "nan"],
        ["heal-after", "1e400h"],
        ["heal-after", "9" * 5_000],
        ["heal-after", "-5min"],
        ["sideways"],
    ],
)
def test_settings_that_make_no_sense_are_wrong_usage(operator: Operator, arguments: list[str]) -> None:
    made = cluster()
    code, out, err = operator(made, "rebalance", *arguments)
    assert (code, out) == (2, "") and err.startswith("trimtab: ")
    assert made.moves.asked == []


def test_a_tablet_that_goes_back_says_so_in_the_list(operator: Operator) -> None:
    undone = msgspec.structs.replace(COPIED, stage=Stage.REVERT_MIGRATION, error="i3 is down", cause=Cause.DRAIN)
    shown = msgspec.structs.replace(SHOWN, moves=[msgspec.structs.replace(MOVE, transition=undone, progress_bytes=0)])
    _, out, _ = operator(cluster(shown), "tasks", "list")
    assert "undoing, revert_migration" in out and "i3 is down" in out
