"""Where the next page begins, as the bytes that a client keeps for us.

A page state holds the table, a digest of the question it belongs to, the row key at which the next page begins, and the
epoch that the first page was read at: all pages are, so that they show all of a load or nothing. Nothing is kept on the
server, and any instance can go on with it, for as long as the table exists, or until so long after a later load that
nobody can read at the epoch any more. With another question, or damaged, it is refused as `invalid` and never read as
something else.
"""

from __future__ import annotations

import hashlib

import msgspec

from trimtab.node.router import refusals
from trimtab.rows.protocol import ScanRequest, SliceRequest

FORMAT = 1
MAX_STATE_BYTES = 256 << 10
_SHAPE_BYTES = 8
_CHECK_BYTES = 4


class _State(msgspec.Struct, array_like=True, frozen=True):
    format: int
    table: int
    shape: bytes
    key: bytes
    epoch: int = -1  # not said


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


def shape_of(request: SliceRequest | ScanRequest) -> bytes:
    """A digest of what makes two requests pages of the same answer. Limit, level and columns may change on the way."""
    if isinstance(request, SliceRequest):
        asked: object = ("slice", request.partition, request.start, request.end, request.reverse, request.as_of_us)
    else:
        asked = ("scan", request.first_token, request.last_token, request.as_of_us)
    return hashlib.blake2b(_encode(asked), digest_size=_SHAPE_BYTES).digest()


def seal(table: int, shape: bytes, key: bytes, epoch: int) -> bytes:
    """The state with which the page that begins at a row key is asked for."""
    body = _encode(_State(FORMAT, table, shape, key, epoch))
    return hashlib.blake2b(body, digest_size=_CHECK_BYTES).digest() + body


def unseal(state: bytes, table: int, shape: bytes) -> tuple[bytes, int]:
    """The row key at which the page begins, and its epoch (-1: the newest).

    Refused for anything that `seal` did not give for the same question.
    """
    check, body = state[:_CHECK_BYTES], state[_CHECK_BYTES:]
    if len(state) > MAX_STATE_BYTES or hashlib.blake2b(body, digest_size=_CHECK_BYTES).digest() != check:
        raise refusals.invalid("the page state is damaged; begin with the first page again")
    try:
        read = _decode(body)
    except msgspec.DecodeError:
        raise refusals.invalid("the page state can't be read; begin with the first page again") from None
    if read.format != FORMAT:
        text = f"the page state has format {read.format}, this release reads {FORMAT}; begin with the first page again"
        raise refusals.invalid(text)
    if read.table != table or read.shape != shape:
        raise refusals.invalid("the page state belongs to another question; begin with the first page again")
    return read.key, read.epoch
