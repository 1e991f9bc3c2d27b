from __future__ import annotations

import asyncio

import pytest

from trimtab.client.errors import Timeout
from trimtab.client.plans import Row
from trimtab.playground.orders import order
from trimtab.playground.traffic import Sample, Traffic


class Table:
    """Takes rows in memory. `loses` and `refuses` are numbers of rows that are lost, or not answered."""

    def __init__(
        self,
        rows: int,
        *,
        loses: frozenset[int] = frozenset(),
        refuses: frozenset[int] = frozenset(),
        refusals: int = 1000,
    ) -> None:
        self.rows = {number: order(number) for number in range(rows)}
        self.loses, self.refuses = loses, refuses
        self.refusals = refusals
        self.puts = 0
        self._enough = asyncio.Event()
        self._wanted = 0

    async def used(self, puts: int) -> None:
        """Wait for so many puts."""
        self._wanted = puts
        await self._enough.wait()

    async def put(self, row: Row) -> None:
        self.puts += 1
        if 0 < self._wanted <= self.puts:
            self._enough.set()
        if row["id"] in self.refuses and self.refusals:
            self.refusals -= 1
            raise Timeout("nobody answered")
        if row["id"] not in self.loses:
            self.rows[row["id"]] = dict(row)

    async def get(self, *, id: int) -> Row | None:
        return self.rows.get(id)


def used(table: Table, puts: int) -> Traffic:
    traffic = Traffic(10)

    async def run() -> None:
        going = asyncio.ensure_future(traffic.run(table))
        await table.used(puts)
        traffic.stopped = True
        await going

    asyncio.run(run())
    return traffic


def test_every_write_makes_a_row_of_its_own_and_every_read_finds_what_was_written() -> None:
    table = Table(10)
    traffic = used(table, 20)
    assert sorted(table.rows) == list(range(10 + traffic.written))
    assert (traffic.acknowledged, traffic.failed, traffic.wrong) == (traffic.written, 0, [])
    assert traffic.gets and traffic.slowest_ms(0.99) >= 0


def test_a_write_without_an_answer_is_counted_as_failed_and_is_no_row_that_must_be_there() -> None:
    traffic = used(Table(10, refuses=frozenset((12, 13))), 20)
    assert traffic.unknown == {12, 13} and traffic.failed == 2
    assert traffic.acknowledged == traffic.written - 2
    assert set(traffic.errors) == {"nobody answered"} and traffic.wrong == []


def test_a_write_without_an_answer_is_written_again_as_an_application_would() -> None:
    table = Table(10, refuses=frozenset((12,)), refusals=1)
    traffic = used(table, 20)
    assert (traffic.repeated, traffic.failed, traffic.acknowledged) == (1, 0, traffic.written)
    assert table.rows[12] == order(12)


def test_an_acknowledged_row_that_is_not_there_is_noticed() -> None:
    traffic = used(Table(0, loses=frozenset(range(100))), 40)
    assert traffic.wrong


def test_the_longest_silence_begins_with_the_moment_that_is_asked_about_and_lasts_until_now() -> None:
    traffic = Traffic(0, puts=[Sample(each, 0.1) for each in (1.0, 2.0, 2.1, 3.5, 3.6)], clock=lambda: 3.7)
    assert traffic.longest_silence_s(since=2.05) == pytest.approx(1.4)
    assert Traffic(0, puts=[Sample(1.0, 0.1)], clock=lambda: 9.0).longest_silence_s(since=2.0) == pytest.approx(7.0)


def test_how_slow_requests_were_can_be_asked_of_a_while() -> None:
    traffic = Traffic(0, puts=[Sample(1.0, 0.5), Sample(2.0, 0.001)], gets=[Sample(3.0, 0.002)])
    assert traffic.slowest_ms(0.99) == 500
    assert traffic.slowest_ms(0.99, since=1.5) == pytest.approx(2)
    assert traffic.slowest_ms(0.99, since=9) == 0
