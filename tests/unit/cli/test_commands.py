"""Every command that is listed can be loaded, explains itself, and loads nothing heavy to do so."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trimtab.cli.main import COMMANDS

HEAVY = ("rocksdict", "uvloop", "asyncio", "rich.console")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_is_quick_and_loads_no_engine(name: str) -> None:
    script = (
        "import sys; from trimtab.cli.main import run; "
        f"code = run([{name!r}, '--help']); "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: trimtab " + name in done.stdout
    assert done.stderr.strip() == "[]"
