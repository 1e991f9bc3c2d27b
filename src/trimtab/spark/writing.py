"""DataFrames to tables: `df.write.format("trimtab").mode("append")`, and `overwrite`.

Spark makes a writer in one process, uses copies of it in those of its tasks, and commits with one in a third. So all
that a writer has is the plan of its load. The load is begun when the writer is made, which is when the tasks are about
to start; until then nothing but the table itself (with `primaryKey`) has come into being.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from trimtab.client.errors import Error, InvalidRequest
from trimtab.loads.records import LoadKind
from trimtab.rows.layout import RowLayout
from trimtab.spark.checking import wrong_columns
from trimtab.spark.contact import Cluster, cluster_for
from trimtab.spark.creating import ensure_table
from trimtab.spark.load_plan import LoadPlan, StagedPart
from trimtab.spark.loading import LoadRun
from trimtab.spark.plain_errors import told_plainly
from trimtab.spark.requests import request_of
from trimtab.spark.tasks import run_task
from trimtab.spark.types import arrow_schema
from trimtab.spark.write_options import WriteOptions, write_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class PartMessage(WriterCommitMessage):
    """What a task tells the commit."""

    part: StagedPart


class LoadWriter(DataSourceArrowWriter):
    """Of one load."""

    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> PartMessage:
        return PartMessage(run_task(self.plan, lambda _: iterator))

    @told_plainly
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        parts = [message.part for message in messages if isinstance(message, PartMessage)]
        LoadRun(cluster_for(self.plan.connection), self.plan).commit(parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if not self.plan.done:
            # Where nobody answers, the lease ends it; why the job failed is told by Spark.
            with suppress(Error):
                LoadRun(cluster_for(self.plan.connection), self.plan).abort("a task of the Spark job failed")


def writer(schema: StructType, given: Mapping[str, str], overwrite: bool) -> LoadWriter:
    """Begin a load. Whatever is wrong with options, table or columns is told here, before any task runs."""
    options = write_options(given)
    cluster = cluster_for(options.connection)
    prepare_table(cluster, options, schema)
    kind = LoadKind.OVERWRITE if overwrite else LoadKind.APPEND
    run = LoadRun.begin_again(cluster, request_of(options, options.load_id or secrets.token_hex(12), kind, "Spark"))
    return LoadWriter(run.plan)


def prepare_table(cluster: Cluster, options: WriteOptions, schema: StructType) -> RowLayout:
    """The table, which is there and can take rows of this schema. InvalidRequest says all that is in the way."""
    columns = arrow_schema(schema)
    ensure_table(cluster.db, options, lambda: schema, cluster.instances)
    table, types = cluster.table(options.table)
    layout = RowLayout(table, types)
    if wrong := wrong_columns(layout, columns):
        raise InvalidRequest(f"the frame can't be written to {options.table}: {'; '.join(wrong)}")
    return layout
