"""The asyncio client: `db = await trimtab.aio.connect("127.0.0.1:3301")`, with the names of the blocking one."""

from __future__ import annotations

from trimtab.client.asks import Reply
from trimtab.client.batch import AsyncBatch as Batch
from trimtab.client.database import Connecting, Database, connect
from trimtab.client.reads import RowWithMeta
from trimtab.client.table import Table

__all__ = ["Batch", "Connecting", "Database", "Reply", "RowWithMeta", "Table", "connect"]
