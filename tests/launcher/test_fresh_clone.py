"""The real lock in a new directory: what somebody who has just cloned the project sees."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trimtab

# What a fresh shell has. pip's own variables count as its configuration.
KEPT = re.compile(r"(PIP_.*|.*_proxy|SSL_CERT_.*|REQUESTS_CA_BUNDLE)", re.IGNORECASE)


def index_is_reachable(folder: Path) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "iniconfig"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(600)
def test_a_fresh_clone_sets_itself_up_and_then_works_without_a_network(project_root: Path, tmp_path: Path) -> None:
    if not index_is_reachable(tmp_path / "probe"):
        pytest.skip("no package index can be reached from here")
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("trimtab", "requirements.lock", "pyproject.toml"):
        shutil.copy2(project_root / name, clone / name)
    for name in ("launcher", "src", "tests/unit/metastore"):
        shutil.copytree(project_root / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    environment["HOME"] = str(tmp_path)
    command = [str(clone / "trimtab"), "--version"]
    first = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"trimtab {trimtab.__version__}\n"
    offline = {"PIP_NO_INDEX": "1", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    again = subprocess.run(command, env=offline, capture_output=True, text=True)
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")
    tools = subprocess.run(
        [str(clone / "trimtab"), "test", "--only-pytest", "-q", "tests/unit/metastore/test_conditions.py"],
        env=offline,
        cwd=clone,
        capture_output=True,
        text=True,
    )
    assert tools.returncode == 0, tools.stdout + tools.stderr
