"""A load without files: few rows, written one by one with the load's stamp. What streams do with small batches.

Files cost a metastore write, a seal and an adoption however few rows they hold. Rows that go through the client are
seen as they are written, not at once; but the load's id is remembered, so writing them again does nothing twice: begun
again with the same id the load has the same stamp, and the same rows with the same stamp are the same versions.

A node takes only so much of one partition in a request, and files may hold any amount. So rows are measured as they
are stored before the first is written: where a partition has too much of them it is `NotDirect`, each time anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trimtab.client.errors import Error
from trimtab.client.loads import LoadRefused
from trimtab.loads.protocol import BeginRequest, CommitRequest
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.rows import arrow_cells
from trimtab.rows.keys import TAIL, prefix_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.sorted_rows import SortedRows
from trimtab.spark import rejecting
from trimtab.spark.bad_rows import storable
from trimtab.spark.checking import types_of
from trimtab.spark.encoding import encode_chunk
from trimtab.spark.load_plan import LoadFailed
from trimtab.spark.loading import LoadRequest, plan_of
from trimtab.spark.settling import drop_rejects, settle_rejects, sweep_rejects

if TYPE_CHECKING:
    from trimtab.spark.contact import Cluster

ATTEMPTS = 5  # when the table is overwritten again and again meanwhile
# As they are stored. A node takes 768 KiB of a partition in a request; its messages have other parts as well.
PARTITION_BYTES = 512 * 1024


class NotDirect(LoadFailed):
    """These rows are to be loaded with files, and nothing of them was written."""


def write_directly(cluster: Cluster, request: LoadRequest, rows: Any) -> LoadRecord:
    """Write an Arrow table as the load `request.id`; its record, which is PUBLISHED. The same id again does nothing.

    LoadFailed names a row that can't be written; then none was. NotDirect: all can, but not so.
    """
    table, types = cluster.table(request.table)
    begin = BeginRequest(
        request.id,
        table.id,
        table.version,
        timestamp_us=request.timestamp_us,
        lease_ms=request.lease_ms,
        who=request.who,
        direct=True,
    )
    for attempt in range(ATTEMPTS):
        record = cluster.begin(begin)
        if record.state is LoadState.PUBLISHED:
            if request.rejected:
                settle_rejects(request.rejected, table, request.id)
            return record
        try:
            return _write(cluster, request, record, RowLayout(table, types), rows)
        except LoadRefused as error:
            if error.code != "swapped" or attempt + 1 == ATTEMPTS:
                raise
        except Error as error:
            # Its lease ends it where nobody answers; what is told is why it failed.
            with contextlib.suppress(Error):
                cluster.abort(table.id, request.id, str(error))
            if request.rejected:
                drop_rejects(cluster, request.rejected, table, request.id)
            raise
    raise AssertionError("the last attempt returns or raises")


def _write(cluster: Cluster, request: LoadRequest, record: LoadRecord, layout: RowLayout, rows: Any) -> LoadRecord:
    plan = plan_of(cluster, request, layout.table, layout.udts, record)
    encoded = encode_chunk(layout, rows, plan)
    if encoded.rows is not None and (size_bytes := largest_partition_bytes(layout, encoded.rows)) > PARTITION_BYTES:
        raise NotDirect(
            f"{layout.name}: {size_bytes} bytes of one partition; without files at most {PARTITION_BYTES} are written"
        )
    aside = rejecting.name_of(layout.table.full_name, request.id)
    rejects = rejecting.RejectFiles(request.rejected, aside, "direct")
    if encoded.rejected is not None:
        sweep_rejects(cluster, request.rejected, layout.table, request.id)
        rejects.add(encoded.rejected)
    if names := rejects.close():
        rejecting.keep(request.rejected, aside, names)
    target = cluster.db.table(request.table)
    target.put_many(python_rows(layout, encoded.taken), timestamp=record.stamp_us, ttl=request.ttl_s or None)
    committed = cluster.commit(
        CommitRequest(record.table, record.id, rows=encoded.taken.num_rows, rejected=rejects.rows)
    )
    if names:
        settle_rejects(request.rejected, layout.table, request.id)
    return committed


def largest_partition_bytes(layout: RowLayout, rows: SortedRows) -> int:
    """What the largest partition has of these rows; no less than that where all of them are few."""
    # With those that are merged away: of the others it would be a mean.
    if (all_bytes := rows.rows.size + TAIL * len(rows.rows) + rows.values.size) <= PARTITION_BYTES:
        return all_bytes
    sizes: dict[bytes, int] = {}
    for key, value in rows.pairs():
        prefix = prefix_of(layout, key)
        sizes[prefix] = sizes.get(prefix, 0) + len(key) + len(value)
    return max(sizes.values())


def python_rows(layout: RowLayout, rows: Any) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow table as the client takes them; a null is a column that is not written."""
    types = types_of(layout)
    columns = []
    for name, column in zip(rows.schema.names, storable(layout, rows).columns, strict=True):
        cells = arrow_cells.encode(types[name], column)
        there = [True] * len(cells) if cells.valid is None else cells.valid.tolist()
        values = [
            types[name].deserialize(cell) if given else None
            for cell, given in zip(cells.strings.to_list(), there, strict=True)
        ]
        columns.append(values)
    for row in zip(*columns, strict=True):
        yield {name: value for name, value in zip(rows.schema.names, row, strict=True) if value is not None}
