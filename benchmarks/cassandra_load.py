"""Writes Parquet files to Cassandra by its connector. It runs in the peers' environment, and imports nothing of ours.

Its one argument is JSON: `input` (a file or a folder), `jars`, `port`, `cores`, `folder` for Spark's own files,
`options` of the connector, and `warm_rows`, which are written to the table `warm` before all are written to `loaded`.
It prints JSON: how many seconds each of both took.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def seconds(frame: Any, table: str) -> float:
    writer = frame.write.format("org.apache.spark.sql.cassandra").options(keyspace="bench", table=table)
    started = time.perf_counter()
    writer.mode("append").save()
    return time.perf_counter() - started


def main() -> None:
    from pyspark.sql import SparkSession

    asked = json.loads(sys.argv[1])
    settings = {
        "spark.master": f"local[{asked['cores']}]",
        "spark.app.name": "bench",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": asked["folder"],
        "spark.jars": ",".join(asked["jars"]),
        "spark.cassandra.connection.host": "127.0.0.1",
        "spark.cassandra.connection.port": str(asked["port"]),
        **asked["options"],
    }
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        frame = spark.read.parquet(asked["input"])
        part = frame.limit(asked["warm_rows"]).repartition(asked["cores"])  # which is one task otherwise
        took = {"warm_s": seconds(part, "warm"), "load_s": seconds(frame, "loaded")}
    finally:
        spark.stop()
    print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main()
