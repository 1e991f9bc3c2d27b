"""What comes next for a tablet that moves: every stage, every reason to wait or to go back, and any walk."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.tablets.consistency import quorum_of
from trimtab.tablets.selectors import SELECTORS, Replicas, Side, Stage, replica_sets
from trimtab.tablets.stages import (
    MAX_TRIES,
    Advance,
    Ask,
    Copy,
    Finish,
    JobPart,
    JobSeen,
    Scene,
    Wait,
    Work,
    at_once,
    copies_of,
    decide,
    kind_of,
    malformed,
    widened,
)
from trimtab.tablets.transitions import TabletTransition, TransitionKind

MIGRATION, REBUILD, REPAIR = TransitionKind.MIGRATION, TransitionKind.REBUILD, TransitionKind.REPAIR
ONE_DC = dict.fromkeys(range(1, 10), "dc1")
EVERYBODY = frozenset(range(1, 10))
UNDOES = Stage.CLEANUP_TARGET


def scene(
    stage: Stage,
    pending: Replicas = (1, 2, 4),
    stable: Replicas = (1, 2, 3),
    kind: TransitionKind = MIGRATION,
    *,
    locked: bool = False,
    attempts: int = 0,
    leftovers: Replicas = (),
    **known: object,
) -> Scene:
    current = TabletTransition(pending, kind, stage, session="s", locked=locked, attempts=attempts, leftovers=leftovers)
    given: dict[str, object] = {"dc_of": ONE_DC, "up": EVERYBODY} | known
    return Scene(0, stable, current, **given)  # type: ignore[arg-type]


def copied(job: JobPart = JobPart.COPIED, text: str = "") -> JobSeen:
    return JobSeen(job, text)


# Forward


def test_targets_are_prepared_before_anybody_writes_to_them() -> None:
    stage = Stage.ALLOW_WRITE_BOTH_READ_OLD
    assert decide(scene(stage)) == Ask(Work.PREPARE, (4,))
    assert decide(scene(stage, prepared={4})) == Advance(Stage.WRITE_BOTH_READ_OLD, barrier=True)
    both = scene(stage, (1, 4, 5), kind=REBUILD, prepared={5})
    assert decide(both) == Ask(Work.PREPARE, (4,))
    assert decide(scene(stage, (1, 2), kind=REPAIR)) == Advance(Stage.WRITE_BOTH_READ_OLD, barrier=True)


def test_copying_begins_behind_a_barrier_when_enough_are_up() -> None:
    stage = Stage.WRITE_BOTH_READ_OLD
    assert decide(scene(stage)) == Advance(Stage.STREAMING, barrier=True)
    assert decide(scene(stage, up={1, 2, 4})) == Wait("3, whose replica is to be copied, is not ready")
    assert isinstance(decide(scene(stage, (1, 2, 4, 5), kind=REBUILD, up={1})), Wait)
    assert decide(scene(stage, (1, 2, 4, 5), kind=REBUILD, up={1, 3})) == Advance(Stage.STREAMING, barrier=True)
    assert decide(scene(stage, (1, 2), kind=REPAIR, up={1, 3})) == Wait("2, which stays, can't be repaired now")
    assert decide(scene(stage, (1, 2), kind=REPAIR, up={1, 2})) == Advance(Stage.STREAMING, barrier=True)


def test_a_copy_is_adopted_and_then_read() -> None:
    stage = Stage.STREAMING
    assert decide(scene(stage, job=copied(JobPart.UNDER_WAY, "job 7 copies it"))) == Wait("job 7 copies it")
    assert decide(scene(stage, job=copied())) == Ask(Work.ADOPT, (4,))
    assert decide(scene(stage, job=copied(), adopted={4})) == Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False)
    assert decide(scene(stage, (1, 2), kind=REPAIR, job=copied())) == Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False)
    assert isinstance(decide(scene(stage, (1, 2), kind=REPAIR, job=copied(JobPart.UNDER_WAY, "job 7"))), Wait)


@pytest.mark.parametrize("job", list(JobPart))
def test_what_was_adopted_counts_whatever_became_of_the_job(job: JobPart) -> None:
    found = decide(scene(Stage.STREAMING, job=JobSeen(job, "why"), adopted={4}))
    assert found == Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False)


def test_the_old_set_is_left_behind_two_barriers_and_then_cleaned() -> None:
    assert decide(scene(Stage.WRITE_BOTH_READ_NEW, locked=True)) == Advance(Stage.USE_NEW, barrier=True)
    assert decide(scene(Stage.USE_NEW, locked=True)) == Advance(Stage.CLEANUP, barrier=True)
    assert decide(scene(Stage.CLEANUP, locked=True)) == Ask(Work.CLEAN, (3,))
    over = Advance(Stage.END_MIGRATION, barrier=False)
    assert decide(scene(Stage.CLEANUP, locked=True, cleaned={3})) == over
    assert decide(scene(Stage.CLEANUP, locked=True, down={3})) == over
    assert decide(scene(Stage.END_MIGRATION, locked=True)) == Finish(applied=True)


# Back


@pytest.mark.parametrize("stage", [Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING])
def test_before_the_lock_it_is_undone_when_a_target_or_the_source_goes_down(stage: Stage) -> None:
    for victim, why in ((4, "was to get a replica"), (3, "whose replica was to be copied")):
        found = decide(scene(stage, down={victim}, prepared={4}, without_copy={4}))
        assert isinstance(found, Advance) and found.to is UNDOES and not found.barrier and found.failure
        assert why in found.why
    assert not isinstance(decide(scene(stage, down={1})), Advance) or decide(scene(stage, down={1})).to is not UNDOES  # type: ignore[union-attr]
    rebuilt = decide(scene(stage, kind=REBUILD, down={3}, up={1, 2, 4}))
    assert not (isinstance(rebuilt, Advance) and rebuilt.to is UNDOES)
    unwanted = decide(scene(stage, unwanted="3 is to stay after all"))
    assert unwanted == Advance(UNDOES, barrier=False, why="3 is to stay after all")


def test_a_copy_that_is_there_needs_its_source_no_more() -> None:
    """It may be all that is left, where one replica was to move: nobody throws it away because its source died."""
    for stable, pending in (((1, 2, 3), (1, 2, 4)), ((3,), (4,))):
        of = {"stable": stable, "pending": pending, "down": {3}, "gone": {3}, "up": {1, 2, 4}}
        assert decide(scene(Stage.STREAMING, job=copied(), **of)) == Ask(Work.ADOPT, (4,))  # type: ignore[arg-type]
        over = decide(scene(Stage.STREAMING, job=copied(), adopted={4}, **of))  # type: ignore[arg-type]
        assert over == Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False)
        for what in ({"job": copied(JobPart.UNDER_WAY)}, {"job": copied(), "spoilt": "4: it is damaged"}, {}):
            found = decide(scene(Stage.STREAMING, without_copy={4}, **of, **what))  # type: ignore[arg-type]
            assert isinstance(found, Advance) and found.to is UNDOES, what
    gone = decide(scene(Stage.STREAMING, job=copied(), down={3, 4}))
    assert isinstance(gone, Advance) and gone.to is UNDOES, "who was to get it is gone, and the copy with it"


def test_who_arrives_is_asked_for_its_copy_before_a_move_is_undone_because_nobody_else_has_it() -> None:
    """It takes copies over by itself, while their job copies others; the leader hears of it when the job has ended."""
    lost = {"stable": (3,), "pending": (4,), "down": {3}, "up": {4}}
    for part in JobPart:
        found = decide(scene(Stage.STREAMING, job=copied(part), **lost))  # type: ignore[arg-type]
        assert found == Ask(Work.ADOPT, (4,)), part
        over = decide(scene(Stage.STREAMING, job=copied(part), adopted={4}, **lost))  # type: ignore[arg-type]
        assert over == Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False), part
    several = {"stable": (3,), "pending": (4, 5), "kind": REBUILD, "down": {3}, "gone": {3}, "up": {4, 5}}
    found = decide(scene(Stage.STREAMING, without_copy={4}, spoilt="4: it has none", **several))  # type: ignore[arg-type]
    assert found == Ask(Work.ADOPT, (5,))
    for what in ({"unwanted": "it is to stay"}, {"hopeless": "4: its disk is full"}, {"down": {3, 4}}):
        found = decide(scene(Stage.STREAMING, **{**lost, **what}))  # type: ignore[arg-type]
        assert isinstance(found, Advance) and found.to is UNDOES, what


def test_what_can_never_be_copied_is_undone() -> None:
    for stage in (Stage.ALLOW_WRITE_BOTH_READ_OLD, Stage.WRITE_BOTH_READ_OLD, Stage.STREAMING):
        lost = {"down": {2, 3}, "gone": {2, 3}, "up": {1, 4}}
        rebuilt = decide(scene(stage, (2, 3, 4), (2, 3), REBUILD, without_copy={4}, **lost))  # type: ignore[arg-type]
        assert isinstance(rebuilt, Advance) and rebuilt.to is UNDOES and "nobody else has it" in rebuilt.why
        shrunk = decide(scene(stage, (2, 3), (1, 2, 3), REPAIR, **lost))  # type: ignore[arg-type]
        assert isinstance(shrunk, Advance) and shrunk.to is UNDOES and "were to stay, left for good" in shrunk.why
        repaired = decide(scene(stage, (2, 3), (1, 2, 3), REPAIR, job=copied(), **lost))  # type: ignore[arg-type]
        assert repaired == shrunk, "who was to go has the only copy now"
        waits = decide(scene(stage, (2, 3, 4), (2, 3), REBUILD, down={2, 3}, up={1, 4}))
        assert not (isinstance(waits, Advance) and waits.to is UNDOES), "those may come back"


# 1 had it alone, and is dead or even gone; 4 and 5 were to have it too, and 4 has.
ORPHANED = {"stable": (1,), "pending": (1, 4, 5), "kind": REBUILD, "down": {1}, "up": {4, 5}, "adopted": {4}}
DEAD = pytest.mark.parametrize("gone", [(), (1,)], ids=["down", "gone"])


def orphaned(stage: Stage = Stage.STREAMING, **known: object) -> object:
    return decide(scene(stage, **{**ORPHANED, "now_ms": 1_000_000, **known}))  # type: ignore[arg-type]


@DEAD
@pytest.mark.parametrize("part", [part for part in JobPart if part is not JobPart.UNDER_WAY])
def test_where_all_sources_are_dead_the_others_copy_from_who_has_a_copy(part: JobPart, gone: Replicas) -> None:
    """It was undone, and the only copy thrown away, because another target had none yet."""
    known = {"job": copied(part, "its source is dead"), "gone": gone}
    assert orphaned(**known) == Ask(Work.ADOPT, (5,)), "it may have its own"
    why = "5: no whole copy is there"
    again = orphaned(**known, without_copy={5}, spoilt=why, attempts=MAX_TRIES + 30)
    assert again == Copy(((5, (4,)),), why), "however often it was tried"
    assert orphaned(**known, adopted={4, 5}) == Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False)


@DEAD
def test_the_job_that_copies_the_last_copy_is_waited_for_and_so_is_who_has_it(gone: Replicas) -> None:
    under_way = copied(JobPart.UNDER_WAY, "job 7 copies it")
    assert orphaned(job=under_way, gone=gone) == Wait("job 7 copies it")
    silent = orphaned(job=copied(JobPart.NOT_COPIED), without_copy={5}, up={5}, gone=gone)
    assert silent == Wait("4, which has the only copy, is not ready")
    for who in (4, 5):
        found = orphaned(down={1, who}, up={4, 5} - {who}, gone=gone)
        assert isinstance(found, Wait) and f"{who} may have what nobody else has: start" in found.why


def test_who_may_have_the_last_copy_is_asked_or_waited_for() -> None:
    forsaken = {"gone": {1}, "adopted": ()}
    found = orphaned(**forsaken, without_copy={4}, down={1, 5}, up={4})
    assert found == Wait("5 may have what nobody else has: start it again, or remove what is lost")
    assert orphaned(**forsaken, job=copied(JobPart.UNDER_WAY)) == Ask(Work.ADOPT, (4, 5))
    full = orphaned(**forsaken, job=copied(), hopeless="4: its disk is full", without_copy={5})
    assert full == Ask(Work.ADOPT, (4,)), "it has a copy, and needs room for it"
    nobody = orphaned(**forsaken, unable={5}, without_copy={4})
    assert isinstance(nobody, Advance) and nobody.to is UNDOES and "nobody else has it" in nobody.why
    assert orphaned(adopted=(), down={1, 5}, up={4}) == Ask(Work.ADOPT, (4,))
    assert orphaned(adopted=(), job=copied(JobPart.FAILED)) == Ask(Work.ADOPT, (4, 5))
    down = orphaned(adopted=(), down={1, 5}, up={4}, without_copy={4})
    assert isinstance(down, Advance) and down.to is UNDOES, "1 may come back, and has it for certain"


def test_the_last_copy_goes_on_without_those_who_will_never_have_one() -> None:
    for part in JobPart:
        lost = {"job": copied(part), "unable": {5}, "down": {1, 5}, "up": {4}}
        found = orphaned(**lost, gone={1})
        assert found == Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False, without=(5,)), part
        assert orphaned(**lost) == Wait("1 may have what nobody else has: start it again")


@DEAD
def test_nobody_goes_back_to_a_set_of_which_nobody_serves(gone: Replicas) -> None:
    read = orphaned(Stage.WRITE_BOTH_READ_NEW, locked=True, down={1, 5}, up={4}, gone=gone, adopted=())
    assert read == Advance(Stage.USE_NEW, barrier=True)
    turned = orphaned(Stage.WRITE_BOTH_READ_OLD, locked=True, gone=gone, adopted=())
    assert isinstance(turned, Advance) and turned.to is Stage.WRITE_BOTH_READ_NEW and not turned.barrier


def test_one_that_stays_alone_has_nobody_to_be_compared_with() -> None:
    """Two of three left for good, and one replica is declared now: no job could meet a read quorum."""
    lost = {"down": {2, 3}, "gone": {2, 3}, "up": {1}}
    begun = decide(scene(Stage.WRITE_BOTH_READ_OLD, (1,), (1, 2, 3), REPAIR, **lost))  # type: ignore[arg-type]
    assert begun == Advance(Stage.STREAMING, barrier=True)
    for part in JobPart:
        found = decide(scene(Stage.STREAMING, (1,), (1, 2, 3), REPAIR, job=copied(part), **lost))  # type: ignore[arg-type]
        assert found == Advance(Stage.WRITE_BOTH_READ_NEW, barrier=False), part
    waits = decide(scene(Stage.WRITE_BOTH_READ_OLD, (1,), (1, 2, 3), REPAIR, down={2, 3}, gone={2}, up={1}))
    assert isinstance(waits, Wait), "3 may come back"


def test_a_job_that_failed_or_was_cancelled_has_the_move_undone_and_one_that_vanished_is_made_again() -> None:
    for part in (JobPart.FAILED, JobPart.CANCELLED):
        found = decide(scene(Stage.STREAMING, job=JobSeen(part, "job 7 is no more")))
        assert found == Advance(UNDOES, barrier=False, why="job 7 is no more", failure=True)
    assert decide(scene(Stage.STREAMING)) == Copy(((4, (3,)),))
    assert decide(scene(Stage.STREAMING, up={1, 2, 4})) == Wait("3, whose replica is to be copied, is not ready")


def test_what_could_not_be_copied_is_tried_again_after_a_rest_and_not_for_ever() -> None:
    failed = JobSeen(JobPart.NOT_COPIED, "the disk is full", ended_ms=10_000)
    assert isinstance(decide(scene(Stage.STREAMING, job=failed, attempts=1, now_ms=10_900)), Wait)
    again = decide(scene(Stage.STREAMING, job=failed, attempts=1, now_ms=11_000))
    assert again == Copy(((4, (3,)),), "the disk is full")
    # A clock that was set back keeps nobody waiting.
    assert isinstance(decide(scene(Stage.STREAMING, job=failed, attempts=1, now_ms=9_000)), Copy)
    found = decide(scene(Stage.STREAMING, job=failed, attempts=MAX_TRIES, now_ms=99_000))
    assert isinstance(found, Advance) and found.to is UNDOES and "the disk is full" in found.why


def test_a_copy_that_can_not_be_used_is_made_again() -> None:
    found = decide(scene(Stage.STREAMING, job=copied(), spoilt="4: it is damaged", now_ms=5_000))
    assert found == Copy(((4, (3,)),), "4: it is damaged")


def test_a_target_without_room_has_the_move_undone() -> None:
    found = decide(scene(Stage.STREAMING, job=copied(), hopeless="4: its disk is full"))
    assert found == Advance(UNDOES, barrier=False, why="4: its disk is full", failure=True)


@pytest.mark.parametrize("known", ["hopeless", "failing"])
def test_a_target_that_can_not_make_a_replica_has_the_move_undone(known: str) -> None:
    """It was asked for ever, and took a place among those that may move."""
    stage, why = Stage.ALLOW_WRITE_BOTH_READ_OLD, "4: there is a file of this name"
    undone = Advance(UNDOES, barrier=False, why=why, failure=True)
    assert decide(scene(stage, **{known: why})) == undone  # type: ignore[arg-type]
    assert decide(scene(stage, (1, 4, 5), kind=REBUILD, prepared={5}, **{known: why})) == undone  # type: ignore[arg-type]
    assert decide(scene(stage, prepared={4}, **{known: why})) == Advance(Stage.WRITE_BOTH_READ_OLD, barrier=True)  # type: ignore[arg-type]


def test_a_copy_that_can_not_be_taken_over_however_often_it_is_tried_is_given_up_unless_it_may_be_the_last() -> None:
    why = "4: its disk is ill (tried 5 times)"
    found = decide(scene(Stage.STREAMING, job=copied(), failing=why))
    assert found == Advance(UNDOES, barrier=False, why=why, failure=True)
    last = {"stable": (3,), "pending": (4,), "down": {3}, "up": {4}}
    assert decide(scene(Stage.STREAMING, job=copied(), failing=why, **last)) == Ask(Work.ADOPT, (4,))  # type: ignore[arg-type]


def test_who_has_adopted_its_copy_gets_no_other() -> None:
    missed = JobSeen(JobPart.NOT_COPIED, "5 went away")
    found = decide(scene(Stage.STREAMING, (1, 2, 3, 4, 5), kind=REBUILD, job=missed, adopted={4}, now_ms=99_000))
    assert isinstance(found, Copy) and [target for target, _ in found.copies] == [5]
    several = {"kind": REBUILD, "job": missed, "now_ms": 99_000}
    found = decide(scene(Stage.STREAMING, (1, 2, 3, 4, 5), **several))  # type: ignore[arg-type]
    assert found == Ask(Work.ADOPT, (4, 5)), "one of them may have taken it by itself"
    found = decide(scene(Stage.STREAMING, (1, 2, 3, 4, 5), without_copy={4, 5}, **several))  # type: ignore[arg-type]
    assert isinstance(found, Copy) and [target for target, _ in found.copies] == [4, 5]


def test_after_the_lock_it_goes_back_only_if_the_new_set_lost_more_and_by_way_of_writing_both() -> None:
    stage = Stage.WRITE_BOTH_READ_NEW
    back = decide(scene(stage, locked=True, down={4}))
    assert isinstance(back, Advance) and back.to is Stage.WRITE_BOTH_READ_OLD and not back.barrier and back.failure
    for down in ({3}, {3, 4}, {1}):
        assert decide(scene(stage, locked=True, down=down)) == Advance(Stage.USE_NEW, barrier=True)
    again = decide(scene(Stage.WRITE_BOTH_READ_OLD, locked=True))
    assert isinstance(again, Advance) and again.to is UNDOES and again.barrier
    for late in (Stage.USE_NEW, Stage.CLEANUP, Stage.END_MIGRATION):
        found = decide(scene(late, locked=True, down={1, 2, 4}))
        assert not (isinstance(found, Advance) and found.to is UNDOES)


def test_targets_and_leftovers_are_cleaned_before_all_is_as_it_was() -> None:
    assert decide(scene(UNDOES, leftovers=(5,))) == Ask(Work.CLEAN, (4, 5))
    assert decide(scene(UNDOES, leftovers=(5,), cleaned={5})) == Ask(Work.CLEAN, (4,))
    done = decide(scene(UNDOES, leftovers=(5,), cleaned={5}, down={4}))
    assert done == Advance(Stage.REVERT_MIGRATION, barrier=False)
    assert decide(scene(Stage.REVERT_MIGRATION)) == Finish(applied=False)


def test_a_record_that_makes_no_sense_is_left_alone() -> None:
    for pending, kind in (((1, 2), MIGRATION), ((1, 4, 5), MIGRATION), ((1, 2, 4), REPAIR), ((1, 2, 3), REBUILD)):
        assert malformed(scene(Stage.STREAMING, pending, kind=kind))
        for stage in Stage:
            assert isinstance(decide(scene(stage, pending, kind=kind)), Wait)
    assert malformed(scene(Stage.STREAMING, (), kind=REPAIR))
    assert malformed(scene(Stage.STREAMING, (2, 2), (1,), REBUILD))


# What is copied


def test_a_migration_copies_the_leaving_replica_and_a_rebuild_the_merge_of_a_read_quorum() -> None:
    assert copies_of(scene(Stage.STREAMING)) == ((4, (3,)),)
    found = copies_of(scene(Stage.STREAMING, (1, 2, 4, 5), kind=REBUILD, up={1, 3, 4, 5}))
    assert [target for target, _ in found] == [4, 5] and all(set(sources) == {1, 3} for _, sources in found)
    assert copies_of(scene(Stage.STREAMING, (1, 2), kind=REPAIR)) == ()


def test_a_read_quorum_is_one_of_every_data_centre() -> None:
    dcs = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b", 7: "b"}
    ((target, sources),) = copies_of(
        scene(Stage.STREAMING, (1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6), REBUILD, dc_of=dcs)
    )
    assert target == 7 and sorted(dcs[each] for each in sources) == ["a", "a", "b", "b"]


def test_kinds() -> None:
    assert kind_of((1, 2, 3), (1, 2, 4), ONE_DC) is MIGRATION
    assert kind_of((1, 2, 3), (1, 2, 4), ONE_DC, lost={3}) is REBUILD
    assert kind_of((1, 2, 3), (1, 2, 4), ONE_DC | {4: "dc2"}) is REBUILD
    assert kind_of((1, 2, 3), (1, 2, 3, 4), ONE_DC) is REBUILD
    assert kind_of((1, 2, 3), (4, 5, 6), ONE_DC) is REBUILD
    assert kind_of((1, 2, 3), (1, 2), ONE_DC) is REPAIR and kind_of((1, 2), (2, 1), ONE_DC) is REPAIR


SETS = st.sets(st.integers(1, 8), min_size=1, max_size=6).map(sorted).map(tuple)


@given(stable=SETS, target=SETS, two=st.booleans())
def test_what_goes_at_once_keeps_every_acknowledged_write_on_a_quorum(
    stable: Replicas, target: Replicas, two: bool
) -> None:
    """Whatever quorum of the old set has a write: with it on all who arrive, a quorum of the new set has it."""
    dcs = {raft_id: f"dc{raft_id % 2 if two else 0}" for raft_id in range(1, 9)}
    arriving = set(target) - set(stable)

    def holds(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        if not before or not after:
            return True
        leaving_first = sorted(before, key=lambda each: each in target)
        have = {*leaving_first[: quorum_of(len(before))], *arriving}
        return len(have.intersection(after)) >= quorum_of(len(after))

    safe = holds(stable, target) and all(
        holds(tuple(i for i in stable if dcs[i] == dc), tuple(i for i in target if dcs[i] == dc))
        for dc in set(dcs.values())
    )
    if arriving:
        assert at_once(stable, target, dcs) == safe
        assert at_once(stable, widened(stable, target), dcs)
    else:
        assert at_once(stable, target, dcs)  # they are repaired first


# Any walk


def test_selectors_of_stages_that_follow_each_other_go_together() -> None:
    """Two routers may differ by one step: what one of them has written the other must find."""
    for stage, known in product(Stage, (False, True)):
        for down in (set(), {3}, {4}, {3, 4}):
            found = decide(
                scene(stage, locked=known, down=down, prepared={4}, adopted={4}, cleaned={3, 4}, job=copied())
            )
            if isinstance(found, Advance):
                _go_together(stage, found.to)


def _go_together(one: Stage, other: Stage) -> None:
    first, second = SELECTORS[one], SELECTORS[other]
    for writer, reader in ((first, second), (second, first)):
        assert writer.writes in (Side.BOTH, reader.reads), f"{one} and {other}"


@st.composite
def events(draw: st.DrawFn) -> list[tuple[str, int]]:
    names = ("prepare", "adopt", "none", "clean", "down", "up", "copy", "fail", "spoil", "unwanted")
    return draw(st.lists(st.tuples(st.sampled_from(names), st.integers(1, 6)), min_size=20, max_size=120))


@given(stable=SETS, target=SETS, happens=events())
def test_any_walk_ends_without_breaking_what_must_hold(
    stable: Replicas, target: Replicas, happens: list[tuple[str, int]]
) -> None:
    if set(stable) == set(target):
        return
    current = TabletTransition(target, kind_of(stable, target, ONE_DC), session="s")
    prepared: set[int] = set()
    adopted: set[int] = set()
    cleaned: set[int] = set()
    down: set[int] = set()
    without_copy: set[int] = set()
    job, spoilt, unwanted, crossed = JobSeen(), "", "", 0
    walked = [current.stage]
    for name, who in [*happens, *[("settle", 0)] * 40]:
        match name:
            case "prepare":
                prepared.add(who)
            case "adopt" if job.part is JobPart.COPIED:
                adopted.add(who)
            case "none":
                without_copy.add(who)
            case "clean" if current.stage in (Stage.CLEANUP, Stage.CLEANUP_TARGET):
                cleaned.add(who)
            case "down" if len(down) < 2:
                down.add(who)
            case "up":
                down.discard(who)
            case "copy" if current.stage is Stage.STREAMING:
                job = copied()
            case "fail" if current.stage is Stage.STREAMING:
                job = JobSeen(JobPart.NOT_COPIED, "no")
            case "spoil":
                spoilt = "it is damaged" if not spoilt else ""
            case "unwanted" if who == 1:
                unwanted = "nobody wants it"
            case "settle":
                down, spoilt = set(), ""
                prepared, cleaned = {*range(1, 10)}, {*range(1, 10)}
                if current.stage is Stage.STREAMING:
                    job, adopted = copied(), {*range(1, 10)}
        now = Scene(
            0,
            stable,
            current,
            ONE_DC,
            down,
            EVERYBODY - down,
            prepared,
            adopted,
            cleaned,
            job,
            spoilt,
            unwanted=unwanted,
            now_ms=1_000_000,
            without_copy=without_copy,
        )
        decision = decide(now)
        match decision:
            case Finish(applied=applied):
                assert applied == (current.stage is Stage.END_MIGRATION)
                if applied:
                    assert set(current.arriving(stable)) <= adopted
                assert crossed == len([stage for stage in walked if SELECTORS[stage].barrier]) - 1
                return
            case Advance():
                if not decision.why:
                    assert decision.barrier == SELECTORS[current.stage].barrier
                _go_together(current.stage, decision.to)
                if decision.to in (Stage.CLEANUP, Stage.USE_NEW):
                    assert decision.barrier, "nobody is left behind, or cleaned, without a barrier"
                if decision.to is Stage.WRITE_BOTH_READ_NEW:
                    assert set(current.arriving(stable)) <= adopted
                if decision.to is Stage.CLEANUP_TARGET:
                    assert not current.locked or current.stage is Stage.WRITE_BOTH_READ_OLD
                crossed += SELECTORS[current.stage].barrier
                locked = current.locked or decision.to is Stage.WRITE_BOTH_READ_NEW
                current = msgspec.structs.replace(current, stage=decision.to, locked=locked)
                walked.append(current.stage)
                sets = replica_sets(current.stage, stable, target)
                assert sets.reads in sets.writes, "who is read is written to"
            case Copy():
                assert current.stage is Stage.STREAMING
                current = msgspec.structs.replace(current, attempts=current.attempts + 1)
                job, spoilt = JobSeen(JobPart.UNDER_WAY, "job"), ""
            case Ask(work=work, of=of):
                assert of
                if work is Work.CLEAN:
                    assert not set(of) & set(replica_sets(current.stage, stable, target).writers)
            case Wait():
                pass
    raise AssertionError(f"it never ended: {walked}, {decision}")
