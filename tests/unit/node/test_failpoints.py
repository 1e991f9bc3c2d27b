"""Failpoints fail where they are armed, once or always, and cost nothing elsewhere."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.governor.steps import StepKind
from trimtab.node import failpoints
from trimtab.node.failpoints import BadFailpoints, FailpointError


@pytest.fixture(autouse=True)
def nothing_stays_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


def arm_from(monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[str, ...]:
    monkeypatch.setenv(failpoints.VARIABLE, text)
    return failpoints.arm_from_environment()


def test_every_kind_of_step_has_its_places() -> None:
    assert set(failpoints.STEP_KINDS) == {kind.value for kind in StepKind}
    for kind in StepKind:
        assert f"governor.{kind.value}.after-deed" in failpoints.NAMES


def test_a_place_that_is_not_armed_does_nothing() -> None:
    failpoints.arm("boot.logged", lambda _name, _who: pytest.fail("not here"))
    failpoints.hit("boot.member")


def test_an_action_of_a_test_is_told_who_came_where() -> None:
    seen: list[tuple[str, str]] = []
    failpoints.arm("join.persisted", lambda name, who: seen.append((name, who)))
    failpoints.hit("join.persisted", "i3")
    failpoints.disarm("join.persisted")
    failpoints.hit("join.persisted", "i3")
    assert seen == [("join.persisted", "i3")]


def test_an_error_comes_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arm_from(monkeypatch, " boot.logged=error, ") == ("boot.logged",)
    for _ in range(2):
        with pytest.raises(FailpointError, match=r"boot\.logged"):
            failpoints.hit("boot.logged")


def test_an_error_with_a_file_comes_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arm_from(monkeypatch, f"boot.logged=error:{tmp_path / 'once'}")
    with pytest.raises(FailpointError):
        failpoints.hit("boot.logged")
    failpoints.hit("boot.logged")


def test_kill_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arm_from(monkeypatch, f"boot.logged=kill:{tmp_path / 'once'}")
    pid = os.fork()
    if pid == 0:
        failpoints.hit("boot.logged")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    # This is what the restarted child would do, with the same environment.
    failpoints.hit("boot.logged")


def test_a_pause_says_that_it_is_reached_and_lasts_until_the_file_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    arm_from(monkeypatch, f"join.started=pause:{held}")
    passed = threading.Event()

    def come_by() -> None:
        failpoints.hit("join.started")
        passed.set()

    thread = threading.Thread(target=come_by)
    thread.start()
    while not held.exists() or held.read_text() != "join.started":
        assert not passed.is_set()
    assert not passed.wait(0.05)
    held.unlink()
    thread.join(10)
    assert passed.is_set()


def test_a_pause_does_not_last_for_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(failpoints, "_PAUSE_LIMIT_S", 0.0)
    arm_from(monkeypatch, f"join.started=pause:{tmp_path / 'held'}")
    with pytest.raises(FailpointError, match="nobody removed"):
        failpoints.hit("join.started")


@pytest.mark.parametrize("text", ["boot.lodged=kill", "=kill", "nonsense"])
def test_an_unknown_place_is_an_error_that_lists_the_places(text: str) -> None:
    with pytest.raises(BadFailpoints, match=r"governor\.sync\.before, .*boot\.member"):
        failpoints.parse(text)


def test_an_unknown_place_can_not_be_armed_by_a_test() -> None:
    with pytest.raises(BadFailpoints, match=r"governor\.sync\.before"):
        failpoints.arm("governor.sink.before", lambda _name, _who: None)


@pytest.mark.parametrize("text", ["boot.logged", "boot.logged=", "boot.logged=explode", "boot.logged=pause"])
def test_an_unknown_action_is_an_error_that_lists_the_actions(text: str) -> None:
    with pytest.raises(BadFailpoints, match="write kill, kill:FILE"):
        failpoints.parse(text)


def test_one_misspelt_part_arms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadFailpoints):
        arm_from(monkeypatch, "boot.logged=error,boot.lodged=kill")
    failpoints.hit("boot.logged")


def test_a_gate_is_passed_unless_it_is_shut_and_says_who_came(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    action = failpoints.parse(f"stream.task.half=gate:{gate}")["stream.task.half"]
    action("stream.task.half", "ks.t/3")
    assert not gate.with_name("gate.here").exists()
    gate.touch()
    waiting = threading.Thread(target=action, args=("stream.task.half", "ks.t/3"))
    waiting.start()
    here = gate.with_name("gate.here")
    while not here.exists():
        waiting.join(0.01)
    assert here.read_text().split() == ["stream.task.half", "ks.t/3", str(os.getpid())] and waiting.is_alive()
    gate.unlink()
    waiting.join(10)
    assert not waiting.is_alive()
