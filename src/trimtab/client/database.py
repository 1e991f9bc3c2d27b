"""A cluster as an asyncio application uses it: `db = await trimtab.aio.connect("127.0.0.1:3301")`.

A Database belongs to the loop it was made on. One is enough for a whole application: it keeps one connection to each
instance and any number of requests under way on it. Close it in the end, or use it as `async with`.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Unpack

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.schema import Keyspace
from trimtab.catalog.schema import Table as Schema
from trimtab.client import definitions
from trimtab.client.batch import AsyncBatch
from trimtab.client.consistency import Consistency, addresses_of, checked_limit, checked_timeout, level_of
from trimtab.client.contact import DEFAULT_TIMEOUT_S
from trimtab.client.definitions import Options, PrimaryKey, Replication
from trimtab.client.dispatch import MAX_IN_FLIGHT, MAX_WAITING
from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.client.moves import MoveClient, checked_tablet
from trimtab.client.plans import TablePlan
from trimtab.client.session import Session
from trimtab.client.table import Table
from trimtab.tablets import shapes
from trimtab.tablets.moves_shown import by_place


class Database:
    """Made by `connect`."""

    def __init__(self, session: Session, consistency: Consistency) -> None:
        self._session = session
        self._consistency: Consistency = consistency

    async def close(self) -> None:
        """End all connections; requests under way end with an Error."""
        await self._session.close()

    async def __aenter__(self) -> Database:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Rows

    def table(self, name: str, *, consistency: Consistency | None = None, timeout: float | None = None) -> Table:
        """A table by its full name, `shop.users`, with the consistency level and timeout to use for it."""
        level = level_of(self._consistency if consistency is None else consistency)
        return Table(self._session, name, level, checked_timeout(timeout, self._session.timeout_s))

    def batch(
        self,
        *,
        logged: bool = True,
        consistency: Consistency | None = None,
        timestamp: int | None = None,
        timeout: float | None = None,
    ) -> AsyncBatch:
        """Several writes as one: `async with db.batch() as batch: batch.put("shop.users", {...})`."""
        level = level_of(self._consistency if consistency is None else consistency)
        return AsyncBatch(self._session, logged, level, timestamp, checked_timeout(timeout, self._session.timeout_s))

    # Looking at the schema

    async def refresh(self) -> None:
        """Look at the schema and the members now, and not only when a request finds that they have changed."""
        await self._session.refresh(self._session.loop.time() + self._session.timeout_s)

    async def keyspaces(self) -> dict[str, Keyspace]:
        """All keyspaces, by name."""
        await self.refresh()
        return dict(sorted(self._session.known.catalog.keyspaces.items()))

    async def tables(self, keyspace: str | None = None) -> dict[str, Schema]:
        """All tables by their full names, or those of one keyspace."""
        await self.refresh()
        return {table.full_name: table for table in self._session.known.tables(keyspace)}

    @property
    def catalog(self) -> Catalog:
        """The whole schema, as this client knows it; `refresh` first for the newest."""
        return self._session.known.catalog

    def plan(self, table: str) -> TablePlan:
        """A table's columns, keys and types, as this client knows it; NotFound if it knows of none."""
        return self._session.known.plan(table)

    async def tablets(self, table: str = "") -> list[dict[str, Any]]:
        """Every tablet, or those of one table: its tokens, its replicas, and the bytes of the largest of them.

        One that is given other replicas has a stage, the set it goes to (`pending`), and how far it is (`move`).
        Instances report sizes every few seconds; `bytes` is None where nobody has yet, or the leader can't be asked.
        """
        await self.refresh()
        known, members = self._session.known, self._session.members
        names = {raft_id: member.instance_id for raft_id, member in members.by_id.items()}
        chosen = known.table(table) if table else None
        sizes = await self._session.sizes(chosen.id if chosen else 0)
        moves = by_place(await self._session.moves(chosen.id if chosen else 0))
        only = chosen.full_name if chosen else ""
        return shapes.tablets(known.catalog.tables, members.maps, names, only=only, sizes=sizes, moves=moves)

    # Moving tablets

    async def move(
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
        where = await self._place(table, tablet)
        ids = [self._raft_id(source), self._raft_id(to)]
        reply = await self._moving().ask(*where, *ids, force=force, why=why, timeout_s=self._limit(timeout))
        return self._named(reply.replicas)

    async def undo_move(self, table: str, tablet: int, *, why: str = "", timeout: float | None = None) -> list[str]:
        """Give up on what is under way with a tablet; the instances that will have a replica then."""
        where = await self._place(table, tablet)
        return self._named((await self._moving().undo(*where, why=why, timeout_s=self._limit(timeout))).replicas)

    async def rebalance(
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
        return await self._moving().rebalance(enabled, window, heal_after, timeout_s=self._limit(timeout))

    def _moving(self) -> MoveClient:
        return MoveClient(self._session.contacts)

    def _limit(self, timeout: float | None) -> float | None:
        return None if timeout is None else checked_timeout(timeout, 0)

    async def _place(self, table: str, tablet: int) -> tuple[int, int]:
        await self.refresh()
        return self._session.known.table(table).id, checked_tablet(tablet)

    def _raft_id(self, instance_id: str) -> int:
        names = {member.instance_id: raft_id for raft_id, member in self._session.members.by_id.items()}
        if instance_id not in names:
            raise NotFound(f"there is no instance '{instance_id}' in the cluster; it has {', '.join(sorted(names))}")
        return names[instance_id]

    def _named(self, raft_ids: Sequence[int]) -> list[str]:
        known = self._session.members.by_id
        return [known[each].instance_id if each in known else f"raft id {each}" for each in raft_ids]

    # Changing the schema. Each returns when every instance that is Online knows of it, or names in `waiting` who
    # does not yet.

    async def create_keyspace(
        self,
        name: str,
        *,
        replication: Replication,
        mode: str = "eventual",
        if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> list[str]:
        """`replication`: a number of replicas, or by data centre {"dc1": 3, "dc2": 2}."""
        return await self._change(definitions.create_keyspace(name, replication, mode, if_not_exists), timeout)

    async def alter_keyspace(self, name: str, *, replication: Replication, timeout: float | None = None) -> list[str]:
        return await self._change(definitions.alter_keyspace(name, replication), timeout)

    async def drop_keyspace(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        """With all its tables and types, and all rows in them."""
        return await self._change(definitions.drop_keyspace(name, if_exists), timeout)

    async def create_table(
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
        command = definitions.create_table(
            name,
            columns,
            primary_key,
            order=order,
            static=static,
            tablets=tablets,
            if_not_exists=if_not_exists,
            options=options,
        )
        return await self._change(command, timeout)

    async def alter_table(
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
        command = definitions.alter_table(
            name, add=add or {}, drop=drop, rename=rename or {}, static=static, options=options
        )
        return await self._change(command, timeout)

    async def drop_table(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        """With all its rows."""
        return await self._change(definitions.drop_table(name, if_exists), timeout)

    async def create_type(
        self, name: str, fields: Mapping[str, str], *, if_not_exists: bool = False, timeout: float | None = None
    ) -> list[str]:
        """A user type `shop.address` with fields {"street": "text", …}."""
        return await self._change(definitions.create_type(name, fields, if_not_exists), timeout)

    async def alter_type(
        self,
        name: str,
        *,
        add: Mapping[str, str] | None = None,
        rename: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        return await self._change(definitions.alter_type(name, add=add or {}, rename=rename or {}), timeout)

    async def drop_type(self, name: str, *, if_exists: bool = False, timeout: float | None = None) -> list[str]:
        return await self._change(definitions.drop_type(name, if_exists), timeout)

    async def _change(self, command: bytes, timeout: float | None) -> list[str]:
        reply = await self._session.change(command, None if timeout is None else checked_timeout(timeout, 0))
        return reply.waiting


class Connecting:
    """What `connect` gives: await it, or use it as `async with`."""

    def __init__(self, addresses: list[str], consistency: Consistency, options: dict[str, Any]) -> None:
        self._addresses = addresses
        self._consistency: Consistency = consistency
        self._options = options
        self._database: Database | None = None

    def __await__(self) -> Generator[Any, None, Database]:
        return self._open().__await__()

    async def _open(self) -> Database:
        return Database(await Session.open(self._addresses, **self._options), self._consistency)

    async def __aenter__(self) -> Database:
        self._database = await self._open()
        return self._database

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._database is not None:
            await self._database.close()


def connect(
    contact: str | Sequence[str],
    *,
    consistency: Consistency = "QUORUM",
    timeout: float = DEFAULT_TIMEOUT_S,
    datacenter: str | None = None,
    max_in_flight: int = MAX_IN_FLIGHT,
    max_waiting: int = MAX_WAITING,
    tls: ssl.SSLContext | None = None,
) -> Connecting:
    """A client of the cluster that a member at `contact` ("a:1", or "a:1,b:2") belongs to.

        db = await connect("127.0.0.1:3301")
        async with connect("127.0.0.1:3301") as db: ...

    `consistency` and `timeout` (seconds) are defaults of everything it does. Replicas in `datacenter` are asked first.
    At most `max_in_flight` requests are under way and `max_waiting` wait; more are refused as Overloaded.
    """
    return Connecting(
        addresses_of(contact),
        consistency,
        checked_options(consistency, timeout, datacenter, max_in_flight, max_waiting, tls),
    )


def checked_options(
    consistency: Consistency,
    timeout: float,
    datacenter: str | None,
    max_in_flight: int,
    max_waiting: int,
    tls: ssl.SSLContext | None,
) -> dict[str, Any]:
    """The options of a session; InvalidRequest for those that make no sense."""
    level_of(consistency)
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise InvalidRequest(f"tls is an ssl.SSLContext, such as ssl.create_default_context() makes, not {tls!r}")
    return {
        "timeout_s": checked_timeout(timeout, DEFAULT_TIMEOUT_S),
        "datacenter": datacenter,
        "max_in_flight": checked_limit(max_in_flight, "max_in_flight"),
        "max_waiting": checked_limit(max_waiting, "max_waiting"),
        "tls": tls,
    }
