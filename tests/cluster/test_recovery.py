"""Members that lost their data, are damaged, or were removed: what happens, and the way back from the manual."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.cluster.instances import BRISK
from tests.cluster.members import Members
from tests.cluster.operator import typed
from tests.cluster.watching import members_of, run, status_of, until
from tests.conftest import Processes


@pytest.fixture
def members(processes: Processes, free_ports: Callable[[int], list[int]], tmp_path: Path) -> Members:
    """Three members that are not started yet; it is waited for that dead ones are taken for dead."""
    return Members(processes, tmp_path, free_ports(3), *BRISK)


def trimtab(*arguments: str, peer: str) -> subprocess.CompletedProcess[str]:
    return typed(*arguments, "--peer", peer, env=os.environ)


def metastore(*arguments: str, peer: str) -> subprocess.CompletedProcess[str]:
    return trimtab("metastore", *arguments, peer=peer)


def said(*arguments: str, peer: str) -> str:
    done = metastore(*arguments, "--timeout", "60", peer=peer)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def removed(instance_id: str, *, peer: str) -> None:
    """Remove an instance as soon as the cluster takes it for dead.

    Until then it is refused. An answer may come too late, too: then it is under way, or done, when it is asked again.
    """

    deadline = time.monotonic() + 150
    while (done := trimtab("remove", instance_id, "--timeout", "60", peer=peer)).returncode != 0:
        if "has left the cluster already" in done.stderr:
            return
        assert time.monotonic() < deadline, f"{instance_id} could not be removed; said last: {done.stderr}"
        time.sleep(0.5)


def replaces_itself(members: Members, member: int) -> None:
    """Start a member that lost its data to take its own place, as soon as the cluster takes the old one for dead."""

    before = members.output(member).count("ready on")
    members.launch(member, options=["--replace", f"i{member}"])

    async def accepted() -> bool:
        if members.running[member].poll() is not None:
            assert "is alive" in members.output(member).splitlines()[-1]
            members.launch(member, options=["--replace", f"i{member}"])
        return members.output(member).count("ready on") > before

    run(until(accepted, f"member {member} to take its own place"))


def caught_up_with(one: str, other: str) -> Callable[[], Awaitable[bool]]:
    async def caught_up() -> bool:
        behind, ahead = await status_of(one), await status_of(other)
        return behind.leader != 0 and behind.applied >= ahead.committed

    return caught_up


def newcomer_votes(address: str, at: str) -> Callable[[], Awaitable[bool]]:
    """Whether one that came after the first three has a vote; `at`: where it listens."""

    async def votes() -> bool:
        return any(each.voter and each.raft_id > 3 and each.address == at for each in await members_of(address))

    return votes


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
    members.launch(2)
    members.start(3)
    refused = metastore("get", "W", "--timeout", "3", peer=three)
    assert refused.returncode == 1, "one voter, and one that has forgotten everything, are no majority"
    members.start(1)
    assert said("get", "W", peer=three) == "1"
    assert members.ended(2) == 1
    assert "the instance id 'i2' is in use" in members.output(2).splitlines()[-1]
    replaces_itself(members, 2)
    run(until(newcomer_votes(one, members.addresses[1]), "its replacement to vote"))
    assert said("get", "W", peer=members.addresses[1]) == "1"


@pytest.mark.cluster
def test_a_member_that_is_damaged_returns_the_way_the_manual_says(members: Members) -> None:
    members.start(1, 2, 3)
    one, _, three = members.addresses
    said("put", "k", "v", peer=one)
    run(until(caught_up_with(three, one), "the third member to have it"))
    members.stop(3)
    (members.data_dir(3) / "instance.json").unlink()
    members.launch(3)
    assert members.ended(3) == 1
    assert "no instance.json, so it is unknown whose they are" in members.output(3).splitlines()[-1]
    removed("i3", peer=one)
    shutil.rmtree(members.data_dir(3))
    members.launch(3)
    run(until(newcomer_votes(one, three), "the new member to vote"))
    run(until(caught_up_with(three, one), "the new member to catch up"))
    members.kill(2)
    assert said("get", "k", peer=three) == "v"


@pytest.mark.cluster
def test_a_removed_member_says_so_and_ends_for_good(members: Members) -> None:
    members.start(1, 2, 3)
    one = members.addresses[0]
    said("put", "k", "v", peer=one)
    members.kill(3)
    removed("i3", peer=one)
    for _ in range(2):
        members.launch(3)
        assert members.ended(3) == 1
        assert "i3 was expelled from the cluster" in members.output(3).splitlines()[-1]


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
