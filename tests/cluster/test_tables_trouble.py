"""Rows of a cluster that is in trouble: an instance that missed too much, damaged files, requests that make no sense.

One cluster of three, RF 3, for all of them; each story leaves it healthy. Little is kept for an instance that is away,
so that hints are soon not enough.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trimtab
from tests.cluster.instances import STEADY, Instances, loopback
from tests.cluster.operator import Cli
from tests.cluster.patience import create_keyspace, create_table, patiently, put_rows, scanned
from tests.cluster.replica_reads import replicas_of, rows_on
from tests.cluster.synced_lengths import await_end, newest_log
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.net.errors import NetError, RpcError
from trimtab.topology.grades import Grade

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

HINT_KB = 200
ROW_BYTES = 500


class Shop:
    """The cluster, a client, and the command line."""

    def __init__(self, three: Instances, folder: Path) -> None:
        self.three = three
        self.db = trimtab.connect(",".join(three.listen.values()), timeout=60)
        create_keyspace(self.db, "shop", replication=3)
        self.cli = Cli(folder)
        self.cli.environment["TRIMTAB_CONTACT"] = three.listen[1]

    def table(self, name: str, rows: int, tablets: int = 4) -> tuple[trimtab.Table, dict[int, dict[str, Any]]]:
        """A new table with so many rows, and the rows: each instance has them all."""
        create_table(self.db, f"shop.{name}", {"id": "bigint", "v": "text"}, tablets)
        first = self.write(self.db.table(f"shop.{name}", consistency="ALL"), range(rows), "first")
        return self.db.table(f"shop.{name}", consistency="QUORUM"), first

    @staticmethod
    def write(table: trimtab.Table, ids: range, word: str) -> dict[int, dict[str, Any]]:
        rows = {id: {"id": id, "v": f"{word} {id}".ljust(ROW_BYTES, ".")} for id in ids}
        put_rows(table, rows.values())  # whoever was just killed may have had it in hand
        return rows

    async def alone(self, number: int, name: str) -> dict[int, dict[str, Any]]:
        """The rows that one instance's own replicas hold."""
        return await rows_on(self.three, number, f"shop.{name}")

    def online(self, *numbers: int) -> None:
        run(self.three.online(*numbers))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    processes, folder = Processes(), tmp_path_factory.mktemp("shop")
    try:
        three = Instances(processes, folder, loopback(3), options=[*STEADY, "--hint-limit-kb", str(HINT_KB)])
        three.start(1, 2, 3)
        run(three.online())
        found = Shop(three, folder)
        yield found
        found.db.close()
    finally:
        processes.end_all()


@pytest.fixture
def shop(cluster: Shop) -> Shop:
    """All three are up, whatever became of the story before."""
    cluster.three.start(*{1, 2, 3} - cluster.three.running.keys())
    cluster.online()
    return cluster


def by_id(table: trimtab.Table, **options: Any) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in scanned(table, **options)}


# An instance that missed too much


