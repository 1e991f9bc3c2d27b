"""What a client is told. Every error names what was asked, what is known about the outcome, and what to do.

The numbers are attributes, so that programs need not read the text; None where they mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping


class Error(Exception):
    """Base of everything a client raises.

    `consistency`: the level that was asked for. `required`: how many replicas it needs. `alive`: how many of them could
    have answered. `received`: how many did. `failures`: how many refused. `reasons`: their codes, by raft id.
    `rows_written`: of a put_many, how many are written for certain.
    """

    consistency: str | None = None
    required: int | None = None
    alive: int | None = None
    received: int | None = None
    failures: int | None = None
    reasons: Mapping[str, str] | None = None
    rows_written: int | None = None


class Unavailable(Error):
    """Too few could take the request, so it was not carried out: `required` and `alive` say how few."""


class Timeout(Error):
    """The time is up. A write may or may not have been carried out: writing the same again does no harm.

    A write that carries a `timestamp` is tried again by the client itself, as is every read.
    """


class Overloaded(Error):
    """A limit on waiting work was reached; nothing was done. Ask less at a time, or later."""


class WriteFailed(Error):
    """So many replicas refused a write that waiting is useless. Some may have it; writing it again does no harm."""


class ReadFailed(Error):
    """So many replicas refused a read that waiting is useless; the text has their reasons."""


class InvalidRequest(Error):
    """The request itself is wrong, and was not carried out: trying again changes nothing."""


class TooLarge(InvalidRequest):
    """What was asked for, or its answer, is more than one message may hold: ask for less at a time."""


class SchemaError(InvalidRequest):
    """A change of the schema that makes no sense, or not as the schema is now."""


class NotFound(InvalidRequest):
    """There is no such keyspace, table, column or type."""


class VersionMismatch(Error):
    """The table changed again and again while the request was made; nothing was done. Try again."""


class Expired(Error):
    """The command's id is too old for anybody to know whether it was carried out before; it was not carried out now.

    Read the state and decide; a new attempt needs a new id.
    """
