"""How copies are shared out over tasks and grouped by their sources, and what is noted of them."""

from __future__ import annotations

from trimtab.pipeline.copies import SMALL_BYTES, Carry, Source
from trimtab.pipeline.held_sources import PER_NAME, grouped
from trimtab.pipeline.streaming import _Progress, shared_out


def source(size_bytes: int, raft_id: int = 1, **fields: int) -> Source:
    stands = {"generation": 1, "adopted": 4, "repaired_through_ms": 10, "forgot_us": 0} | fields
    files = (("000001.sst", size_bytes),)
    return Source(raft_id, f"i{raft_id}", "snap", "/data", f"proof-{raft_id}-of-it", "p", files, "a:1", b"t", **stands)


def carry(number: int, size_bytes: int, address: str = "b:1", sources: int = 1) -> Carry:
    some = tuple(source(size_bytes, raft_id) for raft_id in range(1, sources + 1))
    return Carry(number, "ks.t", number, 9, "i9", f"s{number}", b"ticket", address, some)


def test_tasks_are_of_about_one_size_and_each_sends_to_one_target() -> None:
    sizes = [100 << 20, *[10 << 20] * 20, *[1000] * 50]
    carries = [carry(number, size, f"t{number % 2}:1") for number, size in enumerate(sizes)]
    made = shared_out(carries, 2)
    assert sorted(each.number for some in made for each in some) == list(range(len(sizes)))
    assert all(len({each.address for each in some}) == 1 for some in made)
    weights = [sum(each.size_bytes for each in some) for some in made]
    assert weights[0] == 100 << 20 and max(weights[1:]) <= 60 << 20
    assert len(made) <= 10


def test_tiny_copies_are_few_tasks() -> None:
    assert len(shared_out([carry(number, 5_000) for number in range(256)], 2)) <= 7
    assert len(shared_out([carry(number, 5_000) for number in range(8)], 2)) == 1
    assert shared_out([], 2) == []


def test_groups_are_the_same_for_whoever_takes_over_and_another_job_has_others() -> None:
    copies = [(tablet, (2, 1) if tablet % 2 else (3,), "s") for tablet in range(600)]
    first = grouped(copies, set(range(600)), "7", 1)
    assert [len(each.tablets) for each in first] == [PER_NAME, 300 - PER_NAME, PER_NAME, 300 - PER_NAME]
    assert {each.sources for each in first} == {(1, 2), (3,)}
    left = grouped(copies, {0, 2}, "7", 1)
    assert [(each.base, each.tablets, each.wanted) for each in left] == [(first[2].base, first[2].tablets, {0, 2})]
    assert {each.base for each in grouped(copies, set(range(600)), "8", 1)}.isdisjoint(each.base for each in first)


def test_a_manifest_claims_no_more_than_the_least_of_its_sources_has() -> None:
    sources = (source(10, 1, adopted=5, repaired_through_ms=20), source(10, 2, adopted=3, forgot_us=7))
    merged = Carry(0, "ks.t", 6, 9, "i9", "s", b"", "b:1", sources)
    told = merged.manifest([])
    assert (told["kind"], told["sources"], told["epoch"]) == ("merge", [1, 2], 3)
    assert (told["repaired_through_ms"], told["forgot_us"], told["generation"]) == (10, 7, 1)
    assert (
        merged.stream.startswith("m")
        and merged.stream == Carry(1, "ks.t", 6, 8, "i8", "s", b"", "c:1", sources[::-1]).stream
    )
    large = carry(1, SMALL_BYTES + 1)
    assert (large.manifest([])["kind"], large.stream) == ("copy", "proof-1-of-i")
    assert carry(1, SMALL_BYTES).manifest([])["kind"] == "merge"


def test_what_is_done_is_noted_once_and_taken_up_again() -> None:
    progress = _Progress(10)
    assert progress.note(3) is None
    progress.finish([[2, 100], [9, 50], [2, 100]])
    note = progress.note(3)
    assert note == {"table": 3, "count": 10, "done": "204", "bytes": 150} and progress.note(3) is None
    again = _Progress.of(note, 3, 10)
    assert [number for number in range(10) if again.is_done(number)] == [2, 9] and again.done_bytes == 150
    assert again.note(3) is None
    # Of another table, or another set of copies: nothing.
    assert _Progress.of(note, 4, 10).done == _Progress.of(note, 3, 9).done == 0
