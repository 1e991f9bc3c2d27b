"""The doors of the schema, by themselves: what is sent, what is waited for, what is told, and what makes no version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import msgspec
import pytest
from tests.unit.topology.clusters import member, view_of

from trimtab.catalog import commands, keys, updates
from trimtab.catalog.catalog import Catalog
from trimtab.catalog.commands import ColumnSpec, Command, CreateKeyspace, CreateTable
from trimtab.catalog.planning import plan
from trimtab.net.errors import NotConnected
from trimtab.net.hello import Hello
from trimtab.node import schema_service
from trimtab.node.answering import Asked, Refused
from trimtab.node.leader_door import Decision
from trimtab.node.schema_service import APPLIED, SchemaService
from trimtab.node.waits import WaitedTooLong, Waits
from trimtab.rows import protocol
from trimtab.rows.protocol import ChangeReply, ChangeRequest, SchemaReply, SchemaRequest
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade, Grades, Standing

DOWN = Grades(Standing(Grade.OFFLINE, 1), Standing(Grade.OFFLINE, 1))
SHOP = CreateKeyspace("shop", 3)
USERS = CreateTable("shop", "users", [ColumnSpec("id", "bigint")], ["id"], tablets=8)


class Door:
    """A leader that writes what is decided into its own view."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.elsewhere: bytes | None = None
        self.passed: list[bytes] = []
        self.events: list[str] = []

    async def pass_on(self, _method: str, body: bytes, _deadline: float, *, forwarded: bool) -> bytes | None:
        self.passed.append(body)
        return self.elsewhere if not forwarded else None

    async def decide(self, look: Callable[[], Decision], kind: str, _names: object) -> None:
        assert kind == "schema"
        decided = look()
        if decided is not None:
            write, texts = decided
            assert all(self.desk.view.revisions.get(key, 0) == at for key, at in write.expect.items())
            self.events += texts
            for key, value in write.puts.items():
                self.desk.take(key, value)


class Desk:
    """Five members (the fifth is down), one of whom has the service; and what the others answer."""

    def __init__(self) -> None:
        self.view = view_of(*(member(number) for number in range(1, 5)), member(5, grades=DOWN))
        self.tables = TableView()
        self.waits = Waits()
        self.door = Door(self)
        self.silent: set[int] = set()
        self.asked: list[int] = []
        self.told: list[str] = []
        self.revision = 1_000
        self.service = SchemaService(
            self.view,
            self.tables,
            self.door,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self.waits,
            name="i1",
            wall_ms=lambda: 1_700_000_000_000,
            story=self.told.append,
            opened=self.opened,
        )
        self.waited_for: list[set[int]] = []
        self.closed = False

    async def opened(self, tables: Collection[int], _deadline: float) -> None:
        self.waited_for.append(set(tables))
        if self.closed:
            raise WaitedTooLong("the replicas of new tables to be open")

    def take(self, key: bytes, value: bytes) -> None:
        self.revision += 1
        self.view.change(key, value, self.revision)
        self.tables.change(key, value, self.revision)

    async def ask(self, raft_id: int, method: str, _body: bytes, _timeout_s: float) -> bytes:
        assert method == APPLIED
        self.asked.append(raft_id)
        if raft_id in self.silent:
            raise NotConnected("it is away")
        return b""

    def asks(self, body: bytes, within_s: float = 5.0) -> Asked:
        return Asked(body, asyncio.get_running_loop().time() + within_s, Hello())

    async def change(self, command: Command, id: str, within_s: float = 5.0) -> ChangeReply:
        body = protocol.encode(ChangeRequest(commands.encode(command), id))
        reply: ChangeReply = protocol.decode_change_reply(await self.service.change(self.asks(body, within_s)))
        return reply

    async def show(self, catalog: int, topology: int, within_s: float = 5.0) -> SchemaReply:
        body = protocol.encode(SchemaRequest((catalog, topology)))
        reply: SchemaReply = protocol.decode_schema_reply(await self.service.show(self.asks(body, within_s)))
        return reply


