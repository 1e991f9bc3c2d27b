"""The client of moving: what is under way, an operator's own moves, and how balancing is set.

Everything may be asked again: a move that is so already is not begun twice, and how balancing is set is changed only if
nobody else has changed it since it was looked at. So doubt is never the caller's to resolve.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from trimtab.client.contact import Contacts, decoded
from trimtab.client.errors import InvalidRequest, Timeout, Unavailable
from trimtab.tablets import move_protocol, move_shapes, moves_shown
from trimtab.tablets.move_protocol import MoveReply, MoveRequest, SettingsReply, SettingsRequest
from trimtab.tablets.moves_shown import MovesShown, ShowMoves, ShownMove
from trimtab.tablets.rebalance_settings import RebalanceSettings, wrong_settings
from trimtab.tablets.ring import MAX_TABLETS
from trimtab.tablets.transitions import same

if TYPE_CHECKING:
    from trimtab.client.database import Database

ALWAYS = "always"
_POLL_S = 0.3
Seen = Callable[[MovesShown], None]
_WINDOW = re.compile(r"([0-9]{1,2}):([0-9]{2})\s*-\s*([0-9]{1,2}):([0-9]{2})", re.ASCII)


class Ended(NamedTuple):
    """How a move ended: where the tablet is, and what was last seen of it under way (None: nothing)."""

    replicas: tuple[int, ...]
    last: ShownMove | None

    @property
    def arrived(self) -> bool:
        return self.last is not None and not self.last.undoing and same(self.replicas, self.last.transition.pending)


class MoveClient:
    """On connections that it shares with others."""

    def __init__(self, contacts: Contacts) -> None:
        self._contacts = contacts

    @classmethod
    def on(cls, database: Database) -> MoveClient:
        """On the connections of a client of tables."""
        return cls(database._session.contacts)

    # Looking

    async def show(self, table: int = 0, *, local: bool = False, timeout_s: float | None = None) -> MovesShown:
        """What is under way with a table, or with all (0). `local`: as whoever is asked knows it."""
        body = moves_shown.encode(ShowMoves(table, local=local))
        answer = await self._contacts.ask(moves_shown.SHOW, body, timeout_s)
        reply: MovesShown = decoded(moves_shown.decode_shown, answer)
        return reply

    async def known(self, table: int = 0, *, timeout_s: float) -> MovesShown:
        """The same; where no leader tells within that time, as somebody knows it."""
        try:
            return await self.show(table, timeout_s=timeout_s)
        except (Timeout, Unavailable):
            return await self.show(table, local=True, timeout_s=timeout_s)

    async def wait(self, table: int, tablet: int, seen: Seen | None = None) -> Ended:
        """Wait until nothing is under way with a tablet any more, however long it takes; `seen` is told each state.

        Bounded by the cluster alone: it raises Unavailable or Timeout when nobody has answered for the client's
        timeout. Leaving the wait does not touch the move.
        """
        last: ShownMove | None = None
        while True:
            body = moves_shown.encode(ShowMoves(table, tablet=tablet))
            reply: MovesShown = decoded(
                moves_shown.decode_shown, await self._contacts.ask(moves_shown.SHOW, body, None)
            )
            if seen is not None:
                seen(reply)
            if not reply.moves:
                return Ended(reply.replicas, last)
            last = reply.moves[0]
            await asyncio.sleep(_POLL_S)

    # Moving

    async def ask(
        self,
        table: int,
        tablet: int,
        source: int,
        to: int,
        *,
        force: bool = False,
        why: str = "",
        timeout_s: float | None = None,
    ) -> MoveReply:
        """Move a replica of a tablet, all by their numbers. InvalidRequest: it can't be, or is not forced."""
        return await self._ask(MoveRequest(table, tablet, source, to, force, why), timeout_s)

    async def undo(self, table: int, tablet: int, *, why: str = "", timeout_s: float | None = None) -> MoveReply:
        """Give up on what is under way with a tablet. InvalidRequest: nothing is, or it can't be undone any more."""
        return await self._ask(MoveRequest(table, tablet, why=why), timeout_s)

    async def _ask(self, request: MoveRequest, timeout_s: float | None) -> MoveReply:
        body = move_protocol.encode(request)
        answer = await self._contacts.ask_until(
            move_protocol.ASK, body, self._contacts.deadline(timeout_s), writes=True
        )
        return decoded(move_protocol.decode_move_reply, answer.body)

    # How balancing is set

    async def settings(
        self, wanted: RebalanceSettings | None = None, *, timeout_s: float | None = None
    ) -> SettingsReply:
        """How it is set, after it was changed where others are given: with the `set_ms` of those that they replace."""
        body = move_protocol.encode(SettingsRequest(wanted))
        answer = await self._contacts.ask_until(
            move_protocol.SETTINGS, body, self._contacts.deadline(timeout_s), writes=wanted is not None
        )
        return decoded(move_protocol.decode_settings_reply, answer.body)

    async def rebalance(
        self,
        enabled: bool | None = None,
        window: str | None = None,
        heal_after_s: float | None = None,
        *,
        moving: int | None = None,
        moving_bytes: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """How it is set, as it is shown to people; what is given is changed."""
        changes: dict[str, Any] = {}
        if enabled is not None:
            changes["enabled"] = bool(enabled)
        if window is not None:
            changes["window"] = read_window(window)
        if heal_after_s is not None:
            changes["heal_after_ms"] = _milliseconds(heal_after_s)
        if moving is not None:
            changes["moving"] = moving
        if moving_bytes is not None:
            changes["moving_bytes"] = moving_bytes
        reply = await self.settings(timeout_s=timeout_s)
        if changes:
            wanted = msgspec.structs.replace(reply.settings, **changes)
            if wrong := wrong_settings(wanted):
                raise InvalidRequest(wrong)
            reply = await self.settings(wanted, timeout_s=timeout_s)
        return move_shapes.rebalance(reply.settings, reply.still, reply.problems)


def read_window(text: str) -> tuple[int, ...]:
    """Minutes of the day, of `HH:MM-HH:MM`; none, of `always`. InvalidRequest for anything else."""
    if text.strip().lower() == ALWAYS:
        return ()
    match = _WINDOW.fullmatch(text.strip())
    times = [int(part) for part in match.groups()] if match is not None else [99]
    if match is None or times[0] > 23 or times[1] > 59 or times[2] > 23 or times[3] > 59:
        raise InvalidRequest(f"'{text[:40]}' is no window; write it as 22:00-06:00 (UTC), or always")
    first, last = times[0] * 60 + times[1], times[2] * 60 + times[3]
    if first == last:
        raise InvalidRequest(f"the window {text[:40]} has no time in it; `always` is for the whole day")
    return first, last


def checked_tablet(tablet: int) -> int:
    if isinstance(tablet, bool) or not isinstance(tablet, int) or not 0 <= tablet < MAX_TABLETS:
        raise InvalidRequest(f"a tablet is a number from 0 on, not {tablet!r}")
    return tablet


def _milliseconds(seconds: float) -> int:
    try:
        return round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequest(f"heal_after is a number of seconds, not {seconds!r}") from None
