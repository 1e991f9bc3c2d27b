"""`import trimtab`: cheap, and everything an application needs is there when it is first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import trimtab


def test_importing_the_package_loads_nothing(project_root: Path) -> None:
    script = "import sys; before = set(sys.modules); import trimtab; print(sorted(set(sys.modules) - before))"
    environment = {"PYTHONPATH": str(project_root / "src")}
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "['__future__', 'trimtab']", done.stderr


def test_every_public_name_is_there() -> None:
    for name in trimtab.__all__:
        assert getattr(trimtab, name) is not None
    assert set(dir(trimtab)) >= {"connect", "aio", "Error", "Timeout", "Add"}
    assert trimtab.aio.connect is not trimtab.connect
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trimtab.nothing  # noqa: B018


def test_all_errors_are_one_family() -> None:
    from trimtab.client import errors

    for name in dir(trimtab):
        found = getattr(trimtab, name)
        if isinstance(found, type) and issubclass(found, Exception):
            assert issubclass(found, trimtab.Error)
    assert issubclass(trimtab.NotFound, trimtab.InvalidRequest) and trimtab.Error is errors.Error
