"""What clients asked and what they were told, with the virtual times of both: the evidence for linearizability.

Each operation is invoked once and ends as ok (with its result), failed (certainly not carried out) or unknown (the time
was up, or the outcome got lost: it may take effect at any later time, or never). Reads without an answer say nothing.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from trimtab.sim import linearizability
from trimtab.sim.linearizability import UNKNOWN_RESULT, Report
from trimtab.sim.models import Delete, Get, KeyValue, Put, PutIf

Deed = Get | Put | Delete | PutIf


class Outcome(enum.Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass
class Operation:
    """One operation of a client on one key; results are those of the checker's model."""

    client: str
    deed: Deed
    invoked_at: float
    returned_at: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    result: Any = None

    def describe(self) -> str:
        ended = f"{self.returned_at:.6f}" if self.returned_at is not None else "never"
        said = f"ok {self.result}" if self.outcome is Outcome.OK else self.outcome.value
        return f"{self.invoked_at:.6f}..{ended} {self.client}: {self.deed} -> {said}"


class History:
    """All operations of a run, in the order of their invocation."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def invoke(self, client: str, deed: Deed, now: float) -> Operation:
        operation = Operation(client, deed, now)
        self.operations.append(operation)
        return operation

    def count(self, outcome: Outcome) -> int:
        return sum(1 for operation in self.operations if operation.outcome is outcome)

    def judge(self, max_steps: int) -> Report:
        """Is there one order of all of it that explains every answer?"""
        judged = []
        for operation in self.operations:
            if operation.outcome is Outcome.OK:
                judged.append(_known(operation))
            elif operation.outcome is Outcome.UNKNOWN and type(operation.deed) is not Get:
                judged.append(
                    linearizability.Operation(
                        operation.client, operation.invoked_at, None, operation.deed, UNKNOWN_RESULT
                    )
                )
        return linearizability.check(judged, KeyValue(), linearizability.Budget(max_steps))


def _known(operation: Operation) -> linearizability.Operation:
    return linearizability.Operation(
        operation.client, operation.invoked_at, operation.returned_at, operation.deed, operation.result
    )
