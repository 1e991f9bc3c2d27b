"""What instances say to each other about writes that a replica missed: the bodies of these RPC methods.

    method            from -> to                           body            answer
    catchup.status    returning -> every member            StatusRequest   StatusReply   (hints for it, and the mark)
    catchup.done      repaired -> whoever had a mark       DoneRequest     DoneReply
    catchup.missed    whoever has a mark -> its target     (empty)         (empty: it will look into it)
    repair.digests    repairing -> another replica         DigestsRequest  DigestsReply
    repair.page       repairing -> another replica         PageRequest     PageReply
    repair.tablet     first replica -> each replica        TabletRequest   (empty: repaired against all the others)
    repair.through    first replica -> each replica        ThroughRequest  (empty: stored)
    repair.begin      job -> each replica                  BeginRequest    BeginReply
    repair.put        job -> a replica that lacks rows     RowsRequest     (empty: synced and applied)
    repair.end        job -> each replica                  EndRequest      EndReply

Arrays on the wire; fields are only ever added at the end, with a default. Tokens travel as keys do: ranges of keys are
half open, and a whole token begins with its 8 bytes.
"""

from __future__ import annotations

import msgspec

from trimtab.rows.protocol import Pairs, decoder, encode

__all__ = ["encode"]

STATUS = "catchup.status"
DONE = "catchup.done"
MISSED = "catchup.missed"
DIGESTS = "repair.digests"
PAGE = "repair.page"
TABLET = "repair.tablet"
THROUGH = "repair.through"
BEGIN = "repair.begin"
ROWS = "repair.put"
END = "repair.end"


class StatusRequest(msgspec.Struct, array_like=True, frozen=True):
    """Asked by an instance about itself. The answer waits for up to `wait_ms` until no hint is left from before."""

    wait_ms: int = 0


class StatusReply(msgspec.Struct, array_like=True, frozen=True):
    """What the asked member holds for the asking one.

    `missed_since_ms` 0: the hints are all there was. Otherwise some were dropped, and `mark` names that: it changes
    whenever more is missed, and with every life of the member that holds it.
    """

    hints: int
    bytes: int = 0
    missed_since_ms: int = 0
    mark: tuple[int, int] = (0, 0)


class DoneRequest(msgspec.Struct, array_like=True, frozen=True):
    """Everything that this mark stands for has been repaired."""

    mark: tuple[int, int]


class DoneReply(msgspec.Struct, array_like=True, frozen=True):
    """`cleared` False: more was missed since; ask again for the status."""

    cleared: bool


class DigestsRequest(msgspec.Struct, array_like=True, frozen=True):
    """The digests of ranges of one tablet: range i is cuts[i] <= key < cuts[i+1]; the last cut may be empty, the end.

    Deletions from before `forget_ms` don't count. `gentle`: it may take its time. `generation` 0: the one served.
    """

    table: int
    tablet: int
    catalog: int
    cuts: list[bytes]
    forget_ms: int
    gentle: bool = False
    generation: int = 0


class DigestsReply(msgspec.Struct, array_like=True, frozen=True):
    """For the first ranges (all of them, unless that takes too long): digest (empty: no rows) and number of pairs.

    `adopted`: the epoch up to which this replica has taken over loads.
    """

    digests: list[bytes]
    pairs: list[int]
    adopted: int = 0


class PageRequest(msgspec.Struct, array_like=True, frozen=True):
    """Rows of one tablet with low <= key < high, merged as for digests; about `limit_bytes` of them."""

    table: int
    tablet: int
    catalog: int
    low: bytes
    high: bytes
    forget_ms: int
    limit_bytes: int
    gentle: bool = False
    generation: int = 0


class PageReply(msgspec.Struct, array_like=True, frozen=True):
    """Pairs in the order of their keys, whole rows. `next` is where the following page begins; empty: nowhere.

    Rows of loads may be among them, up to epoch `committed`: who takes them has to know of these loads first, or it
    would show them to readers that may not see them yet.
    """

    pairs: Pairs
    next: bytes = b""
    committed: int = 0


class TabletRequest(msgspec.Struct, array_like=True, frozen=True):
    """Repair your replica of this tablet against all the others. Asked again, it goes on with what it began.

    `round` tells one round from another: it is the time at which the round began.
    """

    table: int
    tablet: int
    round: int


class ThroughRequest(msgspec.Struct, array_like=True, frozen=True):
    """Every replica of the tablet holds what any of them was given before this time."""

    table: int
    tablet: int
    through_ms: int


class BeginRequest(msgspec.Struct, array_like=True, frozen=True):
    """A job is going to compare all replicas of this tablet."""

    table: int
    tablet: int


class BeginReply(msgspec.Struct, array_like=True, frozen=True):
    """Which replica it is that stands here, up to when it was repaired, and what time it is here."""

    generation: int
    repaired_through_ms: int
    now_ms: int


class RowsRequest(msgspec.Struct, array_like=True, frozen=True):
    """Pairs that this replica lacks, merged from copies of which the oldest was taken at `taken_ms`."""

    table: int
    tablet: int
    generation: int
    taken_ms: int
    pairs: Pairs


class EndRequest(msgspec.Struct, array_like=True, frozen=True):
    """All of `replicas` hold now what any of them held at `begun_ms`, the earliest time that one said at the begin."""

    table: int
    tablet: int
    generation: int
    replicas: tuple[int, ...]
    begun_ms: int


class EndReply(msgspec.Struct, array_like=True, frozen=True):
    repaired_through_ms: int


decode_status = decoder(StatusRequest)
decode_status_reply = decoder(StatusReply)
decode_done = decoder(DoneRequest)
decode_done_reply = decoder(DoneReply)
decode_digests = decoder(DigestsRequest)
decode_digests_reply = decoder(DigestsReply)
decode_page = decoder(PageRequest)
decode_page_reply = decoder(PageReply)
decode_tablet = decoder(TabletRequest)
decode_through = decoder(ThroughRequest)
decode_begin = decoder(BeginRequest)
decode_begin_reply = decoder(BeginReply)
decode_rows = decoder(RowsRequest)
decode_end = decoder(EndRequest)
decode_end_reply = decoder(EndReply)
