"""What a write's options say about the load that is begun for it."""

from __future__ import annotations

from trimtab.loads.records import LoadKind
from trimtab.spark.loading import LoadRequest
from trimtab.spark.write_options import WriteOptions


def request_of(options: WriteOptions, id: str, kind: LoadKind, who: str, lease_ms: int = 0) -> LoadRequest:
    """`lease_ms` 0: the one of the options."""
    return LoadRequest(
        options.table,
        id,
        kind,
        timestamp_us=options.timestamp_us,
        ttl_s=options.ttl_s,
        who=who,
        lease_ms=lease_ms or options.lease_ms,
        on_error=options.on_error,
        rejected=options.rejected,
        chunk_rows=options.chunk_rows,
        chunk_bytes=options.chunk_bytes,
    )
