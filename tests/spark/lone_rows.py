"""Rows that some replicas have and others lack, as no write leaves them: what verify finds and repair sends."""

from __future__ import annotations

import time

from trimtab.client.loads import BlockingLoads
from trimtab.rows import repair_protocol
from trimtab.rows.layout import RowLayout
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import PutRequest
from trimtab.rows.tokens import token_of_key
from trimtab.spark.instances import Instances
from trimtab.tablets.ring import tablet_of


def put_at_one(loads: BlockingLoads, table: str, row: int, instance_id: str, *, missing: bool = False) -> None:
    """Write a row to one replica alone (or, `missing`, to all but one), as no write does."""
    loads.refresh()
    found = loads.catalog.find(table)
    assert found is not None
    layout = RowLayout(found)
    cells = [row.to_bytes(8, "big", signed=True), b"alone"]
    now_ms = time.time_ns() // 10**6
    (pairs,) = pairs_of_put(layout, PutRequest(found.id, 1, [1, 2], [cells]), now_ms * 1000, now_ms).values()
    tablet = tablet_of(token_of_key(pairs[0]), found.tablets)
    body = repair_protocol.encode(repair_protocol.RowsRequest(found.id, tablet, 1, now_ms, pairs))
    with Instances() as instances:
        for each in loads.instances.values():
            if (each.instance_id == instance_id) != missing:
                instances.ask(each.address, repair_protocol.ROWS, body, 30.0, 90.0)
