"""Spark's own processes are kept from complaining that Spark has hung up, and from nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.spark import quiet_planners
from trimtab.spark.sessions import _variables

PROGRAM = """
import sys, traceback
try:
    raise {error}("stone")
except {error}:
    traceback.print_exc()
"""


OF_A_USER = "import udf"


def stderr_of(folder: Path, module: str, error: str, *, in_function: bool = False) -> str:
    """What a program of that name says that prints an error, itself or in code of a user."""
    name = folder / "code" / Path(*module.split(".")).with_suffix(".py")
    name.parent.mkdir(parents=True)
    name.write_text(OF_A_USER if in_function else PROGRAM.format(error=error))
    (folder / "code" / "udf.py").write_text(PROGRAM.format(error=error))
    (name.parent / "__init__.py").touch()
    site = folder / "site"
    site.mkdir()
    shutil.copy(quiet_planners.__file__, site / "sitecustomize.py")
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text("print('the own one')")
    paths = os.pathsep.join(map(str, (site, hidden, folder / "code")))
    command = [sys.executable, "-m", module, "pyspark.sql.worker.plan_data_source_read"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert done.stdout == "the own one\n", "the one that is hidden is run as well"
    return done.stderr


@pytest.mark.parametrize("error", ["BrokenPipeError", "ConnectionResetError"])
def test_a_planner_says_nothing_when_spark_hangs_up(tmp_path: Path, error: str) -> None:
    assert stderr_of(tmp_path, "pyspark.daemon", error) == ""


@pytest.mark.parametrize(
    ("module", "error"), [("pyspark.daemon", "ValueError"), ("pyspark.other", "BrokenPipeError"), ("mine", "OSError")]
)
def test_whatever_else_is_wrong_is_told(tmp_path: Path, module: str, error: str) -> None:
    assert f"{error}: stone" in stderr_of(tmp_path, module, error)


def test_what_functions_of_users_print_in_its_workers_is_told(tmp_path: Path) -> None:
    assert "BrokenPipeError: stone" in stderr_of(tmp_path, "pyspark.daemon", "BrokenPipeError", in_function=True)


def test_a_session_gives_it_to_what_java_starts_before_what_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    first, *others = _variables(tmp_path, tmp_path, "local[2]")["PYTHONPATH"].split(os.pathsep)
    assert (Path(first) / "sitecustomize.py").read_text() == Path(quiet_planners.__file__).read_text()
    assert others == ["/mine"]
