"""What the simulator replaces: loop, disk, random source, wall clock. Everything else is production code."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pkgutil
import random
import sys
from typing import Any

from trimtab.client.metastore import MetastoreClient
from trimtab.net.client import Channel
from trimtab.net.server import Server
from trimtab.node.group import Group
from trimtab.node.host import Host
from trimtab.node.instance import Instance
from trimtab.node.metastore_machine import MetastoreMachine
from trimtab.raft.node import RawNode
from trimtab.sim.cluster import SimCluster
from trimtab.sim.loop import SimLoop
from trimtab.sim.plan import draw
from trimtab.sim.workload import SimClient
from trimtab.sim.world import World
from trimtab.storage.model import ModelDisk
from trimtab.storage.model_store import ModelStore
from trimtab.storage.node_log import NodeLog

# Port -> what stands for it in production, and in the simulator.
SUBSTITUTIONS: dict[str, tuple[str, type[Any]]] = {
    "event loop (time, timers, connections)": ("uvloop.Loop", SimLoop),
    "disk": ("trimtab.storage.rocks.RocksDisk", ModelDisk),
    "random source": ("random.Random seeded by the system", random.Random),
}


def running_cluster(world: World) -> tuple[SimCluster, SimClient]:
    from trimtab.sim.history import History

    cluster = SimCluster(world, draw(1, "calm"))
    client = SimClient(cluster, 1, History())
    for member in cluster.members.values():
        cluster.start(member)
    client.start()
    world.run(2.0)
    return cluster, client


def test_a_simulated_member_is_made_of_production_classes_except_for_its_ports() -> None:
    with World(1) as world:
        cluster, client = running_cluster(world)
        member = next(member for member in cluster.members.values() if member.leads)
        instance = member.instance
        assert instance is not None
        for made, production in (
            (instance, Instance),
            (instance.host, Host),
            (instance.host.groups[0], Group),
            (instance.host.groups[0].raw, RawNode),
            (instance.host.groups[0].machine, MetastoreMachine),
            (instance.log, NodeLog),
            (instance.server, Server),
            (next(iter(instance.host.links.values())).channel, Channel),
            (client._client, MetastoreClient),
        ):
            assert type(made) is production
            assert not type(made).__module__.startswith("trimtab.sim")
        assert type(member.process.loop) is SUBSTITUTIONS["event loop (time, timers, connections)"][1]
        assert type(instance.disk) is SUBSTITUTIONS["disk"][1]
        assert type(instance.rng) is SUBSTITUTIONS["random source"][1]
        assert type(instance.log.store) is ModelStore
        assert instance.wall_ms == member.process.wall_ms
        assert instance.boot_s == member.process.boot_s


def test_an_instance_takes_exactly_these_ports() -> None:
    """A new port has to be listed here, and given by the simulator too."""
    parameters = set(inspect.signature(Instance.__init__).parameters) - {"self"}
    assert parameters == {"settings", "identity", "disk", "rng", "wall_ms", "boot_s", "story", "governed"}


def test_no_product_module_imports_the_simulator_or_a_clock_of_its_own() -> None:
    """Core, engines and roles that run in a simulation must not find out the time, or randomness, behind its back."""
    rings = ("raft", "metastore", "topology", "governor", "net", "node", "storage", "client")
    simulated = tuple(f"trimtab.{ring}" for ring in rings)
    for ring in simulated:
        for found in pkgutil.iter_modules(importlib.import_module(ring).__path__, f"{ring}."):
            importlib.import_module(found.name)
    # Modules that only exist where processes and disks are real, or that take a clock only where none was given.
    node = ("process", "attending", "children", "data_directory", "failpoints", "logs", "supervisor")
    real = {*(f"trimtab.node.{name}" for name in node), "trimtab.storage.rocks", "trimtab.storage.rocks_store"}
    real |= {"trimtab.storage.off_loop", "trimtab.storage.resting_store", "trimtab.storage.rubbish"}
    # The blocking client's own thread; it runs the asyncio client, which the simulator runs too.
    real |= {"trimtab.client.loop_thread", "trimtab.client.thread_tally"}
    # A lock for the threads of a blocking client, which in a simulation nobody ever waits for.
    real.add("trimtab.client.stamps")
    defaults = {"trimtab.client.metastore"}
    for name, module in sorted(sys.modules.items()):
        if not name.startswith(simulated) or name in real:
            continue
        assert "trimtab.sim" not in (inspect.getsource(module) if module.__file__ else "")
        found = {attribute for attribute in ("time", "threading", "uuid", "secrets") if hasattr(module, attribute)}
        found = {attribute for attribute in found if inspect.ismodule(getattr(module, attribute))}
        assert not found or name in defaults, f"{name} imports {found}"


def test_a_run_asks_no_real_clock_and_no_system_randomness(monkeypatch: Any) -> None:
    from trimtab.sim.run import run_seed

    def refuse(*_: object) -> float:
        raise AssertionError("the real clock was asked")

    monkeypatch.setattr("time.time", refuse)
    monkeypatch.setattr("time.time_ns", refuse)
    monkeypatch.setattr("time.monotonic", refuse)
    monkeypatch.setattr("os.urandom", refuse)
    monkeypatch.setattr("random.random", refuse)
    outcome = run_seed(3)
    assert outcome.passed, outcome.why


def test_the_simulated_loop_is_an_asyncio_loop() -> None:
    assert issubclass(SimLoop, asyncio.AbstractEventLoop)
