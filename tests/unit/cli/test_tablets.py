"""`trimtab tablets`."""

from __future__ import annotations

from tests.unit.cli.typing_commands import Typist


def test_tablets_are_shown_with_their_tokens_and_replicas(typist: Typist) -> None:
    assert typist("tablets")[1] == "No tablets: there are no tables yet.\n"
    typist.cluster.create("shop.users", "id bigint, name text", "id", tablets=4)
    typist.cluster.create("shop.visits", "id bigint, name text", "id", tablets=2)
    everything = typist.json("tablets")
    assert [(each["table"], each["tablet"]) for each in everything] == [
        *(("users", number) for number in range(4)),
        *(("visits", number) for number in range(2)),
    ]
    first, *_, last = typist.json("tablets", "shop.users")
    assert (first["keyspace"], first["first_token"], last["last_token"]) == ("shop", -(1 << 63), (1 << 63) - 1)
    assert set(first) >= {"replicas", "pending", "planned", "stage", "session", "bytes"}
    assert set(first["replicas"]) == {"i1", "i2"}
    assert [each["bytes"] for each in everything] == [0, 1000, 2000, 3000, 0, 1000]
    shown = typist("tablets", "shop.users")[1]
    assert "i1" in shown and "9223372036854775807" in shown and "visits" not in shown
    assert "2.9 KiB" in shown


def test_a_table_that_is_not_there_is_named(typist: Typist) -> None:
    typist.cluster.create("shop.users", "id bigint, name text", "id")
    assert "did you mean shop.users?" in typist.refused("tablets", "shop.user")
    assert "write KEYSPACE.TABLE" in typist.refused("tablets", "users")