def test_an_instance_that_missed_ten_times_what_hints_hold_answers_nothing_before_it_is_repaired(shop: Shop) -> None:
    three = shop.three
    table, rows = shop.table("away", 400)
    for life in ("second", "third", "fourth", "fifth"):
        three.kill(3)
        # Two coordinators keep hints, each up to the bound.
        rows |= shop.write(table, range(200, 10 * 2 * HINT_KB * 1024 // ROW_BYTES), life)
        for id in range(50):
            patiently(lambda id=id: table.delete(id=id))  # type: ignore[misc]
            rows.pop(id, None)
        three.until(lambda: "was away for too long" in three.output(1) + three.output(2), "hints are given up")
        three.start(3)
        refused, answered = run(_read_until_online(shop, 3, "away", rows))
        print(f"\n{len(rows)} rows: refused {dict(refused)}, then answered {answered} times")
        assert "so replicas are repaired" in three.output(3)
        if refused["not_ready"]:
            break  # else it was repaired before it was asked first
    assert refused["not_ready"]
    assert run(shop.alone(3, "away")) == rows
    assert by_id(table) == rows


async def _read_until_online(shop: Shop, number: int, name: str, rows: dict[int, Any]) -> tuple[Counter[str], int]:
    """Ask its replicas again and again: whatever they answer is everything. How often they refused, and answered."""
    three = shop.three
    refused, answered = Counter[str](), 0
    deadline = time.monotonic() + 240
    async with replicas_of(three, number, via=1) as replicas:
        while True:
            online = await three.is_now(number, Grade.ONLINE)
            try:
                await replicas.refresh()
                found = await replicas.rows(f"shop.{name}")
            except RpcError as error:
                refused[error.code] += 1
            except NetError as error:
                refused[type(error).__name__] += 1
            else:
                answered += 1
                assert found == rows
                if online:
                    return refused, answered
            assert time.monotonic() < deadline, f"{refused}\n{three.said()}"


# Damaged files


def test_a_flipped_byte_in_a_table_file_is_named_put_aside_and_made_good_from_the_others(shop: Shop) -> None:
    three = shop.three
    table, rows = shop.table("flipped", 600, tablets=1)
    assert three.stop(2) == 0  # what was in memory is in files now
    damaged = _flip_a_byte(three.data_dir(2), patiently(lambda: shop.db.tables()["shop.flipped"].id))
    three.start(2)
    shop.online(2)
    # Whoever reads there finds it; meanwhile a quorum has every row.
    assert by_id(table) == rows
    with contextlib.suppress(NetError):
        run(_asked_once(three, 2, "shop.flipped"))
    assert by_id(table) == rows
    three.until(lambda: "is damaged" in three.output(2), "i2 says that a replica is damaged")
    three.until(lambda: any((three.data_dir(2) / "quarantine").rglob(damaged.name)), "the damaged file is put aside")
    said = three.output(2)
    assert damaged.name in said and "put aside as quarantine/" in said and "rebuilt from the other replicas" in said

    async def rebuilt() -> bool:
        try:
            return await _asked_once(three, 2, "shop.flipped") == rows
        except NetError:
            return False

    run(three.wait_for(rebuilt, "i2 holds every row again by itself"))
    assert by_id(table) == rows


async def _asked_once(three: Instances, number: int, name: str) -> dict[int, dict[str, Any]]:
    async with replicas_of(three, number) as replicas:
        return await replicas.rows(name)


def _flip_a_byte(data_dir: Path, table: int) -> Path:
    """In the middle of the largest file of the instance's tablets of a table."""
    largest = max((data_dir / "tablets" / str(table)).rglob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 3] ^= 0x10
    largest.write_bytes(content)
    return largest


def test_an_instance_does_not_start_on_a_damaged_log_and_the_others_serve_on(shop: Shop) -> None:
    three = shop.three
    table, rows = shop.table("logged", 300)
    three.kill(2)
    await_end(three.data_dir(2))
    log = newest_log(three.data_dir(2) / "log")
    intact = log.read_bytes()
    assert len(intact) > 50_000
    damaged = bytearray(intact)
    damaged[len(damaged) // 2] ^= 0x10
    log.write_bytes(damaged)
    three.start(2)
    assert three.ended(2) == 1
    assert log.name in three.last_line(2) and "corrupt" in three.last_line(2).lower()
    assert log.read_bytes() == damaged, "it was left as it was found"
    rows |= shop.write(table, range(300, 400), "meanwhile")
    assert by_id(table) == rows
    log.write_bytes(intact)
    three.start(2)
    shop.online(2)
    assert run(shop.alone(2, "logged")) == rows


# Requests that make no sense


@pytest.fixture(scope="module")
def orders(cluster: Shop) -> trimtab.Table:
    columns = {"who": "text", "n": "int", "what": "text", "price": "double"}
    key = ["who", "n"]
    patiently(lambda: cluster.db.create_table("shop.orders", columns, primary_key=key, tablets=4, if_not_exists=True))
    table = cluster.db.table("shop.orders", consistency="QUORUM")
    put_rows(table, [{"who": "ada", "n": 1, "what": "book", "price": 1.5}])
    return table


FUTURE_US = int((time.time() + 3600) * 1_000_000)


def row(**cells: Any) -> dict[str, Any]:
    return {"who": "ada", "n": 1} | cells


Bad = Callable[[trimtab.Table], object]
BAD: dict[str, tuple[Bad, type[trimtab.Error], tuple[str, ...]]] = {
    "oversized key": (lambda t: t.put(row(who="k" * 70_000)), trimtab.InvalidRequest, ("who", "70000", "65535")),
    "oversized key to read": (lambda t: t.get(who="k" * 70_000, n=1), trimtab.InvalidRequest, ("who", "70000")),
    "empty key": (lambda t: t.put(row(who="")), trimtab.InvalidRequest, ("who", "empty")),
    "no key": (lambda t: t.put({"who": "ada", "what": "x"}), trimtab.InvalidRequest, ("n", "primary key")),
    "key of null": (lambda t: t.put(row(n=None)), trimtab.InvalidRequest, ("n is None",)),
    "oversized cell": (lambda t: t.put(row(what="x" * 900_000)), trimtab.InvalidRequest, ("900", "send less")),
    "oversized frame": (lambda t: t.put(row(what="x" * 3_000_000)), trimtab.InvalidRequest, ("limit", "send less")),
    "unknown column": (lambda t: t.put(row(colour="red")), trimtab.NotFound, ("colour", "who, n, what, price")),
    "unknown column to read": (lambda t: t.get(who="ada", n=1, columns=["colour"]), trimtab.NotFound, ("colour",)),
    "text for a number": (lambda t: t.put(row(price="dear")), trimtab.InvalidRequest, ("price", "double", "dear")),
    "number for a text": (lambda t: t.put(row(what=5)), trimtab.InvalidRequest, ("what", "text", "5")),
    "number out of range": (lambda t: t.put(row(n=1 << 40)), trimtab.InvalidRequest, ("n", "int", "1099511627776")),
    "stamp of the future": (
        lambda t: t.put(row(what="x"), timestamp=FUTURE_US),
        trimtab.InvalidRequest,
        (str(FUTURE_US), "ahead", "clock"),
    ),
    "deletion of the future": (
        lambda t: t.delete(who="ada", n=1, timestamp=FUTURE_US),
        trimtab.InvalidRequest,
        (str(FUTURE_US), "ahead"),
    ),
    "endless ttl": (lambda t: t.put(row(what="x"), ttl=1 << 40), trimtab.InvalidRequest, ("ttl", "20 years")),
    "read at ANY": (lambda t: t.get(who="ada", n=1, consistency="ANY"), trimtab.InvalidRequest, ("ANY",)),
}


@pytest.mark.parametrize("what", BAD)
def test_a_request_that_makes_no_sense_is_refused_in_a_sentence_and_changes_nothing(
    orders: trimtab.Table, what: str
) -> None:
    ask, kind, said = BAD[what]
    with pytest.raises(kind) as refused:
        ask(orders)
    text = str(refused.value)
    assert all(part in text for part in said), text
    assert scanned(orders) == [{"who": "ada", "n": 1, "what": "book", "price": 1.5}]


def test_batches_and_tables_that_make_no_sense_are_refused(shop: Shop, orders: trimtab.Table) -> None:
    for rows, size in ((1_001, 1), (5, 400_000)):
        batch = shop.db.batch()
        for number in range(rows):
            batch.put("shop.orders", {"who": "eve", "n": number, "what": "x" * size})
        with pytest.raises(trimtab.InvalidRequest, match=r"send"):
            batch.execute()
    with pytest.raises(trimtab.NotFound, match=r"no table shop\.nothing; shop has"):
        shop.db.table("shop.nothing")
    with pytest.raises(trimtab.NotFound, match="keyspace"):
        shop.db.table("nothing.at_all")
    create_keyspace(shop.db, "wide", replication=5)
    with pytest.raises(trimtab.SchemaError, match="5 distinct hosts for 5 replicas and has 3"):
        create_table(shop.db, "wide.t", {"id": "int"}, tablets=4)
    patiently(lambda: shop.db.drop_keyspace("wide", if_exists=True))
    assert len(scanned(orders)) == 1


def test_the_command_line_refuses_what_makes_no_sense(shop: Shop, orders: trimtab.Table) -> None:
    assert "no table shop.nothing" in shop.cli.refused("get", "shop.nothing", "id=1")
    assert "no column colour" in shop.cli.refused("put", "shop.orders", "who=ada", "n=1", "colour=red")
    assert "n is of type int" in shop.cli.refused("put", "shop.orders", "who=ada", "n=one")
    assert "ahead" in shop.cli.refused("put", "shop.orders", "who=ada", "n=1", "--timestamp", str(FUTURE_US))
    assert "65535" in shop.cli.refused("put", "shop.orders", f"who={'k' * 70_000}", "n=1")
    assert shop.cli.json("get", "shop.orders", "who=ada", "n=1")["what"] == "book"
