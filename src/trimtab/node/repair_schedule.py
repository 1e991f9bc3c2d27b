"""The leader asks for repairs when they are due (`jobs.repair_schedule`), as jobs like any other; and tells, or
changes, how often that is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from trimtab.governor.steps import Write
from trimtab.jobs import protocol
from trimtab.jobs import records as job_records
from trimtab.jobs.protocol import ScheduleReply, ScheduleRequest
from trimtab.jobs.repair_schedule import INTERVAL_KEY, TIMES_KEY, RepairInterval, encode, next_turn, wrong_interval
from trimtab.metastore.errors import MetastoreError
from trimtab.net.errors import NetError
from trimtab.node.answering import Asked, Method, Refused
from trimtab.node.errors import GroupError
from trimtab.node.leader_door import Decision, LeaderDoor
from trimtab.node.office import Office
from trimtab.topology.records import job_key

if TYPE_CHECKING:
    from trimtab.node.instance import Instance

LOOK_EVERY_S = 600.0
_LOOKS = 4  # within an interval, where that is short
_EVENTS = "repair"


class RepairScheduling:
    """Of one instance; only the leader's does anything by itself."""

    def __init__(self, instance: Instance, door: LeaderDoor, office: Office) -> None:
        self._instance = instance
        self._door = door
        self._office = office
        self._watching = instance.watching
        self._schedule = instance.watching.repairs
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def methods(self) -> dict[str, Method]:
        return {protocol.SCHEDULE: self.schedule}

    def start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        interval_s = self._schedule.interval_s
        every_s = min(LOOK_EVERY_S, interval_s / _LOOKS) if interval_s else LOOK_EVERY_S
        self._timer = self._loop.call_later(every_s, self._again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _again(self) -> None:
        if self._office.term and (self._task is None or self._task.done()):
            self._task = self._loop.create_task(self._look(), name="repair schedule")
        self.start()

    async def _look(self) -> None:
        try:
            await self._door.decide(self._due, _EVENTS, ())
        except (Refused, GroupError, NetError, MetastoreError) as error:
            # It leads no more, or can't write now: whoever leads then looks again.
            self._instance.story(f"a scheduled repair could not be asked for now: {error}")

    def _due(self) -> Decision:
        if not self._office.term:
            return None
        tables = self._watching.tables.catalog.tables
        keyspaces = self._watching.tables.catalog.keyspaces
        several = {
            id: table.full_name
            for id, table in sorted(tables.items())
            if table.keyspace in keyspaces and sum(keyspaces[table.keyspace].replication.values()) > 1
        }
        number = self._watching.view.next_request()
        turn = next_turn(self._schedule, self._watching.jobs, several, number, self._instance.wall_ms())
        if turn is None:
            return None
        expect = {TIMES_KEY: self._schedule.revisions.get(TIMES_KEY, 0)}
        puts = {TIMES_KEY: encode(turn.times)}
        if turn.job is None:
            return Write(expect, puts), ()
        expect |= self._watching.view.unused(number)
        puts[job_key(number)] = job_records.encode(turn.job)
        return Write(expect, puts), (f"{turn.job.why} (job {number})",)

    async def schedule(self, asked: Asked) -> bytes:
        """Tell how often tables are repaired, or change that."""
        request: ScheduleRequest = protocol.decode_schedule(asked.body)
        if request.interval_s >= 0 and (wrong := wrong_interval(request.interval_s)):
            raise Refused("invalid", wrong)
        onward = protocol.encode(msgspec.structs.replace(request, forwarded=True))
        answer = await self._door.pass_on(protocol.SCHEDULE, onward, asked.deadline, forwarded=request.forwarded)
        if answer is not None:
            return answer

        def look() -> Decision:
            before = self._schedule.interval_s
            if request.interval_s < 0 or before == request.interval_s:
                return None
            record = RepairInterval(request.interval_s, self._instance.wall_ms())
            expect = {INTERVAL_KEY: self._schedule.revisions.get(INTERVAL_KEY, 0)}
            text = f"tables are repaired every {request.interval_s} s from now on, and no more every {before} s"
            return Write(expect, {INTERVAL_KEY: encode(record)}), (text,)

        await self._door.decide(look, _EVENTS, ())
        # The next look may have been far away.
        self.start()
        return protocol.encode(ScheduleReply(self._schedule.interval_s, dict(self._schedule.times.tables)))
