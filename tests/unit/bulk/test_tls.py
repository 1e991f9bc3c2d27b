"""Transfers between those who trust the same authority, and nobody else."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from pathlib import Path

import pytest
from tests.unit.bulk.cutting import CuttingProxy
from tests.unit.bulk.serving import HASTY, QUICK, fetch_ticket, serving, stage_ticket
from tests.unit.net.certificates import Authority

from trimtab.bulk.client import BulkLost
from trimtab.net.tls import client_context, server_context


def test_files_go_both_ways_under_tls_also_when_connections_break(tmp_path: Path) -> None:
    authority = Authority()
    ours, theirs = authority.issue(tmp_path, "server"), authority.issue(tmp_path, "client")
    data = bytes(range(256)) * 12_000
    source = tmp_path / "source"
    source.write_bytes(data)
    tls = client_context(theirs.ca, theirs.cert, theirs.key)
    with (
        serving(tmp_path / "data", tls=server_context(ours.ca, ours.cert, ours.key)) as served,
        CuttingProxy(served.port, up_cuts=[1_500_000], down_cuts=[100, 2_000_000]) as proxy,
        served.client(address=proxy.address, tls=tls) as client,
    ):
        client.stage(source, "s1", 3, "a.sst", stage_ticket())
        assert served.staged("a.sst").read_bytes() == data
        path = served.snapshot_file("a", data)
        client.close()
        client.fetch_to(tmp_path / "back", path, fetch_ticket())
        assert (tmp_path / "back").read_bytes() == data


def test_who_finds_no_room_under_tls_waits_for_some(tmp_path: Path) -> None:
    authority = Authority()
    ours, theirs = authority.issue(tmp_path, "server"), authority.issue(tmp_path, "client")
    tls = client_context(theirs.ca, theirs.cert, theirs.key)
    # Silent ones, who never begin a handshake.
    limits = dataclasses.replace(HASTY, connections=2, first_s=5.0)
    with serving(tmp_path / "data", limits=limits, tls=server_context(ours.ca, ours.cert, ours.key)) as served:
        others = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2)]
        path = served.snapshot_file("a", b"rows")
        hasty = dataclasses.replace(QUICK, attempts=1, room_s=0.0)
        with served.client(tls=tls, patience=hasty) as client, pytest.raises(BulkLost, match="too many open"):
            client.fetch(path, fetch_ticket())
        patient = dataclasses.replace(QUICK, attempts=1, room_s=60.0)
        with served.client(tls=tls, patience=patient) as client:
            assert client.fetch(path, fetch_ticket()) == b"rows"
            assert client.attempts > 1
        for other in others:
            other.close()


def test_who_has_no_certificate_or_one_of_another_authority_gets_nothing(tmp_path: Path) -> None:
    authority, stranger = Authority(), Authority()
    ours = authority.issue(tmp_path, "server")
    other = stranger.issue(tmp_path, "stranger", trust=authority)
    with serving(tmp_path / "data", tls=server_context(ours.ca, ours.cert, ours.key)) as served:
        path = served.snapshot_file("a", b"rows")
        with served.client() as plain, pytest.raises(BulkLost):
            plain.fetch(path, fetch_ticket())
        tls = client_context(other.ca, other.cert, other.key)
        with served.client(tls=tls) as client, pytest.raises(BulkLost):
            client.fetch(path, fetch_ticket())
        with socket.create_connection(("127.0.0.1", served.port)) as sock:
            sock.sendall(b"garbage" * 100)
            sock.settimeout(30)
            with contextlib.suppress(ConnectionResetError):
                assert b"rows" not in sock.recv(1_000)
        assert served.server.counters.bytes_out == 0
    mistrusting = stranger.issue(tmp_path, "mistrusting")
    with serving(tmp_path / "data", tls=server_context(ours.ca, ours.cert, ours.key)) as served:
        tls = client_context(mistrusting.ca, mistrusting.cert, mistrusting.key)
        with served.client(tls=tls) as client, pytest.raises(BulkLost, match="can't be trusted"):
            client.fetch("snapshots/r1/a", fetch_ticket())
