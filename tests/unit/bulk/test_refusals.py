"""What a bulk server does not do, and says: bad frames, bad tickets, bad names, no session, no room."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.bulk.serving import HASTY, KEY, NOW_MS, QUICK, Served, fetch_ticket, serving, stage_ticket

from trimtab.bulk import protocol, tickets
from trimtab.bulk.client import BulkLost, BulkRefused
from trimtab.bulk.protocol import Answer, Fetch, Stage
from trimtab.bulk.server import Limits
from trimtab.bulk.state import SESSION_S, STALE_S
from trimtab.bulk.tickets import Claims, Right
from trimtab.storage.file_sums import sum_of

WAIT_S = 30.0  # for what comes at once, on a machine that has time for it


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "data") as served:
        yield served
        assert not served.complaints


def raw(served: Served, data: bytes) -> Answer | None:
    """The answer to these bytes; None: the server just ended the connection."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as sock:
        sock.sendall(data)
        answer = protocol.read_frame(sock, 1 << 20, idle_s=WAIT_S, header_s=WAIT_S)
        return None if answer is None else protocol.decode_answer(answer)


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def still_serves(served: Served) -> bool:
    path = served.snapshot_file("there", b"all is well")
    with served.client() as client:
        return client.fetch(path, fetch_ticket()) == b"all is well"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "is this the bulk port?"),
        (struct.pack(">I", 0), "a frame of 0 bytes"),
        (struct.pack(">I", protocol.MAX_HEADER_BYTES + 1), "are allowed"),
        (struct.pack(">I", 5) + b"\xc1\xc1\xc1\xc1\xc1", "can't be read"),
        (struct.pack(">I", 1) + b"\x90", "can't be read"),
        (struct.pack(">I", 3) + b"\x92\x09\x01", "can't be read"),
        (b"\x86\xb9\x00" + b"\xff" * 40, ""),
        (protocol.frame(Fetch(b"", "a"))[:-1], "only"),
        (b"\x00", "only"),
    ],
)
def test_garbage_is_refused_and_ends_its_own_connection_only(tmp_path: Path, data: bytes, text: str) -> None:
    # The rest of a frame that ends too early is waited for.
    limits = dataclasses.replace(HASTY, header_s=0.5) if text == "only" else HASTY
    with serving(tmp_path / "data", limits=limits) as served:
        answer = raw(served, data)
        assert answer is not None and answer.code == "invalid" and text in answer.text
        # Others have their time again: a busy machine may need it within one frame.
        served.server._limits = HASTY
        assert still_serves(served)
        assert not served.complaints


def test_negative_and_huge_numbers_are_no_request(served: Served) -> None:
    for size, checksum in ((-1, 0), (1 << 63, 0), (10, -1), (10, 1 << 63)):
        body = protocol.encode([2, stage_ticket(), "s1", 3, "a", size, checksum])  # type: ignore[arg-type]
        answer = raw(served, struct.pack(">I", len(body)) + body)
        assert answer is not None and answer.code == "invalid"
    answer = raw(served, protocol.frame(Stage(stage_ticket(), "s1", 3, "a", protocol.MAX_FILE_BYTES + 1, 0)))
    assert answer is not None and answer.code == "invalid" and "at most" in answer.text


def test_silence_ends_a_connection(tmp_path: Path) -> None:
    hurried = dataclasses.replace(HASTY, first_s=1.0)
    with serving(tmp_path, limits=hurried) as served, socket.create_connection(("127.0.0.1", served.port)) as sock:
        sock.settimeout(WAIT_S)
        assert sock.recv(1000) == b""
    # One with time for the first request: its client may stand still before it has asked.
    with serving(tmp_path, limits=dataclasses.replace(HASTY, idle_s=0.2)) as served:
        path = served.snapshot_file("a", b"rows")
        with served.client() as client:
            for attempts in (1, 2):
                assert client.fetch(path, fetch_ticket()) == b"rows"
                assert client.attempts == attempts
                assert client._sock is not None
                # Until the server has closed it, as it does with connections that are kept and not used.
                assert select.select([client._sock], [], [], WAIT_S)[0]


