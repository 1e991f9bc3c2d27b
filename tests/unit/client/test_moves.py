"""Moves through the client: asked by names, refused with typed errors; and replicas that moved are heard of."""

from __future__ import annotations

import pytest
from tests.unit.client.fake_cluster import FakeCluster, fails
from tests.unit.client.playing import Stage, fake, play

from trimtab.client.database import Database
from trimtab.client.errors import InvalidRequest, NotFound
from trimtab.client.moves import MoveClient, read_window
from trimtab.tablets import move_protocol
from trimtab.tablets.rebalance_settings import RebalanceSettings


def users() -> FakeCluster:
    cluster = fake()
    cluster.replicas = 2
    cluster.create("shop.users", "id bigint, name text", "id", tablets=4)
    return cluster


def test_a_replica_is_moved_by_names_and_moved_back() -> None:
    async def work(db: Database, _: Stage) -> None:
        assert await db.move("shop.users", 0, source="i1", to="i3") == ["i3", "i2"]
        shown = (await db.tablets("shop.users"))[0]
        assert (shown["replicas"], shown["pending"]) == (["i1", "i2"], ["i3", "i2"])
        assert await db.undo_move("shop.users", 0) == ["i1", "i2"]
        assert (await db.tablets("shop.users"))[0]["pending"] is None

    play(users(), work)


def test_what_is_not_there_is_not_found_before_anything_is_asked() -> None:
    async def work(db: Database, _: Stage) -> None:
        with pytest.raises(NotFound, match="there is no instance 'i9'"):
            await db.move("shop.users", 0, source="i1", to="i9")
        with pytest.raises(NotFound, match=r"there is no table shop\.nothing"):
            await db.move("shop.nothing", 0, source="i1", to="i3")
        for tablet in (-1, True, "0", 1 << 40):
            with pytest.raises(InvalidRequest, match="a tablet is a number"):
                await db.move("shop.users", tablet, source="i1", to="i3")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="not under way"):
            await db.undo_move("shop.users", 0)

    cluster = users()
    play(cluster, work)
    assert cluster.under_way == {}


def test_a_refusal_is_an_invalid_request_with_the_reason() -> None:
    async def work(db: Database, _: Stage) -> None:
        with pytest.raises(InvalidRequest, match="both would fail together"):
            await db.move("shop.users", 0, source="i1", to="i3")

    cluster = users()
    cluster.script(move_protocol.ASK, fails("conflict", "both would fail together"))
    play(cluster, work)


def test_replicas_that_moved_are_heard_of_although_the_schema_is_the_same() -> None:
    async def work(db: Database, _: Stage) -> None:
        assert (await db.tablets("shop.users"))[0]["replicas"] == ["i1", "i2"]
        cluster.move(0, (3, 2))
        assert (await db.tablets("shop.users"))[0]["replicas"] == ["i3", "i2"]

    cluster = users()
    play(cluster, work)


def test_balancing_is_set_unless_somebody_else_did_meanwhile() -> None:
    async def work(db: Database, _: Stage) -> None:
        assert (await db.rebalance())["enabled"]
        assert not (await db.rebalance(False, window="22:00-06:00"))["enabled"]
        assert cluster.settings.window == (22 * 60, 6 * 60)
        shown = await db.rebalance(heal_after=30)
        assert (shown["enabled"], shown["window"], shown["heal_after_s"]) == (False, "22:00-06:00", 30.0)
        with pytest.raises(InvalidRequest, match="somebody else"):
            await MoveClient.on(db).settings(RebalanceSettings())
        before = cluster.settings
        for wrong in ({"window": "noon"}, {"heal_after": 0}, {"heal_after": "soon"}, {"heal_after": float("nan")}):
            with pytest.raises(InvalidRequest):
                await db.rebalance(**wrong)  # type: ignore[arg-type]
        assert cluster.settings == before

    cluster = users()
    play(cluster, work)


def test_windows_are_read_as_people_write_them() -> None:
    assert read_window("22:00-06:00") == (1320, 360)
    assert read_window(" 8:00 - 17:30 ") == (480, 1050)
    assert read_window("Always") == ()
    for wrong in ("", "22-6", "24:00-06:00", "10:60-11:00", "10:00-10:00", "10:00", "a:00-b:00"):
        with pytest.raises(InvalidRequest):
            read_window(wrong)
