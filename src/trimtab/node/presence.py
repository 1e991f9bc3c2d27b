"""The leader's desk for heartbeats: it notes who is there, and grants leases while a majority stands behind it.

A heartbeat is answered at once where a majority has confirmed this leader lately; else a round of Raft is asked first,
one for all heartbeats that wait. The time of a confirmation is that of the round's beginning (`office`).

With each answer it tells the cluster's time, which it knows from the heartbeats (`topology.common_time`).

Noticed beside: an instance that spoke for itself (`instance.update`) is there, too; and a process that stood still has
heard nobody, so its time in office begins anew, and it marks nobody Offline for what it could not hear.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from trimtab.governor.state import Heard
from trimtab.metastore.requests import LeaderHint
from trimtab.metastore.requests import encode as encode_hint
from trimtab.net.server import Request
from trimtab.node.errors import NotLeader
from trimtab.node.group import Group
from trimtab.node.office import Office
from trimtab.topology import protocol
from trimtab.topology.common_time import CommonTime, Span
from trimtab.topology.grades import Grade
from trimtab.topology.leases import DOWN, Presence, confirmed_within_ms, grant_for
from trimtab.topology.protocol import Grant, Heartbeat
from trimtab.topology.records import InstanceRecord, instance_key
from trimtab.topology.view import View

Granted = Callable[[Grant], None]


@dataclass
class Withheld:
    """Instances that get no lease, because a write is under way that marks them Offline or Expelled.

    `revisions` are those of their rows when it began. `in_doubt`: nobody knows whether it will be written; it can't be
    any more once the row is another one, or the term is over and everything of it known.
    """

    term: int
    revisions: dict[int, int]
    in_doubt: bool = False


class HeartbeatDesk:
    """Of one instance; it is busy while the instance leads. `news` is told when a rule may care.

    `clock_off` is told once when a member's clock is found to be wrong, and by how many ms.
    """

    def __init__(
        self,
        group: Group,
        view: View,
        office: Office,
        clock_s: Callable[[], float],
        *,
        lease_ms: int,
        election_ms: int,
        election_max_ms: int,
        offline_after_ms: int,
        address_of: Callable[[int], str],
        news: Callable[[], None],
        max_skew_ms: int,
        clock_off: Callable[[int, int], None],
    ) -> None:
        self._group = group
        self._view = view
        self._office = office
        self._clock_s = clock_s
        self._lease_ms = lease_ms
        self._election_ms = election_ms
        self._election_max_ms = election_max_ms
        self._offline_after_ms = offline_after_ms
        self._address_of = address_of
        self._news = news
        self._clock_off = clock_off
        self._presence = Presence(lease_ms, election_max_ms)
        self._clocks = CommonTime(max_skew_ms, offline_after_ms)
        self._withheld: list[Withheld] = []
        self._spoke_s: dict[int, float] = {}  # when an instance last spoke for itself, otherwise than by a heartbeat

    def took_office(self) -> None:
        self._presence.took_office(self._clock_s(), self._view.instances)
        self._spoke_s.clear()
        self._clocks.clear()
        self._withheld = [each for each in self._withheld if each.term == self._office.term]

    # Heartbeats

    def renew(self, request: Request) -> None:
        """Answers lease.renew."""
        beat = protocol.decode_heartbeat(request.body)
        if not self._office.leads:
            error = NotLeader(self._group.raw.raft.lead)
            hint = encode_hint(LeaderHint(error.leader, self._address_of(error.leader)))
            request.fail(error.code, str(error), hint)
            return
        self.take(beat, lambda grant: request.reply(protocol.encode(grant)))

    def take(self, beat: Heartbeat, granted: Granted) -> None:
        """Note a heartbeat; `granted` is called with the answer, now or after a round."""
        record = self._view.instances.get(beat.raft_id)
        if record is not None and record.uuid == beat.uuid:
            now_s, commit = self._clock_s(), self._group.raw.raft.log.committed
            before = self._presence.of(beat.raft_id, now_s)
            self._note_clock(beat)
            self._presence.heard(beat, commit, now_s, catching_up=record.grades.current.grade is Grade.OFFLINE)
            # Only what a rule may care about, or a hundred instances that climb would keep the leader planning.
            was_silent = before.age_ms >= self._offline_after_ms // 2
            caught_up = before.applied < commit <= beat.applied
            if was_silent or (caught_up and not record.grades.settled):
                self._news()
        within_ms = confirmed_within_ms(record, self._election_ms)
        self._office.confirm(within_ms / 2, lambda _error: self._grant(beat, granted))

    def _grant(self, beat: Heartbeat, granted: Granted) -> None:
        raft = self._group.raw.raft
        record = self._view.instances.get(beat.raft_id)
        within_ms = confirmed_within_ms(record, self._election_ms)
        confirmed = self._office.leads and self._office.confirmed_ms_ago() <= within_ms
        grant = grant_for(
            beat, record, term=raft.term, commit=raft.log.committed, lease_ms=self._lease_ms, confirmed=confirmed
        )
        if grant.lease_ms and self._is_withheld(beat.raft_id):
            grant = Grant(
                beat.number, raft.term, 0, raft.log.committed, "it is about to leave, or to be marked Offline"
            )
        elif grant.lease_ms:
            # Before it leaves: whoever marks an instance Offline must know of every lease that may be out.
            self._presence.granted(beat.raft_id, self._clock_s())
        time = self._time()
        granted(
            msgspec.structs.replace(
                grant, steady_ms=self._steady_ms(), time_low_ms=time.low_ms, time_high_ms=time.high_ms
            )
        )

    # Clocks

    def clocks_off(self) -> dict[int, int]:
        """Members whose clocks are wrong, and by how many ms; only the leader knows."""
        return self._clocks.off

    def _note_clock(self, beat: Heartbeat) -> None:
        if beat.term != self._group.raw.raft.term:
            return  # it speaks of another leader's clock
        now_ms = self._steady_ms()
        self._clocks.note(beat.raft_id, Span(beat.clock_low_ms, beat.clock_high_ms), now_ms)
        if off_ms := self._clocks.judge(beat.raft_id, self._time(), now_ms):
            self._clock_off(beat.raft_id, off_ms)

    def _time(self) -> Span:
        there = [
            raft_id
            for raft_id, record in self._view.instances.items()
            if not record.left and record.grades.current.grade not in DOWN
        ]
        return self._clocks.at(self._steady_ms(), there, self._group.raw.raft.lead)

    def _steady_ms(self) -> int:
        return int(self._clock_s() * 1000)

    def spoke(self, raft_id: int) -> None:
        """An instance said something about itself."""
        self._spoke_s[raft_id] = self._clock_s()
        self._news()

    # What the leader knows

    def heard(self) -> dict[int, Heard]:
        """Of every member."""
        now_s = self._clock_s()
        members = self._view.members()
        for gone in [raft_id for raft_id in self._spoke_s if raft_id not in members]:
            del self._spoke_s[gone]
        return {raft_id: self._heard(raft_id, record, now_s) for raft_id, record in members.items()}

    def _heard(self, raft_id: int, record: InstanceRecord, now_s: float) -> Heard:
        seen = self._presence.of(raft_id, now_s)
        age_ms = seen.age_ms
        if (spoke_s := self._spoke_s.get(raft_id)) is not None:
            age_ms = min(age_ms, int((now_s - spoke_s) * 1000))
        return Heard(age_ms, seen.applied, seen.version, seen.uuid or record.uuid, seen.stalled_ms)

    def withhold(self, raft_ids: Iterable[int]) -> Withheld:
        """Grant these no lease, until `grant_again`: they are about to be marked Offline or Expelled."""
        withheld = Withheld(self._office.term, {raft_id: self._revision(raft_id) for raft_id in raft_ids})
        if withheld.revisions:
            self._withheld.append(withheld)
        return withheld

    def grant_again(self, withheld: Withheld) -> None:
        """What kept them from a lease is written, or will certainly not come about."""
        self._withheld = [each for each in self._withheld if each is not withheld]

    def _is_withheld(self, raft_id: int) -> bool:
        self._withheld = [each for each in self._withheld if not self._resolved(each)]
        return any(raft_id in each.revisions for each in self._withheld)

    def _resolved(self, withheld: Withheld) -> bool:
        # It is one conditional write: when one of the rows is another one, it was written, or never will be.
        return withheld.in_doubt and any(self._revision(i) != revision for i, revision in withheld.revisions.items())

    def _revision(self, raft_id: int) -> int:
        return self._view.revisions.get(instance_key(raft_id), 0)

    def lease_left_ms(self, raft_id: int) -> int:
        """How long the instance may still be serving under some lease."""
        return self._presence.of(raft_id, self._clock_s()).lease_left_ms
