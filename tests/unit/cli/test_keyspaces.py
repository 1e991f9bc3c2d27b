"""`trimtab keyspaces …`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.cli.typing_commands import Typist

from trimtab.cli.main import run


def test_keyspaces_are_created_listed_described_changed_and_dropped(typist: Typist) -> None:
    assert typist("keyspaces", "list")[1].startswith("No keyspaces yet")
    assert typist("keyspaces", "create", "shop", "--replication", "2")[:2] == (0, "Keyspace shop exists.\n")
    assert typist.json("keyspaces", "create", "shop", "--replication", "dc1=2", "--if-not-exists") == {
        "keyspace": "shop",
        "waiting": [],
    }
    (shape,) = typist.json("keyspaces", "list")
    assert (shape["keyspace"], shape["replication"], shape["mode"]) == ("shop", {"dc1": 2}, "eventual")
    assert "dc1=2" in typist("keyspaces", "list")[1]
    assert typist("keyspaces", "describe", "shop")[1].startswith("CREATE KEYSPACE shop WITH replication")
    assert typist.json("keyspaces", "describe", "shop")["tables"] == []
    assert typist("keyspaces", "alter", "shop", "--replication", "1")[0] in (0, 1)
    assert typist("keyspaces", "drop", "shop")[1] == "Keyspace shop is gone.\n"
    assert typist("keyspaces", "drop", "shop", "--if-exists")[0] == 0
    assert typist.json("keyspaces", "list") == []


@pytest.mark.parametrize("text", ["", "many", "-1", "dc1", "dc1=", "=3", "dc1=x", "dc1=1,dc1=2", "3.5", "dc1=1,,"])
def test_a_replication_that_is_none_is_wrong_usage(typist: Typist, text: str) -> None:
    for command in ("create", "alter"):
        said = typist.refused("keyspaces", command, "shop", f"--replication={text}", code=2)
        assert "write a number such as 3, or dc1=3,dc2=2" in said


def test_what_the_catalog_refuses_is_said(typist: Typist) -> None:
    assert "data centre" in typist.refused("keyspaces", "create", "shop", "--replication", "mars=3")
    assert "name of a keyspace" in typist.refused("keyspaces", "create", "no-dash", "--replication", "1")
    assert "mode is eventual or strong" in typist.refused(
        "keyspaces", "create", "shop", "--replication", "1", "--mode", "weak"
    )
    typist("keyspaces", "create", "shop", "--replication", "1")
    assert "shop" in typist.refused("keyspaces", "create", "shop", "--replication", "1")
    assert "nothing" in typist.refused("keyspaces", "drop", "nothing")
    assert "keyspaces: shop" in typist.refused("keyspaces", "describe", "nothing")


def test_missing_arguments_are_wrong_usage(typist: Typist) -> None:
    assert "--replication" in typist.refused("keyspaces", "create", "shop", code=2)
    assert "KEYSPACE" in typist.refused("keyspaces", "drop", code=2)


def test_nobody_at_the_address_is_said_once(
    free_ports: Callable[[int], list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    (port,) = free_ports(1)
    assert run(["keyspaces", "list", "--peer", f"127.0.0.1:{port}", "--timeout", "1"]) == 1
    said = capsys.readouterr().err
    assert f"no member of a cluster answers at 127.0.0.1:{port}" in said and "Is it running" in said
