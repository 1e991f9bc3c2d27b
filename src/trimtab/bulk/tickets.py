"""Tickets: what lets somebody fetch the files of one snapshot, or stage files under one session, until it expires.

A node signs them with a key that only members have (`secrets/bulk` in the metastore); the bulk child of any instance
checks them with the same key and asks nobody. A ticket says what it is for, so one that leaks opens nothing else:

    FETCH   the snapshot `subject` of the instance `instance_id`
    STAGE   the session `subject`, on every instance; the child takes files only while that session is open

    ticket = version (1) · HMAC-SHA256 of everything after it (32) · msgpack of the claims

Time and key come in as arguments.
"""

from __future__ import annotations

import enum
import hashlib
import hmac

import msgspec

KEY_BYTES = 32
MAX_TICKET_BYTES = 1024
_VERSION = b"\x01"
_MAC_BYTES = 32
_PURPOSE = b"trimtab bulk ticket\0"


class Right(enum.IntEnum):
    FETCH = 1
    STAGE = 2


class Claims(msgspec.Struct, array_like=True, frozen=True):
    """What a ticket allows."""

    right: Right
    subject: str
    expires_ms: int
    instance_id: str = ""


class TicketRefused(Exception):
    """The ticket does not allow it; the text says why. `expired`: it did, once."""

    def __init__(self, text: str, *, expired: bool = False) -> None:
        super().__init__(text)
        self.expired = expired


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Claims).decode


def sign(key: bytes, claims: Claims) -> bytes:
    """The ticket. ValueError: without a key nothing can be signed."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    data = _encode(claims)
    return _VERSION + _mac(key, data) + data


def read(key: bytes, ticket: bytes, now_ms: int) -> Claims:
    """What a ticket allows now; TicketRefused if it is forged, damaged or expired."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    if not 1 + _MAC_BYTES < len(ticket) <= MAX_TICKET_BYTES or ticket[:1] != _VERSION:
        raise TicketRefused("this is no ticket")
    mac, data = ticket[1 : 1 + _MAC_BYTES], ticket[1 + _MAC_BYTES :]
    # Before anything of it is looked at.
    if not hmac.compare_digest(mac, _mac(key, data)):
        raise TicketRefused("this ticket was not signed by a member of this cluster, or was changed since")
    try:
        claims = _decode(data)
    except ValueError as error:
        raise TicketRefused(f"this ticket can't be read: {error}") from None
    if claims.expires_ms <= now_ms:
        late_s = (now_ms - claims.expires_ms) / 1000
        raise TicketRefused(f"this ticket expired {late_s:.0f} s ago; ask a node for a new one", expired=True)
    return claims


def _mac(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, _PURPOSE + data, hashlib.sha256).digest()
