"""Files through a bulk server and back: whole, whatever happens to the connection meanwhile."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.bulk.cutting import CuttingProxy
from tests.unit.bulk.serving import fetch_ticket, serving, stage_ticket

from trimtab.bulk.client import BulkCancelled, BulkLost, BulkRefused
from trimtab.bulk.protocol import CHUNK_BYTES
from trimtab.storage.file_sums import sum_of

SIZES = (0, 1, 4095, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 17)


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_a_file_of_any_size_comes_back_as_it_was_sent(tmp_path: Path, size: int) -> None:
    data = content(size)
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(data)
    with serving(tmp_path / "data") as served, served.client() as client:
        staged = client.stage(source, "s1", 3, "a.sst", stage_ticket())
        assert (staged.size_bytes, staged.checksum, staged.sent_bytes) == (size, sum_of(data), size)
        assert served.staged("a.sst").read_bytes() == data
        assert [each.name for each in served.staged("a.sst").parent.iterdir()] == ["a.sst"]
        path = served.snapshot_file("000009.sst", data)
        assert client.fetch_to(back, path, fetch_ticket(), size_bytes=size) == size
        assert back.read_bytes() == data
        assert client.fetch(path, fetch_ticket()) == data
        assert client.attempts == 1
        assert (served.server.counters.bytes_in, served.server.counters.bytes_out) == (size, 2 * size)
        assert not served.complaints


def test_a_part_of_a_file_can_be_fetched_and_a_directory_listed(tmp_path: Path) -> None:
    data = content(10_000)
    with serving(tmp_path) as served, served.client() as client:
        path = served.snapshot_file("000009.sst", data)
        served.snapshot_file("CURRENT", b"MANIFEST-1\n")
        assert client.fetch(path, fetch_ticket(), offset=100, length=50) == data[100:150]
        assert client.fetch(path, fetch_ticket(), offset=9_990, length=50) == data[9_990:]
        assert client.fetch(path, fetch_ticket(), offset=10_000) == b""
        assert client.files("snapshots/r1/7/3.1", fetch_ticket()) == [("000009.sst", 10_000), ("CURRENT", 11)]


def test_a_file_that_is_there_already_is_success_at_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(content(100_000))
    with serving(tmp_path / "data") as served, served.client() as client:
        first = client.stage(source, "s1", 3, "a.sst", stage_ticket())
        again = client.stage(source, "s1", 3, "a.sst", stage_ticket())
        assert (first.sent_bytes, again.sent_bytes) == (100_000, 0)
        answer = client.stat("s1", 3, "a.sst", stage_ticket(), again.size_bytes, again.checksum)
        assert answer.done and answer.offset == 100_000


def test_another_file_under_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"one")
    with serving(tmp_path / "data") as served, served.client() as client:
        client.stage(source, "s1", 3, "a.sst", stage_ticket())
        source.write_bytes(b"two")
        with pytest.raises(BulkRefused) as caught:
            client.stage(source, "s1", 3, "a.sst", stage_ticket())
        assert caught.value.code == "conflict"
        assert served.staged("a.sst").read_bytes() == b"one"


def test_a_file_that_is_damaged_is_replaced_by_whoever_says_so(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"one")
    with serving(tmp_path / "data") as served, served.client() as client:
        client.stage(source, "s1", 3, "a.sst", stage_ticket())
        client.stage(source, "s1", 3, "a.sst", stage_ticket())
        there = served.staged("a.sst")
        before = there.stat()
        there.write_bytes(b"0ne")
        os.utime(there, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert client.stage(source, "s1", 3, "a.sst", stage_ticket(), replace=True).sent_bytes == 3
        assert there.read_bytes() == b"one"
        assert client.stage(source, "s1", 3, "a.sst", stage_ticket(), replace=True).sent_bytes == 0


# Cut within the frame of the answer, right behind it, within a chunk's header, within and at the end of chunks.
CUTS = (1, 3, 30, 100, 4_000, CHUNK_BYTES - 5, CHUNK_BYTES, CHUNK_BYTES + 8, CHUNK_BYTES + 40, 2 * CHUNK_BYTES + 333)


@pytest.mark.parametrize("cut", CUTS)
def test_a_download_goes_on_where_its_connection_was_cut(tmp_path: Path, cut: int) -> None:
    data = content(3 * CHUNK_BYTES + 99)
    with serving(tmp_path / "data") as served, CuttingProxy(served.port, down_cuts=[cut, cut, cut]) as proxy:
        path = served.snapshot_file("000009.sst", data)
        with served.client(address=proxy.address) as client:
            assert client.fetch_to(tmp_path / "back", path, fetch_ticket()) == len(data)
        assert (tmp_path / "back").read_bytes() == data
        # Chunks that had come whole are not sent again, so there may be too little left to cut three times.
        assert proxy.cuts_made == (3 if cut < CHUNK_BYTES + 60 else 1)
        assert proxy.down_bytes <= len(data) + proxy.cuts_made * CHUNK_BYTES + 1_000


@pytest.mark.parametrize("cut", (1, 3, 60, 150, 4_000, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 333))
def test_an_upload_goes_on_where_its_connection_was_cut(tmp_path: Path, cut: int) -> None:
    data = content(3 * CHUNK_BYTES + 99)
    source = tmp_path / "source"
    source.write_bytes(data)
    with serving(tmp_path / "data") as served, CuttingProxy(served.port, up_cuts=[cut, cut]) as proxy:
        with served.client(address=proxy.address) as client:
            client.stage(source, "s1", 3, "a.sst", stage_ticket())
        assert served.staged("a.sst").read_bytes() == data
        assert proxy.cuts_made == (2 if cut < 2 * CHUNK_BYTES else 1)
        assert served.server.counters.bytes_in == len(data)


def test_an_answer_that_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(content(10_000))
    # The first answer (go on from byte 0) has 10 bytes or so; the second one (done) is cut.
    with serving(tmp_path / "data") as served, CuttingProxy(served.port, down_cuts=[20]) as proxy:
        with served.client(address=proxy.address) as client:
            client.stage(source, "s1", 3, "a.sst", stage_ticket())
        assert served.staged("a.sst").read_bytes() == source.read_bytes()
        assert served.server.counters.bytes_in == 10_000


def test_a_byte_that_changed_on_its_way_down_is_noticed_and_fetched_again(tmp_path: Path) -> None:
    data = content(2 * CHUNK_BYTES)
    with serving(tmp_path / "data") as served, CuttingProxy(served.port, flip_down_at=CHUNK_BYTES + 5_000) as proxy:
        path = served.snapshot_file("000009.sst", data)
        with served.client(address=proxy.address) as client:
            client.fetch_to(tmp_path / "back", path, fetch_ticket())
            assert client.attempts == 2
        assert (tmp_path / "back").read_bytes() == data


def test_a_byte_that_changed_on_its_way_up_is_noticed_and_the_file_sent_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(content(100_000))
    with serving(tmp_path / "data") as served, CuttingProxy(served.port, flip_up_at=50_000) as proxy:
        with served.client(address=proxy.address) as client:
            staged = client.stage(source, "s1", 3, "a.sst", stage_ticket())
        assert staged.sent_bytes == 200_000
        assert served.staged("a.sst").read_bytes() == source.read_bytes()


def test_a_wrong_checksum_is_given_up_in_the_end_and_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(content(1_000))
    with serving(tmp_path / "data") as served, served.client() as client:
        with pytest.raises(BulkLost, match="checksum"):
            client.stage(source, "s1", 3, "a.sst", stage_ticket(), checksum=7)
        assert list(served.staged("a.sst").parent.iterdir()) == []


def test_a_server_that_is_not_there_is_told_after_a_few_attempts(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = served.client()
    with pytest.raises(BulkLost, match="4 attempts"):
        client.fetch("snapshots/r1/7/3.1/a", fetch_ticket())


def test_a_server_that_is_restarted_in_the_middle_costs_a_pause(tmp_path: Path) -> None:
    data = content(5 * CHUNK_BYTES)
    source = tmp_path / "source"
    source.write_bytes(data)
    with serving(tmp_path / "data") as served, CuttingProxy(served.port) as proxy:
        served.pace.set_rate(20 * CHUNK_BYTES)
        again: list[threading.Thread] = []

        def restart(so_far: int, _total: int) -> None:
            if so_far > CHUNK_BYTES and not again:
                again.append(threading.Thread(target=proxy.point_at, args=(other.port,)))
                served.server.stop()
                again[0].start()

        with serving(tmp_path / "data") as other, served.client(address=proxy.address) as client:
            client.stage(source, "s1", 3, "a.sst", stage_ticket(), progress=restart)
            assert other.server.counters.bytes_in + served.server.counters.bytes_in <= len(data) + CHUNK_BYTES
            assert other.server.counters.files_in == 1
        assert served.staged("a.sst").read_bytes() == data


def test_a_transfer_can_be_cancelled_from_another_thread(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served, served.client() as client:
        served.pace.set_rate(100_000)
        path = served.snapshot_file("000009.sst", content(4 * CHUNK_BYTES))
        timer = threading.Timer(0.2, client.cancel)
        timer.start()
        with pytest.raises(BulkCancelled):
            client.fetch_to(tmp_path / "back", path, fetch_ticket())
        timer.join()
        assert not (tmp_path / "back").exists()


def test_whoever_comes_back_has_the_file_and_the_connection_before_is_cut_off(tmp_path: Path) -> None:
    data = content(2 * CHUNK_BYTES)
    source = tmp_path / "source"
    source.write_bytes(data)
    outcomes: list[BaseException] = []

    def send(client: Callable[[], object]) -> None:
        try:
            client()
        except BaseException as error:
            outcomes.append(error)

    with serving(tmp_path / "data") as served, served.client() as slow, served.client() as second:
        served.pace.set_rate(400_000)
        begun = threading.Event()
        first = threading.Thread(
            target=send,
            args=(lambda: slow.stage(source, "s1", 3, "a.sst", stage_ticket(), progress=lambda *_: begun.set()),),
        )
        first.start()
        assert begun.wait(60)
        served.pace.set_rate(0)
        second.stage(source, "s1", 3, "a.sst", stage_ticket())
        first.join(60)
        assert not first.is_alive() and not outcomes
        assert served.staged("a.sst").read_bytes() == data
