"""Commands of an operator against a made-up cluster: what is printed, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from trimtab.cli.main import run
from trimtab.client.cluster import ClusterClient, Event
from trimtab.client.errors import Error, NotFound, Timeout
from trimtab.client.moves import Ended
from trimtab.jobs.protocol import JobsReply, Progress
from trimtab.jobs.records import JobKind, JobRecord
from trimtab.tablets import move_shapes
from trimtab.tablets.move_protocol import MoveReply
from trimtab.tablets.moves_shown import MovesShown
from trimtab.tablets.rebalance_settings import RebalanceSettings
from trimtab.topology.protocol import Level, ProbeReply, RequestReply, ViewReply
from trimtab.topology.records import RequestKind, RequestRecord

PEER = ["--peer", "127.0.0.1:1"]


class MadeUpJobs:
    """In the place of a client of jobs. What `states` holds comes one after the other when a job is waited for."""

    def __init__(self, *jobs: JobRecord) -> None:
        self.jobs = {job.number: job for job in jobs}
        self.progress: list[Progress] = []
        self.asked: list[tuple[Any, ...]] = []
        self.states: list[JobRecord] = []
        self.steered: JobRecord | Error | None = None

    async def show(self, numbers: Iterable[int] = (), **options: Any) -> JobsReply:
        return JobsReply(list(self.jobs.values()), self.progress)

    async def get(self, number: int) -> tuple[JobRecord, Progress | None]:
        if number not in self.jobs:
            raise NotFound(f"there is no task {number}")
        return self.jobs[number], None

    async def steer(self, number: int, order: str, reason: str = "") -> JobRecord:
        self.asked.append((number, order, reason))
        if self.steered is None:
            raise NotFound(f"there is no task {number}")
        if isinstance(self.steered, Error):
            raise self.steered
        return self.steered

    async def create(self, kind: JobKind, parameters: Any, **options: Any) -> JobRecord:
        self.asked.append((kind, dict(parameters), options))
        return self.states[0]

    async def wait(self, number: int, seen: Callable[[JobRecord, Progress | None], None] | None = None) -> JobRecord:
        for job in self.states:
            if seen is not None:
                seen(job, next(iter(self.progress), None))
            if job.state.final:
                return job
        raise NotFound(f"there is no task {number}")


class MadeUpMoves:
    """In the place of a client of moves. What `states` holds comes one after the other, the last for ever."""

    def __init__(self, *states: MovesShown) -> None:
        self.states = list(states) or [MovesShown()]
        self.asked: list[tuple[Any, ...]] = []
        self.refusal: Error | None = None
        self.replicas: tuple[int, ...] = ()
        self.settings = RebalanceSettings()
        self.problems: list[str] = []

    async def known(self, table: int = 0, *, timeout_s: float = 0) -> MovesShown:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def undo(self, table: int, tablet: int, *, why: str = "") -> MoveReply:
        self.asked.append((table, tablet, why))
        if self.refusal is not None:
            raise self.refusal
        return MoveReply("undone", [1, 2])

    async def wait(self, table: int, tablet: int, seen: Callable[[MovesShown], None] | None = None) -> Ended:
        last = None
        for state in self.states:
            if seen is not None:
                seen(state)
            last = next((each for each in state.moves if each.tablet == tablet), last)
        return Ended(self.replicas, last)

    async def rebalance(self, **changes: Any) -> dict[str, Any]:
        self.asked.append(tuple(changes.items()))
        if self.refusal is not None:
            raise self.refusal
        return move_shapes.rebalance(self.settings, self.settings.keeps_still(0), self.problems)


class MadeUp:
    """In the place of a client. `views` come one after the other, the last for ever; an Error is raised instead."""

    def __init__(self, *views: ViewReply | Error) -> None:
        self.views = list(views)
        self.answer: RequestReply | ProbeReply | Error | None = None
        self.asked: list[tuple[Any, ...]] = []
        self.followed: list[Event] = []
        self.surveyed: dict[str, ViewReply | str] = {}
        self.jobs = MadeUpJobs()
        self.moves = MadeUpMoves()
        self.addresses = ["127.0.0.1:1"]
        self.last_failure = "nobody answers"

    async def find_leader(self) -> None:
        if isinstance(self.views[0], Error) and not self.surveyed:
            raise self.views[0]

    async def view(self, **options: Any) -> ViewReply:
        shown = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if isinstance(shown, Error):
            raise shown
        return shown

    async def survey(self, addresses: Iterable[str], *, timeout_s: float) -> dict[str, ViewReply | str]:
        wanted = list(addresses)
        return {address: each for address, each in self.surveyed.items() if address in wanted}

    async def events(self, *, limit: int, **options: Any) -> list[Event]:
        shown = await self.view()
        return shown.events[-limit:]

    async def follow_events(self, after: int) -> Any:
        for number, event in self.followed:
            if number > after:
                yield number, event

    async def create(self, kind: RequestKind, instance_id: str = "", **options: Any) -> RequestReply:
        self.asked.append((kind, instance_id, options))
        return self._answered(RequestReply)

    async def cancel(self, number: int, reason: str = "") -> RequestReply:
        self.asked.append((number, reason))
        return self._answered(RequestReply)

    async def probe(self, target: int, level: Level) -> ProbeReply:
        self.asked.append((target, level))
        return self._answered(ProbeReply)

    async def wait(self, number: int, seen: Callable[[RequestRecord, ViewReply], None] | None = None) -> RequestRecord:
        for _ in range(100):
            shown = await self.view()
            record = dict(shown.requests)[number]
            if seen is not None:
                seen(record, shown)
            if record.state.final:
                return record
        raise Timeout("it never ended")

    async def close(self) -> None:
        pass

    def _answered(self, kind: type[Any]) -> Any:
        if isinstance(self.answer, Error):
            raise self.answer
        assert isinstance(self.answer, kind)
        return self.answer


class Operator:
    """Types commands."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, cluster: MadeUp, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        self._monkeypatch.setattr(ClusterClient, "unconnected", lambda *_, **__: cluster)
        code = run([*arguments, *PEER])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def json(self, cluster: MadeUp, *arguments: str) -> Any:
        code, out, err = self(cluster, *arguments, "--json")
        assert code == 0, err
        return json.loads(out)
