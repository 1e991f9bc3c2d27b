"""The judge of scans by epochs, told on a small history."""

from __future__ import annotations

import pytest

from trimtab.loads.records import LoadKind
from trimtab.sim.checks import Violation
from trimtab.sim.loads_history import EpochRead, Load, LoadedPut, LoadsHistory
from trimtab.sim.loads_judge import FIRST_PUT, EpochJudge
from trimtab.tablets.consistency import Level

TABLE = 7


def history() -> LoadsHistory:
    """Epoch 1 shows load a; epoch 2 the overwrite b, as generation 2."""
    found = LoadsHistory()
    for id, kind, stamp in (("a", LoadKind.APPEND, 1_999), ("b", LoadKind.OVERWRITE, 2_999)):
        load = Load(id, TABLE, kind, False, stamp)
        load.rows = {(1, 0): id.encode(), (2, ord(id)): id.encode()}
        found.loads[id] = load
    found.visible[TABLE] = {1: (1, ("a",)), 2: (2, ("b",))}
    return found


def read(rows: dict[tuple[int, int], bytes], first: int, last: int, at_s: float = 5.0) -> EpochRead:
    return EpochRead(1, "r1", TABLE, Level.QUORUM, at_s, at_s + 1, first, last, rows, ["m0"])


OLD = {(1, 0): b"a", (2, ord("a")): b"a"}
NEW = {(1, 0): b"b", (2, ord("b")): b"b"}


def test_a_scan_shows_one_epoch_and_all_of_it() -> None:
    judge = EpochJudge(history(), {"dc1": 3})
    judge.judge_read(read({}, 0, 0))
    judge.judge_read(read(OLD, 0, 1))
    judge.judge_read(read(NEW, 1, 2))
    for rows, first, last in (
        (OLD, 2, 2),  # taken back
        (NEW, 0, 1),  # too early
        ({(1, 0): b"a"}, 0, 2),  # a part
        ({**OLD, (2, ord("b")): b"b"}, 0, 2),  # of two
        ({(1, 0): b"b", (2, ord("a")): b"a"}, 0, 2),
    ):
        with pytest.raises(Violation, match="shows no epoch"):
            judge.judge_read(read(rows, first, last))


def test_puts_are_in_every_scan_of_their_generation_and_in_no_other() -> None:
    found, key = history(), (3, FIRST_PUT + 1)
    found.puts.append(LoadedPut(key, b"p", TABLE, Level.QUORUM, 1.0, 2.0, 1, 1, acked=True))
    judge = EpochJudge(found, {"dc1": 3})
    judge.judge_read(read({**OLD, key: b"p"}, 1, 1))
    judge.judge_read(read(NEW, 2, 2))
    with pytest.raises(Violation, match="lacks the put"):
        judge.judge_read(read(OLD, 1, 1))
    judge.judge_read(read(OLD, 1, 1, at_s=1.5))
    with pytest.raises(Violation, match="generation 2 can't have"):
        judge.judge_read(read({**NEW, key: b"p"}, 2, 2))
    with pytest.raises(Violation, match="nobody had put"):
        judge.judge_read(read({**OLD, key: b"q"}, 1, 1))
