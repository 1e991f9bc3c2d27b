"""The doors of the schema: what it is, for everybody who routes by it; and changing it, which the leader alone does.

Any member may be asked. A change is planned by the leader and becomes one conditional write (`tablets.changes`), so
that two who change at the same time do so one after the other, and one that fails leaves nothing behind. It is
remembered by its id, with the version it made, inside that version: whoever got no answer (the leader died, the network
did) asks again with the same id, and nothing happens twice.

After the write the leader waits a moment until every instance that is Online has applied it and has opened its replicas
of new tables, and names those that have not. They route by the schema before it until they have; what reaches a replica
with a newer version, or one that is not open yet, waits there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection

import msgspec

from trimtab.catalog import commands
from trimtab.catalog.errors import SchemaError
from trimtab.governor.steps import Write
from trimtab.net.errors import NetError
from trimtab.node import failpoints
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.calls import Calls
from trimtab.node.errors import GroupError
from trimtab.node.leader_door import Decision, LeaderDoor
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeReply, SchemaReply
from trimtab.tablets.changes import plan_change
from trimtab.tablets.domains import domain_of
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade
from trimtab.topology.view import View

APPLIED = "schema.applied"
AGREE_S = 10.0  # many replicas take their time to be made
MAX_ID_CHARACTERS = 64
# A client that has heard of a newer schema waits here for it, but not for long: what is here may do.
_NEWER_S = 2.0
_MARGIN_S = 0.1
# An answer has to fit into a frame. The tablets are only a hint for routing: what does not fit is left out.
MAX_REPLY_BYTES = 3 * 1024 * 1024


class AppliedCall(msgspec.Struct, array_like=True, frozen=True):
    """Answer when the schema is at `version` here."""

    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode_applied = msgspec.msgpack.Decoder(AppliedCall).decode


class SchemaService:
    """Answers for one instance."""

    def __init__(
        self,
        view: View,
        tables: TableView,
        door: LeaderDoor,
        calls: Calls,
        waits: Waits,
        *,
        name: str,
        wall_ms: Callable[[], int],
        story: Callable[[str], None],
        opened: Callable[[Collection[int], float], Awaitable[None]],
        agree_s: float = AGREE_S,
    ) -> None:
        self._view = view
        self._tables = tables
        self._door = door
        self._calls = calls
        self._waits = waits
        self._name = name
        self._wall_ms = wall_ms
        self._story = story
        self._opened = opened
        self._agree_s = agree_s
        self._loop = asyncio.get_running_loop()
        self._encoded: tuple[int, bytes] = (0, b"")
        self._said = ""

    def methods(self) -> dict[str, Method]:
        return {protocol.SCHEMA: self.show, protocol.CHANGE: self.change, APPLIED: self.applied}

    def changed(self) -> None:
        """The views changed: tell, once, if the schema waits here for something, and when it goes on."""
        waits = self._tables.waits_for
        if waits != self._said:
            self._story(waits or f"the schema is up to date again, at version {self._tables.catalog.version}")
            self._said = waits

    # What the schema is

    async def show(self, asked: Asked) -> bytes:
        """The schema, where the tablets are and who the instances are; only what the client does not have yet."""
        request = protocol.decode_schema_request(asked.body)
        known_catalog, known_topology = request.known
        tables, view = self._tables, self._view
        if known_catalog > tables.catalog.version or known_topology > view.version:
            # If that takes too long it is told what is here, and sees by the versions that this is older.
            with contextlib.suppress(WaitedTooLong):
                await self._waits.until(
                    lambda: tables.catalog.version >= known_catalog and view.version >= known_topology,
                    min(self._loop.time() + _NEWER_S, asked.deadline - _MARGIN_S),
                    "a schema that the client knows already",
                )
        version = tables.catalog.version
        reply = SchemaReply(version, view.version)
        if known_catalog != version:
            catalog = self._catalog()
            reply = self._with_places(reply, MAX_REPLY_BYTES - len(catalog), -1)
            reply = msgspec.structs.replace(reply, catalog=catalog)
        elif request.placed >= 0:
            reply = self._with_places(reply, MAX_REPLY_BYTES, request.placed)
        if (known_catalog, known_topology) != (version, view.version):
            reply = msgspec.structs.replace(reply, instances=self._instances())
        return protocol.encode(reply)

    def _catalog(self) -> bytes:
        version = self._tables.catalog.version
        if self._encoded[0] != version:
            self._encoded = (version, self._tables.catalog.snapshot())
        encoded = self._encoded[1]
        if len(encoded) > MAX_REPLY_BYTES:
            raise Refused(
                "overloaded",
                f"the schema has {len(encoded)} bytes, and an answer at most {MAX_REPLY_BYTES}; drop tables that "
                "nobody uses",
            )
        return encoded

    def _with_places(self, reply: SchemaReply, room_bytes: int, since: int) -> SchemaReply:
        """The replicas of the tables that have changed after that revision, as many as fit; and the newest revision."""
        tables = self._tables
        changed = {table: tables.placed(table) for table in tables.maps}
        packed, held, reading = {}, {}, {}
        for table, tablets in sorted(tables.maps.items(), key=lambda each: each[1].count):
            if changed[table] <= since:
                continue
            chunks = tablets.packed()
            moving = table in tables.transitions
            room_bytes -= (sum(map(len, chunks)) + 32) * (3 if moving else 1)
            if room_bytes < 0:
                break
            packed[table] = chunks
            if moving:
                held[table], reading[table] = tables.held(table).packed(), tables.reading(table).packed()
        placed = max(changed.values(), default=0)
        return msgspec.structs.replace(reply, tablets=packed, placed=placed, held=held, reading=reading)

    def _instances(self) -> dict[int, tuple[str, str, str, bool]]:
        return {
            raft_id: (
                record.instance_id,
                record.address,
                domain_of(record).dc,
                record.grades.current.grade is Grade.ONLINE,
            )
            for raft_id, record in sorted(self._view.members().items())
        }

    # Changing it

    async def change(self, asked: Asked) -> bytes:
        """One command, done once; the version it made, and who has not applied it yet."""
        request = protocol.decode_change(asked.body)
        if not 0 < len(request.id) <= MAX_ID_CHARACTERS or not request.id.isprintable():
            raise Refused("invalid", f"a change of the schema needs an id of 1 to {MAX_ID_CHARACTERS} characters")
        try:
            command = commands.decode(request.command)
        except ValueError as error:
            raise Refused("invalid", str(error)) from error
        onward = protocol.encode(msgspec.structs.replace(request, forwarded=True))
        answer = await self._door.pass_on(protocol.CHANGE, onward, asked.deadline, forwarded=request.forwarded)
        if answer is not None:
            return answer
        version = 0

        def look() -> Decision:
            nonlocal version
            made = self._tables.made.get(request.id)
            if made is not None:
                version = made
                return None
            if waits := self._tables.waits_for:
                raise Refused("not_ready", f"the leader can't change the schema: {waits}")
            try:
                planned = plan_change(self._view, self._tables, command, request.id, self._wall_ms())
            except SchemaError as error:
                raise Refused(error.code, str(error)) from error
            version = planned.version
            if not planned.puts:
                return None
            failpoints.hit("schema.planned", self._name)
            expect = {key: self._view.revisions.get(key, 0) for key in planned.depends}
            return Write(expect, planned.puts, planned.deletes), planned.texts

        await self._door.decide(look, "schema", ())
        failpoints.hit("schema.written", self._name)
        return protocol.encode(ChangeReply(version, await self._not_agreed(version, asked.deadline)))

    async def _not_agreed(self, version: int, deadline: float) -> list[str]:
        """The instances that are Online and had not applied this version in time."""
        timeout_s = min(self._agree_s, deadline - self._loop.time() - _MARGIN_S)
        online = {
            raft_id: record.instance_id
            for raft_id, record in sorted(self._view.members().items())
            if record.grades.current.grade is Grade.ONLINE
        }
        if timeout_s <= 0:
            return list(online.values())
        body = _encode(AppliedCall(version))
        agreed = await asyncio.gather(*(self._agrees(raft_id, body, timeout_s) for raft_id in online))
        return [name for name, agrees in zip(online.values(), agreed, strict=True) if not agrees]

    async def _agrees(self, raft_id: int, body: bytes, timeout_s: float) -> bool:
        try:
            await self._calls.ask(raft_id, APPLIED, body, timeout_s)
        except (NetError, GroupError, WaitedTooLong, Refused):
            # Whoever asked for the change is told its name. It applies the change when it can; nothing is lost.
            return False
        return True

    async def applied(self, asked: Asked) -> bytes:
        """Answered when this instance has applied a version of the schema, and its replicas of new tables are open."""
        version = _decode_applied(asked.body).version
        tables = self._tables
        await self._waits.until(
            lambda: tables.catalog.version >= version,
            asked.deadline - _MARGIN_S,
            f"version {version} of the schema (at {tables.catalog.version} now; {tables.waits_for or 'not heard of'})",
        )
        new = {number for number, table in tables.catalog.tables.items() if table.version >= version}
        await self._opened(new, asked.deadline - _MARGIN_S)
        return b""