def on_desk(story: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def tell() -> None:
        await story(Desk())

    asyncio.run(tell())


def test_a_change_is_written_told_and_waited_for() -> None:
    async def story(desk: Desk) -> None:
        assert await desk.change(SHOP, "a") == ChangeReply(1, [])
        assert desk.asked == [1, 2, 3, 4], "one that is down is not waited for"
        desk.silent = {3}
        assert await desk.change(USERS, "b") == ChangeReply(2, ["i3"])
        assert desk.door.events[-1] == "table shop.users created (8 tablets, 3 replicas) at version 2"

    on_desk(story)


def test_the_same_id_makes_no_second_version() -> None:
    async def story(desk: Desk) -> None:
        await desk.change(SHOP, "a")
        await desk.change(USERS, "b")
        assert (await desk.change(SHOP, "a")).catalog_version == 1
        assert (await desk.change(USERS, "b")).catalog_version == 2
        assert len(desk.door.events) == 2
        with pytest.raises(Refused, match="users is there already") as refused:
            await desk.change(USERS, "c")
        assert refused.value.code == "schema"
        with pytest.raises(Refused) as missing:
            await desk.change(CreateTable("none", "t", [ColumnSpec("id", "int")], ["id"]), "d")
        assert missing.value.code == "not_found"
        assert desk.tables.catalog.version == 2

    on_desk(story)


def test_a_member_passes_the_change_on_once() -> None:
    async def story(desk: Desk) -> None:
        desk.door.elsewhere = protocol.encode(ChangeReply(7, ["i2"]))
        assert await desk.change(SHOP, "a") == ChangeReply(7, ["i2"])
        assert protocol.decode_change(desk.door.passed[0]).forwarded
        assert desk.tables.catalog.version == 0

    on_desk(story)


def test_a_leader_that_can_not_read_the_schema_does_not_change_it() -> None:
    async def story(desk: Desk) -> None:
        await desk.change(SHOP, "a")
        desk.take(keys.update_key(2), b'{"format": 9, "version": 2}')
        desk.take(keys.VERSION_KEY, b"2")
        desk.service.changed()
        desk.service.changed()
        assert len(desk.told) == 1 and "the schema stays at version 1 of 2" in desk.told[0]
        with pytest.raises(Refused, match="the leader can't change the schema") as refused:
            await desk.change(USERS, "b")
        assert refused.value.code == "not_ready"
        with pytest.raises(WaitedTooLong, match="version 2 of the schema"):
            await desk.service.applied(desk.asks(b"\x91\x02", 0.12))

    on_desk(story)


def test_the_story_tells_when_the_schema_goes_on() -> None:
    async def story(desk: Desk) -> None:
        desk.take(keys.VERSION_KEY, b"1")
        desk.service.changed()
        assert "its update is not here" in desk.told[0]
        first = plan(Catalog(), SHOP, 1, ["dc1"], lambda _replication: 8)
        assert first is not None
        desk.take(keys.update_key(1), updates.encode(first))
        desk.service.changed()
        assert desk.told[1:] == ["the schema is up to date again, at version 1"]

    on_desk(story)


def test_who_was_asked_to_apply_a_version_answers_when_it_has() -> None:
    async def story(desk: Desk) -> None:
        waiting = asyncio.ensure_future(desk.service.applied(desk.asks(b"\x91\x01")))
        await asyncio.sleep(0)
        assert not waiting.done()
        await desk.change(SHOP, "a")
        desk.waits.look()
        assert await waiting == b""

    on_desk(story)


def test_a_version_is_applied_where_the_replicas_of_its_new_tables_are_open() -> None:
    async def story(desk: Desk) -> None:
        await desk.change(SHOP, "one")
        await desk.change(USERS, "two")
        (users,) = desk.tables.catalog.tables
        await desk.service.applied(desk.asks(b"\x91\x02"))
        assert desk.waited_for == [{users}]
        desk.closed = True
        with pytest.raises(WaitedTooLong, match="replicas of new tables"):
            await desk.service.applied(desk.asks(b"\x91\x02"))

    on_desk(story)


def test_nothing_is_sent_twice() -> None:
    async def story(desk: Desk) -> None:
        await desk.change(SHOP, "a")
        await desk.change(USERS, "b")
        whole = await desk.show(0, 0)
        assert Catalog.from_snapshot(whole.catalog).table("shop.users").id == 1
        assert len(whole.tablets[1]) == 1 and set(whole.instances) == {1, 2, 3, 4, 5}
        assert whole.instances[1] == ("i1", "127.0.0.1:3301", "dc1", True) and not whole.instances[5][3]
        assert await desk.show(2, 1) == SchemaReply(2, 1)
        assert (await desk.show(1, 1)).tablets and not (await desk.show(2, 0)).catalog

    on_desk(story)


def test_who_knows_of_a_newer_schema_waits_for_it_and_is_told_what_there_is() -> None:
    async def story(desk: Desk) -> None:
        waiting = asyncio.ensure_future(desk.show(1, 1))
        await asyncio.sleep(0)
        await desk.change(SHOP, "a")
        desk.waits.look()
        assert await waiting == SchemaReply(1, 1)
        older = await desk.show(9, 1, within_s=0.15)
        assert older.catalog_version == 1 and older.catalog

    on_desk(story)


def test_tablets_that_do_not_fit_are_left_out_and_a_schema_that_does_not_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(desk: Desk) -> None:
        await desk.change(SHOP, "a")
        await desk.change(USERS, "b")
        await desk.change(msgspec.structs.replace(USERS, name="orders", tablets=1024), "c")
        size = len((await desk.show(0, 0)).catalog)
        monkeypatch.setattr(schema_service, "MAX_REPLY_BYTES", size + 200)
        small = await desk.show(0, 0)
        assert small.catalog and list(small.tablets) == [1]
        monkeypatch.setattr(schema_service, "MAX_REPLY_BYTES", size - 1)
        with pytest.raises(Refused, match=f"the schema has {size} bytes"):
            await desk.show(0, 0)

    on_desk(story)


def test_an_answer_that_is_due_names_everybody() -> None:
    async def story(desk: Desk) -> None:
        reply = await desk.change(SHOP, "a", within_s=0.05)
        assert reply == ChangeReply(1, ["i1", "i2", "i3", "i4"]) and desk.asked == []

    on_desk(story)


@pytest.mark.parametrize("id", ["", "x" * 65, "a\nb"])
def test_an_id_that_is_none_is_refused(id: str) -> None:
    async def story(desk: Desk) -> None:
        with pytest.raises(Refused, match="needs an id") as refused:
            await desk.change(SHOP, id)
        assert refused.value.code == "invalid" and not desk.door.passed

    on_desk(story)
