"""Rejected rows of loads whose drivers were killed at any point: none is lost, and none stays of a load that failed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec import structs
from tests.unit.spark.test_loading import FakeCluster, begun, part

from trimtab.client.errors import Timeout, Unavailable
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.spark import rejecting
from trimtab.spark.load_plan import LoadFailed, StagedPart
from trimtab.spark.loading import LoadPending, LoadRequest, LoadRun

OPEN, FINAL = "_load-shop.things-load1", "shop.things-load1-00000.parquet"


class Killed(BaseException):
    """The driver is no more; nothing of it runs on."""


@pytest.fixture
def aside(tmp_path: Path) -> Path:
    return tmp_path / "aside"


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def loading(cluster: FakeCluster, aside: Path) -> tuple[LoadRun, StagedPart]:
    """A load that was begun, one task of which rejected a row, and another attempt of which was lost."""
    run = begun(cluster, rejected=str(aside))
    name = rejecting.name_of(run.plan.table.full_name, run.id)
    written = {}
    for attempt in ("a0", "lost"):
        files = rejecting.RejectFiles(str(aside), name, attempt)
        files.add(pa.table({"id": [1], "_reason": ["it is too large"]}))
        written[attempt] = files.close()
    return run, replace(part(cluster), rejected=1, rejected_files=written["a0"])


def there(aside: Path) -> list[str]:
    return sorted(path.name for path in aside.iterdir())


def fail(error: BaseException) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it


def test_rejected_rows_are_in_place_when_the_load_is_committed(cluster: FakeCluster, aside: Path) -> None:
    run, staged = loading(cluster, aside)
    seen: list[str] = []
    cluster.on_commit = lambda: seen.extend(there(aside))
    run.commit([staged])
    assert seen == [OPEN, FINAL]
    assert there(aside) == [FINAL]


def test_a_driver_killed_after_the_commit_leaves_what_the_same_load_again_finishes(
    cluster: FakeCluster, aside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, staged = loading(cluster, aside)
    with monkeypatch.context() as patched:
        patched.setattr(rejecting, "settle", lambda *_: fail(Killed())())
        with pytest.raises(Killed):
            run.commit([staged])
    assert there(aside) == [OPEN, FINAL]
    assert begun(cluster, rejected=str(aside)).plan.done
    assert there(aside) == [FINAL]


def test_a_driver_killed_before_the_commit_leaves_what_the_next_load_sweeps(cluster: FakeCluster, aside: Path) -> None:
    run, staged = loading(cluster, aside)
    cluster.on_commit = fail(Killed())
    with pytest.raises(Killed):
        run.commit([staged])
    assert there(aside) == [OPEN, FINAL]
    other = FakeCluster()
    first = cluster.record
    other.show = lambda table, id: first if id == "load1" else other.record  # type: ignore[method-assign]
    next_one = LoadRun.begin(other, LoadRequest("shop.users", "load2", rejected=str(aside)))
    assert there(aside) == [OPEN, "_load-shop.things-load2", FINAL], "it is open still"
    next_one.abort("enough")
    assert first is not None
    first = structs.replace(first, state=LoadState.ABORTED)
    other.record = None
    LoadRun.begin(other, LoadRequest("shop.users", "load3", rejected=str(aside)))
    assert there(aside) == ["_load-shop.things-load3"]


def test_a_load_tried_again_keeps_the_rejects_of_the_run_that_counts(cluster: FakeCluster, aside: Path) -> None:
    run, staged = loading(cluster, aside)
    cluster.on_commit = fail(Killed())
    with pytest.raises(Killed):
        run.commit([staged])
    (aside / "shop.things-load1-00001.parquet").write_bytes(b"of a run that had two of them")
    (aside / "shop.things-load1-1-00000.parquet").write_bytes(b"of another load")
    cluster.on_commit = lambda: None
    run, staged = loading(cluster, aside)
    run.commit([staged])
    assert there(aside) == [FINAL, "shop.things-load1-1-00000.parquet"]


def test_rejects_that_can_not_be_kept_fail_the_load_and_nothing_has_changed(cluster: FakeCluster, aside: Path) -> None:
    run, staged = loading(cluster, aside)
    (aside / FINAL).mkdir()  # nothing can be renamed to that
    (aside / FINAL / "x").touch()
    with pytest.raises(LoadFailed, match=r"rejected rows can't be kept in .*, so nothing is loaded"):
        run.commit([staged])
    assert cluster.commits == 0
    assert cluster.record is not None and cluster.record.state is LoadState.ABORTED
    assert OPEN not in there(aside)


def test_what_can_not_be_removed_after_the_commit_fails_nothing(
    cluster: FakeCluster, aside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, staged = loading(cluster, aside)
    monkeypatch.setattr(rejecting, "settle", lambda *_: fail(OSError("the file server is away"))())
    assert run.commit([staged]).state is LoadState.PUBLISHED


def test_an_answer_that_was_lost_does_not_cost_the_rejects(cluster: FakeCluster, aside: Path) -> None:
    run, staged = loading(cluster, aside)
    run.settle_s = 0.0

    def done_but_lost() -> None:
        assert cluster.record is not None
        cluster.record = structs.replace(cluster.record, state=LoadState.COMMITTED, sealed=(1, 2, 3))
        raise Timeout("no answer came in time")

    cluster.on_commit = done_but_lost
    assert run.commit([staged]).state is LoadState.PUBLISHED
    assert there(aside) == [FINAL]


def test_where_nobody_answers_nothing_is_removed(cluster: FakeCluster, aside: Path) -> None:
    run, staged = loading(cluster, aside)
    run.settle_s = 0.0
    cluster.on_commit = fail(Timeout("no answer came in time"))
    cluster.abort = lambda *_: fail(Unavailable("nobody leads"))()  # type: ignore[method-assign, assignment]
    with pytest.raises(LoadPending):
        run.commit([staged])
    assert there(aside) == [OPEN, FINAL]


def test_a_load_that_is_refused_leaves_no_folder(cluster: FakeCluster, aside: Path) -> None:
    cluster.begin = lambda request: fail(Unavailable("nobody leads"))()  # type: ignore[method-assign, assignment]
    with pytest.raises(Unavailable):
        begun(cluster, rejected=str(aside))
    assert there(aside) == []


def test_folders_of_loads_that_nobody_knows_go_after_a_week(aside: Path) -> None:
    for name in ("_load-shop.things-old", "_load-shop.things-new", "_load-shop.others-old"):
        (aside / name).mkdir(parents=True)
        if name.endswith("old"):
            os.utime(aside / name, (0, 0))

    def find(_: str) -> LoadRecord | None:
        return None

    assert rejecting.sweep(str(aside), "shop.things", "shop.things-mine", find) == ["shop.things-old"]
    assert there(aside) == ["_load-shop.others-old", "_load-shop.things-new"]
