"""What is said about tablets that move.

    method             from -> to                body                 answer
    moves.prepare      leader -> target          MovesCall            MovesReply
    moves.adopt        leader -> target          MovesCall            MovesReply
    moves.clean        leader -> leaving/target  MovesCall            MovesReply
    moves.ask          anyone -> any -> leader   MoveRequest          MoveReply
    moves.settings     anyone -> any -> leader   SettingsRequest      SettingsReply

prepare   the replica takes writes: an empty one for this session is open, durably
adopt     the copy that was staged under the session is verified, and is the replica's; from now on it can answer
clean     no file of a replica of that tablet is left here

Each is idempotent, joins what is under way for the tablet, and looks at the stage in its own view before it does
anything. An answer comes as soon as all are done, or when the time is nearly over, with those that are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from trimtab.tablets.rebalance_settings import RebalanceSettings

PREPARE = "moves.prepare"
ADOPT = "moves.adopt"
CLEAN = "moves.clean"
ASK = "moves.ask"
SETTINGS = "moves.settings"

MAX_PLACES = 1_000  # of one call
UNDER_WAY = "under_way"  # the code of a failure that is none: ask again


class MovingTablet(msgspec.Struct, array_like=True, frozen=True):
    table: int
    tablet: int
    session: str = ""


class MovesCall(msgspec.Struct, array_like=True, frozen=True):
    """`index`: to be applied before anything is done. An order of a stale term is refused."""

    term: int
    index: int
    tablets: list[MovingTablet]


class NotMoved(msgspec.Struct, array_like=True, frozen=True):
    """`code` is for programs: "under_way", "stale" (its stage or session is another), "no_copy", "damaged", …"""

    tablet: MovingTablet
    code: str
    text: str


class MovesReply(msgspec.Struct, array_like=True, frozen=True):
    done: list[MovingTablet] = []
    failed: list[NotMoved] = []


class MoveRequest(msgspec.Struct, array_like=True, frozen=True):
    """Move a replica of a tablet from one instance to another, by raft ids. `force`: although a constraint breaks.

    `to` 0: give up on the move that is under way (it is undone, where that is still possible).
    """

    table: int
    tablet: int
    source: int = 0
    to: int = 0
    force: bool = False
    why: str = ""
    request_id: str = ""
    forwarded: bool = False


class MoveReply(msgspec.Struct, array_like=True, frozen=True):
    """`outcome` is a `transitions.Outcome`; `replicas` is the set that the tablet goes to."""

    outcome: str
    replicas: list[int] = []


class SettingsRequest(msgspec.Struct, array_like=True, frozen=True):
    """None: only tell."""

    settings: RebalanceSettings | None = None
    forwarded: bool = False


class SettingsReply(msgspec.Struct, array_like=True, frozen=True):
    """`still`: why balancing begins nothing now; `problems`: what keeps tablets from where they should be."""

    settings: RebalanceSettings
    still: str = ""
    problems: list[str] = []


encode: Any = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(MovesCall).decode
decode_reply = msgspec.msgpack.Decoder(MovesReply).decode
decode_move = msgspec.msgpack.Decoder(MoveRequest).decode
decode_move_reply = msgspec.msgpack.Decoder(MoveReply).decode
decode_settings = msgspec.msgpack.Decoder(SettingsRequest).decode
decode_settings_reply = msgspec.msgpack.Decoder(SettingsReply).decode
