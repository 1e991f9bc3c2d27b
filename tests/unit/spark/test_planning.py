"""How a read is shared out among tasks."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.unit.rows import tables

from trimtab.client.errors import InvalidRequest, Unavailable
from trimtab.client.plans import TablePlan
from trimtab.loads.protocol import LoadsReply
from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.rows.tokens import AFTER_ALL, token_bytes
from trimtab.spark.options import read_options
from trimtab.spark.planning import GROUP_BYTES, Known, _check_time, _grouped, _parts, look
from trimtab.spark.scan_plan import Holder
from trimtab.tablets.ring import token_range

NOW_US = 1_800_000_000_000_000


def known(tablets: int = 8, sizes: dict[int, int] | None = None, online: tuple[int, ...] = (1, 2, 3)) -> Known:
    table = msgspec.structs.replace(tables.table(["int"], [], ["int"]), tablets=tablets)
    return Known(
        TablePlan(table, {}),
        {},
        {
            each: Holder(each, f"i{each}", f"127.0.0.1:{3300 + each}", "dc1" if each < 3 else "dc2")
            for each in (1, 2, 3)
        },
        frozenset(online),
        [(1, 2, 3)] * tablets,
        sizes or {},
        LoadsReply([]),
        NOW_US,
    )


def test_tablets_are_read_where_least_is_read_so_far() -> None:
    cluster = known(sizes=dict.fromkeys(range(8), 1000))
    parts = _parts(cluster, "", None, 1)
    assert [part.holders[0] for part in parts] == [1, 2, 3, 1, 2, 3, 1, 2]
    assert all(sorted(part.holders) == [1, 2, 3] for part in parts)


def test_those_who_are_not_online_or_far_away_come_last() -> None:
    parts = _parts(known(online=(2, 3)), "dc1", None, 1)
    assert {part.holders for part in parts} == {(2, 3, 1)}


def test_small_tablets_of_one_instance_make_one_task_and_large_ones_each_their_own() -> None:
    small = _grouped(_parts(known(sizes=dict.fromkeys(range(8), 1000)), "", None, 1), 1)
    assert sorted(len(group) for group in small) == [2, 3, 3]
    assert all(len({part.holders[0] for part in group}) == 1 for group in small)
    large = _grouped(_parts(known(sizes=dict.fromkeys(range(8), GROUP_BYTES)), "", None, 1), 1)
    assert [len(group) for group in large] == [1] * 8


def test_splits_of_a_tablet_cover_its_tokens_without_a_gap() -> None:
    parts = _parts(known(tablets=4), "", None, 3)
    assert len(_grouped(parts, 3)) == 12
    for tablet in range(4):
        ranges = [part.ranges[0] for part in parts if part.tablet == tablet]
        first, last = token_range(tablet, 4)
        assert ranges[0][0] <= token_bytes(first + 1)
        assert ranges[-1][1] == AFTER_ALL or ranges[-1][1] > token_bytes(last)
        assert [low for low, _ in ranges[1:]] == [high for _, high in ranges[:-1]]


def test_only_tablets_with_wanted_keys_are_read() -> None:
    keys = [(token_bytes(5) + b"a", token_bytes(5) + b"b"), (token_bytes(6) + b"a", token_bytes(6) + b"b")]
    (part,) = _parts(known(), "", keys, 4)
    assert (part.tablet, list(part.ranges)) == (4, keys)
    assert len(_grouped([part], 1)) == 1


def load(state: LoadState, stamp_us: int) -> LoadRecord:
    return LoadRecord("l1", 1, LoadKind.APPEND, state, stamp_us)


def test_a_time_after_the_stamp_of_a_load_under_way_is_refused() -> None:
    at_us = NOW_US - 1_000_000
    cluster = known()
    _check_time(cluster, at_us)
    for state in (LoadState.STAGING, LoadState.COMMITTED):
        cluster.loads.loads[:] = [load(state, at_us - 1)]
        with pytest.raises(InvalidRequest, match=r"the load l1 is (staging|committed), and its rows will be of"):
            _check_time(cluster, at_us)
        cluster.loads.loads[:] = [load(state, at_us + 1)]
        _check_time(cluster, at_us)
    cluster.loads.loads[:] = [load(LoadState.PUBLISHED, at_us - 1)]
    _check_time(cluster, at_us)


def test_a_time_is_judged_by_the_cluster_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = known()
    kept_us = cluster.table.options.history_s * 1_000_000
    for driver_s in (0.0, 9e9):
        monkeypatch.setattr("time.time", lambda driver_s=driver_s: driver_s)
        _check_time(cluster, NOW_US)
        _check_time(cluster, NOW_US - kept_us)
        with pytest.raises(InvalidRequest, match="lies in the future"):
            _check_time(cluster, NOW_US + 1_000_001)
        with pytest.raises(InvalidRequest, match="keeps its history for"):
            _check_time(cluster, NOW_US - kept_us - 1_000_000)


def test_a_time_before_the_table_was_overwritten_is_refused() -> None:
    at_us = NOW_US - 1_000_000
    cluster = known()
    over = LoadRecord("o1", 1, LoadKind.OVERWRITE, LoadState.PUBLISHED, at_us - 5_000_000, generation=2, epoch=1)
    for published_ms, generation, refused in ((at_us // 1000 + 1, 2, True), (at_us // 1000, 2, False)):
        cluster.loads.loads[:] = [msgspec.structs.replace(over, published_ms=published_ms)]
        cluster.loads.epochs[cluster.table.id] = (1, generation)
        if refused:
            with pytest.raises(InvalidRequest, match="was overwritten since, by the load o1"):
                _check_time(cluster, at_us)
        else:
            _check_time(cluster, at_us)
    cluster.loads.loads[:] = [msgspec.structs.replace(over, published_ms=NOW_US // 1000, state=LoadState.ROLLED_BACK)]
    cluster.loads.epochs[cluster.table.id] = (2, 1)
    _check_time(cluster, at_us)


def test_a_plan_can_be_made_where_a_loop_runs_as_in_a_notebook() -> None:
    async def cell() -> None:
        options = read_options({"peer": "127.0.0.1:1", "table": "shop.users", "timeout": "0.2"})
        with pytest.raises(Unavailable):
            look(options)

    asyncio.run(cell())