def test_a_sender_that_stands_still_is_given_up(tmp_path: Path) -> None:
    with (
        serving(tmp_path, limits=Limits(still_s=0.2, idle_s=2 * WAIT_S)) as served,
        socket.create_connection(("127.0.0.1", served.port)) as sock,
    ):
        sock.sendall(protocol.frame(Stage(stage_ticket(), "s1", 3, "a", 100, 0)) + b"x" * 50)
        sock.settimeout(WAIT_S)
        while sock.recv(1000):
            pass
        assert not served.staged("a").exists()


def test_connections_beyond_the_limit_are_turned_away_and_come_later(tmp_path: Path) -> None:
    with serving(tmp_path, limits=dataclasses.replace(HASTY, connections=2)) as served:
        others = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2)]
        path = served.snapshot_file("a", b"a")
        with served.client() as client, pytest.raises(BulkLost, match="2 connections are open here already"):
            client.fetch(path, fetch_ticket())
        patient = dataclasses.replace(QUICK, attempts=1, room_s=60.0)
        with served.client(patience=patient) as client:
            threading.Timer(0.3, lambda: [other.close() for other in others]).start()
            assert client.fetch(path, fetch_ticket()) == b"a", "it waited until there was room"


def test_strangers_do_not_keep_the_places_of_others_for_long(tmp_path: Path) -> None:
    """One says nothing, one has forged a ticket and sends it again and again."""
    limits = dataclasses.replace(HASTY, connections=3, first_s=3.0, idle_s=4 * WAIT_S)
    with serving(tmp_path, limits=limits) as served, served.client() as guest:
        path = served.snapshot_file("a", b"rows")
        assert guest.fetch(path, fetch_ticket()) == b"rows"
        connected = guest.attempts
        silent, forger = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2)]
        began, refused = time.monotonic(), 0
        forger.settimeout(WAIT_S)
        with contextlib.suppress(OSError):
            while time.monotonic() < began + WAIT_S:
                forger.sendall(protocol.frame(Fetch(fetch_ticket(key=bytes(32)), path)))
                if not forger.recv(1000):
                    break
                refused += 1
        assert refused >= 1
        assert time.monotonic() < began + WAIT_S
        silent.settimeout(WAIT_S)
        assert silent.recv(1000) == b""
        assert guest.fetch(path, fetch_ticket()) == b"rows"
        assert guest.attempts == connected, "who has shown a ticket stays"
        forger.close()
        silent.close()


def test_hundreds_of_tasks_may_be_connected_at_the_same_time(tmp_path: Path) -> None:
    with serving(tmp_path, limits=Limits()) as served:
        others = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(300)]
        path = served.snapshot_file("a", b"a")
        with served.client() as client:
            assert client.fetch(path, fetch_ticket()) == b"a"
        for other in others:
            other.close()


FORGED = [
    (b"", "bad_ticket"),
    (b"\x01" + bytes(40), "bad_ticket"),
    (b"\x02" + fetch_ticket()[1:], "bad_ticket"),
    (fetch_ticket()[:-1], "bad_ticket"),
    (fetch_ticket()[:-3] + bytes([fetch_ticket()[-3] ^ 1]) + fetch_ticket()[-2:], "bad_ticket"),
    (fetch_ticket(key=bytes(32)), "bad_ticket"),
    (bytes(10_000), "bad_ticket"),
    (fetch_ticket(life_ms=0), "expired_ticket"),
    (fetch_ticket(life_ms=-60_000), "expired_ticket"),
    (fetch_ticket("r2"), "bad_ticket"),
    (fetch_ticket(instance_id="i2"), "bad_ticket"),
    (stage_ticket(), "bad_ticket"),
]


