"""The cluster as a load sees it, from whatever process: the driver's, a task's, or the one in which Spark commits.

Spark uses its Python processes again and again. So connections are kept for as long as a process lives, one cluster at
a time: most tasks then find one that is open.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.catalog.schema import Table, UserType
from trimtab.client.consistency import addresses_of
from trimtab.client.errors import NotFound
from trimtab.client.loads import BlockingLoads
from trimtab.loads.protocol import BeginRequest, CommitRequest, SealReply, SealRequest, TicketReply
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.spark.load_plan import NotNow
from trimtab.spark.options import Connection

if TYPE_CHECKING:
    from trimtab.client.blocking import Database

SEAL_S = 60.0
SEAL_ABSENT_S = 3.0  # for an instance that is not Online


@dataclass(frozen=True)
class Places:
    """Where a table's replicas are now: by tablet; data centres and names by raft id."""

    replicas: tuple[tuple[int, ...], ...]
    dcs: Mapping[int, str]
    names: Mapping[int, str]
    digest: bytes = b""  # tells whether they are where they were

    def holders(self) -> frozenset[int]:
        return frozenset(each for replicas in self.replicas for each in replicas)


class Cluster:
    """Connected when it is made: Unavailable if no member answers. Any thread may use it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.tls = tls_of(connection)
        self.loads = BlockingLoads(addresses_of(connection.peer), tls=self.tls, timeout_s=connection.timeout_s)
        self._database: Database | None = None

    def close(self) -> None:
        self.loads.close()
        if self._database is not None:
            self._database.close()

    @property
    def db(self) -> Database:
        """For what is not a matter of files: rows one by one, and changes of the schema."""
        if self._database is None:
            from trimtab.client.blocking import connect

            self._database = connect(self.connection.peer, timeout=self.connection.timeout_s, tls=self.tls)
        return self._database

    @property
    def instances(self) -> int:
        """How many are Online."""
        return sum(member.online for member in self.loads.instances.values())

    def table(self, name: str) -> tuple[Table, Mapping[str, UserType]]:
        """A table and the types of its keyspace, as they are now; NotFound if there is none."""
        self.loads.refresh()
        catalog = self.loads.catalog
        found = catalog.find(name)
        if found is None:
            raise NotFound(f"there is no table {name}")
        return found, catalog.types_of(found.keyspace)

    def places(self, table: int) -> Places:
        self.loads.refresh()
        members, tablets = self.loads.instances, self.loads.tablets(table)
        return Places(
            tuple(replicas for _, replicas in tablets),
            {raft_id: member.dc for raft_id, member in members.items()},
            {raft_id: member.instance_id for raft_id, member in members.items()},
            tablets.digest(),
        )

    # Loads

    def begin(self, request: BeginRequest) -> LoadRecord:
        return self.loads.begin(request)

    def renew(self, table: int, id: str) -> None:
        """NotNow: it has ended."""
        record = self.loads.renew(table, id)
        if record.state is LoadState.ABORTED:
            raise NotNow(f"load {id} was aborted: {record.reason}")

    def ticket(self, session: str, life_ms: int) -> TicketReply:
        return self.loads.ticket(session, life_ms)

    def seal(self, raft_id: int, request: SealRequest) -> SealReply:
        member = self.loads.instances.get(raft_id)
        there = member is not None and member.online
        return self.loads.seal(raft_id, request, timeout_s=SEAL_S if there else SEAL_ABSENT_S)

    def commit(self, request: CommitRequest) -> LoadRecord:
        return self.loads.commit(request)

    def abort(self, table: int, id: str, reason: str) -> LoadRecord:
        return self.loads.abort(table, id, reason)

    def show(self, table: int, id: str) -> LoadRecord | None:
        return self.loads.get(table, id)

    def wait_ended(self, table: int, id: str, timeout_s: float) -> LoadRecord | None:
        return self.loads.wait_ended(table, id, timeout_s)


def tls_of(connection: Connection) -> ssl.SSLContext | None:
    from trimtab.net.tls import client_context

    return client_context(*connection.tls_files) if connection.tls_files else None


_kept: dict[int, Cluster] = {}  # by process id: a forked process has none of its parent's threads
_lock = threading.Lock()


def cluster_for(connection: Connection) -> Cluster:
    """This process's connection to that cluster; it stays open, and is not the caller's to close."""
    with _lock:
        known = _kept.get(os.getpid())
        if known is not None and known.connection == connection:
            return known
        made = Cluster(connection)
        if known is not None:
            known.close()
        _kept.clear()
        _kept[os.getpid()] = made
        return made
