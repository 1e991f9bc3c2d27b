"""The moment of an export: that of an earlier attempt while its snapshots are there, else one that is checked anew.
And its end: what it names is all there is, and a driver that takes over knows it again.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs
from tests.unit.rows import tables

from trimtab.catalog.catalog import Catalog
from trimtab.catalog.schema import Keyspace
from trimtab.client.errors import InvalidRequest
from trimtab.pipeline import exports
from trimtab.pipeline.loads import data_paths
from trimtab.pipeline.parameters import ExportParameters
from trimtab.pipeline.tasks import Done
from trimtab.spark.file_splits import find
from trimtab.spark.options import Connection
from trimtab.spark.scan_plan import ScanPlan
from trimtab.tablets.consistency import Level

TABLE = tables.table(["int"], [], ["text"])


def begin(monkeypatch: pytest.MonkeyPatch, noted: dict[str, Any], *, held: bool, asked_us: int) -> tuple[int, str]:
    """Of a table that was overwritten at 100."""
    notes: list[dict[str, Any]] = []

    def scan_of(*_args: Any, as_of_us: int, **_named: Any) -> Any:
        if 0 < as_of_us < 100:
            raise InvalidRequest("it was overwritten since")
        plan = SimpleNamespace(table=SimpleNamespace(id=7), epoch=2)
        return SimpleNamespace(plan=plan, parts=[], known=SimpleNamespace(now_us=200))

    monkeypatch.setattr(exports, "scan_of", scan_of)
    monkeypatch.setattr(exports, "still_held", lambda *_: held)
    monkeypatch.setattr(exports, "latest_us", lambda _scan: 210)
    monkeypatch.setattr(exports, "_await_closed", lambda *_: None)
    monkeypatch.setattr(exports, "_remove", lambda _folder: None)
    monkeypatch.setattr(exports, "_at", lambda _scan, as_of_us: as_of_us)
    context: Any = SimpleNamespace(noted=noted, number=9, progress=lambda **_: None, checkpoint=notes.append)
    given = ExportParameters(table="shop.users", path="/out", as_of_us=asked_us)
    at_us, name = exports._begin(context, given, "/out.tmp")
    assert held or notes == [{"name": name, "as_of_us": at_us}]
    return at_us, name  # type: ignore[return-value]


def test_an_export_goes_on_at_its_moment_only_with_the_snapshots_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = {"name": "export-9-7-2-50", "as_of_us": 50}
    assert begin(monkeypatch, noted, held=True, asked_us=50) == (50, "export-9-7-2-50")
    with pytest.raises(InvalidRequest, match="overwritten since"):
        begin(monkeypatch, noted, held=False, asked_us=50)
    assert begin(monkeypatch, noted, held=False, asked_us=150)[0] == 150
    assert begin(monkeypatch, noted, held=False, asked_us=0)[0] == 210
    with pytest.raises(InvalidRequest, match="overwritten since"):
        begin(monkeypatch, {}, held=False, asked_us=50)


def finished(path: Path, job: str, *left: str) -> dict[str, Any]:
    """An export of one tablet with three rows, beside whose files attempts left these."""
    folder = Path(f"{path}.partial-9")
    (folder / "data").mkdir(parents=True)
    rows = pa.record_batch({"p0": pa.array([1, 2, 3], pa.int32()), "v0": ["a", "b", "c"]})
    writer = exports._File(
        fs.LocalFileSystem(), str(folder / "data"), "tablet-00000-0000.parquet", rows.schema, "zstd", 0
    )
    writer.add(rows)
    files = [writer.close(0)]
    for name in left:
        (folder / "data" / name).write_bytes(b"half")
    names = ("p0", "v0")
    plan = ScanPlan(Connection("h:1"), TABLE, {}, names, names, 4, 0, Level.QUORUM, "", {}, as_of_us=50)
    catalog = Catalog(keyspaces={TABLE.keyspace: Keyspace(TABLE.keyspace, {"dc1": 3})}, types={})
    given = ExportParameters(table=TABLE.full_name, path=str(path))
    scan: Any = SimpleNamespace(plan=plan, parts=[])
    return exports._finish(given, scan, catalog, str(folder), str(path), files, job)


def test_what_killed_attempts_left_is_not_in_an_export_and_is_never_loaded(tmp_path: Path) -> None:
    out = tmp_path / "out"
    left = ("tablet-00000-0000.parquet.0.tmp", "tablet-00000-0001.parquet", "tablet-00000.done.json")
    assert finished(out, "job-9-ab", *left)["rows"] == 3
    whole = [str(out / "data" / "tablet-00000-0000.parquet")]
    assert [str(each) for each in (out / "data").iterdir()] == whole
    # An attempt that nobody waits for any more may still write; and exports of older releases have such files.
    (out / "data" / left[0]).write_bytes(b"half")
    assert [file.path for each in find(data_paths(str(out))) for file in each.files] == whole


def test_an_export_whose_end_nobody_heard_is_told_by_the_next_attempt_at_the_job(tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = finished(out, "job-9-ab")
    assert (told["rows"], told["files"], told["as_of_us"], "job" in told) == (3, 1, 50, False)
    again: Any = SimpleNamespace(number=9, load_id=lambda: "job-9-ab")
    assert exports.export(again, {"table": TABLE.full_name, "path": f"{out}/"}) == told
    # The same number, of another cluster.
    other: Any = SimpleNamespace(number=9, load_id=lambda: "job-9-cd")
    with pytest.raises(InvalidRequest, match="is there already"):
        exports.export(other, {"table": TABLE.full_name, "path": str(out)})


def test_a_task_that_can_not_write_where_the_driver_did_says_so_instead_of_being_tried_again(tmp_path: Path) -> None:
    task: Any = SimpleNamespace(folder=str(tmp_path / "elsewhere"))
    said = exports.export_tablet(task, Done())
    assert isinstance(said, str) and f"can't write to {tmp_path}/elsewhere/data: export to a directory" in said
