"""A governed cluster in a world: instances that discover, found, join and are restarted, as their supervisors do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from trimtab.net.client import Channel
from trimtab.net.errors import NetError
from trimtab.net.hello import Hello
from trimtab.node import founding
from trimtab.node.boot import become_member, begin_again
from trimtab.node.errors import Expelled, JoinExpired, JoinRejected
from trimtab.node.instance import Instance
from trimtab.node.settings import Settings, SettingsError
from trimtab.node.supervision import Rebootstrap
from trimtab.sim.disks import MemberDisk
from trimtab.sim.world import Process, World
from trimtab.topology import protocol
from trimtab.topology.protocol import ViewReply, ViewRequest
from trimtab.topology.records import InstanceRecord

PORT = 3301


class Machine:
    """One machine: a disk, and an instance that runs on it or does not."""

    def __init__(self, world: World, number: int, peers: tuple[str, ...], **settings: Any) -> None:
        self.world = world
        self.name = f"i{number}"
        self.process: Process = world.process(self.name, f"10.0.0.{number}")
        self.address = f"{self.process.host}:{PORT}"
        self.disk = MemberDisk(self.process)
        self.settings = Settings(**{"instance_id": self.name, "listen": self.address, "peers": peers, **settings})
        self.instance: Instance | None = None
        self.over: Exception | None = None  # why it was not started again

    def start(self) -> None:
        self.process.start()
        self.world.tell(self.name, "starts")
        self.process.launch(self._supervise(), name=self.name)

    def kill(self, *, power: bool = False) -> None:
        self.process.kill()
        self.instance = None
        self.disk.died(power=power)
        self.world.tell(self.name, "is killed")

    def restart(self) -> None:
        self.kill()
        self.start()

    async def _supervise(self) -> None:
        rng = self.world.rng(f"{self.name}/{self.process.lives}")
        disk, wall_ms = self.disk.model, self.process.wall_ms

        def story(line: str) -> None:
            self.world.tell(self.name, line)

        for _ in range(20):
            try:
                member = await become_member(self.settings, disk=disk, rng=rng, wall_ms=wall_ms, story=story)
            except (JoinRejected, SettingsError) as error:
                self.over = error
                return
            if isinstance(member, Rebootstrap):
                founding.drop_database(disk)
                continue
            instance = self.instance = Instance(
                self.settings,
                member,
                disk=disk,
                rng=rng,
                wall_ms=wall_ms,
                boot_s=asyncio.get_running_loop().time,
                story=story,
            )
            await instance.start()
            await instance.ended
            self.instance = None
            failure = instance.failure
            if isinstance(failure, JoinExpired):
                begin_again(instance.identity, disk=disk, rng=rng)
                founding.drop_database(disk)
                continue
            if isinstance(failure, Expelled):
                self.over = failure
                return
            if failure is not None:
                raise failure
            return
        raise AssertionError(f"{self.name} was started too often")


class Forming:
    """Several machines and an operator."""

    def __init__(self, world: World, count: int = 3, **settings: Any) -> None:
        self.world = world
        self.peers = tuple(f"10.0.0.{number}:{PORT}" for number in range(1, min(count, 3) + 1))
        self.settings = settings
        self.machines: dict[str, Machine] = {}
        for number in range(1, count + 1):
            self.machine(number)
        self._operator = world.process("operator", "10.0.1.1")
        self._operator.start()

    def machine(self, number: int, **settings: Any) -> Machine:
        machine = Machine(self.world, number, self.peers, **{**self.settings, **settings})
        self.machines[machine.name] = machine
        return machine

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()

    # Looking

    def leader(self) -> Machine | None:
        for machine in self.machines.values():
            control = machine.instance.control if machine.instance is not None else None
            if machine.process.alive and not machine.process.paused and control is not None and control.office.leads:
                return machine
        return None

    def record(self, name: str) -> InstanceRecord | None:
        leader = self.leader()
        if leader is None or leader.instance is None:
            return None
        found = leader.instance.watching.view.named(name)
        return found[1] if found is not None else None

    def grade(self, name: str) -> str:
        record = self.record(name)
        return record.grades.current.grade.value if record is not None else ""

    def all_online(self, *names: str) -> bool:
        return all(self.grade(name) == "Online" for name in names or self.machines)

    def voters(self) -> list[int]:
        leader = self.leader()
        assert leader is not None and leader.instance is not None
        return sorted(leader.instance.cluster.raw.raft.tracker.config.voters.ids())

    def events(self) -> list[str]:
        leader = self.leader()
        assert leader is not None and leader.instance is not None
        return [event.text for event in leader.instance.watching.view.events.values()]

    def until(self, so: Callable[[], bool], within_s: float, what: str) -> float:
        """Run until it is so; how long that took."""
        began = self.world.now
        assert self.world.run(began + within_s, stop=so) or so(), f"not within {within_s:g} s: {what}\n{self.told()}"
        return self.world.now - began

    def told(self, last: int = 60) -> str:
        return "\n".join(f"{at:9.3f} {who}: {text}" for at, who, text in self.world.story[-last:])

    # Asking

    def ask(self, name: str, method: str, body: bytes, timeout_s: float = 5.0) -> Any:
        """What an instance answers, or the NetError."""
        task = self.asking(name, method, body, timeout_s)
        return self.world.run_until_done(task, self.world.now + timeout_s + 5)

    def asking(self, name: str, method: str, body: bytes, timeout_s: float = 5.0) -> asyncio.Task[Any]:
        async def run() -> Any:
            channel = Channel(self.machines[name].address, Hello(), self.world.rng(f"ask/{self.world.events}"))
            try:
                await channel.wait_connected(timeout_s)
                return await channel.call(method, body, timeout_s)
            except NetError as error:
                return error
            finally:
                channel.close()

        return self._operator.spawn(run())

    def view(self, name: str) -> ViewReply:
        answer = self.ask(name, protocol.VIEW, protocol.encode(ViewRequest(events_after=0, events_limit=1000)))
        assert isinstance(answer, bytes), answer
        return protocol.decode_view_reply(answer)
