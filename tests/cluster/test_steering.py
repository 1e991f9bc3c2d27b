"""An operator steers moves of real processes: every command and its HTTP twin, on a copy that is held half-way."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from os import environ, urandom
from typing import Any

import pytest

from tests.cluster.elastic import Elastic
from tests.cluster.instances import loopback
from tests.cluster.operator import typed
from tests.cluster.patience import create_keyspace, create_table, put_rows
from tests.cluster.watching import run
from tests.conftest import Processes

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TABLE = "shop.users"
TASK = f"{TABLE}:0"
NOT_NOW, IN_DOUBT = 503, 504  # the cluster is between leaders, or too busy to answer in time
ASK_S = 90.0


class Operator:
    """Types commands."""

    def __init__(self, stage: Elastic) -> None:
        self._stage = stage

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in environ.items() if not name.startswith("TRIMTAB_")}
        # Patient enough for a cluster whose leader was just killed, on a busy machine.
        return typed(*arguments, "--timeout", "60", env=kept | {"TRIMTAB_CONTACT": self._stage.peer})

    def ok(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def refused(self, *arguments: str, code: int = 1) -> str:
        done = self(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elastic]:
    """Three instances, a table with two replicas of each tablet, and a driver."""
    processes = Processes()
    made = Elastic(processes, tmp_path_factory.mktemp("steering"), 3)
    try:
        made.instances.start(1, options=("--http", loopback(1)[0]))
        made.instances.start(2, 3)
        run(made.instances.online())
        made.start_driver()
        made.settings(enabled=False)
        with made.connect() as db:
            create_keyspace(db, "shop", replication=2)
            create_table(db, TABLE, {"id": "bigint", "name": "text"}, tablets=2)
            put_rows(db.table(TABLE, consistency="ALL"), [{"id": id, "name": urandom(500).hex()} for id in range(500)])
        yield made
    finally:
        processes.end_all()


def ways(operator: Operator) -> tuple[str, str, str]:
    """Of tablet 0: who gives its replica away, who stays, who has none."""
    source, stays = operator.json("tablets", TABLE)[0]["replicas"]
    (free,) = {"i1", "i2", "i3"} - {source, stays}
    return source, stays, free


def is_on(operator: Operator, *names: str) -> bool:
    """Whether these hold tablet 0, as far as the instance that is asked has heard."""
    return set(operator.json("tablets", TABLE)[0]["replicas"]) == set(names)


def is_copied(shown: Any) -> bool:
    """Whether a tablet is shown as being copied by a job."""
    return shown["stage"] == "streaming" and bool(shown["move"]["job"])


def all_tell_of_the_copy(stage: Elastic, operator: Operator) -> None:
    """That a copy is held proves only that a majority knows of it: whoever is asked next may lag behind."""
    for number in stage.instances.running:
        peer = stage.instances.listen[number]
        stage.until(
            lambda peer=peer: is_copied(operator.json("tablets", TABLE, "--peer", peer)[0]),  # type: ignore[misc]
            f"i{number} tells of the copy",
        )


def test_a_move_is_asked_for_looked_at_paused_resumed_and_undone(stage: Elastic) -> None:
    operator = Operator(stage)
    source, stays, free = ways(operator)
    with stage.held_copy(TABLE, 0) as held:
        said = operator.ok("move", TABLE, "0", "--from", source, "--to", free, "--why", "a hot one")
        assert said.startswith(f"{TASK} goes to ")
        stage.until(lambda: held.is_there, "the copy is held half-way")
        all_tell_of_the_copy(stage, operator)
        shown = operator.json("tablets", TABLE)[0]
        assert (set(shown["pending"]), shown["stage"]) == ({free, stays}, "streaming")
        assert shown["session"] and shown["move"]["job"]
        assert f"{source} -> {free} streaming" in operator.ok("tablets", TABLE)
        (task,) = [each for each in operator.json("tasks", "list") if each["id"] == TASK]
        assert (task["kind"], task["state"]) == ("migration", "running")
        assert task["why"] == "an operator asked for it: a hot one"
        assert f"1 tablet is being moved to {free} for an operator" in operator.ok("status")
        assert operator.ok("tasks", "pause", TASK).startswith(f"{TASK} will pause (job {shown['move']['job']})")

        def state() -> str:
            found: str = operator.json("tasks", "show", TASK)["state"]
            return found

        stage.until(lambda: state() == "paused", "it is paused")
        held.again()
        assert operator.ok("tasks", "resume", TASK).startswith(f"{TASK} goes on")
        stage.until(lambda: held.is_there, "the copy is held once more")
        assert "goes back to where it was" in operator.ok("tasks", "cancel", TASK, "--reason", "not today")
    stage.still()
    stage.until(lambda: is_on(operator, source, stays), "it is where it was")
    told = operator.ok("events", "--limit", "100")
    assert f"moves from {source} to {free}: an operator asked for it: a hot one" in told
    assert "is undone: an operator asked for it: not today" in told
    stage.check(TABLE)


def test_a_move_that_is_waited_for_ends_where_it_should(stage: Elastic) -> None:
    operator = Operator(stage)
    source, stays, free = ways(operator)
    done = operator.json("move", TABLE, "0", "--from", source, "--to", free, "--wait")
    assert (done["state"], set(done["replicas"])) == ("done", {stays, free})
    assert "it has moved before" in operator.refused("move", TABLE, "0", "--from", source, "--to", free)
    assert operator.ok("tasks", "wait", TASK).startswith(f"{TASK} is on ")
    # What it left behind at its source is removed after that.
    stage.still()
    assert operator.json("tasks", "show", TABLE)["kind"] == "rebalance"
    stage.until(lambda: operator.json("tasks", "show", TABLE)["state"] == "completed", "all of it is told as completed")
    stage.check(TABLE)


def test_what_can_t_be_is_refused_and_changes_nothing(stage: Elastic) -> None:
    operator = Operator(stage)
    source, stays, free = ways(operator)
    before = operator.json("rebalance", "status")
    for arguments, text in (
        ((TABLE, "7", "--from", source, "--to", free), "has the tablets 0 to 1, and no tablet 7"),
        ((TABLE, "0", "--from", source, "--to", "i9"), "there is no instance 'i9'"),
        ((TABLE, "0", "--from", source, "--to", stays), f"{stays} holds a replica of tablet 0 of {TABLE} already"),
        ((TABLE, "0", "--from", free, "--to", source), "or the two are mixed up"),
        (("shop.nothing", "0", "--from", source, "--to", free), "there is no table shop.nothing"),
        ((TABLE, "0", "--undo"), "there is nothing to undo"),
    ):
        assert text in operator.refused("move", *arguments)
    assert "is no window" in operator.refused("rebalance", "window", "22-06", code=2)
    assert "healed after" in operator.refused("rebalance", "heal-after", "0", code=2)
    assert "no task" in operator.refused("tasks", "cancel", "users:0", code=2)
    assert "there is no task shop.nothing:0" in operator.refused("tasks", "cancel", "shop.nothing:0")
    assert operator.json("rebalance", "status") == before and stage.under_way() == {}


def test_how_balancing_is_set_survives_its_leader(stage: Elastic) -> None:
    operator = Operator(stage)
    assert operator.json("rebalance", "window", "22:00-06:00")["window"] == "22:00-06:00"
    assert operator.json("rebalance", "heal-after", "2h")["heal_after_s"] == 7200
    leader = stage.leader()
    stage.instances.kill(leader)
    shown = operator.json("rebalance", "status")
    assert (shown["enabled"], shown["window"], shown["heal_after_s"]) == (False, "22:00-06:00", 7200)
    # The first one has a door for HTTP, and comes back with it.
    stage.start(leader, options=("--http", loopback(1)[0]) if leader == 1 else ())
    assert operator.json("rebalance", "window", "always")["window"] is None
    assert "balancing is off" in operator.ok("status")


def test_http_shows_and_steers_the_same(stage: Elastic) -> None:
    operator = Operator(stage)
    source, stays, free = ways(operator)
    door = ""

    def is_open() -> bool:
        nonlocal door
        door = next(each["http_address"] for each in operator.json("status")["instances"] if each["http_address"])
        try:
            return bool(once("GET", "/health"))
        except OSError:
            return False

    def ask(method: str, path: str, body: Any = None, *, done_before: Any = None) -> Any:
        """Asked again where the cluster can't answer now; nothing here does harm if it is asked for twice.

        `done_before`: the answer where it is over when it is asked for again, and the first answer was lost.
        """
        deadline, in_doubt = time.monotonic() + ASK_S, False
        while True:
            try:
                return once(method, path, body)
            except urllib.error.HTTPError as error:
                if error.code in (404, 409) and in_doubt and done_before is not None:
                    return done_before
                told = (path, error.code, error.read())
                assert error.code in (NOT_NOW, IN_DOUBT) and time.monotonic() < deadline, told
                in_doubt = in_doubt or error.code == IN_DOUBT
            time.sleep(0.5)

    def once(method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if data is not None else {}
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{door}{path}", data, headers, method=method), timeout=60
        ) as answer:
            return json.loads(answer.read())

    # Its instance may have come back a moment ago.
    stage.until(is_open, lambda: f"the door {door} is open")
    with stage.held_copy(TABLE, 0) as held:
        asked = ask("POST", f"/api/v1/tablets/{TABLE}/0/move", {"from": source, "to": free})
        assert (asked["id"], asked["outcome"]) == (TASK, "pending")
        stage.until(lambda: held.is_there, "the copy is held half-way")
        all_tell_of_the_copy(stage, operator)
        # The instance behind this door may lag, too.
        stage.until(
            lambda: ask("GET", f"/api/v1/tablets?table={TABLE}")[0]["stage"] == "streaming", "its tablets tell of it"
        )
        stage.until(lambda: ask("GET", "/api/v1/status")["moving"]["tablets"] == 1, "its status tells of it")
        assert ask("GET", f"/api/v1/tasks/{TASK}")["phase"] == "streaming"
        undone = ask("POST", f"/api/v1/tasks/{TASK}/cancel", {}, done_before={"state": "undoing"})
        assert undone["state"] == "undoing"
    stage.still()
    assert ask("PUT", "/api/v1/rebalance", {"heal_after_s": 600})["heal_after_s"] == 600

    def is_told() -> bool:
        with urllib.request.urlopen(f"http://{door}/metrics", timeout=60) as page:
            text = page.read().decode()
        assert "trimtab_moves_undone_total" in text
        return 'trimtab_moves{stage="streaming"} 0.0' in text

    # They tell what this instance has heard of.
    stage.until(is_told, "the figures tell that nothing is copied any more")
    stage.until(lambda: is_on(operator, source, stays), "it is where it was")
