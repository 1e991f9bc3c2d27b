"""The node as a child of its supervisor: a real loop, a real disk, real signals, and a word for how it ends.

    the directory says   the child                                            and ends with
    new                  start_discover: looks for the others                 Rebootstrap(boot | join)
    boot                 start_boot: founds the cluster, then postjoin
    join                 start_join: asks to be let in, then postjoin         Fatal: rejected; Rebootstrap: try again
    member               postjoin: takes part until it is told to stop        no word; Fatal; Rebootstrap: join expired

Reasons that another start would not mend (settings, certificates, a port that is taken, data that is damaged or of
somebody else, a failed sync) are told to the supervisor as Fatal; it prints them as the last line. One that is expelled
says so itself, and its Fatal has no text: what an operator ordered is no error.
Anything else is a defect: it leaves its trace, and the supervisor starts another child.

A node that ran out of disk space in a place where it can't just refuse ends its life, waits until there is space again,
and lets the supervisor start another: what was in memory is then certainly gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from trimtab.metastore.errors import MetastoreError
from trimtab.net.errors import NetError
from trimtab.node import failpoints
from trimtab.node.acquaintances import LostData
from trimtab.node.boot import become_member, begin_again
from trimtab.node.errors import Expelled, JoinExpired, JoinRejected
from trimtab.node.identity import Identity
from trimtab.node.instance import Instance
from trimtab.node.listening import check_listen, in_words
from trimtab.node.logs import LogSettings, open_log, story_of
from trimtab.node.loop_watch import LoopWatch
from trimtab.node.processor_waits import ProcessorWaits
from trimtab.node.reports import Diverged
from trimtab.node.settings import Settings, SettingsError
from trimtab.node.supervision import Fatal, Online, Phase, Ready, Rebootstrap, WantDriver, Word
from trimtab.raft.errors import RaftError
from trimtab.storage.port import DiskFull, StorageError
from trimtab.storage.rocks import RocksDisk

T = TypeVar("T")
Closer = Callable[[], Awaitable[None]]
OpenDoor = Callable[[Instance], Awaitable[Closer]]
# Called before anything is begun: it takes its port, so that one that is taken is told before the cluster hears of
# this instance. What it returns opens the door on a running instance.
Door = Callable[[], OpenDoor]

_SWITCH_S = 0.000_05
_COLLECT = (10_000, 10, 100)  # so few are looked at that it does not take long; all of them, hardly ever
_SPACE_POLL_S = 0.5
_LEAVE_S = 3.0
# How often to look whether jobs wait for a driver, and how long they may.
_DRIVER_LOOK_S = 0.5
_DRIVER_WAIT_S = 1.5
# Leaving keeps its own time; this is for one that does not.
_LEAVE_LIMIT_S = 3.5
# Reasons that are the same at the next start, and whose text says what to do.
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
    failpoints.BadFailpoints,
)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _boot_s() -> float:
    """A clock that runs on while the machine is suspended: leases end also then."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ToldToStop(Exception):
    """SIGTERM or SIGINT came."""


def run_child(
    settings: Settings,
    data_dir: Path,
    phase: Phase,
    say: Callable[[Word], None],
    *,
    doors: Sequence[Door] = (),
    log_settings: LogSettings | None = None,
) -> int:
    """Live as a node; the exit status.

    `phase` is where the supervisor thinks this child begins. The data directory knows it for certain, and decides.
    """
    # By default a thread that computes keeps the one that answers waiting for 5 ms, each time that one wakes.
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*_COLLECT)
    try:
        failpoints.arm_from_environment()
        data_dir.mkdir(parents=True, exist_ok=True)
        return uvloop.run(Node(settings, data_dir, say, doors, log_settings or LogSettings()).run(phase))
    except (*_FINAL, OSError) as error:
        say(Fatal(f"could not start: {in_words(error)}"))
        return 1


