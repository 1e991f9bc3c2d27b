"""`trimtab metastore …` against a real member: what people and scripts type, and what they get when it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.members import Members
from tests.cluster.operator import typed
from tests.cluster.watching import is_online, run, until
from tests.conftest import Processes


class Cli:
    def __init__(self, peer: str) -> None:
        self.peer = peer

    def __call__(
        self, *arguments: str, stdin: str | None = None, peer: bool = True
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "trimtab", "metastore", *arguments]
        if peer:
            command += ["--peer", self.peer]
        if stdin is None:
            return typed(*command[3:], env=os.environ)
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)

    def ok(self, *arguments: str, stdin: str | None = None) -> str:
        done = self(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str, code: int = 1) -> str:
        done = self(*arguments)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stderr


@pytest.fixture
def cli(processes: Processes, free_ports: Callable[[int], list[int]], tmp_path: Path) -> Cli:
    member = Members(processes, tmp_path, free_ports(1))
    member.start(1)
    run(until(is_online(member.addresses[0]), "the member to be Online: nothing is written by the cluster after that"))
    return Cli(member.addresses[0])


@pytest.mark.cluster
@pytest.mark.slow
def test_a_key_is_put_read_listed_changed_and_deleted(cli: Cli) -> None:
    # The cluster has written about itself before.
    first = json.loads(cli.ok("put", "--json", "color", "blue"))["revision"]
    assert cli.ok("get", "color") == "blue\n"
    assert json.loads(cli.ok("put", "--json", "color", "-", stdin="green")) == {"revision": first + 1}
    entry = json.loads(cli.ok("get", "color", "--json"))
    assert entry == {
        "key": "color",
        "value": "green",
        "create_revision": first,
        "mod_revision": first + 1,
        "version": 2,
    }
    assert cli.ok("get", "color", "--revision", str(first)) == "blue\n"
    assert cli.ok("range", "co") == "color = green\n"
    invoke = '{"if": {"value": ["color", "==", "green"]}, "then": [{"put": ["seen", "yes"]}]}'
    assert json.loads(cli.ok("invoke", invoke, "--json")) == {"revision": first + 2, "yields": True, "changes": 1}
    watched = cli.ok("watch", "co", "--from-revision", str(first), "--count", "2", "--json").splitlines()
    assert [json.loads(line)["new"]["value"] for line in watched] == ["blue", "green"]
    assert cli.ok("delete", "color") == f"revision {first + 3}\n"
    assert "there is no key 'color'" in cli.refused("get", "color")
    assert cli.ok("compact", str(first + 3)) == f"compacted up to revision {first + 3}\n"
    assert "was compacted" in cli.refused("get", "color", "--revision", str(first))
    assert "was compacted" in cli.refused("watch", "co", "--from-revision", str(first))
    status = json.loads(cli.ok("status", "--json"))
    assert (status["leader"], status["revision"], status["compacted_revision"]) == (1, first + 3, first + 3)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_range_larger_than_a_message_is_shown_to_its_end(cli: Cli) -> None:
    for number in range(6):
        cli.ok("put", f"large/{number}", "-", stdin="v" * 300_000)
    lines = cli.ok("range", "large/").splitlines()
    assert [line[:10] for line in lines] == [f"large/{number} = " for number in range(6)]
    more = cli("range", "large/", "--limit", "5", "--keys-only")
    assert len(more.stdout.splitlines()) == 5 and "there are more keys, from 'large/5' on" in more.stderr


@pytest.mark.cluster
@pytest.mark.slow
def test_what_is_wrong_is_said_in_a_sentence_with_an_exit_code(
    cli: Cli, free_ports: Callable[[int], list[int]]
) -> None:
    large = cli("put", "k", "-", stdin="v" * 400_000)
    assert large.returncode == 1 and "over the limit" in large.stderr
    assert "is not hexadecimal" in cli.refused("put", "--hex", "xyz", "00", code=2)
    assert "is no condition" in cli.refused("invoke", '{"if": {"grows": "a"}, "then": []}', code=2)
    assert "must not be empty" in cli.refused("put", "", "v")
    assert "in the future" in cli.refused("get", "k", "--revision", "9999")
    for key in ("instances/1", "requests/1", "topology/version", "events/1"):
        assert "is the system's" in cli.refused("put", key, "x")
    nobody = Cli(f"127.0.0.1:{free_ports(1)[0]}")
    assert "nothing was executed" in nobody.refused("get", "k", "--timeout", "0.5")
    alone = nobody("get", "k", peer=False)
    assert alone.returncode == 2 and "--peer HOST:PORT" in alone.stderr
