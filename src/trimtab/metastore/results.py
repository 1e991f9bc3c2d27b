"""What a command answers. A result is part of the replicated state: it is stored under the command's id, a retry gets
the very same one, and it goes into the checksum. So it holds nothing that could differ between members.
"""

from __future__ import annotations

import enum
from typing import Union

import msgspec
from msgspec import Struct

from trimtab.metastore.errors import MetastoreError


class FailureCode(enum.IntEnum):
    INVALID = 1  # malformed, or over a limit: never retry as it is
    EXPIRED = 2  # the id is too old to know whether it was executed before
    FUTURE_REVISION = 3  # compaction beyond the current revision


class InvokeResult(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """An invoke was executed: `yields` is what the leaf it reached answers, `revision` the revision after it."""

    revision: int
    yields: bytes | bool
    changes: int  # keys changed; 0: no new revision was made


class CompactResult(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """History below `compacted_revision` is gone; at least what was asked for, more if it was already."""

    revision: int
    compacted_revision: int


class Failed(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The command was not executed and changed nothing. `time_ms` is the replicated time, for clocks that lag."""

    code: FailureCode
    text: str
    time_ms: int


Result = Union[InvokeResult, CompactResult, Failed]  # noqa: UP007 (resolved at run time)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Result)

encode_result = _encoder.encode


def decode_result(data: bytes) -> Result:
    """The inverse of `encode_result`; msgspec.DecodeError on anything else."""
    result: Result = _decoder.decode(data)
    return result


class CommandFailed(MetastoreError):
    """A command that was not executed."""

    def __init__(self, failed: Failed) -> None:
        self.code = failed.code
        self.time_ms = failed.time_ms
        super().__init__(failed.text)


class CommandExpired(CommandFailed):
    """Too old: it may have been executed before, and nobody remembers. It was not executed now."""


def outcome(result: Result) -> InvokeResult | CompactResult:
    """The result itself, or the exception that a failed one stands for."""
    if isinstance(result, Failed):
        raise CommandExpired(result) if result.code is FailureCode.EXPIRED else CommandFailed(result)
    return result
