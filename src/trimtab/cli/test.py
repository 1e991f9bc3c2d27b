"""`trimtab test`: everything that must hold before a change goes in.

Linter, strict types and the rings first, because they take seconds and explain failures best; then pytest, whose
closing line stays the last one when all is well. A failed check hides no other: all run, and the exit code tells.
"""

from __future__ import annotations

import compileall
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


_WARM_S = 180.0


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


def _warm_up(root: Path) -> subprocess.Popen[bytes]:
    """Let Spark write its class archive beside the checks."""
    command = [sys.executable, "-m", "tests.spark.warm_up"]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _warmed(warming: subprocess.Popen[bytes]) -> None:
    try:
        code = warming.wait(_WARM_S)
    except subprocess.TimeoutExpired:
        warming.kill()
        code = warming.wait()
    if code != 0:
        print("spark  has written no class archive: its sessions start slowly", flush=True)


def test(
    context: typer.Context,
    only_pytest: Annotated[bool, typer.Option("--only-pytest", help="Skip linter, types and rings.")] = False,
) -> int:
    """Check the code and run the tests; further arguments go to pytest (paths, -k, -x, ...)."""
    root = checkout_root("test")
    failed = []
    warming = None if context.args else _warm_up(root)
    if not only_pytest:
        failed = [name for name, command in STATIC_CHECKS if not run_static_check(root, name, command)]
    # The tests start hundreds of processes: where Python is told to write no bytecode, each would compile it all again.
    compileall.compile_dir(root / "src", quiet=2, workers=0)
    if warming is not None:
        _warmed(warming)
    # From where the user stands, so that the paths they give mean what they see; without paths, the whole suite, in
    # three processes: much of it waits for clusters and for Spark, some of it computes.
    arguments = ["--rootdir", str(root), "-c", str(root / "pyproject.toml")]
    arguments += context.args or ["--numprocesses", "3", "--dist", "loadscope", "--no-loadscope-reorder"]
    done = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=None if context.args else root)
    if done.returncode != 0:
        failed.append("pytest")
    if failed:
        print(f"trimtab: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def add_to(app: typer.Typer) -> None:
    app.command("test", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(test)
