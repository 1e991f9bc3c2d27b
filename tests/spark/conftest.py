"""One session of Spark and one cluster of three processes, for all tests here; both end with them.

A test that needs to break a cluster has another one for that (`own_cluster`). Tables are the tests' own: name them
after the test, in the keyspace that the fixture `keyspace` gives.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

import trimtab
from tests.cluster.test_disk_full import mounted
from trimtab.playground import forming, members
from trimtab.playground.local import LocalCluster
from trimtab.playground.ports import free_base
from trimtab.playground.processes import Known
from trimtab.playground.record import LocalFailed
from trimtab.spark import session, stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UP_S = 240.0
_TEST_S = 600
_ATTEMPTS = 3
# Of instances that get little of the machine beside Java: nobody is to be Offline but who was killed.
_PATIENT = {"TRIMTAB_LEASE_MS": "6000", "TRIMTAB_OFFLINE_AFTER_MS": "10000"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a run waits for Java, on a machine that may have a lot to do."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_S))


class Cluster:
    """A cluster on loopback. `peer` names all its instances, `data_dir` is an instance's."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local

    @property
    def peer(self) -> str:
        return ",".join(each.listen for each in self.local.record().instances)

    def data_dir(self, instance_id: str) -> Path:
        return next(
            Path(each["data_dir"]) for each in self.local.as_json()["instances"] if each["instance_id"] == instance_id
        )

    def connect(self) -> trimtab.Database:
        return trimtab.connect(self.peer, timeout=30.0)

    def await_online(self, instance_ids: list[str] | None = None) -> None:
        wanted = self.local.addresses(instance_ids)
        asyncio.run(forming.await_online(wanted, timeout_s=_UP_S, ended=dict, seen=lambda standings: None))


class PatientCluster(LocalCluster):
    """Whoever is started of it is patient."""

    def _start(self, instance_ids: Sequence[str], *, skip_running: bool) -> dict[str, Known]:
        with patch.dict(os.environ, _PATIENT):
            return super()._start(instance_ids, skip_running=skip_running)


@contextmanager
def running(
    directory: Path, nodes: int = 3, *, before_start: Callable[[LocalCluster], object] = lambda _: None
) -> Iterator[Cluster]:
    """A cluster that is Online inside of the block, and gone after it."""
    local = PatientCluster(directory, attached=True)
    for attempt in range(_ATTEMPTS):
        try:
            with local.coming_up():
                local.create(nodes, free_base(nodes))
                before_start(local)
                local.start_all()
            break
        except (OSError, LocalFailed):
            # Somebody took a port between the look and the start.
            if attempt == _ATTEMPTS - 1:
                raise
    cluster = Cluster(local)
    try:
        cluster.await_online()
        with cluster.connect() as database:
            # Tablets that move of themselves have tests of their own.
            database.rebalance(False)
        yield cluster
    finally:
        local.down(purge=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three instances that all tests share: don't stop any."""
    with running(tmp_path_factory.mktemp("cluster") / "local") as made:
        yield made


@pytest.fixture(scope="session")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three instances to be broken, with a keyspace `shop`: whoever stops one starts it again.

    The disk of i2 is a small one, where a test is allowed to make it.
    """
    with ExitStack() as disks:

        def make_disk(local: LocalCluster) -> None:
            with suppress(pytest.skip.Exception):
                disks.enter_context(mounted(members.data_path(local.directory, "i2"), size_mb=256))

        with running(tmp_path_factory.mktemp("trouble") / "local", before_start=make_disk) as cluster:
            with cluster.connect() as db:
                db.create_keyspace("shop", replication=3)
            yield cluster
            cluster.local.kill(["i2"])
            disks.close()


@pytest.fixture(scope="session")
def db(cluster: Cluster) -> Iterator[trimtab.Database]:
    with cluster.connect() as made:
        yield made


@pytest.fixture(scope="session")
def spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of this run: a process has one."""
    scratch = tmp_path_factory.mktemp("spark")
    made = session(
        peer=cluster.peer,
        master="local[2,4]",
        **{
            "spark.driver.memory": "1g",
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.sql.session.timeZone": "UTC",
        },
    )
    yield made
    stop(made)


@pytest.fixture
def keyspace(request: pytest.FixtureRequest, db: trimtab.Database) -> Iterator[str]:
    """A keyspace with three replicas, of this test alone."""
    name = re.sub(r"\W+", "_", request.node.name)[:38] + f"_{os.urandom(3).hex()}"
    db.create_keyspace(name, replication=3)
    yield name
    db.drop_keyspace(name, if_exists=True)
