"""Reads as of a time: exact, or refused."""

from __future__ import annotations

import msgspec

from tests.sim.test_loads import Loads
from tests.sim.test_rows import Shop, big, instance, shop
from trimtab.loads import protocol as loads
from trimtab.loads.protocol import RollbackRequest
from trimtab.loads.records import LoadKind
from trimtab.rows import protocol
from trimtab.rows.protocol import GetRequest
from trimtab.sim.machines import Machine
from trimtab.tablets.consistency import Level


def get(rows: Shop, machine: Machine, as_of_us: int) -> str | None:
    request = GetRequest(rows.users.id, rows.users.version, [[big(1)]], [2], Level.QUORUM, as_of_us=as_of_us)
    row = protocol.decode_rows(rows.ask(machine, protocol.GET, protocol.encode(request))).rows[0]
    return row[0].decode() if row is not None and row[0] is not None else None


def forget(rows: Shop, machine: Machine, up_to_us: int) -> None:
    """As if a row of so many versions had been folded."""
    replica = instance(machine).holdings.shelf.get(rows.users.id, rows.tablet(rows.users, 1))
    assert replica is not None
    replica.meta = msgspec.structs.replace(replica.meta, forgot_us=up_to_us)


def test_a_time_before_what_was_folded_is_refused_and_other_replicas_are_asked_while_there_are_enough() -> None:
    with shop() as rows:
        a, b, c = rows.machines
        first = rows.put(a, 1, "first").timestamp_us
        second = rows.put(a, 1, "second").timestamp_us
        assert get(rows, a, first) == "first" and get(rows, a, second) == "second"
        forget(rows, a, second)
        assert get(rows, a, first) == "first"
        forget(rows, b, second)
        code, numbers = rows.refusal(get, rows, a, first)
        assert code == "read_failed" and set(numbers["reasons"].values()) == {"history"}
        assert get(rows, c, second) == "second"


def test_a_time_before_an_overwrite_is_refused_and_a_rollback_brings_it_back() -> None:
    with shop() as rows:
        a = rows.machines[0]
        loader = Loads(rows)
        first = rows.put(a, 1, "first").timestamp_us
        loader.run("one", {1: "new"}, LoadKind.OVERWRITE)
        code, numbers = rows.refusal(get, rows, a, first)
        assert code == "invalid" and numbers["since_us"] > first
        assert get(rows, a, numbers["since_us"]) == "new"
        loader.ask(loads.ROLLBACK, RollbackRequest(rows.users.id, "one", True))
        rows.cluster.until(
            lambda: all(instance(m).watching.loads.generation(rows.users.id) == 1 for m in rows.machines), 5.0, "back"
        )
        assert get(rows, a, first) == "first"
