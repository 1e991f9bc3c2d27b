"""`trimtab test`: everything that must hold before a change goes in.

Linter, strict types and the rings first, because they take seconds and explain failures best; then pytest, whose
closing line stays the last one when all is well. A failed check hides no other: all run, and the exit code tells.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.checkout import checkout_root

# Name and command (after the interpreter). Modules, not scripts: scripts carry the path they were installed at.
STATIC_CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ruff", ("-m", "ruff", "check", "--quiet", "--output-format", "concise", ".")),
    ("mypy", ("-m", "mypy", "--no-error-summary")),
    ("rings", ("-c", "from importlinter.cli import lint_imports_command as lint; lint()")),
)


def run_static_check(root: Path, name: str, command: tuple[str, ...]) -> bool:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *command], cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    passed = done.returncode == 0
    print(f"{name:6} {'ok' if passed else 'FAILED'} ({time.monotonic() - started:.1f} s)", flush=True)
    if not passed:
        print(done.stdout.rstrip(), flush=True)
    return passed


def test(
    context: typer.Context,
    only_pytest: Annotated[bool, typer.Option("--only-pytest", help="Skip linter, types and rings.")] = False,
) -> int:
    """Check the code and run the tests; further arguments go to pytest (paths, -k, -x, ...)."""
    root = checkout_root("test")
    failed = []
    if not only_pytest:
        failed = [name for name, command in STATIC_CHECKS if not run_static_check(root, name, command)]
    # From where the user stands, so that the paths they give mean what they see; without paths, the whole suite.
    arguments = ["--rootdir", str(root), "-c", str(root / "pyproject.toml"), *context.args]
    done = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=None if context.args else root)
    if done.returncode != 0:
        failed.append("pytest")
    if failed:
        print(f"trimtab: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def add_to(app: typer.Typer) -> None:
    app.command("test", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(test)
