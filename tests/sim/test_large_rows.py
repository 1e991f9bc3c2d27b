"""Rows that many writes have made larger than any message that carries a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.sim.test_rows import Shop, big, instance, shop
from trimtab.catalog.commands import ColumnSpec, CreateTable
from trimtab.catalog.schema import Table
from trimtab.node.replicas.folding import Folding
from trimtab.rows import protocol
from trimtab.rows.protocol import GetRequest, PutRequest, ScanRequest
from trimtab.sim.machines import Machine
from trimtab.tablets.consistency import Level

COLUMNS = [2, 3, 4, 5]
SIZE = 700_000  # each; a request may have 1 MiB


@contextmanager
def large_row() -> Iterator[tuple[Shop, Table]]:
    with shop() as rows:
        columns = [ColumnSpec("id", "bigint"), *(ColumnSpec(f"c{number}", "text") for number in COLUMNS)]
        rows.change(CreateTable("shop", "wide", columns, ["id"], tablets=8))
        table = rows.table("shop.wide")
        for column in COLUMNS:
            put(rows, table, rows.machines[0], column)
        yield rows, table


def put(rows: Shop, table: Table, machine: Machine, column: int) -> None:
    cells: list[list[bytes | None]] = [[big(1), b"x" * SIZE]]
    rows.write(machine, PutRequest(table.id, table.version, [1, column], cells, Level.QUORUM))


def size(rows: Shop, table: Table, machine: Machine, level: Level) -> int:
    request = GetRequest(table.id, table.version, [[big(1)]], COLUMNS, level)
    row = protocol.decode_rows(rows.ask(machine, protocol.GET, protocol.encode(request))).rows[0]
    assert row is not None
    return sum(len(cell or b"") for cell in row)


def test_a_row_of_several_megabytes_is_read_scanned_and_folded() -> None:
    with large_row() as (rows, table):
        for machine in rows.machines:
            for level in (Level.ONE, Level.QUORUM, Level.ALL):
                assert size(rows, table, machine, level) == len(COLUMNS) * SIZE
        assert len(rows.pages(rows.machines[1], ScanRequest(table.id, table.version, COLUMNS, level=Level.QUORUM))) == 1
        a = instance(rows.machines[0])
        replica = next(each for each in a.holdings.shelf.held() if each.table == table.id and each.written_bytes > SIZE)
        folding: Folding = a.holdings.folding
        assert rows.cluster.do(folding.walk(replica))
        assert size(rows, table, rows.machines[1], Level.ALL) == len(COLUMNS) * SIZE


def test_a_replica_that_lacks_such_a_row_is_given_it_by_a_read() -> None:
    with large_row() as (rows, table):
        a, _, c = rows.machines
        shelf = instance(c).holdings.shelf
        replica = next(each for each in shelf.held() if each.table == table.id and each.written_bytes > SIZE)
        assert replica.rewrite([key for key, _ in replica.scan(b"", None)], [])
        assert size(rows, table, a, Level.ALL) == len(COLUMNS) * SIZE
        assert size(rows, table, c, Level.ONE) == len(COLUMNS) * SIZE


def test_a_get_of_many_large_rows_is_refused_before_it_fills_the_memory_and_fewer_are_answered() -> None:
    with shop() as rows:
        name = "x" * SIZE
        for id in range(20):
            rows.put(rows.machines[id % 3], id, name)
        for machine in rows.machines[:2]:
            for level in (Level.ONE, Level.QUORUM):
                assert rows.refusal(rows.get_many, machine, list(range(20)), level)[0] == "too_large"
                found = rows.get_many(machine, list(range(8)), level).rows
                assert [len((row or [b""])[0] or b"") for row in found] == [SIZE] * 8
