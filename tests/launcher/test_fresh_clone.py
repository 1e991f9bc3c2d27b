"""The real lock in a new directory: what somebody who has just cloned the project sees.

A run of all tests in a fresh clone begins with setting itself up, so that is not done once more unless it is asked for.
"""

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


def cheaply() -> dict[str, str]:
    """What spares pip most of its work and leaves what it installs the same: what the user's own pip has fetched and
    built already, and nothing compiled that is never run.
    """
    asked = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True)
    cache = {"PIP_CACHE_DIR": asked.stdout.strip()} if asked.returncode == 0 else {}
    return {"PIP_COMPILE": "0", **cache}


def index_is_reachable(folder: Path) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), "iniconfig"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


# Nothing can be fetched.
OFFLINE = {"PIP_NO_INDEX": "1", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not os.environ.get("TRIMTAB_TEST_FRESH_CLONE"),
    reason="it installs everything once more: TRIMTAB_TEST_FRESH_CLONE=1 does",
)
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
    environment |= {"HOME": str(tmp_path)} | cheaply()
    command = [str(clone / "trimtab"), "--version"]
    first = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert first.stdout == f"trimtab {trimtab.__version__}\n"
    again = subprocess.run(command, env=OFFLINE, capture_output=True, text=True)
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")
    tools = subprocess.run(
        [str(clone / "trimtab"), "test", "--only-pytest", "-q", "tests/unit/metastore/test_conditions.py"],
        env=OFFLINE,
        cwd=clone,
        capture_output=True,
        text=True,
    )
    assert tools.returncode == 0, tools.stdout + tools.stderr