@pytest.mark.parametrize(("ticket", "code"), FORGED)
def test_a_ticket_that_is_forged_expired_or_for_something_else_opens_nothing(
    served: Served, ticket: bytes, code: str
) -> None:
    path = served.snapshot_file("a", b"rows")
    with served.client() as client, pytest.raises(BulkRefused) as caught:
        client.fetch(path, ticket)
    assert caught.value.code == code
    assert served.server.counters.bytes_out == 0


def test_a_ticket_for_staging_is_for_one_session(served: Served, tmp_path: Path) -> None:
    served.tell(["s1", "s2"])
    source = tmp_path / "source"
    source.write_bytes(b"rows")
    with served.client() as client:
        for ticket in (stage_ticket("s2"), fetch_ticket("s1"), stage_ticket(life_ms=-1)):
            with pytest.raises(BulkRefused) as caught:
                client.stage(source, "s1", 3, "a", ticket)
            assert caught.value.code in ("bad_ticket", "expired_ticket")
    assert not (served.directory / "staging").exists()


def test_without_the_nodes_word_nothing_is_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.bulk.state._TRY_S", 0.01)
    served.tell(["s1"], key=b"")
    served.told.ask = lambda: None
    with served.client() as client, pytest.raises(BulkLost, match="does not know yet what to serve"):
        client.fetch(served.snapshot_file("a", b""), fetch_ticket())


