"""One suite, two disks: whatever holds for RocksDB on a real file system must hold for the model, and the other way."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.storage.model import ModelDisk
from trimtab.storage.port import Disk, Store
from trimtab.storage.rocks import RocksDisk, RocksOptions

SMALL = RocksOptions(write_buffer_bytes=1024 * 1024)


class Machine:
    """A machine with one disk, whose processes come and go."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind = kind
        self._path = path
        self._model: ModelDisk | None = None
        self._rocks: RocksDisk | None = None

    def disk(self) -> Disk:
        if self.kind == "model":
            if self._model is None:
                self._model = ModelDisk(lambda seconds, run: asyncio.get_running_loop().call_later(seconds, run))
            return self._model
        if self._rocks is None:
            self._rocks = RocksDisk(self._path, reserve_bytes=0, options=SMALL)
        return self._rocks

    def restart(self) -> Disk:
        """A clean stop, and the disk as the next process finds it."""
        self.stop()
        return self.disk()

    def stop(self) -> None:
        if self._model is not None:
            self._model.close()
        if self._rocks is not None:
            self._rocks.close()
            self._rocks = None


@pytest.fixture(params=["rocks", "model"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(request.param, tmp_path / "disk")
    yield machine
    machine.stop()


@pytest.fixture(params=["rocks", "model"])
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Machine]:
    """A factory, for property tests that need a fresh machine per example."""
    return lambda: Machine(request.param, tmp_path_factory.mktemp("machine") / "disk")


async def synced(store: Store) -> BaseException | None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    store.start_sync(done.set_result)
    return await done


async def flushed(store: Store) -> BaseException | None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    store.start_flush(done.set_result)
    return await done


def put(store: Store, **pairs: bytes) -> None:
    batch = store.batch()
    for key, value in pairs.items():
        batch.put(key.encode(), value)
    store.write(batch)
