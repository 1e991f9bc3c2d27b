"""A task of Spark that stages rows: what it is called, how it keeps its load open, and how it says that it can't go on.

A task that can't go on says so in what it returns, and ends the load so that the others stop, too. Spark would try the
same four times otherwise, and show four traces; so there is one error, at the commit.
"""

from __future__ import annotations

import contextlib
import secrets
import time

from trimtab.client.errors import Error
from trimtab.spark.contact import cluster_for, tls_of
from trimtab.spark.load_plan import LoadPlan, OutOfReach, StagedPart
from trimtab.spark.loading import TICKET_MS
from trimtab.spark.renewing import PER_LEASE, Renewing
from trimtab.spark.staging import Read, stage

_TRIES = 2  # of a task that reaches too few replicas; then the load is given up

_renewed: dict[str, float] = {}  # when this process renewed a load last, by its id


def run_task(plan: LoadPlan, read: Read, *, trusted: bool = True, renews: bool = True) -> StagedPart:
    """Stage what `read` gives, in a task of Spark. What can't be helped is in the part, and the load is ended.

    `renews`: nobody else keeps the load open.
    """
    attempt, number = attempt_name()
    if plan.done:
        return StagedPart(attempt)

    def renew() -> None:
        now = time.monotonic()
        if now - _renewed.get(plan.id, -plan.lease_ms) >= plan.lease_ms / 1000 / PER_LEASE:
            cluster_for(plan.connection).renew(plan.table.id, plan.id)
            _renewed.clear()
            _renewed[plan.id] = now

    with Renewing(renew, plan.lease_ms, at_once=True) if renews else contextlib.nullcontext():
        try:
            part = stage(
                plan,
                read,
                attempt,
                tls=tls_of(plan.connection),
                fresh_ticket=lambda: cluster_for(plan.connection).ticket(plan.id, TICKET_MS).ticket,
                trusted=trusted,
            )
        except OutOfReach as error:
            if number + 1 < _TRIES:
                raise
            part = StagedPart(attempt, failed=str(error), again=error.again)
    if part.failed:
        ended_for = end_load(plan, part.failed)
        # What no other attempt can mend is told, whatever ended the load first.
        part = StagedPart(attempt, failed=ended_for if part.again else part.failed, again=part.again)
    return part


def end_load(plan: LoadPlan, reason: str) -> str:
    """End a load from within a task; why it ended, which may be because of another task."""
    cluster = None
    with contextlib.suppress(Error):
        cluster = cluster_for(plan.connection)
        cluster.abort(plan.table.id, plan.id, reason)
    with contextlib.suppress(Error):
        record = cluster.show(plan.table.id, plan.id) if cluster is not None else None
        if record is not None and record.reason:
            return record.reason
    return reason


def attempt_name() -> tuple[str, int]:
    """A name that no other attempt has, and the number of this attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return f"driver-{secrets.token_hex(4)}", 0
    return f"{context.partitionId():05d}-{context.taskAttemptId()}-{secrets.token_hex(3)}", context.attemptNumber()
