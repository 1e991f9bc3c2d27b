"""A machine of a governed cluster: a disk, a supervisor, and the node child that it starts again and again.

The supervisor's decisions are those of `node.supervision`; its deeds here are virtual. Each child is one life of a
simulated process: it does what `node.process` does (`become_member`, then an `Instance` until it is told to stop), says
its words to the supervisor, and ends. A child can be killed, and its supervisor then starts another; a machine can lose
its power, and then nothing of it runs until somebody switches it on again.

The supervisor itself runs on the control loop: it is never slow, paused or cut off.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trimtab.metastore.errors import MetastoreError
from trimtab.net.errors import NetError
from trimtab.node import identity as identities
from trimtab.node.acquaintances import LostData
from trimtab.node.boot import become_member, begin_again
from trimtab.node.errors import Expelled, JoinExpired, JoinRejected
from trimtab.node.group import Group
from trimtab.node.identity import Identity
from trimtab.node.instance import Instance
from trimtab.node.reports import Diverged
from trimtab.node.settings import Settings, SettingsError
from trimtab.node.supervision import (
    Begin,
    Decision,
    DropDatabase,
    Event,
    Exit,
    Exited,
    Fatal,
    ForwardSignal,
    KillAfter,
    Phase,
    Ready,
    Rebootstrap,
    Said,
    Start,
    Started,
    Supervision,
    Told,
    Word,
)
from trimtab.raft.errors import RaftError
from trimtab.raft.roles import StateType
from trimtab.sim.disks import MemberDisk
from trimtab.sim.world import Process
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import StorageError

if TYPE_CHECKING:
    from trimtab.sim.governed import GovernedCluster

LEAVE_S = 3.0
_LEAVE_LIMIT_S = 3.5
# What `node.process` tells its supervisor as a reason that another start would not mend.
_FINAL = (
    SettingsError,
    StorageError,
    MetastoreError,
    RaftError,
    NetError,
    Diverged,
    Expelled,
    JoinRejected,
    LostData,
    OSError,
)
T = TypeVar("T")


class Killed(BaseException):
    """The process ends in the middle of what it does: nothing that would have followed happens."""


class ToldToStop(Exception):
    """SIGTERM came."""


class WatchedDisk(ModelDisk):
    """A model disk that tells of every identity that is written to it, and of every file that a store takes over."""

    on_identity: Callable[[Identity], None] = staticmethod(lambda _identity: None)
    on_taken_over: Callable[[str], None] = staticmethod(lambda _name: None)

    def write_file(self, name: str, data: bytes, *, synced: bool = True) -> None:
        super().write_file(name, data, synced=synced)
        if name == identities.IDENTITY_FILE:
            self.on_identity(msgspec.json.decode(data, type=Identity))

    def peek(self, name: str, key: bytes) -> bytes | None:
        """What a store holds under a key, whether it is open or not."""
        contents = self._stores.get(name)
        return None if contents is None else contents.table.values.get(key)

    def read_table(self, name: str) -> list[tuple[bytes, bytes]]:
        self.on_taken_over(name)
        return super().read_table(name)


class Machine:
    """One machine across all lives of what runs on it."""

    def __init__(self, cluster: GovernedCluster, name: str, settings: Settings) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = name
        self.settings = settings
        self.host = settings.listen.rpartition(":")[0]
        self.process: Process = self.world.process(name, self.host)
        self.process.owner = self
        self.disk = MemberDisk(self.process, disk=WatchedDisk)
        self.instance: Instance | None = None
        # By life of the process: the oldest version of which it was waiting for an answer when it died.
        self.waited_for: dict[int, int | None] = {}
        self.group: Group | None = None
        self.exit: Exit | None = None  # how the supervisor ended; None: it has not, or lost its power
        self.ended_by: BaseException | None = None  # what the last child that said `fatal` died of
        self.online_at: float | None = None
        self._supervision: Supervision | None = None
        self._life = 0  # of the supervisor: what an earlier one had planned never happens
        self._born_s = 0.0
        self._stop: asyncio.Future[None] | None = None
        assert isinstance(self.disk.model, WatchedDisk)
        self.disk.model.on_identity = lambda identity: cluster.identified(self, identity)

    @property
    def alive(self) -> bool:
        """Whether a child runs."""
        return self.process.alive

    @property
    def on(self) -> bool:
        """Whether a supervisor runs: if there is no child, it will start one."""
        return self._supervision is not None

    @property
    def leads(self) -> bool:
        return self.alive and self.group is not None and self.group.raw.raft.state is StateType.LEADER

    @property
    def identity(self) -> Identity | None:
        """Who the disk says this is."""
        stored = self.disk.model.read_file(identities.IDENTITY_FILE)
        return None if stored is None else msgspec.json.decode(stored, type=Identity)

    @property
    def raft_id(self) -> int:
        identity = self.identity
        return identity.raft_id if identity is not None else 0

    # -- what others do to it --------------------------------------------------------------------------------------

    def start(self) -> None:
        """`trimtab run`, if it does not run."""
        if self._supervision is not None:
            return
        self._life += 1
        self.exit = None
        self.ended_by = None
        self._supervision = Supervision()
        self.world.tell(self.name, "is started")
        self._happened(Begin())

    def stop(self) -> None:
        """SIGTERM to the supervisor."""
        if self._supervision is not None:
            self.world.tell(self.name, "is told to stop")
            self._happened(Told(signal.SIGTERM))

    def kill_child(self) -> None:
        """SIGKILL to the node: the supervisor starts another."""
        if self.alive:
            self.world.tell(self.name, "is killed")
            self._end_process(power=False)
            self._ended(-signal.SIGKILL)

    def crash(self, *, power: bool) -> None:
        """Everything on the machine ends; with the power, what was not synced is lost."""
        if self._supervision is None and not self.alive:
            return
        self._supervision = None
        self._life += 1
        lost = self._end_process(power=power)
        self.world.tell(self.name, f"loses power ({lost})" if power else "is killed with its supervisor")

    def fall_at_failpoint(self, place: str) -> None:
        """The running child dies here and now, in the middle of an event. Raises Killed."""
        self.world.tell(self.name, f"dies at {place}")
        self._end_process(power=False)
        control = self.world.control.loop
        assert control is not None
        control.call_soon(self._if_same_life, self._life, self._ended, -signal.SIGKILL)
        raise Killed

    def _end_process(self, *, power: bool) -> str:
        if self.instance is not None:
            self.cluster.checks.died(self.instance.raft_id)
            control = self.instance.control
            self.waited_for[self.process.lives] = control.open_requests.oldest() if control is not None else None
        self.process.kill()
        self.instance = self.group = None
        return self.disk.died(power=power)

    # -- the supervisor --------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        if self._supervision is None:
            return
        for decision in self._supervision.handle(event):
            self._do(decision)

    def _do(self, decision: Decision) -> None:
        match decision:
            case Start(phase=phase, after_s=after_s):
                self._later(after_s, self._start_child, phase)
            case DropDatabase():
                for name in self.disk.model.names():
                    if name not in identities.KEPT_FILES:
                        self.disk.model.remove(name)
            case ForwardSignal():
                if self.process.loop is not None:
                    self.process.loop.call_soon(self._hear_signal)
            case KillAfter(after_s=after_s):
                self._later(after_s, self._kill_old, self.process.lives)
            case Exit(code=code, text=text):
                self._supervision = None
                self._life += 1
                self.exit = decision
                self.world.tell(self.name, f"ended with code {code}{f': {text}' if text else ''}")
                self.cluster.exited(self)

    def _later(self, after_s: float, deed: Callable[..., None], *args: Any) -> None:
        control = self.world.control.loop
        assert control is not None
        control.call_later(after_s, self._if_same_life, self._life, deed, *args)

    def _if_same_life(self, life: int, deed: Callable[..., None], *args: Any) -> None:
        if life == self._life:
            deed(*args)

    def _kill_old(self, child: int) -> None:
        if self.alive and self.process.lives == child:
            self.kill_child()

    def _start_child(self, phase: Phase) -> None:
        self.process.start()
        self._born_s = self.world.now
        self._stop = None
        if self.process.lives > 1:
            self.world.tell(self.name, f"starts the node again (life {self.process.lives}, {phase.value})")
        self._happened(Started())
        self.process.launch(self._live(), name=self.name)

    def _ended(self, status: int) -> None:
        self._happened(Exited(status, self.world.now - self._born_s))

    # -- the child -------------------------------------------------------------------------------------------------

    def _hear_signal(self) -> None:
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(None)

    def _say(self, word: Word) -> None:
        control = self.world.control.loop
        assert control is not None
        control.call_soon(self._if_same_life, self._life, self._happened, Said(word))

    async def _live(self) -> None:
        self._stop = asyncio.get_running_loop().create_future()
        rng = self.world.rng(f"instance/{self.name}/{self.process.lives}")
        status = 0
        try:
            word = await self._node(rng)
            self._say(word)
        except ToldToStop:
            pass
        except _FINAL as error:
            status = 1
            self.ended_by = error
            self._say(Fatal(f"stopped: {error}"))
        control = self.world.control.loop
        assert control is not None
        control.call_soon(self._if_same_life, self._life, self._child_over, self.process.lives, status)

    def _child_over(self, child: int, status: int) -> None:
        if self.alive and self.process.lives == child:
            self._end_process(power=False)
            self._ended(status)

    async def _node(self, rng: random.Random) -> Rebootstrap:
        """As `node.process` does it, with the ports of a simulated machine."""
        process, disk = self.process, self.disk.model
        member = await self._unless_told(
            become_member(self.settings, disk=disk, rng=rng, wall_ms=process.wall_ms, story=self._story)
        )
        if isinstance(member, Rebootstrap):
            return member
        instance = self.instance = Instance(
            self.settings,
            member,
            disk=disk,
            rng=rng,
            wall_ms=process.wall_ms,
            boot_s=process.boot_s,
            story=self._story,
        )
        await instance.start()
        self.cluster.began(self, instance)
        self._say(Ready())
        assert self._stop is not None
        await asyncio.wait([self._stop, instance.ended], return_when=asyncio.FIRST_COMPLETED)
        if instance.failure is None:
            await self._leave(instance)
        await instance.stop()
        if instance.failure is None:
            raise ToldToStop
        if isinstance(instance.failure, JoinExpired):
            return begin_again(instance.identity, disk=disk, rng=rng)
        raise instance.failure

    async def _leave(self, instance: Instance) -> None:
        try:
            why_not = await asyncio.wait_for(instance.leave(LEAVE_S), _LEAVE_LIMIT_S)
        except TimeoutError:
            why_not = "it took too long"
        if why_not:
            self._story(f"stopping without the cluster having taken note: {why_not}")

    async def _unless_told(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        assert self._stop is not None
        first: list[asyncio.Future[Any]] = [task, self._stop]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ToldToStop
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _story(self, line: str) -> None:
        if not line.startswith("connection of "):
            self.world.tell(self.name, line)

    def __repr__(self) -> str:
        return f"<machine {self.name}>"
