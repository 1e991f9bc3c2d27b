"""When a tablet is done: its targets were compared, with each other and with a read quorum of all replicas, and have
all rows that were found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.pipeline.test_differences import FLAT, put

from trimtab.pipeline import repairing
from trimtab.pipeline.copies import FAILED
from trimtab.pipeline.repairing import RepairTask, repair_tablet, unmet
from trimtab.pipeline.tasks import Done
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.deletions import Pair
from trimtab.spark.options import Connection
from trimtab.spark.scan_plan import Holder, ScanPart

DCS = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b"}


def task(*holders: int, targets: tuple[int, ...] = (), sources: tuple[int, ...] = ()) -> RepairTask:
    known = {raft_id: Holder(raft_id, f"i{raft_id}", f"h:{raft_id}", dc) for raft_id, dc in DCS.items()}
    plan: Any = SimpleNamespace(holders=known, name_of=lambda raft_id: f"i{raft_id}")
    return RepairTask(plan, ScanPart(0, (), holders), targets, sources)


@pytest.mark.parametrize(
    ("given", "compared", "why"),
    [
        # Without targets all have to take part.
        (task(1, 2, 3), (1, 2, 3), ""),
        (task(1, 2, 3), (1, 2), "i3: down"),
        # Replication shrinks from three to two: the one that goes may be gone already.
        (task(1, 2, 3, targets=(1, 2)), (1, 2), ""),
        (task(1, 2, 3, targets=(1, 2)), (1, 3), "i2: down"),
        # From three to one: it needs another one to meet every acknowledged write.
        (task(1, 2, 3, targets=(1,)), (1,), "a read quorum needs 2 of 3 other replicas in data centre a, 1 compared"),
        (task(1, 2, 3, targets=(1,)), (1, 3), ""),
        # A quorum of each data centre.
        (task(*DCS, targets=(1, 2, 3)), (1, 2, 3), "a read quorum needs 2 of 3 other replicas in data centre b, 0"),
        (task(*DCS, targets=(1, 2, 3)), (1, 2, 3, 5, 6), ""),
        # A target that has no replica.
        (task(1, 2, targets=(1, 9)), (1, 2), "i9: it has no replica of it"),
        # Rows of one data centre are wanted.
        (task(*DCS, targets=(1,), sources=(4, 5, 6)), (1, 4, 5), ""),
        (task(*DCS, targets=(1,), sources=(4, 5, 6)), (1, 4), "2 of 3 sources in data centre b are needed"),
        (task(1, 2, 3, targets=(1,), sources=(4, 5)), (1,), "none of its replicas"),
        (task(*DCS, sources=(1, 4, 5)), (1, 4, 5), ""),
        (task(*DCS, sources=(1, 4, 5)), (4, 5), "i1: down"),
    ],
)
def test_a_tablet_is_done_when_those_that_matter_were_compared(
    given: RepairTask, compared: tuple[int, ...], why: str
) -> None:
    silent = {raft_id: "down" for raft_id in given.part.holders if raft_id not in compared}
    found = unmet(given, compared, silent)
    assert found.startswith(why) if why else not found


def test_only_sources_and_targets_are_asked_where_sources_are_named() -> None:
    assert task(1, 2, 3, targets=(1,)).taking_part == (1, 2, 3)
    assert task(*DCS, targets=(1,), sources=(4, 5, 6)).taking_part == (1, 4, 5, 6)
    assert task(*DCS, sources=(1, 4)).taking_part == (1, 4)


class Tablet:
    """Two replicas that are side by side, and what is sent to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **replicas: list[Pair]) -> None:
        self.sent: list[tuple[str, str, list[bytes]]] = []
        held = {int(name[1:]): sorted(pairs) for name, pairs in replicas.items()}
        known = {raft_id: Holder(raft_id, f"i{raft_id}", f"h:{raft_id}", "a") for raft_id in held}
        self.plan: Any = SimpleNamespace(
            table=FLAT.table,
            types={},
            holders=known,
            name_of=lambda raft_id: f"i{raft_id}",
            connection=Connection("h:1"),
        )
        self.part = ScanPart(0, (), tuple(held))
        copies = SimpleNamespace(
            part=self.part,
            by_holder={raft_id: SimpleNamespace(pairs=lambda *_, own=pairs: own) for raft_id, pairs in held.items()},
            begun={raft_id: SimpleNamespace(generation=1) for raft_id in held},
            begun_ms=50,
            forget_ms=0,
            silent={},
            differing_spans=lambda _tablets: ([(b"", b"")], 1, 9, {}),
        )

        @contextmanager
        def copies_of(*_args: Any, **_named: Any) -> Iterator[Any]:
            yield copies

        monkeypatch.setattr(repairing, "copies_of", copies_of)
        monkeypatch.setattr(repairing, "Instances", lambda _tls: nullcontext(SimpleNamespace(call=self._call)))

    def _call(self, address: str, method: str, body: bytes, _timeout_s: float) -> bytes:
        pairs = protocol.decode_rows(body).pairs if method == protocol.ROWS else []
        self.sent.append((address, method, pairs))
        return protocol.encode(protocol.EndReply(40)) if method == protocol.END else b""


def test_a_row_that_is_too_large_is_left_out_and_told_and_all_others_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the repair of its tablet where it was met, and what was held for others was not sent."""
    small, large = put(FLAT, [1], "a", 5) + put(FLAT, [2], "b", 5), put(FLAT, [3], "c" * (1 << 20), 5)
    other = put(FLAT, [4], "d", 5)
    tablet = Tablet(monkeypatch, i1=small + large, i2=other)
    found = repair_tablet(RepairTask(tablet.plan, tablet.part), Done())
    assert {address: sorted(pairs) for address, _, pairs in tablet.sent} == {
        "h:1": sorted(part for pair in other for part in pair),
        "h:2": sorted(part for pair in small for part in pair),
    }
    assert (found.code, found.through_ms, found.sent_pairs, found.lacked) == (FAILED, 0, 3, {1: 1, 2: 3})
    assert found.why.startswith("rows of more than 900 KiB are lacking at i2 (1)")


def test_a_row_that_is_too_large_matters_only_where_the_replica_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    tablet = Tablet(monkeypatch, i1=put(FLAT, [3], "c" * (1 << 20), 5), i2=[])
    found = repair_tablet(RepairTask(tablet.plan, tablet.part, targets=(1,)), Done())
    assert (found.why, found.through_ms, tablet.sent) == ("", 0, []), "but nothing may be forgotten"


def test_when_all_rows_are_sent_every_replica_stores_how_far_it_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    tablet = Tablet(monkeypatch, i1=put(FLAT, [1], "a", 5), i2=[])
    found = repair_tablet(RepairTask(tablet.plan, tablet.part), Done())
    assert (found.why, found.through_ms) == ("", 40)
    assert [(address, method) for address, method, _ in tablet.sent] == [
        ("h:2", protocol.ROWS),
        ("h:1", protocol.END),
        ("h:2", protocol.END),
    ]
