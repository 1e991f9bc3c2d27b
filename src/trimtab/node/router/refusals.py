"""How a request for rows is refused: each way with a code for programs, a sentence for people and its numbers.

`unavailable`: it was known beforehand that too few replicas can answer, so nothing was sent. `write_timeout` and
`read_timeout`: too few answered in time. `write_failed` and `read_failed`: so many refused that waiting longer is
useless. After the last four a write may have happened, on some replicas or on all; writing the same again is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping

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
CORRUPT = "corrupt"


def numbers(**details: int | str | Mapping[str, int | str]) -> bytes:
    """Details of a refusal, as they travel."""
    return _encode(details)


def invalid(text: str) -> Refused:
    return Refused(INVALID, text)


def unavailable(level: Level, required: int, alive: int, where: str) -> Refused:
    text = f"{level.name} needs {required} {where} replicas, but only {alive} can answer now; nothing was done"
    return Refused(UNAVAILABLE, text, numbers(consistency=level.name, required=required, alive=alive))


def timed_out(write: bool, level: Level, required: int, received: int, where: str) -> Refused:
    what = "the write may have happened" if write else "ask again, or at a lower level"
    text = f"{level.name} needs {required} {where} replicas, {received} answered in time; {what}"
    code = WRITE_TIMEOUT if write else READ_TIMEOUT
    return Refused(code, text, numbers(consistency=level.name, required=required, received=received))


def failed(
    write: bool, level: Level, required: int, received: int, where: str, failures: Mapping[int, tuple[str, str]]
) -> Refused:
    """`failures`: code and text by raft id. Where all of them say the same of a full disk or damage, so does this."""
    codes = {code for code, _ in failures.values()}
    reasons = "; ".join(f"replica {raft_id}: {text}" for raft_id, (_, text) in sorted(failures.items()))
    what = "the write may have happened on some" if write else "nothing was answered"
    text = (
        f"{level.name} needs {required} {where} replicas, {received} answered and {len(failures)} refused; "
        f"{what} ({reasons})"
    )
    code = WRITE_FAILED if write else READ_FAILED
    if len(codes) == 1 and (only := next(iter(codes))) in (DISK_FULL, CORRUPT):
        code = only
    details = numbers(
        consistency=level.name,
        required=required,
        received=received,
        failures=len(failures),
        reasons={str(raft_id): reason for raft_id, (reason, _) in sorted(failures.items())},
    )
    return Refused(code, text, details)
