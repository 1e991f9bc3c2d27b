"""Who is wrong when checksums differ."""

from __future__ import annotations

import pytest

from trimtab.metastore.divergence import Judgement, Report, Verdict, judge

GOOD, BAD, WORSE = b"good....", b"bad.....", b"worse..."


def judged(
    reports: dict[int, tuple[int, bytes]],
    voters: tuple[int, ...] = (1, 2, 3),
    own: dict[int, bytes] | None = None,
    outgoing: tuple[int, ...] = (),
) -> Judgement:
    """Member 1's judgement; it has GOOD at revision 10 unless said."""
    known = {10: GOOD} if own is None else own
    return judge(1, known.get, {m: Report(*r) for m, r in reports.items()}, voters, outgoing)


def test_agreement_and_silence_are_ok() -> None:
    assert judged({}).verdict is Verdict.OK
    assert judged({2: (10, GOOD), 3: (10, GOOD)}).verdict is Verdict.OK


def test_revisions_that_can_not_be_compared_say_nothing() -> None:
    assert judged({2: (9, BAD), 3: (11, BAD)}).verdict is Verdict.OK


def test_one_that_differs_is_a_suspicion() -> None:
    judgement = judged({2: (10, BAD)})
    assert judgement.verdict is Verdict.SUSPECT
    assert (judgement.revision, judgement.differing) == (10, (2,))
    assert "ask every voter for its checksum at revision 10" in judgement.why


def test_a_majority_that_agrees_otherwise_convicts() -> None:
    judgement = judged({2: (10, BAD), 3: (10, BAD)})
    assert judgement.verdict is Verdict.DIVERGED
    assert "members 2, 3, a majority of the voters" in judgement.why and "under a new raft id" in judgement.why


@pytest.mark.parametrize("other", [WORSE, GOOD])
def test_two_that_differ_from_each_other_convict_nobody(other: bytes) -> None:
    assert judged({2: (10, BAD), 3: (10, other)}).verdict is not Verdict.DIVERGED


def test_with_the_majority_on_our_side_the_other_one_has_to_stop() -> None:
    judgement = judged({2: (10, BAD), 3: (10, GOOD)})
    assert judgement.verdict is Verdict.OK and judgement.differing == (2,)
    assert "not this one" in judgement.why


def test_learners_and_strangers_have_no_vote() -> None:
    assert judged({7: (10, BAD), 8: (10, BAD), 2: (10, BAD)}).verdict is Verdict.SUSPECT


def test_a_learner_can_be_convicted() -> None:
    assert judged({2: (10, BAD), 3: (10, BAD)}, voters=(2, 3, 4)).verdict is Verdict.DIVERGED


def test_agreement_at_different_revisions_is_no_majority() -> None:
    own = {10: GOOD, 11: GOOD}
    assert judged({2: (10, BAD), 3: (11, BAD)}, own=own).verdict is Verdict.SUSPECT


def test_half_is_no_majority() -> None:
    assert judged({2: (10, BAD), 3: (10, BAD)}, voters=(1, 2, 3, 4)).verdict is Verdict.SUSPECT
    assert judged({2: (10, BAD), 3: (10, BAD), 4: (10, BAD)}, voters=(1, 2, 3, 4)).verdict is Verdict.DIVERGED


def test_in_a_joint_configuration_either_half_convicts() -> None:
    reports = {4: (10, BAD), 5: (10, BAD)}
    assert judged(reports, voters=(1, 2, 3), outgoing=(1, 4, 5)).verdict is Verdict.DIVERGED
    assert judged(reports, voters=(1, 2, 3), outgoing=()).verdict is Verdict.SUSPECT


def test_a_conviction_at_one_revision_is_not_outweighed_by_agreement_at_another() -> None:
    own = {9: GOOD, 10: GOOD, 11: GOOD}
    assert judged({2: (10, BAD), 3: (10, BAD), 4: (9, GOOD), 5: (11, GOOD)}, own=own).verdict is Verdict.DIVERGED


def test_a_single_voter_has_nobody_to_ask() -> None:
    assert judged({2: (10, BAD)}, voters=(1,)).verdict is Verdict.OK
