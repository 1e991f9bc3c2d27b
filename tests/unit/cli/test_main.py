"""The door itself, with a small command of the test's own behind it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated

import pytest
import typer

import trimtab
from trimtab.cli import main
from trimtab.cli.contact import JsonOption, PeerOption
from trimtab.cli.errors import CommandFailed


def show(
    data_dir: Annotated[str, typer.Option(help="where")],
    peers: PeerOption = None,
    limit: Annotated[int, typer.Option()] = 7,
    as_json: JsonOption = False,
    fail: Annotated[bool, typer.Option("--fail")] = False,
) -> int:
    """Show what was understood."""
    if fail:
        raise CommandFailed("the disk of i1 is full; free some space and start it again.")
    print(json.dumps({"data_dir": data_dir, "peers": peers, "limit": limit, "json": as_json}))
    return 0


@pytest.fixture(autouse=True)
def show_command(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("trimtab.cli.show")
    module.add_to = lambda app: app.command("show")(show)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trimtab.cli.show", module)
    monkeypatch.setattr(main, "COMMANDS", ("show",))
    for name in ("CONFIG", "CONTACT", "PEER", "DATA_DIR", "LIMIT", "JSON"):
        monkeypatch.delenv(f"TRIMTAB_{name}", raising=False)


def test_flags_win_over_variables_and_variables_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "trimtab.toml"
    config.write_text('data_dir = "file"\nlimit = 3\npeer = ["f:1", "f:2"]\n')
    assert main.run(["show", "--config", str(config)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "data_dir": "file",
        "limit": 3,
        "peers": ["f:1", "f:2"],
        "json": False,
    }
    monkeypatch.setenv("TRIMTAB_CONTACT", "v:1,v:2")
    monkeypatch.setenv("TRIMTAB_LIMIT", "4")
    monkeypatch.setenv("TRIMTAB_JSON", "true")
    assert main.run(["show", "--config", str(config), "--data-dir", "flag", "--peer", "x:1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"data_dir": "flag", "limit": 4, "peers": ["x:1"], "json": True}


def test_a_value_of_the_wrong_type_is_wrong_usage_wherever_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_LIMIT", "many")
    assert main.run(["show", "--data-dir", "d"]) == 2
    assert "--limit" in capsys.readouterr().err


def test_a_failure_is_one_sentence_on_standard_error_and_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["show", "--data-dir", "d", "--fail"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "trimtab: the disk of i1 is full; free some space and start it again.\n"
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [["nonsense"], ["show", "--nonsense"], ["show"], ["show", "--limit"], []])
def test_wrong_usage_is_exit_code_two_without_a_traceback(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err and "Traceback" not in captured.err
    assert captured.out == ""


def test_an_unknown_key_of_the_file_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "trimtab.toml"
    config.write_text('data_dirr = "d"\n')
    assert main.run(["show", "--config", str(config)]) == 2
    assert "did you mean 'data_dir'?" in capsys.readouterr().err


def test_the_version_is_answered_before_the_framework_loads() -> None:
    check = "import sys; sys.argv = ['trimtab', '--version']; from trimtab.__main__ import main; main(); "
    check += "print('typer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"trimtab {trimtab.__version__}", "False"]


def test_the_version_takes_a_fraction_of_a_second() -> None:
    seconds = []
    for _ in range(5):
        before = _processor_s()
        subprocess.run([sys.executable, "-m", "trimtab", "--version"], check=True, capture_output=True)
        seconds.append(_processor_s() - before)
    assert min(seconds) < 0.25


def _processor_s() -> float:
    """Of all processes that were waited for: what others use of the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_wrong_usage_points_to_the_help_of_the_command_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "COMMANDS", ("local", "probe"))
    for arguments, command in ((["local", "up", "--nope"], "trimtab local up"), (["probe"], "trimtab probe")):
        assert main.run(arguments) == 2
        said = capsys.readouterr().err.rstrip()
        assert said.endswith(f". See `{command} --help`."), said
