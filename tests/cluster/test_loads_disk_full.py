"""A load that does not fit on the disk of one replica: one clear error, nothing has changed, and everybody goes on."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import trimtab
from tests.cluster.instances import STEADY, Instances, loopback
from tests.cluster.patience import create_keyspace, create_table, put_rows, scanned
from tests.cluster.test_disk_full import fill, mounted
from tests.cluster.watching import run
from tests.conftest import Processes
from tests.files import files_below
from trimtab.loads.records import LoadState
from trimtab.spark.contact import Cluster
from trimtab.spark.load_plan import LoadFailed, StagedPart
from trimtab.spark.loading import LoadRequest, LoadRun
from trimtab.spark.options import Connection
from trimtab.spark.staging import stage

RESERVE_MB = 32
LEFT_MB = 12  # beyond the reserve, on the small disk
ROWS, ROW_BYTES = 16_000, 2_000
TABLE = "shop.users"


@pytest.fixture
def cluster(processes: Processes, tmp_path: Path) -> Iterator[Instances]:
    """Three instances; the data directory of i2 is a small file system of its own."""
    addresses = loopback(6)
    options = [*STEADY, "--disk-reserve-mb", str(RESERVE_MB)]
    instances = Instances(processes, tmp_path, addresses[:3], options=options, bulk=addresses[3:])
    with mounted(instances.data_dir(2), size_mb=160):
        try:
            instances.start(1, 2, 3)
            run(instances.online())
            yield instances
        finally:
            processes.end_all()


def batches(start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Rows that no compression makes smaller than three quarters."""
    for low in range(start, stop, 500):
        numbers = list(range(low, min(low + 500, stop)))
        values = [base64.b64encode(os.urandom(ROW_BYTES * 3 // 4)).decode() for _ in numbers]
        yield pa.record_batch({"id": pa.array(numbers, pa.int64()), "value": values})


def load(contact: Cluster, id: str, rows: int) -> LoadRun:
    """Two tasks at the same time, each with half of the rows, and the commit."""
    made = LoadRun.begin(contact, LoadRequest(TABLE, id, lease_ms=60_000))
    plan = replace(made.plan, chunk_rows=1000)

    def task(number: int) -> StagedPart:
        half = rows // 2
        return stage(plan, lambda _: batches(number * half, (number + 1) * half), f"a{number}")

    with made.renewing(), ThreadPoolExecutor(2) as pool:
        made.commit(list(pool.map(task, range(2))))
    return made


def staged(instances: Instances) -> list[Path]:
    return [path for number in instances.running for path in files_below(instances.data_dir(number) / "staging")]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_load_that_one_replica_has_no_room_for_fails_as_a_whole(cluster: Instances) -> None:
    peer = ",".join(cluster.listen.values())
    contact = Cluster(Connection(peer, 30.0))
    with trimtab.connect(peer, timeout=30.0) as db:
        create_keyspace(db, "shop", replication=3)
        create_table(db, TABLE, {"id": "bigint", "value": "text"}, tablets=4)
        put_rows(db.table(TABLE), [{"id": -1, "value": "before"}])
        small = cluster.data_dir(2)
        fill(small / "filler", leave_bytes=RESERVE_MB + LEFT_MB << 20)

        with pytest.raises(LoadFailed) as failed:
            load(contact, "large", ROWS)
        told = re.fullmatch(
            r"i2 has no room for the load: \S+\.sst needs (\d+) bytes more, and the disk has (\d+) left beyond its "
            r"reserve and what others are sending; free some space there",
            str(failed.value),
        )
        assert told is not None, failed.value
        assert 0 <= int(told[2]) < int(told[1]) < ROWS * ROW_BYTES
        table, _ = contact.table(TABLE)
        record = contact.show(table.id, "large")
        assert record is not None and (record.state, record.reason) == (LoadState.ABORTED, str(failed.value))
        cluster.until(lambda: not staged(cluster), "nothing is left in staging")

        # Nothing has changed, and all three serve, the small one too.
        everybody = db.table(TABLE, consistency="ALL")
        assert scanned(everybody) == [{"id": -1, "value": "before"}]
        put_rows(everybody, [{"id": -2, "value": "meanwhile"}])
        run(cluster.online())
        assert not any("disk full" in cluster.output(number) for number in cluster.running)

        # What fits is loaded, and once there is room the rest is, too.
        load(contact, "small", 1000)
        (small / "filler").unlink()
        load(contact, "large-again", ROWS)
        assert len(scanned(everybody, columns=["id"])) == ROWS + 2
    contact.close()
