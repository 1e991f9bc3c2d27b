"""What a replica missed, as decisions: when hints are enough, when it must be repaired, and what time can promise.

A write reaches a replica in one of three ways: at once, as a hint that its coordinator kept, or by repair. The first
two carry the time at which the write began (`written_ms`, by the coordinator's clock), and replicas refuse what began
longer ago than a hint lives (`refusal_of_age`). That is what everything else here rests on:

**Nothing deleted comes back.** Let S be the time at which a round of repair began, and through = S - hint life - twice
the skew (`repaired_through`). Take any write that began before `through`, by whatever clock. After S every replica's
clock is past through + hint life + skew, so every replica refuses it: whatever of it will ever lie on a replica lies on
one before S, be it a put or a deletion, and however late its messages or hints are. In the round every replica takes
everything from every other one, so afterwards the deletion is on all of them, together with everything older that it
deletes. A replica that then forgets a deletion with written_ms < through forgets what it covers too, and nobody is left
to bring that back: no hint (refused), no late message (refused), no repair (every other replica still has the deletion,
or has forgotten all of it as well). So `through` may be stored without asking anybody for the hints it holds: those of
a member that can't be asked are refused like all others.

A table may say that deletions are kept for less than that (`gc_grace_s`); that has no effect on deletions that no round
has covered. A tablet with one replica has rounds too, which compare nothing and keep the same distance.

Pages of a repair carry rows of any age. They don't outlive a round either: a page that was asked for longer ago than a
hint lives is thrown away (see `trimtab.node.replicas.repair`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

TOKEN_BYTES = 8
_TOKENS = 1 << 64


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """Durable: a target missed writes, the oldest of which began at `since_ms`. `number` grows when more are missed."""

    since_ms: int
    number: int = 1

    def with_more(self, since_ms: int) -> Mark:
        return Mark(min(self.since_ms, since_ms), self.number + 1)


@dataclass(frozen=True)
class Status:
    """What a member said about the hints it holds for this instance."""

    hints: int
    missed_since_ms: int = 0
    mark: tuple[int, int] = (0, 0)


# Time


def refusal_of_age(written_ms: int, now_ms: int, hint_life_ms: int, max_skew_ms: int) -> str | None:
    """Why a replica must not take a write that began at `written_ms`; None: it may. Both clocks are wall clocks."""
    if written_ms < now_ms - hint_life_ms - max_skew_ms:
        return (
            f"the write began {now_ms - written_ms} ms ago, and nothing that is older than {hint_life_ms} ms is taken: "
            "a deletion of it may be forgotten already"
        )
    if written_ms > now_ms + max_skew_ms:
        return f"the write began {written_ms - now_ms} ms in the future; clocks may differ by {max_skew_ms} ms"
    return None


def repaired_through(start_ms: int, hint_life_ms: int, max_skew_ms: int) -> int:
    """What a round of repair that began at `start_ms` promises: every replica has what began before this time."""
    return max(start_ms - hint_life_ms - 2 * max_skew_ms, 0)


# Catching up


def reasons_to_repair(
    statuses: Mapping[int, Status], silent: Collection[int], left: Collection[int], names: Mapping[int, str]
) -> list[str]:
    """Why hints are not enough, in sentences; none: they are.

    `statuses` are the answers of members, `silent` are members that can't be asked, `left` those that have left since
    this instance was last caught up: what they held for it is gone with them.
    """

    def name(raft_id: int) -> str:
        return names.get(raft_id, f"member {raft_id}")

    reasons = [
        f"{name(raft_id)} has not kept hints of all that was missed"
        for raft_id, status in sorted(statuses.items())
        if status.missed_since_ms
    ]
    reasons.extend(f"{name(raft_id)} can't be asked for its hints" for raft_id in sorted(silent))
    reasons.extend(f"{name(raft_id)} has left, and its hints with it" for raft_id in sorted(left))
    return reasons


# Ranges of tokens, as ranges of keys


def key_of_token(token: int) -> bytes:
    """Where the rows of a token begin."""
    return (token + (1 << 63)).to_bytes(TOKEN_BYTES, "big")


def cut_range(low: bytes, high: bytes, parts: int) -> list[bytes]:
    """A range of keys that begins and ends with a token, cut into at most `parts` that do so too.

    `high` empty: to the end of the ring. The first and last cut are `low` and `high` themselves.
    """
    start = int.from_bytes(low, "big")
    stop = int.from_bytes(high, "big") if high else _TOKENS
    width = stop - start
    if width <= 0:
        raise ValueError(f"{low.hex()} .. {high.hex()} is no range of tokens")
    parts = min(parts, width)
    cuts = [start + width * part // parts for part in range(1, parts)]
    return [low, *(cut.to_bytes(TOKEN_BYTES, "big") for cut in cuts), high]


def tablet_keys(first: int, last: int) -> tuple[bytes, bytes]:
    """Where the keys of a tablet begin, and where they have ended (empty: at the end of the ring)."""
    return key_of_token(first + 1), key_of_token(last + 1) if last + 1 < (1 << 63) else b""


@dataclass(frozen=True)
class Differing:
    """What a comparison of digests leaves to do: ranges to compare more closely, and ranges to take as they are."""

    closer: list[tuple[bytes, bytes]]
    take: list[tuple[bytes, bytes]]


def compare(
    cuts: list[bytes], mine: list[bytes], theirs: list[bytes], their_pairs: list[int], few_pairs: int
) -> Differing:
    """Ranges whose digests differ and that hold anything over there; with few pairs they are taken at once."""
    closer: list[tuple[bytes, bytes]] = []
    take: list[tuple[bytes, bytes]] = []
    for at, (own, other, pairs) in enumerate(zip(mine, theirs, their_pairs, strict=True)):
        low, high = cuts[at], cuts[at + 1]
        if own == other or not other:
            continue
        whole = _width(low, high) > 1
        (closer if pairs > few_pairs and whole else take).append((low, high))
    return Differing(closer, take)


def _width(low: bytes, high: bytes) -> int:
    return (int.from_bytes(high, "big") if high else _TOKENS) - int.from_bytes(low, "big")
