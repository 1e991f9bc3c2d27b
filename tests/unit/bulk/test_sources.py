"""Files that only ever were in memory: sent as those of a disk are, from where a connection broke, and not copied."""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.bulk.cutting import CuttingProxy
from tests.unit.bulk.serving import serving, stage_ticket
from tests.unit.net.certificates import Authority

from trimtab.bulk.client import BulkCancelled, BulkLost, BulkRefused
from trimtab.bulk.protocol import CHUNK_BYTES
from trimtab.bulk.sources import Pieces, opened
from trimtab.net.tls import client_context, server_context
from trimtab.rows.ragged import from_list
from trimtab.storage.file_sums import sum_of, sum_of_file
from trimtab.storage.sst_file import bounds_of
from trimtab.storage.sst_writing import TableWriter


class Taking:
    """A socket that takes so many bytes at a time, and notes what it was given."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.given: list[memoryview] = []
        self.taken = b""
        self._most = most

    def send(self, data: memoryview) -> int:
        self.given.append(data)
        self.taken += bytes(data[: self._most])
        return min(len(data), self._most)


def pieces_of(*parts: Any) -> Pieces:
    made = Pieces()
    for part in parts:
        made.write(part)
    return made


def sent_from(source: Pieces, offset: int, *, most: int = 1 << 20, takes: int = 1 << 30) -> bytes:
    """All that is sent from an offset on, by whoever goes on until the end."""
    sock = Taking(takes)
    taking: Any = sock
    while offset < source.size_bytes:
        sent = source.send(taking, offset, most)
        assert 0 < sent <= most
        offset += sent
    return sock.taken


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def cut_up(data: bytes, *ends: int) -> Pieces:
    """The same bytes, in pieces that end there."""
    return pieces_of(*(data[start:end] for start, end in pairwise((0, *ends, len(data)))))


# Pieces


def test_pieces_are_one_file_from_any_offset_on() -> None:
    parts = (b"abc", bytearray(b"defgh"), memoryview(b"i"), b"jklmnop")
    source, whole = pieces_of(*parts), b"abcdefghijklmnop"
    assert (source.size_bytes, source.to_bytes(), source.checksum()) == (16, whole, sum_of(whole))
    for offset in range(17):
        assert sent_from(source, offset) == whole[offset:]


def test_one_call_sends_of_one_piece_and_never_more_than_was_asked_for() -> None:
    source = pieces_of(b"abcd", b"efgh")
    for offset, most, sent in ((0, 100, b"abcd"), (1, 2, b"bc"), (3, 100, b"d"), (4, 1, b"e"), (7, 100, b"h")):
        sock: Any = Taking()
        assert source.send(sock, offset, most) == len(sent) and sock.taken == sent


def test_a_connection_that_takes_little_at_a_time_gets_all_of_it() -> None:
    source = pieces_of(b"abc", b"d", b"efghij")
    for takes in (1, 2, 3, 7):
        assert sent_from(source, 0, takes=takes) == b"abcdefghij"
        assert sent_from(source, 2, most=4, takes=takes) == b"cdefghij"


def test_empty_pieces_are_none() -> None:
    source = pieces_of(b"", b"ab", b"", np.empty(0, np.uint8), b"c", b"")
    assert (source.size_bytes, source.to_bytes(), source.checksum()) == (3, b"abc", sum_of(b"abc"))
    assert [sent_from(source, offset) for offset in range(4)] == [b"abc", b"bc", b"c", b""]
    nothing = pieces_of(b"", b"")
    assert (nothing.size_bytes, nothing.to_bytes(), nothing.checksum()) == (0, b"", sum_of(b""))


def test_arrays_are_pieces_whatever_they_hold() -> None:
    numbers, table = np.arange(5, dtype="<u4"), np.arange(6, dtype=np.uint8).reshape(2, 3)
    source = Pieces()
    assert (source.write(numbers.data), source.write(table.data), source.write(b"end")) == (20, 6, 3)
    whole = numbers.tobytes() + table.tobytes() + b"end"
    assert source.size_bytes == 29 and source.to_bytes() == whole and source.checksum() == sum_of(whole)
    assert [sent_from(source, offset) for offset in range(29)] == [whole[offset:] for offset in range(29)]


def test_nothing_is_copied() -> None:
    array, data = np.zeros(1000, np.uint8), bytes(1000)
    source, sock = pieces_of(array, data), Taking()
    taking: Any = sock
    source.send(taking, 0, 10_000)
    source.send(taking, 1500, 10_000)
    assert np.shares_memory(np.frombuffer(sock.given[0], np.uint8), array)
    assert sock.given[1].obj is data
    # It belongs to the file from then on: this is what that means.
    array[:] = 7
    assert source.to_bytes() == b"\x07" * 1000 + data


def test_one_that_was_closed_is_sent_as_before() -> None:
    source = pieces_of(b"abc")
    source.close()
    assert sent_from(source, 1) == b"bc"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=12), st.integers(1, 30), st.integers(1, 30), st.data())
def test_any_pieces_from_any_offset(parts: Sequence[bytes], most: int, takes: int, data: st.DataObject) -> None:
    whole = b"".join(parts)
    source = pieces_of(*parts)
    offset = data.draw(st.integers(0, len(whole)))
    assert sent_from(source, offset, most=most, takes=takes) == whole[offset:]
    assert (source.size_bytes, source.checksum()) == (len(whole), sum_of(whole))


def test_a_file_of_a_disk_is_such_a_source_too(tmp_path: Path) -> None:
    data = content(300_000)
    path = tmp_path / "source"
    path.write_bytes(data)
    ours, theirs = socket.socketpair()
    with opened(path) as source, ours, theirs:
        assert (source.size_bytes, source.checksum()) == (len(data), sum_of(data))
        # The one goes on where it is told to, wherever the other has left the file.
        assert source.send(ours, 1000, 500) == 500 and theirs.recv(1000) == data[1000:1500]
        assert source.send(ours, 10, 500) == 500 and theirs.recv(1000) == data[10:510]
        assert source.send(ours, len(data) - 5, 500) == 5 and theirs.recv(1000) == data[-5:]
    made = pieces_of(data)
    with opened(made) as same:
        assert same is made


# Tables


def write_pairs(target: Any, identity: str, pairs: Sequence[tuple[bytes, bytes]], some: int) -> int:
    with TableWriter(target, block_bytes=1024, identity=identity) as writer:
        for start in range(0, len(pairs), some):
            keys, values = zip(*pairs[start : start + some], strict=True)
            writer.add([from_list(list(keys))], from_list(list(values)))
        return writer.finish(durable=True)


@pytest.mark.parametrize("alike", [True, False], ids=["of one width", "of any width"])
def test_a_table_in_memory_has_the_bytes_that_it_has_on_a_disk(tmp_path: Path, alike: bool) -> None:
    rng = random.Random(7)
    pairs = [
        (number.to_bytes(8, "big") + b"k", rng.randbytes(4) * (3 if alike else rng.randrange(40)))
        for number in range(3000)
    ]
    # Of several batches: what the writer was given before must still be as it was when the last one comes.
    source, path = Pieces(), tmp_path / "table.sst"
    assert write_pairs(source, "one", pairs, 700) == write_pairs(path, "one", pairs, 700) == source.size_bytes
    assert source.to_bytes() == path.read_bytes()
    with path.open("rb") as file:
        assert source.checksum() == sum_of_file(file)
    other = Pieces()
    write_pairs(other, "another", pairs, 700)
    assert other.to_bytes() != source.to_bytes()
    (tmp_path / "again.sst").write_bytes(source.to_bytes())
    assert bounds_of(tmp_path / "again.sst") == (pairs[0][0], pairs[-1][0], source.size_bytes)


# Through a bulk server


SIZES = (0, 1, 4095, CHUNK_BYTES, 3 * CHUNK_BYTES + 17)


@pytest.mark.parametrize("size", SIZES)
def test_pieces_of_any_size_are_staged_as_the_file_that_they_are(tmp_path: Path, size: int) -> None:
    data = content(size)
    source = cut_up(data, *sorted(random.Random(size).choices(range(size + 1), k=5)))
    with serving(tmp_path / "data") as served, served.client() as client:
        told: list[tuple[int, int]] = []
        staged = client.stage(
            source, "s1", 3, "a.sst", stage_ticket(), progress=lambda so_far, all_: told.append((so_far, all_))
        )
        assert (staged.size_bytes, staged.checksum, staged.sent_bytes) == (size, sum_of(data), size)
        assert served.staged("a.sst").read_bytes() == data
        assert not told or told[-1] == (size, size)
        again = client.stage(source, "s1", 3, "a.sst", stage_ticket(), checksum=source.checksum())
        assert again.sent_bytes == 0 and client.attempts == 1 and not served.complaints


def test_what_was_staged_of_a_file_and_of_the_same_bytes_in_memory_is_one(tmp_path: Path) -> None:
    data = content(200_000)
    path = tmp_path / "source"
    path.write_bytes(data)
    with serving(tmp_path / "data") as served, served.client() as client:
        client.stage(path, "s1", 3, "a.sst", stage_ticket())
        assert client.stage(cut_up(data, 17, 100_000), "s1", 3, "a.sst", stage_ticket()).sent_bytes == 0
        with pytest.raises(BulkRefused) as refused:
            client.stage(cut_up(data[:-1] + b"?", 17), "s1", 3, "a.sst", stage_ticket())
        assert refused.value.code == "conflict"


# Cut within the frame that asks, within a piece, at the end of one, and within the last one.
PIECE_ENDS = (40_000, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)
CUTS = (1, 60, 4_000, 40_000, CHUNK_BYTES, CHUNK_BYTES + 200, 2 * CHUNK_BYTES + 333, 3 * CHUNK_BYTES + 150)


@pytest.mark.parametrize("cut", CUTS)
def test_pieces_go_on_where_their_connection_was_cut(tmp_path: Path, cut: int) -> None:
    data = content(3 * CHUNK_BYTES + 99)
    with serving(tmp_path / "data") as served, CuttingProxy(served.port, up_cuts=[cut, cut]) as proxy:
        with served.client(address=proxy.address) as client:
            client.stage(cut_up(data, *PIECE_ENDS), "s1", 3, "a.sst", stage_ticket())
        assert served.staged("a.sst").read_bytes() == data
        assert proxy.cuts_made == (2 if cut < 2 * CHUNK_BYTES else 1)
        assert served.server.counters.bytes_in == len(data)


def test_a_byte_that_changed_on_its_way_has_all_pieces_sent_again(tmp_path: Path) -> None:
    data = content(100_000)
    with serving(tmp_path / "data") as served, CuttingProxy(served.port, flip_up_at=50_000) as proxy:
        with served.client(address=proxy.address) as client:
            staged = client.stage(cut_up(data, 10, 60_000), "s1", 3, "a.sst", stage_ticket())
        assert staged.sent_bytes == 200_000 and served.staged("a.sst").read_bytes() == data


def test_pieces_that_changed_while_they_were_sent_are_refused_in_the_end(tmp_path: Path) -> None:
    held = bytearray(content(10_000))
    source = pieces_of(held)
    checksum = source.checksum()
    held[5_000] ^= 1
    with serving(tmp_path / "data") as served, served.client() as client:
        with pytest.raises(BulkLost, match="checksum"):
            client.stage(source, "s1", 3, "a.sst", stage_ticket(), checksum=checksum)
        assert not list(served.staged("a.sst").parent.iterdir())


def test_a_server_that_does_not_want_pieces_any_more_is_heard_in_the_middle(tmp_path: Path) -> None:
    data = content(40 * CHUNK_BYTES)
    with serving(tmp_path / "data") as served, served.client() as client:
        served.pace.set_rate(20 * CHUNK_BYTES)
        closed: list[bool] = []

        def close(so_far: int, _total: int) -> None:
            if so_far > CHUNK_BYTES and not closed:
                closed.append(True)
                served.tell([])

        with pytest.raises(BulkRefused) as refused:
            client.stage(cut_up(data, 5, 9 * CHUNK_BYTES), "s1", 3, "a.sst", stage_ticket(), progress=close)
        assert refused.value.code == "unknown_session"


def test_pieces_that_are_on_their_way_can_be_cancelled(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served, served.client() as client:
        served.pace.set_rate(100_000)
        timer = threading.Timer(0.2, client.cancel)
        timer.start()
        with pytest.raises(BulkCancelled):
            client.stage(cut_up(content(8 * CHUNK_BYTES), 1000), "s1", 3, "a.sst", stage_ticket())
        timer.join()


def encrypted(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server and a client of one authority use."""
    authority = Authority()
    ours, theirs = authority.issue(tmp_path, "server"), authority.issue(tmp_path, "client")
    return server_context(ours.ca, ours.cert, ours.key), client_context(theirs.ca, theirs.cert, theirs.key)


def test_pieces_are_staged_under_tls_also_when_connections_break(tmp_path: Path) -> None:
    server_tls, client_tls = encrypted(tmp_path)
    data = bytes(range(256)) * 12_000
    with (
        serving(tmp_path / "data", tls=server_tls) as served,
        CuttingProxy(served.port, up_cuts=[1_500_000, 800_000]) as proxy,
        served.client(address=proxy.address, tls=client_tls) as client,
    ):
        client.stage(cut_up(data, 3, 1_000_000, 1_000_001), "s1", 3, "a.sst", stage_ticket())
        assert served.staged("a.sst").read_bytes() == data
        assert proxy.cuts_made == 2 and client.attempts == 3
        assert served.server.counters.bytes_in == len(data), "what had arrived was not sent again"
