"""`trimtab local …` where nothing is started: what is refused, and how commands find the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.ports import taken

from trimtab.cli.contact import contact_addresses
from trimtab.cli.errors import CommandFailed
from trimtab.cli.main import run
from trimtab.playground import members
from trimtab.playground.local import LocalCluster
from trimtab.playground.ports import free_base
from trimtab.playground.processes import Known


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["up", "--nodes", "0"], 2, "--nodes"),
        (["up", "--nodes", "101"], 2, "--nodes"),
        (["up", "--base-port", "70000"], 2, "--base-port"),
        (["up", "--nodes", "9", "--base-port", "65500"], 1, "choose a lower --base-port"),
        (["kill"], 2, "Missing argument"),
        (["kill", "i1"], 1, "there is no local cluster in"),
        (["stop", "i1"], 1, "`trimtab local up` makes one"),
        (["start", "i1"], 1, "there is no local cluster in"),
        (["add"], 1, "there is no local cluster in"),
        (["add", "--replace", "i1", "--nodes", "2"], 2, "one instance replaces one"),
        (["down"], 1, "there is no local cluster in"),
        (["env"], 1, "there is no local cluster in"),
        (["list"], 1, "there is no local cluster in"),
    ],
)
def test_what_can_not_be_done_is_said_with_an_exit_code(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["local", *arguments]) == code
    said = capsys.readouterr()
    assert text in said.err and said.out == ""


def test_ports_that_are_taken_are_told_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = free_base(2)
    with taken("127.0.0.1", base + 10):
        assert run(["local", "up", "--nodes", "2", "--base-port", str(base), "--dir", str(tmp_path / "x")]) == 1
    said = capsys.readouterr().err
    assert f"i2 can't have its ports {base + 10} to {base + 13}: port {base + 10} is taken by process" in said
    assert not (tmp_path / "x" / "cluster.json").exists()


@pytest.fixture
def stopped(tmp_path: Path) -> LocalCluster:
    """A cluster of two that does not run, where commands look for it."""
    cluster = LocalCluster(tmp_path / "local")
    with cluster.coming_up():
        cluster.create(2, free_base(2))
    return cluster


def test_a_cluster_is_brought_up_as_it_is(stopped: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["local", "up", "--nodes", "3"]) == 1
    assert "has 2 instances, not 3; leave the option out" in capsys.readouterr().err
    assert run(["local", "up", "--base-port", "1"]) == 1
    assert "not 1; leave the option out" in capsys.readouterr().err


def test_two_at_once_are_refused(stopped: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with stopped.coming_up():
        assert run(["local", "up"]) == 1
    assert "`trimtab local up` (process " in capsys.readouterr().err


def test_a_cluster_that_does_not_run_is_listed_but_not_talked_to(
    stopped: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["local", "list", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(each["instance_id"], each["pid"]) for each in shown["instances"]] == [("i1", None), ("i2", None)]
    assert run(["local", "list"]) == 0
    assert capsys.readouterr().out.count("not running") == 2
    assert run(["local", "env"]) == 1
    assert run(["status"]) == 2
    assert "no local cluster runs" in capsys.readouterr().err


def test_commands_talk_to_the_local_cluster_that_runs(
    stopped: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(members, "supervisor_of", lambda *_: Known(1, 1, "boot"))
    addresses = [each.listen for each in stopped.record().instances]
    assert contact_addresses(None) == addresses
    assert contact_addresses(["a:1"]) == ["a:1"]
    assert run(["local", "env"]) == 0
    assert capsys.readouterr().out == f"export TRIMTAB_CONTACT={','.join(addresses)}\n"


def test_a_record_that_can_not_be_read_is_no_reason_to_guess(stopped: LocalCluster) -> None:
    (stopped.directory / "cluster.json").write_text("{")
    with pytest.raises(CommandFailed, match="is no record of a local cluster"):
        contact_addresses(None)
