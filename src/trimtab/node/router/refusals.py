"""How a request for rows is refused: each way with a code for programs, a sentence for people and its numbers.

`unavailable`: it was known beforehand that too few replicas can answer, so nothing was sent. `write_timeout` and
`read_timeout`: too few answered in time. `write_failed` and `read_failed`: so many refused that waiting longer is
useless. After the last four a write may have happened, on some replicas or on all, unless the text says that nothing
was done (`NothingDone`); writing the same again is harmless. `overloaded`: nothing was done, here or at any replica;
whoever asks again a little later may do better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from trimtab.node.answering import Refused
from trimtab.tablets.consistency import Level

_encode = msgspec.msgpack.Encoder().encode

UNAVAILABLE = "unavailable"
WRITE_TIMEOUT = "write_timeout"
READ_TIMEOUT = "read_timeout"
WRITE_FAILED = "write_failed"
READ_FAILED = "read_failed"
OVERLOADED = "overloaded"
INVALID = "invalid"
NOT_FOUND = "not_found"
VERSION_MISMATCH = "version_mismatch"
DISK_FULL = "disk_full"
TOO_LARGE = "too_large"
_ABOUT_CONTENT = frozenset((TOO_LARGE, INVALID))
CORRUPT = "corrupt"
# What replicas refuse that know of a newer map than whoever asked them.
NOT_HERE = "not_here"
FENCED = "fenced"
OTHER_MAP = frozenset((NOT_HERE, FENCED))
NOTHING = "nothing was done"


# Code and text by raft id.
Failures = Mapping[int, tuple[str, str]]


class NothingDone(Refused):
    """Of a write that no replica has taken, and that none will get: it was not sent, or no hint of it was kept."""


def numbers(**details: int | str | Mapping[str, int | str]) -> bytes:
    """Details of a refusal, as they travel."""
    return _encode(details)


def invalid(text: str) -> Refused:
    return Refused(INVALID, text)


def unavailable(level: Level, required: int, alive: int, where: str) -> Refused:
    text = f"{level.name} needs {required} {where} replicas, but only {alive} can answer now; nothing was done"
    return Refused(UNAVAILABLE, text, numbers(consistency=level.name, required=required, alive=alive))


def timed_out(
    write: bool, level: Level, required: int, received: int, where: str, failures: Failures | None = None
) -> Refused:
    """`failures`: of those who refused meanwhile."""
    what = "the write may have happened" if write else "ask again, or at a lower level"
    text = f"{level.name} needs {required} {where} replicas, {received} answered in time; {what}"
    code = WRITE_TIMEOUT if write else READ_TIMEOUT
    if not failures:
        return Refused(code, text, numbers(consistency=level.name, required=required, received=received))
    return Refused(code, f"{text} ({_why(failures)})", _refused_numbers(level, required, received, failures))


def failed(
    write: bool,
    level: Level,
    required: int,
    received: int,
    where: str,
    failures: Failures,
    *,
    nothing_done: bool = False,
    unanswered: Sequence[int] = (),
) -> Refused:
    """Where all `failures` say the same of a full disk, damage, a version, so does this.

    `nothing_done`: it is certain that no replica has it, or will have it; only then a write is called overloaded.
    `unanswered`: who may have a write, where nobody else has.
    """
    codes = {code for code, _ in failures.values()}
    what = "nothing was answered"
    if write:
        what = NOTHING if nothing_done else f"the write may have happened on {_may_have_it(unanswered)}"
    text = (
        f"{level.name} needs {required} {where} replicas, {received} answered and {len(failures)} refused; "
        f"{what} ({_why(failures)})"
    )
    code = WRITE_FAILED if write else READ_FAILED
    if len(codes) == 1:
        only = next(iter(codes))
        if only in (DISK_FULL, CORRUPT, VERSION_MISMATCH) or (only == OVERLOADED and (nothing_done or not write)):
            code = only
        elif only == TOO_LARGE and not write:
            # All say the same of the same row, and the row is at fault.
            code, text = only, next(text for _, text in failures.values())
    details = _refused_numbers(level, required, received, failures)
    return NothingDone(code, text, details) if write and nothing_done else Refused(code, text, details)


def about_content(refused: Refused) -> bool:
    """Whether replicas have refused a write because of what it says."""
    if refused.code != WRITE_FAILED or not refused.details:
        return False
    reasons = msgspec.msgpack.decode(refused.details).get("reasons", {})
    return not _ABOUT_CONTENT.isdisjoint(reasons.values())


def _may_have_it(unanswered: Sequence[int]) -> str:
    if not unanswered:
        return "some"
    if len(unanswered) == 1:
        return f"replica {unanswered[0]}, which has not answered"
    return f"replicas {', '.join(map(str, unanswered))}, which have not answered"


def _why(failures: Failures) -> str:
    return "; ".join(f"replica {raft_id}: {text}" for raft_id, (_, text) in sorted(failures.items()))


def _refused_numbers(level: Level, required: int, received: int, failures: Failures) -> bytes:
    return numbers(
        consistency=level.name,
        required=required,
        received=received,
        failures=len(failures),
        reasons={str(raft_id): code for raft_id, (code, _) in sorted(failures.items())},
    )
