"""Finds the checkout that the running package belongs to, for commands that only make sense in one."""

from __future__ import annotations

from pathlib import Path

from trimtab.cli.errors import CommandFailed


def checkout_root(purpose: str) -> Path:
    """The root of the checkout; fails, naming the purpose, when Trimtab was installed without one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "pyproject.toml").is_file() or not (root / "tests").is_dir():
        raise CommandFailed(f"{purpose} needs a checkout of the project, which {root} is not; run ./trimtab in one.")
    return root
