"""Many small files at once: each has a verdict of its own, all are durable together, none is sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.bulk.serving import Served, serving, stage_ticket

from trimtab.bulk import protocol
from trimtab.bulk.client import BulkRefused, Packed, SmallFile


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "data") as made:
        made.tell(["s1", "s2"])
        yield made


def small(name: str, data: bytes, session: str = "s1", tablet: int = 3, ticket: bytes | None = None) -> SmallFile:
    return SmallFile(ticket if ticket is not None else stage_ticket(session), session, tablet, name, data)


def test_files_of_many_sessions_are_there_with_one_answer(served: Served) -> None:
    files = [small("a.sst", b"one"), small("a.json", b"{}"), small("b.sst", b"two" * 1000, "s2", 4), small("e", b"")]
    with served.client() as client:
        assert [(each.code, each.sent_bytes) for each in client.pack(files)] == [("", 3), ("", 2), ("", 3000), ("", 0)]
        assert client.attempts == 1
    assert served.staged("a.sst").read_bytes() == b"one"
    assert served.staged("b.sst", "s2", 4).read_bytes() == b"two" * 1000
    assert served.staged("e").read_bytes() == b""
    assert not list(served.directory.rglob("*.part"))
    assert served.server.counters.files_in == 4


def test_what_is_there_is_not_sent_again_and_another_content_is_refused(served: Served) -> None:
    with served.client() as client:
        client.pack([small("a", b"one")])
        again = client.pack([small("a", b"one"), small("b", b"new")])
        assert [(each.code, each.sent_bytes) for each in again] == [("", 0), ("", 3)]
        other = client.pack([small("a", b"other"), small("c", b"more")])
    assert [each.code for each in other] == [protocol.CONFLICT, ""]
    assert served.staged("a").read_bytes() == b"one" and served.staged("c").read_bytes() == b"more"


def test_a_session_that_is_closed_costs_only_its_own_files(served: Served) -> None:
    with served.client() as client:
        found = client.pack([small("a", b"one", "s3"), small("b", b"two", "s2"), small("c", b"x", ticket=b"bad")])
    assert [each.code for each in found] == [protocol.NO_SESSION, "", protocol.BAD_TICKET]
    assert found[1] == Packed(3)
    assert not (served.directory / "staging" / "s3").exists()


def test_without_any_good_ticket_all_is_refused_and_no_byte_is_taken(served: Served) -> None:
    with served.client() as client, pytest.raises(BulkRefused, match="no ticket"):
        client.pack([small("a", b"one", ticket=b"bad")])
    assert served.server.counters.bytes_in == 0


def test_a_full_disk_is_told_of_each_file(served: Served) -> None:
    served.free_bytes = 10
    with served.client() as client:
        found = client.pack([small("a", b"x" * 20), small("b", b"y")])
        assert [each.code for each in found] == [protocol.DISK_FULL, protocol.DISK_FULL]
        served.free_bytes = 1 << 30
        assert [each.code for each in client.pack([small("a", b"x" * 20), small("b", b"y")])] == ["", ""]


def test_a_pack_has_a_bound(served: Served) -> None:
    with served.client() as client, pytest.raises(BulkRefused, match="at most"):
        client.pack([small(str(number), b"") for number in range(protocol.PACK_FILES + 1)])
