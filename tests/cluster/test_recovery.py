"""Members that lost their data, stopped as damaged, or were removed: what happens, and the way back from the manual."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.members import Members
from tests.cluster.watching import run, status_of, until


def metastore(*arguments: str, peer: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trimtab", "metastore", *arguments, "--peer", peer]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def said(*arguments: str, peer: str) -> str:
    done = metastore(*arguments, peer=peer)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def caught_up_with(one: str, other: str) -> Callable[[], object]:
    async def caught_up() -> bool:
        behind, ahead = await status_of(one), await status_of(other)
        return behind.leader != 0 and behind.applied >= ahead.committed

    return caught_up


@pytest.mark.cluster
def test_a_write_is_not_forgotten_by_a_wiped_member_and_one_that_was_down(members: Members) -> None:
    members.start(1, 2, 3)
    one, _, three = members.addresses
    said("put", "before", "1", peer=one)
    run(until(caught_up_with(three, one), "the third member to have it"))
    members.kill(3)
    said("put", "W", "1", peer=one)
    members.kill(1)
    members.kill(2)
    shutil.rmtree(members.data_dir(2))
    members.start(3)
    try:
        members.start(2)
    except AssertionError:
        assert "has lost its data" in members.output(2), "it may be told even before it says that it listens"
    assert members.ended(2) == 1
    assert "remove it and add it under a new raft id" in members.output(2).splitlines()[-1]
    members.start(1)
    assert said("get", "W", peer=three) == "1"


@pytest.mark.cluster
def test_a_member_that_is_damaged_returns_the_way_the_manual_says(members: Members) -> None:
    members.start(1, 2, 3)
    one, _, three = members.addresses
    said("put", "k", "v", peer=one)
    run(until(caught_up_with(three, one), "the third member to have it"))
    members.stop(3)
    (members.data_dir(3) / "instance.json").unlink()
    with pytest.raises(AssertionError, match="remove the member from the cluster"):
        members.start(3)
    assert members.ended(3) == 1
    said("members", "remove", "3", peer=one)
    shutil.rmtree(members.data_dir(3))
    members.start(3, options=["--raft-id", "4"])
    said("members", "add", "4", three, peer=one)
    run(until(caught_up_with(three, one), "the new member to catch up"))
    said("members", "promote", "4", peer=one)
    members.kill(2)
    assert said("get", "k", peer=three) == "v"
    assert "lost its data" not in members.output(3)


@pytest.mark.cluster
def test_a_removed_member_says_so_and_serves_nothing(members: Members) -> None:
    members.start(1, 2, 3)
    one, _, three = members.addresses
    said("put", "k", "v", peer=one)
    members.kill(3)
    said("members", "remove", "3", peer=one)
    members.start(3)
    members.wait(3, lambda: "this member was removed from the cluster" in members.output(3), "hear of its removal")
    done = metastore("get", "k", "--local", "--timeout", "2", peer=three)
    assert done.returncode == 1 and "was removed from the cluster; ask another" in done.stderr
    assert "was removed from the cluster" in said("status", peer=three)


@pytest.mark.cluster
def test_a_member_that_others_can_reach_without_a_certificate_warns(
    members: Members, free_ports: Callable[[int], list[int]], tmp_path: Path
) -> None:
    port = members.addresses[0].rpartition(":")[2]
    members.start(1, listen=f"0.0.0.0:{port}", options=["--advertise", members.addresses[0]])
    assert f"warning: 0.0.0.0:{port} is reachable from other machines and TLS is off" in members.output(1)
    members.start(2)
    assert said("put", "k", "v", peer=members.addresses[1])
    assert "warning" not in members.output(2)
