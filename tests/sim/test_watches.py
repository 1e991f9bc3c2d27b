"""A client's watch goes on, whatever happens to the member that serves it: no gap, no repetition."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

import pytest

from trimtab.client.errors import Error, InvalidRequest, Unavailable
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore.requests import WatchItem, WatchKind
from trimtab.sim.cluster import SimCluster
from trimtab.sim.plan import draw
from trimtab.sim.world import Process, World


class Scene:
    """Members, and two client processes: one that watches, one that writes."""

    def __init__(self, world: World, members: int = 3) -> None:
        self.world = world
        self.cluster = SimCluster(world, dataclasses.replace(draw(1, "calm"), members=members))
        for member in self.cluster.members.values():
            self.cluster.start(member)
        self.watcher, self.writer = world.process("watcher", "10.0.1.1"), world.process("writer", "10.0.1.2")
        self.watcher.start()
        self.writer.start()
        self.seen: list[WatchItem] = []
        self.ended: Error | None = None

    async def connect(self, process: Process, **options: float) -> MetastoreClient:
        return await MetastoreClient.connect(
            [member.address for member in self.cluster.members.values()],
            rng=self.world.rng(process.name),
            wall_ms=process.wall_ms,
            **options,  # type: ignore[arg-type]
        )

    def watch(self, key: bytes, *, from_revision: int = 0, patience_s: float | None = None, slow_s: float = 0) -> None:
        """Begin to watch, and let it settle."""

        async def follow() -> None:
            client = await self.connect(self.watcher, timeout_s=1)
            try:
                async for item in client.watch(key, from_revision=from_revision, patience_s=patience_s):
                    self.seen.append(item)
                    if slow_s:
                        await asyncio.sleep(slow_s)
            except Error as error:
                self.ended = error

        self.watcher.spawn(follow())
        self.world.run(self.world.now + 2)

    def put(self, *keys: bytes) -> list[int]:
        async def puts() -> list[int]:
            client = await self.connect(self.writer)
            revisions = [await client.put(key, b"v") for key in keys]
            await client.close()
            return revisions

        revisions: list[int] = self.world.run_until_done(self.writer.spawn(puts()), self.world.now + 60)
        return revisions

    def compact(self, revision: int) -> None:
        async def compact() -> None:
            client = await self.connect(self.writer)
            await client.compact(revision)
            await client.close()

        self.world.run_until_done(self.writer.spawn(compact()), self.world.now + 20)

    def serving(self) -> int:
        """The member that feeds the watch."""
        found = []
        for number, member in self.cluster.members.items():
            if member.instance is not None:
                served = member.instance.machine._served
                found += [number for request in served if not request.done and served[request].watcher.active]
        assert len(found) == 1, found
        return found[0]

    def revisions(self) -> list[int]:
        return [item.revision for item in self.seen]


@pytest.fixture
def scene() -> Iterator[Scene]:
    with World(5) as world:
        yield Scene(world)


@pytest.mark.parametrize("from_revision", [0, 1])
def test_a_watch_goes_on_at_another_member_each_time_its_own_is_killed(scene: Scene, from_revision: int) -> None:
    written = scene.put(b"k/before")
    scene.watch(b"k/", from_revision=from_revision)
    expected = written if from_revision else []
    for round_ in range(6):
        expected += scene.put(*(b"k/%d" % number for number in range(5)))
        victim = scene.cluster.members[scene.serving()]
        scene.cluster.kill(victim, round_ % 2 == 0)
        # Written while the watch has no member, or the next one is still behind.
        expected += scene.put(*(b"k/%d" % number for number in range(5)))
        scene.cluster.start(victim)
        scene.world.run(scene.world.now + 3)
    scene.world.run(scene.world.now + 5)
    assert scene.revisions() == expected
    assert all(len(item.changes) == 1 for item in scene.seen)


def test_a_quiet_watch_survives_the_compaction_of_what_did_not_concern_it(scene: Scene) -> None:
    scene.watch(b"quiet/")
    last = scene.put(*(b"noise" for _ in range(50)))[-1]
    scene.world.run(scene.world.now + 3)
    scene.compact(last)
    scene.cluster.kill(scene.cluster.members[scene.serving()], False)
    scene.world.run(scene.world.now + 5)
    expected = scene.put(b"quiet/k")
    scene.world.run(scene.world.now + 5)
    assert scene.ended is None and scene.revisions() == expected


def test_a_watch_from_before_the_compaction_is_told_so(scene: Scene) -> None:
    last = scene.put(*(b"k" for _ in range(5)))[-1]
    scene.compact(last)
    scene.watch(b"k", from_revision=1)
    assert isinstance(scene.ended, InvalidRequest) and "was compacted" in str(scene.ended)


def test_a_consumer_that_is_too_slow_gets_everything_later(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def small(self: object, channel: object, request: object) -> None:
        opened.append(request)
        real(self, channel, request, max_items=3, max_bytes=1 << 20)

    from trimtab.client.watch_stream import WatchStream

    real = WatchStream.__init__
    monkeypatch.setattr(WatchStream, "__init__", small)
    scene.watch(b"k", slow_s=0.5)
    expected = scene.put(*(b"k%d" % number for number in range(30)))
    scene.world.run(scene.world.now + 30)
    assert scene.revisions() == expected
    assert len(opened) > 3


def test_a_watch_waits_for_ever_or_as_long_as_it_was_told() -> None:
    for patience_s in (None, 20.0):
        with World(5) as world:
            scene = Scene(world, members=1)
            scene.watch(b"k", patience_s=patience_s)
            scene.cluster.kill(scene.cluster.members[1], False)
            world.run(world.now + 19)
            assert scene.ended is None
            world.run(world.now + 20)
            if patience_s is not None:
                assert isinstance(scene.ended, Unavailable) and "for 20 s" in str(scene.ended)
                continue
            scene.cluster.start(scene.cluster.members[1])
            expected = scene.put(b"k")
            world.run(world.now + 5)
            assert scene.revisions() == expected


def test_a_watch_ends_when_its_client_is_closed(scene: Scene) -> None:
    async def follow() -> list[WatchItem]:
        client = await scene.connect(scene.watcher)
        asyncio.get_running_loop().call_later(3, lambda: asyncio.ensure_future(client.close()))
        return [item async for item in client.watch(b"k", kind=WatchKind.EXACT)]

    assert scene.world.run_until_done(scene.watcher.spawn(follow()), scene.world.now + 30) == []
