"""The commands for whole tables as an operator types them, where no driver of jobs runs: the leader's supervisor starts
one, with a Spark of its own, and it runs them all. Each door refuses something that makes no sense, too.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trimtab
from tests.cluster.elastic import SETTLE_S
from tests.spark.commands import Commands
from tests.spark.conftest import Cluster
from tests.spark.trio import until
from trimtab.node.attending import DRIVER_NAME
from trimtab.playground.processes import descendants, name_of

pytestmark = pytest.mark.slow

ROWS = 500


def drivers(cluster: Cluster) -> list[int]:
    """Process ids of those that supervisors have started."""
    started = [each.pid for known in cluster.local.running().values() for each in descendants(known.pid)]
    return [pid for pid in started if name_of(pid) == DRIVER_NAME]


def test_an_operator_does_everything_with_a_table_and_a_driver_is_started_for_it(
    cluster: Cluster, db: trimtab.Database, keyspace: str, tmp_path: Path
) -> None:
    table, again, out = f"{keyspace}.people", f"{keyspace}.again", str(tmp_path / "backup")
    good, bad, new = (str(tmp_path / name) for name in ("good.parquet", "bad.csv", "new.csv"))
    pq.write_table(pa.table({"id": range(ROWS), "name": [f"user {each}" for each in range(ROWS)]}), good)
    Path(bad).write_text("id,name\n7,good\n,without a key\n")
    Path(new).write_text("id,name\n1,new 1\n2,new 2\n")
    typed = Commands(cluster.peer)

    # What makes no sense is refused before anybody is asked to do anything.
    assert "there is nothing at" in typed.refused("load", table, str(tmp_path / "nothing.csv"))
    assert "With --primary-key, or --schema-from, it is made" in typed.refused("load", table, good)
    assert "there is no table" in typed.refused("count", table)
    assert drivers(cluster) == []

    said = typed.ok("load", table, good, "--primary-key", "id")
    assert said.startswith(f"{ROWS} rows are loaded"), said
    (driver,) = drivers(cluster)
    assert "key column id is null" in typed.refused("load", table, bad)
    assert "is no time" in typed.refused("count", table, "--as-of", "yesterday", code=2)
    assert typed.ok("count", table, "--consistency", "quorum").startswith(f"{ROWS} rows (")

    assert "Invalid value for '--top'" in typed.refused("analyze", table, "--top", "0", code=2)
    found = typed.json("analyze", table)
    assert (found["result"]["rows"], found["result"]["partitions"]) == (ROWS, ROWS)
    shapes = typed.json("tablets", table)
    assert len(shapes) > 1 and all(len(shape["replicas"]) == 3 and shape["analyzed"] for shape in shapes)
    assert sum(shape["rows"] for shape in shapes) == sum(shape["partitions"] for shape in shapes) == ROWS

    assert f"{ROWS} rows as of" in typed.ok("export", table, out)
    assert "is there already" in typed.refused("export", table, out)
    assert typed.json("load", again, out, "--schema-from", out)["result"]["rows"] == ROWS
    assert "there is nothing at" in typed.refused("load", again, out, "--schema-from", out + "2")
    rows = {each: {"id": each, "name": f"user {each}"} for each in range(ROWS)}
    for each in (table, again):
        assert {row["id"]: row for row in db.table(each, consistency="QUORUM").scan()} == rows

    assert f"All replicas of {table} hold the same" in typed.ok("verify", table, "--settle", str(SETTLE_S))
    assert "has no tablet 4096" in typed.refused("verify", table, "--tablet", "4096")

    assert typed.json("load", table, new, "--overwrite")["result"]["rows"] == 2
    assert typed.json("count", table)["result"]["rows"] == 2
    first, failed, overwrite = typed.json("loads", "list", table)["loads"]
    assert (first["kind"], first["state"], first["rows"]) == ("append", "published", ROWS)
    assert failed["state"] == "aborted" and failed["reason"]
    assert (overwrite["kind"], overwrite["state"], overwrite["rows"]) == ("overwrite", "published", 2)
    assert "there is no table" in typed.refused("loads", "list", f"{keyspace}.nobody")
    assert "only an overwrite that can be seen" in typed.refused("loads", "rollback", table, first["id"], "--yes")
    assert "give --yes" in typed.refused("loads", "rollback", table, overwrite["id"])
    assert typed.json("loads", "rollback", table, overwrite["id"], "--yes")["done"]
    assert typed.json("count", table)["result"]["rows"] == ROWS
    assert db.table(table).get(id=1) == rows[1]

    jobs = [each for each in typed.json("tasks", "list") if str(each.get("parameters")).count(keyspace)]
    kinds = ["load", "load", "count", "analyze", "export", "load", "verify", "load", "count", "count"]
    assert [each["kind"] for each in jobs] == kinds, "what was refused at a door was never a job"
    assert [number for number, each in enumerate(jobs) if each["state"] != "succeeded"] == [1]
    assert drivers(cluster) == [driver], "which did it all"
    # It would end by itself in a minute; other tests need not have it beside them for so long.
    os.kill(driver, signal.SIGTERM)
    until(lambda: not drivers(cluster), "the driver ends")
