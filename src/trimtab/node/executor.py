"""The governor's loop on the leader: look at the state, plan the next step, begin it, until there is nothing to plan.

A step is a task; planning goes on beside it, because waiting is not a step. What is in flight, and what has just failed
and rests, is part of the state that is planned from, so it is not planned twice. Nothing here knows the rules
(`trimtab.governor`) or the deeds (`trimtab.node.deeds`).

Steps belong to one term. When it ends, their tasks end with it, whatever they were doing: the next leader plans anew
from what is written. The loop is woken by news (a change of the view, a step's end, an instance that was heard from
again) and, because some rules depend on time alone, by a timer; between those it costs nothing.

Planning costs more the larger the cluster is, and news come faster. So the loop pauses after each turn for a multiple
of what that took: whatever happens, most of the leader's time is left for leading.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from trimtab.governor.state import ClusterState
from trimtab.governor.steps import Step, StepKey
from trimtab.net.errors import NetError
from trimtab.node.backoffs import Backoffs
from trimtab.node.cluster_writes import Outdated
from trimtab.node.errors import GroupError

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
# In one turn; the loop goes on in the next one, so that a defect of the rules can't stop everything else.
_MAX_STEPS_PER_TURN = 64
# The pause after a turn, in turns of that length; never longer than the timer's interval.
_PAUSE_FACTOR = 5
# So often in a row may a step be overtaken before it rests like one that failed.
_MAX_OUTDATED = 3

# (steps in flight, steps that rest, instances to leave alone) -> the state; None: this instance does not govern now.
Look = Callable[[frozenset[StepKey], frozenset[StepKey], frozenset[int]], ClusterState | None]
Plan = Callable[[ClusterState], Step | None]
CarryOut = Callable[[Step, int], Awaitable[None]]


class StepFailed(Exception):
    """A step did not come about; the text says why. It is planned again after a rest."""


class Executor:
    """Plans and begins steps, from `begin` to `end` of a term of office."""

    def __init__(
        self,
        look: Look,
        plan: Plan,
        carry_out: CarryOut,
        *,
        blamed: Backoffs[int],
        every_s: float,
        clock_s: Callable[[], float],
        report: Callable[[str], None],
    ) -> None:
        self._look = look
        self._plan = plan
        self._carry_out = carry_out
        self._blamed = blamed
        self._every_s = every_s
        self._clock_s = clock_s  # the time of a loop may stand still while a callback runs
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._resting: Backoffs[StepKey] = Backoffs(FIRST_BACKOFF_S, MAX_BACKOFF_S)
        self._tasks: dict[StepKey, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._not_before_s = 0.0  # the next turn
        self._outdated: Counter[StepKey] = Counter()  # how often in a row
        self.term = 0  # of the office held; 0: none
        self.last_why: dict[StepKey, str] = {}  # why a step that rests has failed
        self.outcomes: Counter[tuple[str, str]] = Counter()  # (kind, done | outdated | failed) -> since the start

    @property
    def in_flight(self) -> tuple[StepKey, ...]:
        return tuple(self._tasks)

    def begin(self, term: int) -> None:
        """Govern, from now on, in this term."""
        self.end()
        self.term = term
        self.wake()
        self._timer = self._loop.call_later(self._every_s, self._tick)

    def end(self) -> None:
        """Govern no more: every step ends where it is."""
        self.term = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            task.cancel()
        self._resting.clear()
        self._blamed.clear()
        self.last_why.clear()
        self._outdated.clear()

    def wake(self) -> None:
        """Something happened that a rule may care about."""
        if self.term and not self._scheduled:
            self._scheduled = True
            pause_s = self._not_before_s - self._loop.time()
            if pause_s > 0:
                self._loop.call_later(pause_s, self._turn)
            else:
                self._loop.call_soon(self._turn)

    def wake_later(self, after_s: float) -> None:
        self._loop.call_later(after_s, self.wake)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._every_s, self._tick)
        self.wake()

    def _turn(self) -> None:
        self._scheduled = False
        began_s = self._clock_s()
        again = self._plan_steps()
        took_s = self._clock_s() - began_s
        self._not_before_s = self._loop.time() + took_s + min(_PAUSE_FACTOR * took_s, self._every_s)
        if again:
            self.wake()

    def _plan_steps(self) -> bool:
        """Begin whatever can begin; whether there is more than one turn takes."""
        for _ in range(_MAX_STEPS_PER_TURN):
            if not self.term:
                return False
            now = self._loop.time()
            in_flight, resting = frozenset(self._tasks), self._resting.waiting(now)
            state = self._look(in_flight, resting, self._blamed.waiting(now))
            if state is None or state.term != self.term:
                return False
            step = self._plan(state)
            if step is None:
                return False
            if step.key in in_flight or step.key in resting:
                self._report(f"the governor planned a step that is under way or rests: {step.key}")
                return False
            self._begin(step)
        return True

    def _begin(self, step: Step) -> None:
        task = self._loop.create_task(self._run(step, self.term), name=f"{step.kind.value} {step.subjects}")
        self._tasks[step.key] = task
        task.add_done_callback(partial(self._ended, step))

    async def _run(self, step: Step, term: int) -> None:
        await self._carry_out(step, term)

    def _ended(self, step: Step, task: asyncio.Task[None]) -> None:
        if self._tasks.get(step.key) is not task:
            # Of a term that is over.
            if not task.cancelled():
                task.exception()
            return
        del self._tasks[step.key]
        if task.cancelled():
            self.wake()
            return
        error = task.exception()
        outcome = "done" if error is None else "outdated" if isinstance(error, Outdated) else "failed"
        self.outcomes[step.kind.value, outcome] += 1
        if error is None:
            self._resting.succeeded(step.key)
            self.last_why.pop(step.key, None)
        elif not isinstance(error, Outdated):
            self._rest(step, error)
        else:
            # It needs no rest: the state is another one now, and so will be the plan. Unless it happens every time.
            self._outdated[step.key] += 1
            if self._outdated[step.key] >= _MAX_OUTDATED:
                self._rest(step, error)
            self.wake()
            return
        self._outdated.pop(step.key, None)
        self.wake()

    def _rest(self, step: Step, error: BaseException) -> None:
        why = str(error) or repr(error)
        if not isinstance(error, StepFailed | GroupError | NetError | Outdated):
            self._report(f"a step of the governor met a defect ({step.why}): {error!r}")
        elif self.last_why.get(step.key) != why:
            self._report(f"a step of the governor failed and is tried again ({step.why}): {why}")
        if len(self.last_why) > 1_000:
            self.last_why.clear()
            self._outdated.clear()
        self.last_why[step.key] = why
        self.wake_later(self._resting.failed(step.key, self._loop.time()))
