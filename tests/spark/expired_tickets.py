"""Loads whose tickets have expired when their tasks come to use them, and so has every other that a task asks for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from trimtab.loads.protocol import TicketReply
from trimtab.spark.contact import Cluster, cluster_for
from trimtab.spark.source import TrimtabSource
from trimtab.spark.writing import LoadWriter, PartMessage, writer

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMAT = "expired"


def expired_ticket(cluster: Cluster, session: str) -> TicketReply:
    """A node signs it for a millisecond, and that is over."""
    found = cluster.ticket(session, 1)
    time.sleep(0.01)
    return found


class Late:
    """The cluster as a task sees it that is too late with every ticket."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def ticket(self, session: str, _life_ms: int) -> TicketReply:
        return expired_ticket(self._cluster, session)


class LateWriter(LoadWriter):
    """Of a load that takes too long."""

    def write(self, iterator: Iterator[Any]) -> PartMessage:
        with patch("trimtab.spark.tasks.cluster_for", lambda connection: Late(cluster_for(connection))):
            return super().write(iterator)


class LateSource(TrimtabSource):
    """`format("expired")`, with the options of a write."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> LateWriter:
        plan = writer(schema, self.given(), overwrite).plan
        return LateWriter(replace(plan, ticket=expired_ticket(cluster_for(plan.connection), plan.id).ticket))
