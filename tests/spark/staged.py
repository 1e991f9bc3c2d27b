"""What loads leave behind, and what they are: for tests that look from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.files import files_below
from tests.spark.conftest import Cluster
from trimtab.client.loads import BlockingLoads
from trimtab.loads.records import LoadRecord

GONE_S = 30.0  # as is promised (docs/spark.md): so long after the end of a session
_POLL_S = 0.1


@contextmanager
def loads_of(cluster: Cluster) -> Iterator[BlockingLoads]:
    with BlockingLoads(cluster.peer.split(","), timeout_s=90.0) as made:
        yield made


def records(cluster: Cluster, table: str) -> list[LoadRecord]:
    """All loads of a table, in the order of beginning."""
    with loads_of(cluster) as loads:
        found = loads.catalog.find(table)
        assert found is not None
        return loads.show(found.id).loads


def staged_files(cluster: Cluster) -> list[Path]:
    instances = [each.instance_id for each in cluster.local.record().instances]
    return [path for each in instances for path in files_below(cluster.data_dir(each) / "staging")]


def await_nothing_staged(cluster: Cluster) -> None:
    await_true(lambda: not staged_files(cluster), GONE_S)


def await_true(check: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(_POLL_S)
