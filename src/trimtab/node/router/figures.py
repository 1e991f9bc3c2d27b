"""What the router tells of itself in metrics: requests and their outcomes, and what it did beside answering them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trimtab.node.figures import Sample
from trimtab.rows import protocol

if TYPE_CHECKING:
    from trimtab.node.router.router import Router

_METHODS = (protocol.PUT, protocol.DELETE, protocol.BATCH, protocol.GET, protocol.SLICE, protocol.SCAN)
_DONE = "done"


def figures(router: Router) -> Iterator[Sample]:
    """Of one node, as a coordinator."""
    # A rate needs its zero: what has never been asked is there too.
    answers = {(method, ""): 0 for method in _METHODS} | router.door.answers
    for (method, code), count in sorted(answers.items()):
        labels = (("method", method.removeprefix("data.")), ("outcome", code or _DONE))
        text = "Requests for rows that were answered here, by what became of them."
        yield Sample("row_requests", text, count, labels, counter=True)
    overload = router.overload
    yield Sample("row_requests_open", "Requests for rows that are under way here.", overload.requests)
    yield Sample("row_request_open_bytes", "Their bytes.", overload.bytes)
    yield Sample(
        "row_requests_overloaded", "Requests for rows refused for want of room.", overload.refused, counter=True
    )
    reads, writes, batches = router.reads, router.writes, router.batches
    yield Sample("reads_repaired", "Reads whose replicas differed, and were made equal.", reads.repaired, counter=True)
    yield Sample("reads_speculated", "Replicas asked besides because others were slow.", reads.speculated, counter=True)
    yield Sample(
        "writes_hinted", "Writes of which a hint was kept for a replica that missed them.", writes.hinted, counter=True
    )
    yield Sample(
        "batches_replayed", "Batches of others that were carried out here in the end.", batches.replayed, counter=True
    )
    yield Sample("batches_held", "Batches kept here until whoever coordinates them has finished.", batches.held)
    yield Sample("batches_dropped", "Held batches that were too old to be carried out.", batches.dropped, counter=True)
    yield Sample(
        "stamps_refused",
        "Writes refused because their timestamp was too far in the future.",
        router.replica_door.refused_stamps,
        counter=True,
    )
