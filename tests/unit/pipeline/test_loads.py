"""What a load job says of itself: when it is not known how its load ends, and whether another attempt may help."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.jobs.records import Command, JobKind, JobRecord, JobState
from trimtab.loads.records import LoadKind, LoadRecord, LoadState
from trimtab.pipeline import loads
from trimtab.pipeline.failures import Cancelled, JobFailed, LeaseLost, PutBack, Stopped
from trimtab.pipeline.leases import DriverLease, boot_s
from trimtab.pipeline.running import JobContext
from trimtab.spark.files import FileLoad
from trimtab.spark.load_plan import StagedPart
from trimtab.spark.loading import LoadPending

PARAMETERS = {"table": "shop.users", "paths": ["/data/users.parquet"]}


class Spark:
    def join(self, _group: str, _why: str) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))

    def cancel(self, _group: str) -> None: ...


class Begun:
    """A load that was begun, under a job of its own. `parts` is what its tasks say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, record: LoadRecord | None, *parts: StagedPart) -> None:
        self.record = record
        self.aborted: list[str] = []
        self.run = SimpleNamespace(
            id="job-9-ab",
            door=SimpleNamespace(show=lambda _table, _id: self.record),
            plan=SimpleNamespace(table=SimpleNamespace(id=7)),
            renewing=nullcontext,
            abort=self.aborted.append,
        )
        self.tasks: list[Any] = []
        self.size_bytes = 0
        monkeypatch.setattr(FileLoad, "begin", lambda *_args, **_named: self)
        monkeypatch.setattr(loads, "data_paths", lambda path: [path])
        monkeypatch.setattr(loads.tasks, "run", lambda *_args: list(parts))
        job = JobRecord(9, Command(JobKind.LOAD), JobState.RUNNING, owner_term=1, attempts=1, request_id="ab")
        self.context = JobContext(
            job, DriverLease(60_000, boot_s()), Spark(), note=lambda _note: None, peers=("127.0.0.1:4100",)
        )

    def finish(self, _parts: Any) -> LoadRecord:
        raise LoadPending("it could neither be committed nor aborted now")

    def stop(self, why: Stopped) -> None:
        self.context.mark(why)
        assert not self.context.halt()


def record(state: LoadState) -> LoadRecord:
    return LoadRecord("job-9-ab", 7, LoadKind.APPEND, state, 999)


@pytest.mark.parametrize(
    ("state", "succeeds"),
    [
        (LoadState.COMMITTED, True),
        (LoadState.PUBLISHED, True),
        (LoadState.STAGING, False),
        (LoadState.ABORTED, False),
        (None, False),
    ],
)
def test_a_load_counts_as_done_only_when_it_is_committed(
    monkeypatch: pytest.MonkeyPatch, state: LoadState | None, succeeds: bool
) -> None:
    begun = Begun(monkeypatch, record(state) if state is not None else None)
    if succeeds:
        assert loads.load(begun.context, PARAMETERS)["load"] == "job-9-ab"
    else:
        with pytest.raises(LoadPending):
            loads.load(begun.context, PARAMETERS)


@pytest.mark.parametrize(
    ("parts", "says", "again"),
    [
        ([("a full disk", True)], "a full disk", True),
        ([("", False), ("out of reach", True), ("a full disk", True)], "a full disk", True),
        ([("a full disk", True), ("the row with p0=None", False)], "the row with p0=None", False),
    ],
)
def test_a_load_that_another_attempt_may_bring_in_is_tried_again_unless_a_row_is_bad(
    monkeypatch: pytest.MonkeyPatch, parts: list[tuple[str, bool]], says: str, again: bool
) -> None:
    """Each reason a task gave was final: a disk that was full for a minute ended the job for good."""
    made = [StagedPart(f"a{number}", failed=why, again=may) for number, (why, may) in enumerate(parts)]
    begun = Begun(monkeypatch, record(LoadState.ABORTED), *made)
    with pytest.raises(JobFailed) as failed:
        loads.load(begun.context, PARAMETERS)
    assert (str(failed.value), failed.value.again, set(begun.aborted)) == (says, again, {says})


@pytest.mark.parametrize("why", [Cancelled("an operator"), PutBack("the driver ends")])
def test_a_load_that_is_committed_is_done_however_late_it_is_told_to_stop(
    monkeypatch: pytest.MonkeyPatch, why: Stopped
) -> None:
    """An operator read "cancelled" and tried again, and the rows of the first load were there."""
    begun = Begun(monkeypatch, record(LoadState.COMMITTED))
    monkeypatch.setattr(loads.tasks, "run", lambda *_args: begun.stop(why) or [])
    assert loads.load(begun.context, PARAMETERS)["state"] == "committed"
    settled = begun.context.settled
    assert settled is not None and settled["load"] == "job-9-ab", "for a driver that waits no longer for its code"
    assert begun.aborted[0].startswith("job 9 was told to stop"), "which is refused"


def test_a_load_that_is_stopped_before_its_commit_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Begun(monkeypatch, record(LoadState.ABORTED))
    monkeypatch.setattr(loads.tasks, "run", lambda *_args: begun.stop(Cancelled("an operator")) or [])
    with pytest.raises(Cancelled):
        loads.load(begun.context, PARAMETERS)
    assert begun.context.settled is None


def test_a_load_of_a_lost_lease_is_another_drivers_to_tell_of(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Begun(monkeypatch, record(LoadState.COMMITTED))
    monkeypatch.setattr(loads.tasks, "run", lambda *_args: begun.stop(LeaseLost("gone")) or [])
    with pytest.raises(LeaseLost):
        loads.load(begun.context, PARAMETERS)
    assert (begun.aborted, begun.context.settled) == ([], None)