class Node:
    """The lives of one child process."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        say: Callable[[Word], None],
        doors: Sequence[Door],
        log_settings: LogSettings,
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._say = say
        self._doors = doors
        self._log = open_log(settings.instance_id, log_settings)
        self._story = story_of(self._log)
        self._rng = random.Random(random.SystemRandom().getrandbits(64))

    async def run(self, phase: Phase) -> int:
        """Live until told to stop, or until there is a word to end with."""
        loop = asyncio.get_running_loop()
        self._told: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        self._log.debug("starting", phase=phase.value, pid=os.getpid())
        try:
            word = await self._live()
        except ToldToStop:
            self._log.info("stopped")
            return 0
        self._say(word)
        return 1 if isinstance(word, Fatal) else 0

    def _stop(self) -> None:
        if not self._told.done():
            self._told.set_result(None)

    async def _live(self) -> Fatal | Rebootstrap:
        """From whatever the data directory says to the last word. ToldToStop: there is none."""
        try:
            check_listen(self._settings.listen)
            opening = [door() for door in self._doors]
            reserve_bytes = self._settings.limits.disk_reserve_bytes
            disk = RocksDisk(self._data_dir, reserve_bytes=reserve_bytes, report=self._log.warning)
            try:
                member = await self._unless_told(
                    become_member(self._settings, disk=disk, rng=self._rng, wall_ms=_wall_ms, story=self._story)
                )
                if isinstance(member, Rebootstrap):
                    return member
                return await self._take_part(member, disk, opening)
            except DiskFull:
                # What is still to be deleted may be all the space that is needed, and nobody deletes it afterwards.
                await asyncio.to_thread(disk.await_deleted)
                raise
            finally:
                disk.close()
        except DiskFull as error:
            # Everything acknowledged is in the files; what only was in memory is replayed from the log.
            self._log.warning(f"waiting for space: {error}")
        await self._space_returns()
        self._log.info("the disk has space again; starting anew")
        return Rebootstrap(Phase.POSTJOIN, drop=False)

    async def _take_part(self, identity: Identity, disk: RocksDisk, opening: Sequence[OpenDoor]) -> Fatal | Rebootstrap:
        """Postjoin: a member, from its first vote to its farewell."""
        settings = self._settings
        instance = Instance(
            settings,
            identity,
            disk=disk,
            rng=self._rng,
            wall_ms=_wall_ms,
            boot_s=_boot_s,
            story=self._story,
        )
        if settings.exposed:
            self._log.warning(
                f"{settings.listen} is reachable from other machines and TLS is off: whoever connects can read and "
                "change everything; give --tls-authority, --tls-certificate and --tls-key"
            )
        async with AsyncExitStack() as resources:
            # What is made until it is ready stays, with the little garbage in it: to look for that would hold up who is
            # answered already.
            gc.disable()
            resources.callback(gc.enable)
            await instance.start()
            resources.push_async_callback(instance.stop)
            watch = LoopWatch(instance.complaints.add, waited_s=ProcessorWaits().within)
            watch.start()
            resources.callback(watch.stop)
            instance.samplers.append(watch.figures)
            for open_door in opening:
                resources.push_async_callback(await open_door(instance))
            gc.freeze()
            gc.enable()
            if not instance.is_out:
                self._log.info(f"ready on {settings.listen} as member {instance.raft_id} of {settings.cluster_id}")
            self._say(Ready())
            self._tell_when_online(instance)
            resources.callback(self._ask_for_drivers(instance))
            await asyncio.wait([self._told, instance.ended], return_when=asyncio.FIRST_COMPLETED)
            if instance.failure is None:
                await self._leave(instance)
        if instance.failure is None:
            raise ToldToStop
        if isinstance(instance.failure, JoinExpired):
            self._log.warning(f"{instance.failure}; trying again as a new instance")
            return begin_again(instance.identity, disk=disk, rng=self._rng)
        if isinstance(instance.failure, DiskFull) or not isinstance(instance.failure, _FINAL):
            raise instance.failure
        if isinstance(instance.failure, Expelled):
            # Somebody wanted this: it ends for good, but it is no error, so the supervisor has nothing to add.
            self._log.info(str(instance.failure))
            return Fatal("")
        return Fatal(f"stopped: {instance.failure}")

    def _tell_when_online(self, instance: Instance) -> None:
        """Say once that the cluster has brought this life of the instance to Online."""
        control, on_change = instance.control, instance.watching.on_change
        if control is None:
            return

        def look(_keys: frozenset[bytes]) -> None:
            if control.online:
                on_change.remove(look)
                self._say(Online())

        on_change.append(look)

    def _ask_for_drivers(self, instance: Instance) -> Callable[[], None]:
        """While this instance leads, say that a driver is wanted where jobs wait and nobody runs them; call it to end.

        Not at once: a driver that somebody else runs may be about to enter. Again and again: one that was started may
        have died since.
        """
        control, loop = instance.control, asyncio.get_running_loop()
        since: float | None = None
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal since, timer
            timer = loop.call_later(_DRIVER_LOOK_S, look)
            if control is None or not control.office.leads or control.jobs.idle():
                since = None
                return
            since = loop.time() if since is None else since
            if loop.time() - since >= _DRIVER_WAIT_S:
                self._say(WantDriver())

        timer = loop.call_later(_DRIVER_LOOK_S, look)
        return lambda: timer.cancel()

    async def _leave(self, instance: Instance) -> None:
        """Let the cluster take note, as long as that does not take long."""
        try:
            why_not = await asyncio.wait_for(instance.leave(_LEAVE_S), _LEAVE_LIMIT_S)
        except TimeoutError:
            why_not = "it took too long"
        if why_not:
            self._log.warning(f"stopped without telling the cluster: {why_not}; the others will mark it Offline")

    async def _unless_told(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. ToldToStop: that came first, and the work was cancelled."""
        task = asyncio.ensure_future(work)
        first: list[asyncio.Future[Any]] = [task, self._told]
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ToldToStop
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _space_returns(self) -> None:
        """Wait until there is space above the reserve. ToldToStop: that came first."""
        while not self._told.done():
            state = os.statvfs(self._data_dir)
            if state.f_bavail * state.f_frsize > self._settings.limits.disk_reserve_bytes:
                return
            await asyncio.wait([self._told], timeout=_SPACE_POLL_S)
        raise ToldToStop
