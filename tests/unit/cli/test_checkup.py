"""What `trimtab doctor` finds, and that it finds fault where there is some."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from tests.ports import taken
from tests.unit.cli.operator import MadeUp, Operator
from tests.unit.client.views import instance, view

from trimtab.cli import checkup
from trimtab.cli.checkup import Grade
from trimtab.cli.doctor import skew, versions
from trimtab.cli.main import run
from trimtab.client.errors import Unavailable
from trimtab.playground.ports import free_base
from trimtab.topology.grades import Grade as InstanceGrade


def grades(checks: list[checkup.Check]) -> set[Grade]:
    return {check.grade for check in checks}


def test_the_python_that_runs_the_tests_will_do() -> None:
    assert checkup.python().grade is Grade.OK


def test_a_package_that_is_missing_fails() -> None:
    found = checkup.packages(["msgspec", "trimtab_no_such_package"])
    assert [each.grade for each in found] == [Grade.OK, Grade.FAIL]
    assert "trimtab_no_such_package can't be loaded" in found[1].text


def test_a_taken_port_fails_and_names_who_has_it() -> None:
    base = free_base(1)
    assert grades(checkup.ports("127.0.0.1", base, {})) == {Grade.OK}
    with taken("127.0.0.1", base + 2):
        found = checkup.ports("127.0.0.1", base, {})
        assert [each.grade for each in found] == [Grade.OK, Grade.OK, Grade.FAIL, Grade.OK]
        assert f"process {os.getpid()} (" in found[2].text and found[2].what_to_do
        # The ports of an instance that runs are taken by right.
        assert grades(checkup.ports("127.0.0.1", base, {base: "i1"})) == {Grade.OK}


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = checkup.disk(tmp_path / "not" / "yet" / "there")
    assert Grade.FAIL not in grades(found)
    assert any(each.text.startswith("a sync takes ") for each in found)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_directory_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert grades(checkup.disk(tmp_path / "file")) == {Grade.FAIL}


def test_a_disk_that_can_not_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    found = checkup.disk(tmp_path)
    assert found[-1].grade is Grade.FAIL and "can't write in" in found[-1].text


def test_memory_is_no_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checkup, "file_system", lambda _path: "tmpfs")
    assert checkup.disk(tmp_path)[0].grade is Grade.WARN
    assert checkup.file_system(Path("/proc"))


@pytest.mark.parametrize(
    ("files", "grade"), [(100, Grade.FAIL), (1024, Grade.WARN), (65_536, Grade.OK), (-1, Grade.OK)]
)
def test_few_open_files_are_a_fault(monkeypatch: pytest.MonkeyPatch, files: int, grade: Grade) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, files))
    assert checkup.limits()[0].grade is grade


def test_little_memory_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, grade in ((100 << 20, Grade.FAIL), (500 << 20, Grade.WARN), (8 << 30, Grade.OK), (None, Grade.WARN)):
        monkeypatch.setattr(checkup, "_memory_available", lambda available=available: available)
        assert checkup.memory().grade is grade


def test_clocks_are_looked_at() -> None:
    assert {each.name for each in checkup.clocks(watch_s=0.01)} == {"clock"}


def test_versions_that_are_too_far_apart_fail() -> None:
    shown = view(instance(1, release="0.1.0"), instance(2, release="0.2.0"), instance(3, release="0.4.1"))
    found = {each.text.split()[0]: each.grade for each in versions(shown, "0.1.0")}
    assert found == {"i1": Grade.OK, "i2": Grade.WARN, "i3": Grade.FAIL}


@pytest.mark.parametrize(("ms", "grade"), [(3.0, Grade.OK), (-900.0, Grade.WARN), (60_000.0, Grade.FAIL)])
def test_a_clock_that_is_off_is_told(ms: float, grade: Grade) -> None:
    assert skew(ms).grade is grade


def doctor(operator: Operator, cluster: MadeUp, tmp_path: Path) -> tuple[int, dict[str, list[str]]]:
    listen = f"127.0.0.1:{free_base(1)}"
    code, out, _ = operator(cluster, "doctor", "--data-dir", str(tmp_path), "--listen", listen, "--json")
    found: dict[str, list[str]] = {}
    for check in json.loads(out)["checks"]:
        found.setdefault(check["name"], []).append(f"{check['grade']}: {check['text']}")
    return code, found


def test_the_doctor_looks_at_the_cluster_too(operator: Operator, tmp_path: Path) -> None:
    code, found = doctor(operator, MadeUp(view()), tmp_path)
    assert code == 0
    assert found["cluster"] == ["ok: All is well: 3 instances Online, i1 leads"]
    down = instance(3, InstanceGrade.OFFLINE, InstanceGrade.OFFLINE)
    assert doctor(operator, MadeUp(view(instance(1), instance(2), down)), tmp_path)[1]["cluster"][0].startswith("warn")


def test_a_cluster_that_does_not_answer_is_a_fault(operator: Operator, tmp_path: Path) -> None:
    code, found = doctor(operator, MadeUp(Unavailable("x")), tmp_path)
    assert code == 1 and found["cluster"][0].startswith("fail: no member of a cluster answers")


def test_that_there_is_no_cluster_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--data-dir", str(tmp_path), "--listen", f"127.0.0.1:{free_base(1)}"]) == 0
    said = capsys.readouterr().out
    assert "none is named and none runs locally" in said and "0 fail" in said


def test_an_address_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--listen", "nowhere"]) == 2
    assert "'nowhere' is not an address" in capsys.readouterr().err
