"""Copies on their way between two bulk servers: whole, with their manifest, and each failing by itself."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.bulk.serving import QUICK, Served, fetch_ticket, serving, stage_ticket

from trimtab.bulk import client
from trimtab.node import failpoints
from trimtab.pipeline import carrying, copies, links
from trimtab.pipeline.carrying import CarryTask, carry
from trimtab.pipeline.copies import Carry, Source
from trimtab.pipeline.hearing import Done
from trimtab.rows.ragged import from_list
from trimtab.storage import sst_columns
from trimtab.storage.file_sums import sum_of
from trimtab.storage.sst_file import open_table
from trimtab.storage.sst_writing import TableWriter

FILES = {"000001.sst": 300_000, "000002.sst": 120_000, "CURRENT": 16, "EMPTY": 0}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    with serving(tmp_path / "source") as source, serving(tmp_path / "target") as target:
        target.tell(["s1", "s2"])
        yield source, target


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(links, "AGAIN_S", 0.3)
    monkeypatch.setattr(client.BulkClient.__init__, "__kwdefaults__", {"patience": QUICK, "rng": None})
    monkeypatch.setattr(carrying, "SMALL_BYTES", 1_000)
    monkeypatch.setattr(copies, "SMALL_BYTES", 1_000)
    monkeypatch.setattr(carrying, "PACKED_BYTES", 1_000)
    yield
    failpoints.disarm()


def replica(served: Served, files: dict[str, int] = FILES, seed: int = 1) -> Source:
    """A snapshot that lies at a server, of random bytes."""
    rng = random.Random(seed)
    for name, size_bytes in files.items():
        served.snapshot_file(name, rng.randbytes(size_bytes))
    (served.directory / "snapshots/r1/proof").write_text("0123456789abcdef")
    return Source(
        1,
        "i1",
        "r1",
        str(served.directory),
        "0123456789abcdef",
        "snapshots/r1/7/3.1",
        tuple(files.items()),
        served.address,
        fetch_ticket(),
        generation=2,
        adopted=5,
        repaired_through_ms=9,
        forgot_us=0,
    )


def copy_of(source: Source, target: Served, session: str = "s1", number: int = 0) -> Carry:
    ticket = stage_ticket(session)
    return Carry(number, "ks.t", 3, 2, "i2", session, ticket, target.address, (source,))


def whole(target: Served, session: str = "s1") -> dict[str, Any]:
    (path,) = (target.directory / "staging" / session / "3").glob("*.manifest.json")
    manifest: dict[str, Any] = json.loads(path.read_text())
    for file in manifest["files"]:
        data = (path.parent / file["name"]).read_bytes()
        assert (len(data), sum_of(data)) == (file["bytes"], file["checksum"])
    return manifest


@pytest.mark.parametrize("far", [False, True])
def test_a_copy_is_all_files_and_a_manifest_and_is_not_sent_twice(
    servers: tuple[Served, Served], monkeypatch: pytest.MonkeyPatch, far: bool
) -> None:
    source, target = servers
    if far:
        monkeypatch.setattr(carrying, "near", lambda source: False)
    task, done = CarryTask((copy_of(replica(source), target),)), Done()
    (found,) = carry(task, done)
    assert (found.code, found.files, found.size_bytes) == ("", 4, 420_016)
    manifest = whole(target)
    assert sorted(file["file"] for file in manifest["files"]) == sorted(FILES)
    assert (manifest["kind"], manifest["generation"], manifest["epoch"], manifest["stream"]) == (
        "copy",
        2,
        5,
        "0123456789ab",
    )
    assert (done.bytes, done.news()[2]) == (420_016, [[0, 420_016]])
    assert found.sent_bytes > 420_016
    (again,) = carry(task, Done())
    assert (again.code, again.sent_bytes) == ("", 0)
    assert bool(source.server.counters.bytes_out) is far


def test_each_copy_fails_by_itself(servers: tuple[Served, Served]) -> None:
    source, target = servers
    good, closed = copy_of(replica(source), target), copy_of(replica(source), target, "s9", 1)
    lost = replace(copy_of(replica(source), target, "s2", 2), address="127.0.0.1:1")
    gone = replace(good, number=3, session="s2", ticket=stage_ticket("s2"))
    gone = replace(gone, sources=(replace(good.sources[0], files=(("vanished", 5_000),)),))
    found = carry(CarryTask((good, closed, lost, gone)), Done())
    assert [each.code for each in found] == ["", copies.NO_SESSION, copies.TARGET_GONE, copies.SOURCE_GONE]
    assert all(each.text for each in found[1:])
    target.free_bytes = 100
    (full,) = carry(CarryTask((copy_of(replica(source, {"000009.sst": 9_000}), target, "s2"),)), Done())
    assert full.code == copies.DISK_FULL


def test_a_copy_is_held_in_the_middle_and_a_task_that_is_told_to_stop_does(servers: tuple[Served, Served]) -> None:
    source, target = servers
    target.pace.set_rate(2_000_000)
    done = Done()
    places: list[tuple[str, int]] = []

    def at(name: str, who: str) -> None:
        places.append((name, done.bytes))
        assert who == "ks.t/3"
        if name == "stream.task.half":
            done.stop()

    for place in ("before", "half", "after"):
        failpoints.arm(f"stream.task.{place}", at)
    files = {"000001.sst": 3_000_000}
    with pytest.raises(client.BulkCancelled):
        carry(CarryTask((copy_of(replica(source, files), target),)), done)
    assert [name for name, _ in places] == ["stream.task.before", "stream.task.half"]
    assert 1_500_000 <= places[1][1] < 3_000_000
    failpoints.disarm()
    target.pace.set_rate(0)
    (found,) = carry(CarryTask((copy_of(replica(source, files), target),)), Done())
    assert found.code == "" and 0 < found.sent_bytes < 3_000_000 and whole(target)


def test_small_copies_are_runs_of_their_pairs_in_one_pack(
    servers: tuple[Served, Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = servers
    held = {number: [(b"%08d-key-%d" % (row, number), b"value") for row in range(20)] for number in range(3)}

    class Opened:
        def __init__(self, path: Path) -> None:
            self.number = int(path.name)

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def batches(self) -> Iterator[Any]:
            keys, values = zip(*held[self.number], strict=True)
            yield from_list(list(keys)), from_list(list(values))

    monkeypatch.setattr(carrying, "Snapshot", Opened)
    monkeypatch.setattr(carrying, "near", lambda source: True)
    of = replica(source, {"000001.sst": 500})
    some = [replace(of, path=str(number), raft_id=number, proof=f"proof-{number}-of-it") for number in range(3)]
    one = replace(copy_of(some[0], target), number=0)
    two = replace(copy_of(some[0], target, "s2"), number=1, sources=(some[1], some[2]))
    connections = target.server.counters.connections
    found = carry(CarryTask((one, two)), Done())
    assert [each.code for each in found] == ["", ""] and target.server.counters.connections == connections + 1
    assert whole(target)["kind"] == whole(target, "s2")["kind"] == "merge"
    (run,) = whole(target, "s2")["files"]
    table = open_table(target.directory / "staging/s2/3" / run["name"])
    keys = [key for each, _ in sst_columns.batches(table) for key in each.to_list()]
    assert keys == sorted(key for number in (1, 2) for key, _ in held[number])
    assert [each.sent_bytes for each in carry(CarryTask((one, two)), Done())] == [0, 0], "the same bytes again"


def test_sources_of_a_merge_are_told_apart_though_their_snapshots_have_one_name(
    servers: tuple[Served, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer for the source on this host was used for the one elsewhere: the first was merged with itself."""
    monkeypatch.setattr(carrying, "SMALL_BYTES", 1 << 20)
    monkeypatch.setattr(copies, "SMALL_BYTES", 1 << 20)
    here, target = servers
    with serving(tmp_path / "elsewhere") as elsewhere:
        near_source, far = held_run(here, 1, b"00000001"), held_run(elsewhere, 2, b"00000002")
        # What the other host calls its directory is one here as well, of the first instance.
        far = replace(far, directory=near_source.directory)
        (found,) = carry(CarryTask((replace(copy_of(near_source, target), sources=(near_source, far)),)), Done())
        assert (found.code, here.server.counters.bytes_out) == ("", 0)
    (run,) = whole(target)["files"]
    table = open_table(target.directory / "staging/s1/3" / run["name"])
    assert [key for keys, _ in sst_columns.batches(table) for key in keys.to_list()] == [b"00000001", b"00000002"]


