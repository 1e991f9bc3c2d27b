"""Looking for the cluster: the calls, the answers and the memory around `topology.discovery`, which decides.

`discovery.json` holds whom this instance has heard of, and the leader once it was told of one. It is written before
anything that was heard is acknowledged, so a restart forgets nobody; see there for what would break otherwise. Whoever
wins makes that durable (phase boot in `instance.json`) before it says another word.

An instance that is on its way in answers the same question: with the leader it was told of.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec

from trimtab.net.errors import NetError, RpcError
from trimtab.net.server import Request
from trimtab.node import identity as identities
from trimtab.node.complaints import Complaints
from trimtab.node.entrance import Entrance, in_short
from trimtab.node.failpoints import hit
from trimtab.node.identity import Identity, Phase, fresh_id
from trimtab.node.settings import Settings, SettingsError
from trimtab.storage.port import Corrupt, Disk, StorageError
from trimtab.topology import protocol
from trimtab.topology.discovery import Discovery, DiscoveryRefused, Follow, Lead
from trimtab.topology.protocol import DiscoverReply, DiscoverRequest

DISCOVERY_FILE = "discovery.json"
WRONG_CLUSTER = "wrong_cluster"


class Memory(msgspec.Struct):
    """What `discovery.json` holds: addresses heard of, and where there is a cluster to join."""

    format: int = 1
    peers: list[str] = []
    leader: str = ""


def remembered(disk: Disk) -> Memory:
    stored = disk.read_file(DISCOVERY_FILE)
    try:
        return Memory() if stored is None else msgspec.json.decode(stored, type=Memory)
    except msgspec.DecodeError as error:
        raise Corrupt(DISCOVERY_FILE, f"it is not readable: {error}") from error


def remember(disk: Disk, memory: Memory) -> None:
    disk.write_file(DISCOVERY_FILE, msgspec.json.encode(memory))


def wrong_cluster(settings: Settings, asked: DiscoverRequest) -> str | None:
    """Why whoever asks has nothing to look for here."""
    if asked.cluster_id == settings.cluster_id:
        return None
    return (
        f"{settings.instance_id} at {settings.address} is of the cluster '{settings.cluster_id}', not of "
        f"'{asked.cluster_id[:100]}'; correct --cluster-id or --peer"
    )


class Discovering:
    """One search, from `run` to its decision."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        *,
        disk: Disk,
        rng: random.Random,
        story: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._disk = disk
        self._rng = rng
        self._story = story
        self._loop = asyncio.get_running_loop()
        self._complaints = Complaints(story, self._loop.time)
        self._entrance = Entrance(settings, identity, rng, self._complaints.add)
        self._decided: asyncio.Future[Identity] = self._loop.create_future()
        # A dict as an ordered set: whom it asks at this moment.
        self._asking: dict[str, asyncio.Task[None]] = {}
        try:
            self._discovery = Discovery(settings.address, settings.peers, remembered(disk).peers, uuid=identity.uuid)
        except DiscoveryRefused as error:
            raise SettingsError(str(error)) from error

    async def run(self) -> Identity:
        """The identity with the phase that follows, durable. SettingsError: it looks in the wrong place."""
        await self._entrance.open({protocol.DISCOVER: self._answer})
        peers = ", ".join(self._settings.peers)
        self._story(f"looking for the cluster {self._settings.cluster_id} at {peers}")
        try:
            self._decide()
            while not self._decided.done():
                self._ask_all()
                await asyncio.wait([self._decided], timeout=self._settings.timing.discover_every_ms / 1000)
                self._report()
            return self._decided.result()
        finally:
            for task in self._asking.values():
                task.cancel()
            await self._entrance.close()

    # Asking

    def _ask_all(self) -> None:
        for name in self._discovery.to_visit():
            if name not in self._asking:
                self._asking[name] = self._loop.create_task(self._ask(name))

    async def _ask(self, name: str) -> None:
        timeout_s = self._settings.timing.handshake_timeout_ms / 1000
        body = protocol.encode(self._discovery.request(self._settings.cluster_id, name))
        try:
            answer = await self._entrance.ask(name, protocol.DISCOVER, body, timeout_s)
            if self._discovery.answered(name, protocol.decode_discover_reply(answer)):
                self._remember()
            self._decide()
        except RpcError as error:
            if error.code == WRONG_CLUSTER:
                self._end(SettingsError(error.text))
            else:
                self._discovery.failed(name, error.text, self._loop.time())
        except (NetError, DiscoveryRefused, msgspec.DecodeError) as error:
            self._discovery.failed(name, in_short(str(error), name), self._loop.time())
        except StorageError as error:
            self._end(error)
        finally:
            del self._asking[name]

    # Being asked

    def _answer(self, request: Request) -> None:
        if self._decided.done() and self._decided.exception() is not None:
            # What could not be written down must not be said either.
            request.fail("failed", f"this instance is stopping: {self._decided.exception()}")
            return
        try:
            asked = protocol.decode_discover(request.body)
            if wrong := wrong_cluster(self._settings, asked):
                request.fail(WRONG_CLUSTER, wrong)
                return
            if self._discovery.receive(asked):
                self._remember()
            self._decide()
        except msgspec.DecodeError as error:
            request.fail("invalid", f"the body of {request.method} can't be read: {error}")
        except DiscoveryRefused as error:
            request.fail("refused", str(error))
        except StorageError as error:
            request.fail("failed", str(error))
            self._end(error)
        else:
            request.reply(protocol.encode(self._discovery.reply()))

    # Deciding

    def _remember(self) -> None:
        remember(self._disk, Memory(peers=self._discovery.known()))

    def _decide(self) -> None:
        """Make a decision durable before anybody hears of it."""
        if self._decided.done():
            return
        match self._discovery.decision():
            case None:
                return
            case Lead():
                decided = msgspec.structs.replace(self._identity, phase=Phase.BOOT, genesis=fresh_id(self._rng))
                identities.store(self._disk, decided)
                hit("boot.persisted", self._settings.instance_id)
                self._story("nobody else can found the cluster: this instance does")
            case Follow(address=leader):
                remember(self._disk, Memory(peers=self._discovery.known(), leader=leader))
                decided = msgspec.structs.replace(self._identity, phase=Phase.JOIN, nonce=fresh_id(self._rng))
                identities.store(self._disk, decided)
                self._story(f"there is a cluster: {leader} is to be asked to let this instance in")
        self._decided.set_result(decided)

    def _end(self, error: Exception) -> None:
        if not self._decided.done():
            self._decided.set_exception(error)

    def _report(self) -> None:
        if self._decided.done():
            return
        timing = self._settings.timing
        after_s, again_s = timing.silent_peer_ms / 1000, timing.silent_peer_again_ms / 1000
        for sentence in self._discovery.report(self._loop.time(), after_s, again_s):
            self._story(sentence)


def answer_on_the_way(settings: Settings, identity: Identity, leader: str, request: Request) -> None:
    """A starting instance asks one that is on its way into a cluster. `leader`: empty, if it was told of none."""
    try:
        asked = protocol.decode_discover(request.body)
    except msgspec.DecodeError as error:
        request.fail("invalid", f"the body of {request.method} can't be read: {error}")
        return
    if wrong := wrong_cluster(settings, asked):
        request.fail(WRONG_CLUSTER, wrong)
    elif not leader:
        # A guess would be taken for what the leader itself has said.
        request.fail("refused", f"{settings.instance_id} is on its way into a cluster, and was not told who leads it")
    else:
        request.reply(protocol.encode(DiscoverReply(settings.address, [], leader, identity.uuid)))
