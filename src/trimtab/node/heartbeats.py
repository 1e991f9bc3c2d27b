"""Heartbeats to the leader, which renew this instance's lease.

One every `every_s`, oftener where the leader's leases are shorter than one's own setting, and one at once when there
is another leader. `on_beat` is called each time one is due, also where nobody leads. The time of sending is taken
before the heartbeat is handed to the network, and the lease counts from there (`topology.leases`).

A heartbeat says how this wall clock stands to the leader's steady clock, and the grant says what time it is in the
cluster (`clock_watch`).

The first one is sent when the cluster has taken note of this life. Before that it holds no lease, because its row may
have the settings of an earlier life; and who is never taken note of is not kept Online by saying nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from trimtab.net.errors import NetError
from trimtab.node.clock_watch import ClockWatch
from trimtab.node.group import Group
from trimtab.node.links import Link
from trimtab.node.presence import Granted
from trimtab.topology import protocol
from trimtab.topology.leases import HEARTBEATS_PER_LEASE, LeaseHolder
from trimtab.topology.protocol import Grant, Heartbeat
from trimtab.topology.view import View


class Heartbeats:
    """Of one instance. `at_own_desk` takes the heartbeat where this instance leads itself."""

    def __init__(
        self,
        raft_id: int,
        uuid: str,
        group: Group,
        view: View,
        links: Mapping[int, Link],
        holder: LeaseHolder,
        clock_s: Callable[[], float],
        watch: ClockWatch,
        *,
        at_own_desk: Callable[[Heartbeat, Granted], None],
        every_s: float,
        timeout_s: float,
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._raft_id = raft_id
        self._uuid = uuid
        self._group = group
        self._view = view
        self._links = links
        self._holder = holder
        self._clock_s = clock_s
        self._watch = watch
        self._at_own_desk = at_own_desk
        self._own_every_s = self._every_s = every_s
        self._timeout_s = timeout_s
        self._on_beat = on_beat
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, first_s: float) -> None:
        """Send one now, then from `first_s` on, which differs from instance to instance: they don't beat in step.

        Started already: only send one now.
        """
        if self._timer is None:
            self._timer = self._loop.call_later(first_s, self._again)
        self.beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._again)
        self._on_beat()
        self.beat()

    def beat(self) -> None:
        """Send one to whoever leads, if anybody is known to."""
        if self._timer is None and not self._holder.surrendered:
            return
        raft = self._group.raw.raft
        leader = raft.lead
        link = self._links.get(leader)
        if leader != self._raft_id and (link is None or not link.channel.connected):
            return
        sent_ms, clock = self._watch.steady_ms(), self._watch.against_leader(raft.term)
        beat = Heartbeat(
            self._raft_id,
            self._uuid,
            self._holder.sent(self._clock_s()),
            raft.term,
            self._group.machine.applied_index,
            self._view.version,
            self._holder.surrendered,
            clock.low_ms,
            clock.high_ms,
        )
        if link is None:
            self._at_own_desk(beat, partial(self._granted, sent_ms))
            return
        try:
            answer = link.channel.call(protocol.RENEW, protocol.encode(beat), self._timeout_s)
        except NetError:
            # Not sent; the next one comes soon.
            return
        answer.add_done_callback(partial(self._answered, sent_ms))

    def _answered(self, sent_ms: int, answer: asyncio.Future[bytes]) -> None:
        # A heartbeat without an answer is not renewed, which is all there is to do about it.
        if answer.cancelled() or answer.exception() is not None:
            return
        try:
            grant = protocol.decode_grant(answer.result())
        except msgspec.DecodeError:
            return
        self._granted(sent_ms, grant)

    def _granted(self, sent_ms: int, grant: Grant) -> None:
        self._watch.granted(grant, sent_ms)
        self._holder.granted(grant, self._clock_s())
        if grant.lease_ms:
            self._every_s = min(self._own_every_s, grant.lease_ms / 1000 / HEARTBEATS_PER_LEASE)
