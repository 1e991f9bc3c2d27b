"""An instance as a process: it outlives a full disk, ends when told to, and says why when it must."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from trimtab.client.metastore import MetastoreClient
from trimtab.node import process
from trimtab.node.instance import Instance
from trimtab.node.settings import Limits, Settings
from trimtab.storage.port import DiskFull, SyncFailed


@pytest.fixture
def settings(free_ports: Callable[[int], list[int]]) -> Settings:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return Settings("i1", address, (address,), limits=Limits(disk_reserve_bytes=0))


@pytest.fixture
def lives(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Instance]:
    """The instances a process makes, in order."""
    made: asyncio.Queue[Instance] = asyncio.Queue()

    class Remembered(Instance):
        async def start(self) -> None:
            await super().start()
            made.put_nowait(self)

    monkeypatch.setattr(process, "Instance", Remembered)
    return made


async def next_of(lives: asyncio.Queue[Instance]) -> Instance:
    return await asyncio.wait_for(lives.get(), 20)


def test_after_running_out_of_space_it_starts_anew_with_everything_acknowledged(
    settings: Settings, lives: asyncio.Queue[Instance], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> int:
        running = asyncio.ensure_future(process._run(settings, tmp_path))
        first = await next_of(lives)
        client = await MetastoreClient.connect([settings.listen])
        await client.put(b"a", b"1")
        first.fail(DiskFull("metastore", free_bytes=0, reserve_bytes=0))
        await next_of(lives)
        entry = await client.get(b"a")
        assert entry is not None and entry.value == b"1"
        await client.close()
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(running, 20)

    assert uvloop.run(story()) == 0
    said = capsys.readouterr().err
    assert "waiting for space: disk full" in said and "starting anew" in said and said.endswith("stopped\n")


def test_after_a_failed_sync_it_ends_with_the_reason(
    settings: Settings, lives: asyncio.Queue[Instance], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> int:
        running = asyncio.ensure_future(process._run(settings, tmp_path))
        (await next_of(lives)).fail(SyncFailed("the disk is gone"))
        return await asyncio.wait_for(running, 20)

    assert uvloop.run(story()) == 1
    assert capsys.readouterr().err.endswith("stopped: the disk is gone\n")


def test_what_can_not_start_says_why_in_one_line(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "instance.json").write_text("{}")
    assert process.run(settings, tmp_path) == 1
    said = capsys.readouterr().err
    assert "could not start" in said and "instance.json" in said and "Traceback" not in said
