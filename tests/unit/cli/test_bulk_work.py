"""`trimtab load`, `export`, `verify`, `repair`, `count`, `analyze`: what is asked for, what is said, the exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.operator import MadeUp, MadeUpJobs, Operator
from tests.unit.client.views import view
from tests.unit.rows.tables import table as table_of

from trimtab.cli import bulk_work
from trimtab.cli.bulk_work import moment_us
from trimtab.cli.errors import WrongUsage
from trimtab.jobs.protocol import Progress, ScheduleReply
from trimtab.jobs.records import Command, JobKind, JobRecord, JobState

EQUAL = {
    "table": "shop.users",
    "equal": True,
    "tablets": 4,
    "ranges": 64,
    "versions": 1000,
    "differences": 0,
    "more": False,
    "listed": [],
    "troubles": [],
    "differing_tablets": [],
}
DIFFERENT = EQUAL | {
    "equal": False,
    "differences": 1,
    "differing_tablets": [2],
    "listed": [{"tablet": 2, "key": {"id": 7}, "lacking": ["i2"]}],
}


class Jobs(MadeUpJobs):
    """Also tells of a job that has ended, and of the schedule."""

    interval_s = 259_200

    async def get(self, number: int) -> tuple[JobRecord, Progress | None]:
        return self.states[-1], None

    async def schedule_repairs(self, interval_s: int = -1) -> ScheduleReply:
        if interval_s >= 0:
            self.interval_s = interval_s
        return ScheduleReply(self.interval_s)


@pytest.fixture(autouse=True)
def table_is_there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bulk_work, "_table", lambda contact, name: table_of(["int"], [], ["text"]))
    yield


def cluster(kind: JobKind, result: dict[str, Any], state: JobState = JobState.SUCCEEDED, error: str = "") -> MadeUp:
    made = MadeUp(view())
    jobs = Jobs()
    queued = JobRecord(9, Command(kind), JobState.QUEUED, why=f"{kind.value} of shop.users")
    jobs.states = [queued, JobRecord(9, Command(kind), state, why=queued.why, result=result, error=error)]
    made.jobs = jobs
    return made


def test_a_count_is_a_job_and_its_rows_are_said(operator: Operator) -> None:
    made = cluster(JobKind.COUNT, {"rows": 12_345})
    code, out, _ = operator(made, "count", "shop.users", "--as-of", "2025-06-01T12:00:00Z")
    assert code == 0 and out.startswith("12,345 rows")
    ((kind, parameters, options),) = made.jobs.asked
    assert (kind, parameters) == (JobKind.COUNT, {"table": "shop.users", "as_of_us": 1_748_779_200_000_000})
    assert options["why"] == "count of shop.users"


def test_a_job_need_not_be_waited_for(operator: Operator) -> None:
    code, out, _ = operator(cluster(JobKind.COUNT, {}), "count", "shop.users", "--no-wait")
    assert code == 0 and "Job 9" in out and "tasks cancel 9" in out


def test_a_job_that_fails_says_why(operator: Operator) -> None:
    made = cluster(JobKind.COUNT, {}, JobState.FAILED, "the table was dropped")
    code, out, err = operator(made, "count", "shop.users")
    assert code == 1 and not out and "the table was dropped" in err


def test_replicas_that_differ_are_exit_code_one(operator: Operator) -> None:
    code, out, _ = operator(cluster(JobKind.VERIFY, EQUAL), "verify", "shop.users")
    assert code == 0 and "hold the same" in out
    code, out, _ = operator(cluster(JobKind.VERIFY, DIFFERENT), "verify", "shop.users")
    assert code == 1 and "id=7: lacking at i2" in out and "trimtab repair shop.users" in out
    code, out, _ = operator(cluster(JobKind.VERIFY, DIFFERENT), "verify", "shop.users", "--json")
    assert code == 1 and json.loads(out)["result"]["differences"] == 1


def test_a_repair_that_left_something_is_exit_code_one(operator: Operator) -> None:
    told = {
        "table": "shop.users",
        "tablets": 4,
        "repaired_tablets": 3,
        "incomplete_tablets": 1,
        "rows_sent": 2,
        "bytes_sent": 100,
        "rows_lacked": {"i2": 2},
        "repaired_through_ms": 5,
        "troubles": ["tablet 1: i3: no"],
    }
    code, out, _ = operator(cluster(JobKind.REPAIR, told), "repair", "shop.users")
    assert code == 1 and "3 of 4 tablets" in out and "not repaired: tablet 1: i3: no" in out


def test_the_schedule_of_repairs_is_shown_and_set(operator: Operator) -> None:
    made = cluster(JobKind.REPAIR, {})
    assert operator(made, "repair")[1] == "Every table is repaired every 3 days.\n"
    assert operator(made, "repair", "--every", "0")[1] == "Tables are repaired only when somebody asks for it.\n"
    code, _, err = operator(made, "repair", "shop.users", "--every", "2")
    assert code == 2 and "all tables" in err


def test_files_are_looked_for_before_a_job_is_asked_for(operator: Operator, tmp_path: Path) -> None:
    told = {"rows": 3, "bytes": 99, "rejected": 0, "state": "published", "load": "job-9"}
    made = cluster(JobKind.LOAD, told)
    code, _, err = operator(made, "load", "shop.users", str(tmp_path / "none.csv"))
    assert code == 1 and "there is nothing at" in err and not made.jobs.asked
    path = tmp_path / "some.csv"
    path.write_text("p0,v0\n1,a\n")
    code, out, _ = operator(made, "load", "shop.users", str(path), "--ttl", "60", "--option", "delimiter=;")
    assert code == 0 and out.startswith("3 rows are loaded")
    ((_, parameters, _),) = made.jobs.asked
    assert parameters["paths"] == [str(path)] and parameters["options"] == {"ttl": "60"}
    assert parameters["reading"] == {"delimiter": ";"}


@pytest.mark.parametrize("pattern", ["*.csv", "{some,other}.csv", "[rs]ome.csv"])
def test_a_pattern_that_means_a_file_passes(operator: Operator, tmp_path: Path, pattern: str) -> None:
    made = cluster(JobKind.LOAD, {"rows": 3, "bytes": 99, "rejected": 0, "state": "published", "load": "job-9"})
    (tmp_path / "some.csv").write_text("p0,v0\n1,a\n")
    assert operator(made, "load", "shop.users", str(tmp_path / pattern))[0] == 0
    code, _, err = operator(made, "load", "shop.users", str(tmp_path / "none" / pattern))
    assert code == 1 and "there is nothing at" in err


def test_the_export_that_a_table_is_made_from_is_looked_for_too(operator: Operator, tmp_path: Path) -> None:
    """It became a job, which failed when it began."""
    made = cluster(JobKind.LOAD, {"rows": 3, "bytes": 99, "rejected": 0, "state": "published", "load": "job-9"})
    path, export = tmp_path / "some.csv", tmp_path / "backup"
    path.write_text("p0,v0\n1,a\n")

    def load(*options: str) -> tuple[int, str, str]:
        return operator(made, "load", "shop.users", str(path), "--schema-from", *options)

    code, _, err = load(str(export))
    assert code == 1 and f"there is nothing at {export}; with --remote" in err
    export.mkdir()
    code, _, err = load(str(export))
    assert code == 1 and "is no export: it has no schema.json" in err and not made.jobs.asked
    (export / "schema.json").write_text("{}")
    for given in (str(export), str(export / "schema.json"), "s3://bucket/backup"):
        assert load(given)[0] == 0 and made.jobs.asked[-1][1]["schema_from"] == given
    assert load(str(tmp_path / "elsewhere"), "--remote")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("count", "users"), 2, "users"),
        (("count", "shop.users", "--as-of", "yesterday"), 2, "is no time"),
        (("count", "shop.users", "--as-of", "0"), 2, "is no time after 1970"),
        (("load", "shop.users", "/dev/null", "--timestamp", "1970-01-01"), 2, "timestamp: a time after 1970"),
        (("verify", "shop.users", "--tablet", "99"), 1, "no tablet 99"),
        (("load", "shop.users", "/dev/null", "--primary-key", "(a"), 2, "primaryKey"),
        (("load", "shop.users", "/dev/null", "--timestamp", "soon"), 2, "timestamp"),
        (("export", "shop.users", "/no/such/x", "--columns", "nothing"), 1, "no column nothing"),
        (("export", "shop.users", "/dev/null"), 1, "is there already"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_job_is_asked_for(
    operator: Operator, arguments: tuple[str, ...], code: int, says: str
) -> None:
    made = cluster(JobKind.COUNT, {"rows": 1})
    found, out, err = operator(made, *arguments)
    assert (found, out) == (code, "") and says in err, err
    assert not made.jobs.asked


def test_times_are_iso_or_microseconds() -> None:
    assert moment_us("") == 0
    assert moment_us("1748779200000000") == moment_us("2025-06-01T12:00:00") == 1_748_779_200_000_000
    for text in ("12 o'clock", "0", "1970-01-01T00:00:00Z", "1969-07-20", str(1 << 63)):
        with pytest.raises(WrongUsage, match="is no time"):
            moment_us(text)