def held_run(served: Served, raft_id: int, key: bytes) -> Source:
    """A snapshot of one pair that lies at a server."""
    source = replica(served, {"CURRENT": 16})
    path = served.directory / source.path / "000001.sst"
    with TableWriter(path, identity=str(raft_id)) as writer:
        writer.add([from_list([key])], from_list([b"value"]))
        writer.finish(durable=False)
    proof = f"proof-{raft_id}-of-it"
    (served.directory / "snapshots/r1/proof").write_text(proof)
    files = (*source.files, (path.name, path.stat().st_size))
    return replace(source, raft_id=raft_id, proof=proof, files=files)


def test_a_bulk_server_that_comes_back_is_waited_for(
    servers: tuple[Served, Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "AGAIN_S", 20.0)
    source, target = servers
    port, copy = target.port, copy_of(replica(source), target)
    target.server.stop()
    back: list[Served] = []

    def come_back() -> None:
        made = Served.__new__(Served)
        made.__dict__.update(target.__dict__)
        made.server = type(target.server)(
            target.directory, target.told, type(target.pace)(), free_bytes=lambda: 1 << 40, wall_ms=lambda: 1_000_000
        )
        made.server.start("127.0.0.1", port)
        back.append(made)

    timer = threading.Timer(0.5, come_back)
    timer.start()
    (found,) = carry(CarryTask((copy,)), Done())
    timer.join()
    back[0].server.stop()
    assert found.code == "" and whole(target)
