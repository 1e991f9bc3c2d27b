"""What members tell each other once a second: what their state sums up to, and whether their disk is full.

A member whose state differs from what a majority has at the same revision must not give another answer: it stops.
Members report at different revisions, so a difference is first asked about: everyone's checksum at just that revision.

A leader whose disk is full can take no writes, but others may: it hands leadership to a voter that has everything
committed and has not said that its own disk is full. Everybody knows whose is, and shows it (`cluster_view`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from trimtab.metastore import requests
from trimtab.metastore.divergence import Report, Verdict, judge
from trimtab.metastore.errors import Compacted, FutureRevision
from trimtab.net.server import Request
from trimtab.raft.core import Raft

if TYPE_CHECKING:
    from trimtab.node.instance import Instance

_SUSPECTED_REVISIONS = 16


class Diverged(Exception):
    """This member's state is not what the majority has."""


def successor(raft: Raft, full: set[int]) -> int | None:
    """The voter a leader with a full disk hands over to; None while one is being handed over to, or none is fit."""
    if raft.lead != raft.id or raft.lead_transferee:
        return None
    for peer, progress in sorted(raft.tracker.progress.items()):
        fit = peer in raft.tracker.config.voters and progress.recent_active and progress.match >= raft.log.committed
        if fit and peer != raft.id and peer not in full:
            return peer
    return None


class Reports:
    """The reports of one instance, and what follows from those of the others."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._suspected: dict[int, dict[int, Report]] = {}
        self._full: set[int] = set()

    def full(self) -> frozenset[int]:
        """Whose disk is full: this one's now, those of others as they last said."""
        own = (self._instance.raft_id,) if self._instance.host.full() else ()
        return frozenset((*self._full, *own))

    def tell(self) -> None:
        """Once a second."""
        instance, metastore = self._instance, self._instance.machine.metastore
        self._send(requests.MemberReport(metastore.revision, metastore.checksum, bool(instance.host.full())))
        if instance.host.full() and (peer := successor(instance.cluster.raw.raft, self._full)):
            instance.story(f"handing leadership to member {peer}, because the disk is full here")
            instance.host.transfer(instance.cluster, peer)

    def receive(self, request: Request) -> None:
        """Another member's report."""
        peer = request.peer.raft_id
        try:
            told = requests.decode_report(request.body)
        except msgspec.DecodeError as error:
            self._instance.story(f"member {peer} sent a report that can't be read: {error}")
            return
        if told.full:
            self._full.add(peer)
        else:
            self._full.discard(peer)
        own = self._own_checksum(told.revision)
        if not peer or own is None:
            return
        if told.ask and (link := self._instance.host.links.get(peer)):
            link.channel.send(requests.REPORT, requests.encode(self._report(told.revision, own)))
        if own != told.checksum or told.revision in self._suspected:
            self._judge(peer, told, own)

    def _judge(self, peer: int, told: requests.MemberReport, own: bytes) -> None:
        reports = self._suspected.setdefault(told.revision, {})
        reports[peer] = Report(told.revision, told.checksum)
        voters = self._instance.cluster.raw.raft.tracker.config.voters
        judgement = judge(self._instance.raft_id, self._own_checksum, reports, voters.incoming, voters.outgoing)
        if judgement.verdict is Verdict.DIVERGED:
            self._instance.fail(Diverged(judgement.why))
        elif judgement.verdict is Verdict.SUSPECT and len(reports) == 1:
            self._instance.story(judgement.why)
            self._send(self._report(told.revision, own, ask=True))
        while len(self._suspected) > _SUSPECTED_REVISIONS:
            del self._suspected[min(self._suspected)]

    def _report(self, revision: int, own: bytes, *, ask: bool = False) -> requests.MemberReport:
        return requests.MemberReport(revision, own, bool(self._instance.host.full()), ask)

    def _own_checksum(self, revision: int) -> bytes | None:
        try:
            return self._instance.machine.metastore.checksum_at(revision)
        except (Compacted, FutureRevision):
            return None

    def _send(self, report: requests.MemberReport) -> None:
        body = requests.encode(report)
        for link in self._instance.host.links.values():
            link.channel.send(requests.REPORT, body)
