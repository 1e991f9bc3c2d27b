"""Staged files from one bulk server to another, through real sockets."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.unit.bulk.serving import QUICK, fetch_ticket, serving, stage_ticket

from trimtab.bulk.client import BulkClient, BulkLost, BulkRefused
from trimtab.loads.protocol import StagedFile
from trimtab.spark.load_plan import HeldFile, LoadFailed
from trimtab.spark.spreading import spread
from trimtab.storage.file_sums import sum_of

DATA = random.Random(1).randbytes(3_000_000)


def held(holders: tuple[int, ...]) -> HeldFile:
    return HeldFile(StagedFile(3, "a.sst", len(DATA), sum_of(DATA), 5), holders)


def quickly(address: str) -> BulkClient:
    return BulkClient(address, patience=QUICK)


def test_a_file_is_carried_to_whoever_lacks_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        with one.client() as client:
            client.stage(source, "s1", 3, "a.sst", stage_ticket())
        bulk = {1: one.address, 2: two.address, 9: "127.0.0.1:1"}
        work = tmp_path / "work"
        work.mkdir()
        (found,) = spread("s1", [held((9, 1))], 2, bulk, stage_ticket(), connect=quickly, base=str(work))
        assert found.holders == (9, 1, 2)
        assert two.staged("a.sst").read_bytes() == DATA
        assert not list(work.iterdir())


def test_a_file_without_a_living_holder_ends_the_load(tmp_path: Path) -> None:
    with serving(tmp_path / "two") as two:
        bulk = {1: "127.0.0.1:1", 2: two.address}
        with pytest.raises(LoadFailed, match=r"a.sst of tablet 3 is on no instance .*got nowhere"):
            spread("s1", [held((1,))], 2, bulk, stage_ticket(), connect=quickly, base=str(tmp_path))


def test_a_target_that_is_gone_is_no_failure_of_the_load(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    with serving(tmp_path / "one") as one:
        with one.client() as client:
            client.stage(source, "s1", 3, "a.sst", stage_ticket())
        with pytest.raises(BulkLost):
            spread(
                "s1",
                [held((1,))],
                2,
                {1: one.address, 2: "127.0.0.1:1"},
                stage_ticket(),
                connect=quickly,
                base=str(tmp_path),
            )


def test_a_ticket_opens_what_was_staged_under_its_own_session_only(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(DATA)
    with serving(tmp_path / "one") as one, one.client() as client:
        one.tell(["s1", "s2"])
        client.stage(source, "s1", 3, "a.sst", stage_ticket())
        for ticket in (stage_ticket("s2"), fetch_ticket("s1")):
            with pytest.raises(BulkRefused) as refused:
                client.fetch("staging/s1/3/a.sst", ticket)
            assert refused.value.code == "bad_ticket"
        assert client.fetch("staging/s1/3/a.sst", stage_ticket(), length=10) == DATA[:10]
