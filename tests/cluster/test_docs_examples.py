"""Every example in the README, docs/tables.md and docs/elasticity.md is run, in order, against a real cluster."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trimtab
from tests.cluster.operator import STEADY, Cli
from tests.conftest import ROOT
from trimtab.playground.local import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DOCUMENTS = ("README.md", "docs/tables.md", "docs/elasticity.md")
# What changes or needs more than the cluster that is there: other tests run these.
ELSEWHERE = frozenset(("bench", "decommission", "demo", "doctor", "expel", "local", "run", "sim", "test"))
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.M | re.S)
_FIRST = "127.0.0.1:3301"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    cli = Cli(tmp_path_factory.mktemp("docs") / "local", STEADY)
    try:
        cli.up(3)
        yield cli
    finally:
        cluster = LocalCluster(cli.directory)
        if cluster.exists:
            cluster.kill(list(cluster.running()))


def blocks(document: str) -> list[tuple[int, str, str]]:
    """The line each begins at, its language, and what it says."""
    text = (ROOT / document).read_text()
    return [(text.count("\n", 0, found.start()) + 2, found[1], found[2]) for found in _BLOCK.finditer(text)]


def commands(block: str) -> list[list[str]]:
    typed = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line, comments=True) for line in typed]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_is_shown_works(document: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # Examples say nothing of time, and the default is too short for a busy machine.
    monkeypatch.setattr(trimtab, "connect", functools.partial(trimtab.connect, timeout=60))
    address = next(iter(LocalCluster(cli.directory).addresses().values()))
    names: dict[str, Any] = {"__name__": "__main__"}
    ran = {"python": 0, "console": 0}
    with trimtab.connect(address) as database:
        for keyspace in database.keyspaces():
            database.drop_keyspace(keyspace)
    try:
        for line, language, block in blocks(document):
            if language == "python":
                # As many empty lines before it as there are lines in the document: a traceback names the right one.
                code = "\n" * (line - 1) + block.replace(_FIRST, address)
                exec(compile(code, str(Path(document)), "exec"), names)
                ran[language] += 1
                continue
            for command in commands(block):
                if Path(command[0]).name == "trimtab" and command[1] not in ELSEWHERE:
                    cli.ok(*command[1:])
                    ran[language] += 1
    finally:
        for each in names.values():
            if isinstance(each, trimtab.Database):
                each.close()
    assert ran["python"] and ran["console"], "there is something to run"
