"""What a member's refusal means to a client: which error it becomes, and whether asking again can help.

A verdict depends on one thing above all: whether something may have been executed. Codes in NOTHING_DONE are given
before anything is sent to a replica, so even a write without a timestamp of its own may go to another member then.
After all others only what is harmless to repeat is repeated: reads, and writes that carry their timestamp.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trimtab.client.errors import (
    Error,
    InvalidRequest,
    NotFound,
    Overloaded,
    ReadFailed,
    SchemaError,
    Timeout,
    TooLarge,
    Unavailable,
    VersionMismatch,
    WriteFailed,
)
from trimtab.net.errors import RpcError

# The schema that the request was made for is not the member's.
OTHER_SCHEMA = frozenset({"version_mismatch", "not_found"})
# The member itself can't serve now; another may.
NOT_THERE = frozenset({"not_ready", "no_lease", "starting", "unknown_method", "removed", "not_leader", "skew"})
NOTHING_DONE = OTHER_SCHEMA | NOT_THERE | {"unavailable", "overloaded"}
# The request is at fault: nobody will take it.
HOPELESS = frozenset({"invalid", "schema", "too_large", "conflict"})
DOUBT = "it may or may not have been carried out; writing the same again does no harm"

_KINDS: dict[str, type[Error]] = {
    "unavailable": Unavailable,
    "not_ready": Unavailable,
    "no_lease": Unavailable,
    "starting": Unavailable,
    "unknown_method": Unavailable,
    "removed": Unavailable,
    "not_leader": Unavailable,
    "skew": Unavailable,
    "write_timeout": Timeout,
    "read_timeout": Timeout,
    "stopped": Timeout,
    "overloaded": Overloaded,
    "write_failed": WriteFailed,
    "read_failed": ReadFailed,
    "invalid": InvalidRequest,
    "too_large": TooLarge,
    "conflict": InvalidRequest,
    "schema": SchemaError,
    "not_found": NotFound,
    "version_mismatch": VersionMismatch,
}
_NUMBERS = ("consistency", "required", "alive", "received", "failures", "reasons")


def translated(error: RpcError, *, writes: bool) -> Error:
    """A member's refusal as an error of this package, with its numbers."""
    kind = _KINDS.get(error.code)
    if kind is None and error.code in ("disk_full", "corrupt"):
        kind = WriteFailed if writes else ReadFailed
    text = error.text if kind is not None else str(error)
    if writes and (kind is None or error.code == "stopped"):
        text = f"{text.rstrip('.')}; {DOUBT}"
    made = (kind or Error)(text)
    for name, number in _details(error.details).items():
        if name in _NUMBERS:
            setattr(made, name, number)
    return made


def _details(packed: bytes) -> dict[str, Any]:
    if not packed:
        return {}
    try:
        found = msgspec.msgpack.decode(packed)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
