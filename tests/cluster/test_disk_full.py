"""A member whose disk is full says so, harms nobody, and goes on by itself when there is space again."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.members import Members
from tests.cluster.watching import leader_of, run, status_of, until
from trimtab.client.metastore import MetastoreClient

SIZE_MB = 160
RESERVE_MB = 32


@contextlib.contextmanager
def mounted(path: Path, size_mb: int) -> Iterator[Path]:
    """A file system of its own, in memory."""
    path.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount the tmpfs that this test fills")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=700", "tmpfs", str(path)], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"a tmpfs can't be mounted here: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", SIZE_MB) as path:
        yield path


@pytest.fixture
def small_disks(tmp_path: Path) -> Iterator[dict[int, Path]]:
    """One for each of three members: which of them is to be full is known when it is known who leads."""
    with contextlib.ExitStack() as stack:
        yield {each: stack.enter_context(mounted(tmp_path / f"small{each}", SIZE_MB)) for each in (1, 2, 3)}


def fill(path: Path, leave_bytes: int) -> None:
    """Take all the space but a little; whoever else writes there may be faster with the last of it."""
    with path.open("wb", buffering=0) as file:
        while True:
            state = os.statvfs(path.parent)
            free = state.f_bavail * state.f_frsize - leave_bytes
            if free <= 0:
                return
            try:
                file.write(b"\0" * min(free, 1 << 20))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("role", ["follower", "leader"])
def test_a_member_on_a_full_disk_reports_it_and_recovers_when_space_returns(
    members: Members, small_disks: dict[int, Path], role: str
) -> None:
    for member, disk in small_disks.items():
        members.start(member, data_dir=disk / "data", options=["--disk-reserve-mb", str(RESERVE_MB)])

    async def story() -> int:
        client = await MetastoreClient.connect(members.addresses)
        await client.put(b"before", b"1", timeout_s=60)
        leader = await leader_of(members.addresses)
        small = leader if role == "leader" else leader % 3 + 1
        here, elsewhere = members.addresses[small - 1], members.addresses[small % 3]
        filler = small_disks[small] / "filler"
        fill(filler, leave_bytes=0)

        async def reported() -> bool:
            return (await status_of(here)).disk_full != ""

        await until(reported, f"member {small} to report its full disk")
        for number in range(50):
            await client.put(b"meanwhile/%d" % number, b"x" * 1000, timeout_s=60)
        # A leader that can take nothing makes room for another by itself.

        async def another_leads() -> bool:
            return await leader_of(members.addresses) != small

        await until(another_leads, f"another than member {small} to lead")
        behind = await status_of(here)
        filler.unlink()

        async def recovered() -> bool:
            first, second = await status_of(here), await status_of(elsewhere)
            return not first.disk_full and (first.revision, first.checksum) == (second.revision, second.checksum)

        await until(recovered, f"member {small} to recover (it was at revision {behind.revision})")
        await client.put(b"after", b"1", timeout_s=60)
        await client.close()
        return small

    small = run(story())
    assert "disk full" in members.output(small)
    members.wait(small, lambda: "has space again" in members.output(small), "say that there is space again")


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("leave_mb", [6, 40])
def test_a_member_that_really_runs_out_of_space_loses_nothing_and_comes_back(
    members: Members, small_disk: Path, leave_mb: int
) -> None:
    """Without a reserve the log and the state machine meet the end of the disk in the middle of their writes."""
    members.start(1, data_dir=small_disk / "i1", options=["--disk-reserve-mb", "0"])
    members.start(2, 3)
    value = os.urandom(200_000)

    async def story() -> None:
        client = await MetastoreClient.connect(members.addresses)
        for number in range(20):
            await client.put(b"before/%d" % number, value, timeout_s=60)
        fill(small_disk / "filler", leave_bytes=leave_mb << 20)
        number = 0

        async def ran_out() -> bool:
            nonlocal number
            number += 1
            await client.put(b"large/%d" % number, value, timeout_s=60)
            return "disk full" in members.output(1)

        await until(ran_out, "member 1 to run out of space", timeout_s=300)  # it takes hundreds of puts
        for more in range(20):
            await client.put(b"more/%d" % more, value, timeout_s=60)
        (small_disk / "filler").unlink()

        async def recovered() -> bool:
            await client.put(b"small", b"1", timeout_s=60)
            first, second = [await status_of(address) for address in members.addresses[:2]]
            return (first.revision, first.checksum) == (second.revision, second.checksum)

        await until(recovered, "member 1 to come back with everything")
        await client.close()

    run(story())
    assert members.running[1].poll() is None
