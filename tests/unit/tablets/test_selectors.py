import itertools

import pytest

from trimtab.tablets.selectors import SELECTORS, Side, Stage, replica_sets

OLD, NEW = (1, 2, 3), (2, 3, 4)


def test_a_tablet_that_stays_has_one_set() -> None:
    sets = replica_sets(None, OLD)
    assert sets.writes == (OLD,) and sets.reads == OLD and sets.writers == OLD


@pytest.mark.parametrize(
    ("stage", "writes", "reads", "barrier"),
    [
        ("allow_write_both_read_old", (OLD,), OLD, True),
        ("write_both_read_old", (OLD, NEW), OLD, True),
        ("streaming", (OLD, NEW), OLD, False),
        ("write_both_read_new", (OLD, NEW), NEW, True),
        ("use_new", (NEW,), NEW, True),
        ("cleanup", (NEW,), NEW, False),
        ("end_migration", (NEW,), NEW, True),
        ("cleanup_target", (OLD,), OLD, False),
        ("revert_migration", (OLD,), OLD, True),
    ],
)
def test_each_stage_says_who_writes_and_who_reads(
    stage: str, writes: tuple[tuple[int, ...], ...], reads: tuple[int, ...], barrier: bool
) -> None:
    sets = replica_sets(Stage(stage), OLD, NEW)
    assert (sets.writes, sets.reads) == (writes, reads)
    assert SELECTORS[Stage(stage)].barrier is barrier


def test_everybody_who_takes_a_write_is_named_once() -> None:
    assert replica_sets(Stage.STREAMING, OLD, NEW).writers == (1, 2, 3, 4)


def test_neighbouring_stages_go_together() -> None:
    """Two instances may be one stage apart: what one reads, the other writes."""
    forward = list(Stage)[: list(Stage).index(Stage.CLEANUP_TARGET)]
    assert set(SELECTORS) == set(Stage)
    for before, after in itertools.pairwise(forward):
        for reader, writer in ((before, after), (after, before)):
            reads, writes = SELECTORS[reader].reads, SELECTORS[writer].writes
            assert writes in (reads, Side.BOTH), (reader, writer)
