"""A cluster as a plain Python program uses it: `db = trimtab.connect("127.0.0.1:3301")`.

Every call waits for its answer. A Database may be used by any number of threads; close it in the end, or use it as
`with`. For asyncio there is `trimtab.aio`, with the same names.
"""

from __future__ import annotations

import ssl
import weakref
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Unpack

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.schema import Keyspace
from trimtab.catalog.schema import Table as Schema
from trimtab.client import database as aio
from trimtab.client.blocking_table import Batch as Batch
from trimtab.client.blocking_table import Table as Table
from trimtab.client.consistency import Consistency, addresses_of, checked_timeout, level_of
from trimtab.client.contact import DEFAULT_TIMEOUT_S
from trimtab.client.definitions import Options, PrimaryKey, Replication
from trimtab.client.dispatch import MAX_IN_FLIGHT, MAX_WAITING
from trimtab.client.loop_thread import LoopThread
from trimtab.client.plans import TablePlan
from trimtab.client.session import Session


class Database:
    """Made by `connect`."""

    def __init__(self, thread: LoopThread, consistency: Consistency) -> None:
        self._thread = thread
        self._consistency: Consistency = consistency
        self._aio = aio.Database(thread.session, consistency)
        self._finalizer = weakref.finalize(self, thread.abandon)
        self._finalizer.atexit = False

    def close(self) -> None:
        """End all connections; requests under way end with an Error."""
        self._thread.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Rows

    def table(self, name: str, *, consistency: Consistency | None = None, timeout: float | None = None) -> Table:
        """A table by its full name, `shop.users`, with the consistency level and timeout to use for it."""
        level = level_of(self._consistency if consistency is None else consistency)
        found = Table(self._thread, name, level, checked_timeout(timeout, self._thread.session.timeout_s))
        found._look()
        found.schema  # noqa: B018 (NotFound, if there is none)
        return found

    def batch(
        self,
        *,
        logged: bool = True,
        consistency: Consistency | None = None,
        timestamp: int | None = None,
        timeout: float | None = None,
    ) -> Batch:
        """Several writes as one: `with db.batch() as batch: batch.put("shop.users", {...})`."""
        level = level_of(self._consistency if consistency is None else consistency)
        return Batch(self._thread, logged, level, timestamp, checked_timeout(timeout, self._thread.session.timeout_s))

    # Looking at the schema

    def refresh(self) -> None:
        """Look at the schema and the members now, and not only when a request finds that they have changed."""
        self._thread.call(self._aio.refresh)

    def keyspaces(self) -> dict[str, Keyspace]:
        """All keyspaces, by name."""
        return self._thread.call(self._aio.keyspaces)

    def tables(self, keyspace: str | None = None) -> dict[str, Schema]:
        """All tables by their full names, or those of one keyspace."""
        return self._thread.call(lambda: self._aio.tables(keyspace))

    @property
    def catalog(self) -> Catalog:
        """The whole schema, as this client knows it; `refresh` first for the newest."""
        return self._aio.catalog

    def plan(self, table: str) -> TablePlan:
        """A table's columns, keys and types, as this client knows it; NotFound if it knows of none."""
        return self._aio.plan(table)

    def tablets(self, table: str = "") -> list[dict[str, Any]]:
        """Every tablet, or those of one table: its tokens, its replicas, and the bytes of the largest of them.

        One that is given other replicas has a stage, the set it goes to (`pending`), and how far it is (`move`).
        Instances report sizes every few seconds; `bytes` is None where nobody has yet, or the leader can't be asked.
        """
        return self._thread.call(lambda: self._aio.tablets(table))

    # Moving tablets

    def move(
        self,
        table: str,
        tablet: int,
        *,
        source: str,
        to: str,
        force: bool = False,
        why: str = "",
        timeout: float | None = None,
    ) -> list[str]:
        """Move a replica of a tablet from one instance to another; the instances that will have one then.

        It returns when the move is written down; the cluster carries it out by itself, and `tablets` shows how far it
        is. InvalidRequest, with why: it can't be, or it would be unwise and is not forced.
        """
        return self._thread.call(
            lambda: self._aio.move(table, tablet, source=source, to=to, force=force, why=why, timeout=timeout)
        )

    def undo_move(self, table: str, tablet: int, *, why: str = "", timeout: float | None = None) -> list[str]:
        """Give up on what is under way with a tablet; the instances that will have a replica then."""
        return self._thread.call(lambda: self._aio.undo_move(table, tablet, why=why, timeout=timeout))

    def rebalance(
        self,
        enabled: bool | None = None,
        *,
        window: str | None = None,
        heal_after: float | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """How balancing is set, after it was changed where something is given.

        `window`: "22:00-06:00" (UTC) or "always". `heal_after`: so many seconds an instance that is down is waited for.
        """
        return self._thread.call(
            lambda: self._aio.rebalance(enabled, window=window, heal_after=heal_after, timeout=timeout)
        )

    # Changing the schema. Each returns when every instance that is Online knows of it; the names of those that don't
    # yet, which is none as a rule.

    def create_keyspace(
        self,
        name: str,
        *,
        replication: Replication,
        mode: str = "eventual",
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> list[str]:
        """`replication`: a number of replicas, or by data centre {"dc1": 3, "dc2": 2}."""
        return self._thread.call(
            lambda: self._aio.create_keyspace(
                name, replication=replication, mode=mode, if_not_exists=if_not_exists, timeout=timeout
            )
        )

    def alter_keyspace(self, name: str, *, replication: Replication, timeout: float | None = None) -> list[str]:
        return self._thread.call(lambda: self._aio.alter_keyspace(name, replication=replication, timeout=timeout))

    def drop_keyspace(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        """With all its tables and types, and all rows in them."""
        return self._thread.call(lambda: self._aio.drop_keyspace(name, if_exists=if_exists, timeout=timeout))

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str],
        *,
        primary_key: PrimaryKey,
        order: Mapping[str, str] | None = None,
        static: Collection[str] = (),
        tablets: int | None = None,
        if_not_exists: bool = False,
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> list[str]:
        """A table `shop.users` with columns {"id": "bigint", …}.

        `primary_key`: ["a", "b"] is partition key a and clustering key b, [["a", "b"], "c"] partition key (a, b).
        `order`: {"b": "desc"}. `tablets`: a power of two; without it the cluster chooses. Options: comment,
        default_ttl_s, gc_grace_s, history_s, speculative_retry, extensions.
        """
        return self._thread.call(
            lambda: self._aio.create_table(
                name,
                columns,
                primary_key=primary_key,
                order=order,
                static=static,
                tablets=tablets,
                if_not_exists=if_not_exists,
                timeout=timeout,
                **options,
            )
        )

    def alter_table(
        self,
        name: str,
        *,
        add: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        static: Collection[str] = (),
        timeout: float | None = None,
        **options: Unpack[Options],
    ) -> list[str]:
        """Add columns {"name": "type"}, drop some, rename key columns {"old": "new"}, change options."""
        return self._thread.call(
            lambda: self._aio.alter_table(
                name, add=add, drop=drop, rename=rename, static=static, timeout=timeout, **options
            )
        )

    def drop_table(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        """With all its rows."""
        return self._thread.call(lambda: self._aio.drop_table(name, if_exists=if_exists, timeout=timeout))

    def create_type(
        self, name: str, fields: Mapping[str, str], *, if_not_exists: bool = False, timeout: float | None = None
    ) -> list[str]:
        """A user type `shop.address` with fields {"street": "text", …}."""
        return self._thread.call(
            lambda: self._aio.create_type(name, fields, if_not_exists=if_not_exists, timeout=timeout)
        )

    def alter_type(
        self,
        name: str,
        *,
        add: Mapping[str, str] | None = None,
        rename: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        return self._thread.call(lambda: self._aio.alter_type(name, add=add, rename=rename, timeout=timeout))

    def drop_type(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        return self._thread.call(lambda: self._aio.drop_type(name, if_exists=if_exists, timeout=timeout))


def connect(
    contact: str | Sequence[str],
    *,
    consistency: Consistency = "QUORUM",
    timeout: float = DEFAULT_TIMEOUT_S,
    datacenter: str | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    max_waiting: int = MAX_WAITING,
    tls: ssl.SSLContext | None = None,
) -> Database:
    """A client of the cluster that a member at `contact` ("a:1", or "a:1,b:2") belongs to; Unavailable if none answers.

    `consistency` and `timeout` (seconds) are defaults of everything it does. Replicas in `datacenter` are asked first.
    At most `max_in_flight` requests are under way and `max_waiting` wait; more are refused as Overloaded. Connect after
    a fork, not before: a client can't be used in another process than the one that made it.
    """
    addresses = addresses_of(contact)
    options = aio.checked_options(consistency, timeout, datacenter, max_in_flight, max_waiting, tls)
    thread = LoopThread()
    try:
        thread.session = thread.call(lambda: Session.open(addresses, **options))
    except BaseException:
        thread.abandon()
        raise
    return Database(thread, consistency)