PATHS = [
    "snapshots/r1/../../secret",
    "snapshots/r1/7/3.1/../../../../secret",
    "/etc/passwd",
    "snapshots//r1/7/3.1/a",
    "snapshots/r1/.hidden",
    "snapshots/r1/7/3.1/a\0b",
    "snapshots/r1\\..\\secret",
    "secret",
    "",
    "log/000004.log",
    "snapshots",
    "snapshots/r1x/7/3.1/a",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out_of_the_snapshot(served: Served, path: str) -> None:
    (served.directory / "secret").write_bytes(b"secret")
    served.snapshot_file("a", b"rows")
    served.snapshot_file("a", b"rows", snapshot="r1x")
    with served.client() as client, pytest.raises(BulkRefused) as caught:
        client.fetch(path, fetch_ticket())
    assert caught.value.code in ("invalid", "bad_ticket")


def test_a_link_in_a_snapshot_is_not_followed(served: Served) -> None:
    (served.directory / "secret").write_bytes(b"secret")
    served.snapshot_file("a", b"rows")
    (served.directory / "snapshots/r1/7/3.1/link").symlink_to(served.directory / "secret")
    (served.directory / "snapshots/r1/out").symlink_to(served.directory)
    with served.client() as client:
        for path in ("snapshots/r1/7/3.1/link", "snapshots/r1/out/secret"):
            with pytest.raises(BulkRefused):
                client.fetch(path, fetch_ticket())


def test_what_is_not_there_is_said_and_the_connection_goes_on(served: Served) -> None:
    path = served.snapshot_file("a", b"rows")
    with served.client() as client:
        for missing in ("snapshots/r1/7/3.1/b", "snapshots/r1/7", "snapshots/r1/7/3.1/a/b"):
            with pytest.raises(BulkRefused) as caught:
                client.fetch(missing, fetch_ticket())
            assert caught.value.code == "not_found"
        with pytest.raises(BulkRefused, match="byte 5 was asked for"):
            client.fetch(path, fetch_ticket(), offset=5)
        assert client.fetch(path, fetch_ticket()) == b"rows"


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", ".a", "a" * 201, "a\0", "a..b/", "ä", "a b", "-"])
def test_no_name_leads_out_of_the_staging_directory(served: Served, name: str) -> None:
    answer = raw(served, protocol.frame(Stage(stage_ticket(), "s1", 3, name, 1, 0)))
    assert answer is not None and answer.code == "invalid", name
    assert not (served.directory / "staging").exists()


@pytest.mark.parametrize("session", ["", "..", "../s1", "a/b", ".s1", "s" * 65])
def test_no_session_leads_out_of_the_staging_directory(served: Served, session: str) -> None:
    served.tell([session])
    answer = raw(served, protocol.frame(Stage(stage_ticket(session), session, 3, "a", 1, 0)))
    assert answer is not None and answer.code in ("invalid", "bad_ticket")
    assert not (served.directory / "staging").exists()


def test_a_session_that_is_not_open_takes_no_file(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"rows")
    served.told.ask = lambda: served.tell(["other"])
    with served.client() as client, pytest.raises(BulkRefused) as caught:
        client.stage(source, "s9", 3, "a", stage_ticket("s9"))
    assert caught.value.code == "unknown_session" and "is not open" in str(caught.value)
    assert not (served.directory / "staging").exists()


def test_a_session_that_was_opened_a_moment_ago_is_asked_for(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"rows")
    asked: list[int] = []

    def ask() -> None:
        asked.append(1)
        if len(asked) == 2:
            served.tell(["s1", "s9"])

    served.told.ask = ask
    with served.client() as client:
        client.stage(source, "s9", 3, "a", stage_ticket("s9"))
    assert served.staged("a", "s9").read_bytes() == b"rows"


class Clock:
    """What the server's node has told is judged by this one: it passes where the test says so."""

    def __init__(self, served: Served) -> None:
        self.now_s = 0.0
        served.told.clock_s = lambda: self.now_s
        served.told.ask = lambda: self.answer(served, [])
        served.tell(["s1"])

    def answer(self, served: Served, sessions: list[str]) -> None:
        self.now_s += SESSION_S
        served.tell(sessions)


def answered(sock: socket.socket) -> Answer:
    data = protocol.read_frame(sock, 1 << 20, idle_s=WAIT_S, header_s=WAIT_S)
    assert data is not None
    return protocol.decode_answer(data)


def test_a_session_that_ends_during_a_transfer_ends_it_and_leaves_no_file(served: Served, tmp_path: Path) -> None:
    Clock(served)
    source = tmp_path / "source"
    source.write_bytes(bytes(64 << 20))
    served.pace.set_rate(20 << 20)
    with served.client() as client, pytest.raises(BulkRefused, match="is not open: it was ended") as caught:
        client.stage(source, "s1", 3, "a", stage_ticket(), progress=lambda *_: served.tell([]))
    assert caught.value.code == "unknown_session"
    assert served.server.counters.bytes_in < 16 << 20, "not at its end"
    assert list(served.staged("a").parent.iterdir()) == []


def test_a_session_that_ends_is_heard_of_within_a_file_that_will_never_be_whole(served: Served) -> None:
    Clock(served)
    with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as sock:
        sock.sendall(protocol.frame(Stage(stage_ticket(), "s1", 3, "a", 1 << 30, 0)))
        assert answered(sock).code == ""
        served.tell([])
        sock.sendall(bytes(1000))
        refused = answered(sock)
        assert (refused.code, "is not open" in refused.text) == ("unknown_session", True)
        assert sock.recv(1) == b"", "nothing can follow"
    assert list(served.staged("a").parent.iterdir()) == []


def test_a_node_that_is_silent_or_knows_less_for_a_moment_ends_no_transfer(served: Served) -> None:
    clock, data = Clock(served), os.urandom(3000)
    with socket.create_connection(("127.0.0.1", served.port), timeout=WAIT_S) as sock:
        sock.sendall(protocol.frame(Stage(stage_ticket(), "s1", 3, "a", len(data), sum_of(data))))
        assert answered(sock).code == ""
        clock.now_s += STALE_S + 1
        sock.sendall(data[:1000])
        until(lambda: served.server.counters.bytes_in == 1000)
        # It has started again, and reads its log.
        served.told.ask = lambda: served.tell(["s1"])
        served.tell([])
        sock.sendall(data[1000:2000])
        until(lambda: served.server.counters.bytes_in == 2000)
        sock.sendall(data[2000:])
        assert answered(sock).done
    assert served.staged("a").read_bytes() == data


def test_a_directory_that_the_node_removed_meanwhile_is_a_session_that_ended(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    served.pace.set_rate(20 << 20)

    def sweep(*_: object) -> None:
        staging = served.directory / "staging"
        if (staging / "s1").exists():
            (staging / "s1").rename(served.directory / ".doomed")

    with served.client() as client, pytest.raises(BulkRefused) as caught:
        client.stage(source, "s1", 3, "a", stage_ticket(), progress=sweep)
    assert caught.value.code == "unknown_session"
    assert not served.staged("a").exists()


def test_a_file_for_which_there_is_no_room_is_refused_before_a_byte_is_taken(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(1_000))
    served.free_bytes = 999
    with served.client() as client:
        with pytest.raises(BulkRefused, match="needs 1000 bytes more, and the disk has 999 left") as caught:
            client.stage(source, "s1", 3, "a", stage_ticket())
        assert caught.value.code == "disk_full"
        assert served.server.counters.bytes_in == 0 and not (served.directory / "staging").exists()
        served.free_bytes = 1_000
        assert client.stage(source, "s1", 3, "a", stage_ticket()).sent_bytes == 1_000


def test_room_that_was_promised_to_one_is_not_promised_to_another(served: Served, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(600_000))
    served.free_bytes = 1_000_000
    served.pace.set_rate(100_000)  # seconds, until the other was refused
    seen: list[str] = []

    def second(*_: object) -> None:
        if not seen:
            with served.client() as other, pytest.raises(BulkRefused) as caught:
                other.stage(source, "s1", 4, "b", stage_ticket())
            seen.append(caught.value.code)
            served.pace.set_rate(0)

    with served.client() as client:
        client.stage(source, "s1", 3, "a", stage_ticket(), progress=second)
    # By then it may all be there already; if not, the room was taken.
    assert seen == ["disk_full"]


def test_a_disk_that_runs_full_after_all_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(40 << 20))
    with serving(tmp_path / "data") as served, served.client() as client:
        from trimtab.bulk import staging

        def full(_self: object, _data: object) -> None:
            raise OSError(28, "No space left on device")

        write = staging.Incoming.write
        staging.Incoming.write = full  # type: ignore[method-assign,assignment]
        try:
            with pytest.raises(BulkRefused, match="No space left") as caught:
                client.stage(source, "s1", 3, "a", stage_ticket())
            assert caught.value.code == "disk_full"
        finally:
            staging.Incoming.write = write  # type: ignore[method-assign]
        assert list(served.staged("a").parent.iterdir()) == []


def test_a_file_that_becomes_shorter_is_no_file(served: Served, tmp_path: Path) -> None:
    path = served.snapshot_file("a", bytes(4 << 20))
    served.pace.set_rate(8 << 20)
    cut: list[int] = []

    def shorten(so_far: int, _total: int) -> None:
        if not cut:
            cut.append(so_far)
            os.truncate(served.directory / path, 2 << 20)

    with served.client() as client, pytest.raises(Exception, match=r"expected|asked for|attempts") as caught:
        client.fetch_to(tmp_path / "back", path, fetch_ticket(), size_bytes=4 << 20, progress=shorten)
    assert not (tmp_path / "back").exists(), caught.value


def test_claims_of_a_ticket_are_what_was_signed() -> None:
    claims = Claims(Right.STAGE, "s1", NOW_MS + 1)
    assert tickets.read(KEY, tickets.sign(KEY, claims), NOW_MS) == claims
    with pytest.raises(ValueError, match="a key has 32 bytes"):
        tickets.sign(b"", claims)
    with pytest.raises(ValueError, match="a key has 32 bytes"):
        tickets.read(b"", tickets.sign(KEY, claims), NOW_MS)
