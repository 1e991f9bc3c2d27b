"""Machines on which instances start for the first time, in a simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from trimtab.net.hello import Hello
from trimtab.net.server import Handler, Server
from trimtab.node import identity as identities
from trimtab.node.boot import become_member
from trimtab.node.founding import drop_database
from trimtab.node.identity import Identity
from trimtab.node.settings import Settings
from trimtab.node.supervision import Rebootstrap
from trimtab.sim.disks import MemberDisk
from trimtab.sim.world import World
from trimtab.storage.model import ModelDisk


def address(number: int) -> str:
    return f"10.0.0.{number}:3301"


class Machine:
    """One instance before it is a member: its disk, its process, and what came of its start."""

    def __init__(self, world: World, number: int, peers: tuple[int, ...], **changed: Any) -> None:
        self.world = world
        self.number = number
        self.settings = Settings(
            **{
                "instance_id": f"i{number}",
                "listen": address(number),
                "peers": tuple(address(peer) for peer in peers),
                "cluster_id": "c",
                **changed,
            }
        )
        self.process = world.process(f"n{number}", f"10.0.0.{number}")
        self._disk = MemberDisk(self.process)
        self.said: list[str] = []
        self.task: asyncio.Task[Identity | Rebootstrap] | None = None

    @property
    def disk(self) -> ModelDisk:
        return self._disk.model

    @property
    def stored(self) -> Identity | None:
        return identities.load(self.disk)

    def start(self) -> None:
        self.process.start()
        self.task = self.process.spawn(
            become_member(
                self.settings,
                disk=self.disk,
                rng=self.world.rng(f"{self.process.name}/{self.process.lives}"),
                wall_ms=self.process.wall_ms,
                story=self.said.append,
            )
        )

    def kill(self, *, power: bool = True) -> None:
        self.process.kill()
        self._disk.died(power=power)

    def drop(self) -> None:
        """What the supervisor does between two lives."""
        self.kill(power=False)
        drop_database(self.disk)

    @property
    def outcome(self) -> Identity | Rebootstrap | BaseException | None:
        """What its start came to; None: it is still at it."""
        if self.task is None or not self.task.done():
            return None
        return self.task.exception() or self.task.result()

    def story(self) -> str:
        return "\n".join(self.said)


class Stranger:
    """Somebody with a server of his own making."""

    def __init__(self, world: World, number: int, handlers: Mapping[str, Handler]) -> None:
        self.process = world.process(f"s{number}", f"10.0.0.{number}")
        self.process.start()
        self.server = Server(handlers, Hello(instance_id=f"s{number}"))
        self.process.spawn(self.server.start(f"10.0.0.{number}", 3301))
