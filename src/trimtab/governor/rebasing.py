"""Numbers that a write takes when it is written, not when it was decided: the topology's version, and the fence.

A decision may wait for long before its write (for a barrier, for leases to end), and meanwhile others raise the version
or the fence. That is no reason to decide anew: which number the write gets says nothing about whether it is right. What
it is based on are the other records it expects, and those must be as they were. Otherwise an instance that comes and
goes would overtake every transition, again and again.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from trimtab.governor.steps import Write
from trimtab.tablets import transitions
from trimtab.topology.records import (
    FENCE_KEY,
    INSTANCES,
    TRANSITION_KEY,
    TRANSITIONS,
    VERSION_KEY,
    decode_instance,
    decode_transition,
    encode,
)
from trimtab.topology.view import View


def rebased(write: Write, view: View) -> Write | None:
    """The write by the numbers of now; None: something that it was decided on has changed."""
    moved = {key for key, revision in write.expect.items() if view.revisions.get(key, 0) != revision}
    if not moved:
        return write
    if not moved <= {VERSION_KEY, FENCE_KEY} or not moved <= set(write.puts):
        return None
    expect, puts = dict(write.expect), dict(write.puts)
    if FENCE_KEY in moved:
        if view.fence >= int(puts[FENCE_KEY]):
            del expect[FENCE_KEY], puts[FENCE_KEY]
        else:
            expect[FENCE_KEY] = view.revisions.get(FENCE_KEY, 0)
    if VERSION_KEY in moved:
        expect[VERSION_KEY] = view.revisions.get(VERSION_KEY, 0)
        _raise_version(puts, int(puts[VERSION_KEY]), view.version + 1)
    return replace(write, expect=expect, puts=puts)


def _raise_version(puts: dict[bytes, bytes], before: int, after: int) -> None:
    """`before` was greater than every version there was: what carries it got it from this write."""
    puts[VERSION_KEY] = b"%d" % after
    for key, value in list(puts.items()):
        if key.startswith(INSTANCES):
            row = decode_instance(value)
            if row.since_version == before:
                puts[key] = encode(msgspec.structs.replace(row, since_version=after))
        elif key == TRANSITION_KEY:
            transition = decode_transition(value)
            if transition.version == before:
                puts[key] = encode(msgspec.structs.replace(transition, version=after))
        elif key.startswith(TRANSITIONS):
            moving = transitions.decode_transition(value)
            if moving.version == before:
                puts[key] = transitions.encode(msgspec.structs.replace(moving, version=after))
