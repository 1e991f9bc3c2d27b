"""`trimtab metastore …` without a cluster: what is refused before one is asked, and lists that come in pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.cli.main import run
from trimtab.client.metastore import MetastoreClient
from trimtab.metastore.layout import Entry
from trimtab.metastore.requests import RangeReply

PEER = ["--peer", "127.0.0.1:1"]


def test_certificates_that_can_not_be_used_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.pem")
    tls = ["--tls-authority", missing, "--tls-certificate", missing, "--tls-key", missing]
    assert run(["metastore", "get", "k", *PEER, *tls]) == 1
    assert f"trimtab: cannot use the authority in {missing}" in capsys.readouterr().err


def test_an_invoke_that_can_not_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name in ("missing", "bytes"):
        assert run(["metastore", "invoke", f"@{tmp_path / name}", *PEER]) == 1
        assert "trimtab: can't read the invoke: " in capsys.readouterr().err


class Paged:
    """A member whose messages hold two keys each, one of which every other page lacks."""

    def __init__(self, keys: int) -> None:
        self.keys = [b"k%03d" % number for number in range(keys)]
        self.asked: list[tuple[int, int]] = []

    async def range(self, low: bytes, _high: bytes | None, *, revision: int, limit: int, **_: Any) -> RangeReply:
        self.asked.append((revision, limit))
        rest = [key for key in self.keys if key >= low]
        fit = min(2 if len(self.asked) % 2 else 1, limit)
        entries = [Entry(key, b"v", 1, 1, 1) for key in rest[:fit]]
        return RangeReply(7, entries, rest[fit] if len(rest) > fit else None)

    async def close(self) -> None:
        pass


def list_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], keys: int, *options: str
) -> tuple[Paged, list[str], str]:
    member = Paged(keys)

    async def connect(*_: object, **__: object) -> Paged:
        return member

    monkeypatch.setattr(MetastoreClient, "connect", connect)
    assert run(["metastore", "range", "k", "--json", *options, *PEER]) == 0
    said = capsys.readouterr()
    return member, [json.loads(line)["key"] for line in said.out.splitlines()], said.err


def test_a_range_is_shown_to_its_end_although_it_comes_in_pages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    member, shown, error = list_keys(monkeypatch, capsys, 25)
    assert shown == [key.decode() for key in member.keys] and not error
    # All of it as of one revision.
    assert member.asked[0] == (0, 1_000) and {revision for revision, _ in member.asked[1:]} == {7}


def test_a_range_ends_at_its_limit_and_says_that_there_is_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    member, shown, error = list_keys(monkeypatch, capsys, 25, "--limit", "11")
    assert shown == [key.decode() for key in member.keys[:11]]
    assert "there are more keys, from 'k011' on; raise --limit" in error
    assert not list_keys(monkeypatch, capsys, 11, "--limit", "11")[2]
