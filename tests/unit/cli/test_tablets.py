"""`trimtab tablets`."""

from __future__ import annotations

from tests.unit.cli.typing_commands import Typist

from trimtab.cli.tablets import _with_analysis
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState


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


def test_what_was_found_last_stands_beside_each_tablet() -> None:
    def job(number: int, table: str, rows: int) -> JobRecord:
        found = {"table": table, "tablets": {"0": {"rows": rows, "partitions": 2, "bytes": 9, "largest": 7}}}
        command = Command(JobKind.ANALYZE, {"table": table})
        return JobRecord(number, command, JobState.SUCCEEDED, result=found, ended_ms=1_700_000_000_000)

    shapes = [{"keyspace": "shop", "table": "users", "tablet": number} for number in range(2)]
    jobs = [job(1, "shop.users", 3), job(2, "shop.users", 4), job(3, "shop.visits", 5)]
    first, second = _with_analysis(shapes, jobs)
    assert (first["rows"], first["partitions"], first["largest_partition_bytes"]) == (4, 2, 7)
    assert first["analyzed"].startswith("2023-11-14")
    assert (second["rows"], second["analyzed"]) == (None, None)
