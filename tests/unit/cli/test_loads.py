"""`trimtab loads …`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.cli.typing_commands import Typist

from trimtab.client.loads import LoadClient, LoadRefused
from trimtab.loads.protocol import LoadsReply, RollbackReply
from trimtab.loads.records import LoadKind, LoadRecord, LoadState

NOW_MS = 1_700_000_000_000
OVERWRITE = LoadRecord(
    *("c", 1, LoadKind.OVERWRITE, LoadState.PUBLISHED, 999),
    generation=2,
    epoch=3,
    rows=100,
    size_bytes=2048,
    sealed=(1, 2, 9),  # type: ignore[arg-type]
    begun_ms=NOW_MS,
    published_ms=NOW_MS + 1000,
    who="tests",  # type: ignore[arg-type]
)
LATER = LoadRecord("d", 1, LoadKind.APPEND, LoadState.PUBLISHED, 1999, epoch=4, rows=7, published_ms=NOW_MS + 2000)
LOST = LoadRecord("e", 77, LoadKind.APPEND, LoadState.ABORTED, 2999, direct=True, reason="its table was dropped")


@pytest.fixture
def shop(typist: Typist, monkeypatch: pytest.MonkeyPatch) -> Typist:
    typist.cluster.create("shop.users", "id bigint, name text", "id")

    async def show(_client: LoadClient, table: int = 0, id: str = "", **_options: Any) -> LoadsReply:
        loads = [each for each in (OVERWRITE, LATER, LOST) if table in (0, each.table)]
        return LoadsReply(loads, {1: (4, 2)})

    async def rollback(_client: LoadClient, table: int, id: str, *, apply: bool = False) -> RollbackReply:
        if id != "c":
            raise LoadRefused(f"load {id} is an append", "conflict")
        typist.applied = apply  # type: ignore[attr-defined]
        return RollbackReply(OVERWRITE, [LATER], OVERWRITE.published_ms, 1, apply)

    monkeypatch.setattr(LoadClient, "show", show)
    monkeypatch.setattr(LoadClient, "rollback", rollback)
    return typist


def test_loads_are_listed_with_names_and_reasons(shop: Typist) -> None:
    code, out, _ = shop("loads", "list")
    assert code == 0 and "shop.users" in out and "overwrite" in out and "its table was dropped" in out
    found = shop.json("loads", "list")
    first, later, lost = found["loads"]
    assert (first["table"], first["kind"], first["state"], first["rows"]) == (
        "shop.users",
        "overwrite",
        "published",
        100,
    )
    assert first["sealed"] == ["i1", "i2", "9"] and first["begun"] == "2023-11-14T22:13:20.000Z"
    assert later["committed"] is None and (lost["table"], lost["kind"], lost["epoch"]) == ("table 77", "direct", None)
    assert found["tables"] == [{"table": "shop.users", "epoch": 4, "generation": 2}]
    assert [each["id"] for each in shop.json("loads", "list", "shop.users")["loads"]] == ["c", "d"]
    assert "there is no table 'shop.none'" in shop.refused("loads", "list", "shop.none")


def test_a_rollback_says_what_goes_and_does_nothing_unasked(shop: Typist) -> None:
    code, out, err = shop("loads", "rollback", "shop.users", "c")
    assert code == 1 and "give --yes" in err and shop.applied is False  # type: ignore[attr-defined]
    assert "drops:" in out and "its 100 rows" in out and "load d (append, 7 rows" in out and "every write since" in out
    code, out, err = shop("loads", "rollback", "shop.users", "c", "--yes")
    assert code == 0 and out.endswith("Done: shop.users serves generation 1 again.\n") and "its 100 rows" in out
    done = shop.json("loads", "rollback", "shop.users", "c", "--yes")
    assert done["done"] and [each["id"] for each in done["drops"]] == ["c", "d"] and done["generation"] == 1
    assert "is an append" in shop.refused("loads", "rollback", "shop.users", "d", "--yes")
