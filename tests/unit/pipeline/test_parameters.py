"""Parameters of jobs: what makes no sense is refused, with what is wrong, before anything is asked for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trimtab.client.errors import InvalidRequest
from trimtab.jobs.records import JobKind
from trimtab.pipeline.parameters import KINDS, ExportParameters, LoadParameters, StreamParameters, parse, plain


def test_every_kind_of_job_has_parameters_that_survive_the_queue() -> None:
    assert set(KINDS) == set(JobKind)
    given = LoadParameters(table="shop.users", paths=["/data/a.parquet"], options={"ttl": "60"})
    assert plain(given) == {"table": "shop.users", "paths": ["/data/a.parquet"], "options": {"ttl": "60"}}
    assert parse(LoadParameters, plain(given)) == given


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (JobKind.COUNT, {}, "table"),
        (JobKind.COUNT, {"table": "users"}, "users"),
        (JobKind.COUNT, {"table": "shop.users", "asof": 3}, "asof"),
        (JobKind.COUNT, {"table": "shop.users", "as_of_us": -1}, "as_of_us"),
        (JobKind.COUNT, {"table": "shop.users", "consistency": "TWO"}, "consistency"),
        (JobKind.LOAD, {"table": "shop.users", "paths": []}, "paths"),
        (JobKind.LOAD, {"table": "shop.users", "paths": ["a.csv"]}, "absolute"),
        (JobKind.LOAD, {"table": "shop.users", "paths": ["/a"], "format": "xml"}, "format"),
        (JobKind.LOAD, {"table": "shop.users", "paths": ["/a"], "options": {"loadId": "x"}}, "loadId"),
        (JobKind.EXPORT, {"table": "shop.users", "path": "out"}, "absolute"),
        (
            JobKind.EXPORT,
            {"table": "shop.users", "path": "s3://backups/users"},
            "renamed when it is whole, which s3://",
        ),
        (JobKind.EXPORT, {"table": "shop.users", "path": "GS://backups/users"}, "renamed when it is whole"),
        (JobKind.VERIFY, {"table": "shop.users", "limit": 10_000_000}, "limit"),
        (JobKind.STREAM, {"table": "shop.users", "session": "../x", "copies": []}, "copies"),
        (
            JobKind.STREAM,
            {"table": "a.b", "session": "../x", "copies": [{"tablet": 0, "target": 1, "sources": [2]}]},
            "session",
        ),
        (
            JobKind.STREAM,
            {"table": "a.b", "copies": [{"tablet": 0, "target": 1, "sources": [2], "session": "s/1"}]},
            "session",
        ),
        (JobKind.STREAM, {"table": "a.b", "copies": [{"tablet": 0, "target": 1, "sources": [2]}]}, "session"),
        (JobKind.REPAIR, {"table": "a.b", "tablets": [1, 2], "targets": [[1]]}, "each of the tablets"),
        (
            JobKind.STREAM,
            {"table": "a.b", "session": "s", "copies": [{"tablet": 0, "target": 1, "sources": [1]}]},
            "target",
        ),
        (
            JobKind.STREAM,
            {"table": "a.b", "session": "s", "copies": [{"tablet": 0, "target": 1, "sources": [2]}] * 2},
            "twice",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(kind: JobKind, given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse(KINDS[kind], given)


@pytest.mark.parametrize("path", ["/out", "file:///out", "hdfs://names:8020/out"])
def test_exports_go_where_a_directory_can_be_renamed_and_loads_come_from_anywhere(path: str) -> None:
    assert parse(ExportParameters, {"table": "shop.users", "path": path}).path == path
    assert parse(LoadParameters, {"table": "shop.users", "paths": [path, "s3://backups/users"]})


def test_defaults_are_not_written_into_the_queue() -> None:
    assert plain(ExportParameters(table="shop.users", path="/out")) == {"table": "shop.users", "path": "/out"}
    copy = [{"tablet": 0, "target": 3, "sources": [1, 2]}]
    assert plain(parse(StreamParameters, {"table": "a.b", "session": "s-1", "copies": copy}))["copies"] == copy


_RACE = """
import sys, threading
from trimtab.pipeline.parameters import StreamParameters, parse
sys.setswitchinterval(1e-6)
together = threading.Barrier(4)
given = {"table": "a.b", "session": "s", "copies": [{"tablet": 1, "target": 2, "sources": [1]}]}

def begin():
    together.wait()
    parse(StreamParameters, given)

threads = [threading.Thread(target=begin) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def test_jobs_that_begin_at_once_in_several_threads_do_not_crash_the_process() -> None:
    """msgspec crashes, often enough, where two threads use a type for the first time; so no thread is the first."""
    tries = [subprocess.Popen([sys.executable, "-c", _RACE]) for _ in range(8)]
    assert [each.wait(300) for each in tries] == [0] * 8
