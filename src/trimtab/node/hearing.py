"""Letting others hear: who has applied what this member, the leader, has applied.

It is asked as the governor asks it (`governor.sync`), so whoever has heard that another leads does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from trimtab.node.calls import Calls
from trimtab.node.group import Group
from trimtab.topology import protocol
from trimtab.topology.protocol import SyncCall


class Hearing:
    """Of one instance, whose raft id is `own`."""

    def __init__(self, own: int, group: Group, calls: Calls) -> None:
        self._own = own
        self._group = group
        self._calls = calls

    async def behind(self, raft_ids: Iterable[int], timeout_s: float) -> dict[int, str]:
        """Who of these did not say in time that it has applied what is applied here, and why."""
        asked = [raft_id for raft_id in raft_ids if raft_id != self._own]
        body = protocol.encode(SyncCall(self._group.raw.raft.term, self._group.machine.applied_index))
        calls = [self._calls.ask(raft_id, protocol.SYNC, body, timeout_s) for raft_id in asked]
        answers = zip(asked, await asyncio.gather(*calls, return_exceptions=True), strict=True)
        return {raft_id: str(answer) for raft_id, answer in answers if isinstance(answer, BaseException)}
