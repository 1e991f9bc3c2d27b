"""The demo: a cluster is loaded by Spark and used; meanwhile a node is added, and another dies. No row is lost.

It is a story told as it happens (`Teller`) and a result that says what was found (`Outcome`): the same code serves a
person and a test. Everything is bounded: the demo ends by itself, even when the cluster does not come back.

The main thread only waits and tells, so an interrupt comes through at any moment; whatever takes long is done
elsewhere. Instances are started by the main thread all the same: they end with the thread that started them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from trimtab.client.cluster import ClusterClient
from trimtab.client.database import Database, connect
from trimtab.client.errors import Error
from trimtab.jobs.records import JobKind, JobState
from trimtab.pipeline.failures import reason_of
from trimtab.playground import orders
from trimtab.playground.background import Background
from trimtab.playground.computing import Computing, kill_descendants
from trimtab.playground.demo_outcome import Act, Outcome
from trimtab.playground.forming import NotOnline, await_online
from trimtab.playground.local import LocalCluster
from trimtab.playground.moving import Moves, follow
from trimtab.playground.orders import KEYSPACE, TABLE
from trimtab.playground.ports import free_base
from trimtab.playground.processes import Known
from trimtab.playground.traffic import Traffic
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import ViewReply

NODES = 3
TABLETS = 16
ROWS = 2_000_000
QUICK_ROWS = 200_000
HEAL_AFTER_MS = 1_000
SPARK_LOG = "spark.log"
_WAIT_S = 180.0
_CALL_S = 30.0
_ASK_S = 25.0  # of one question: an election on a busy machine takes a while; less than a call, so that it tells why
_LOOK_S = 0.1
_LOOK_MOVES_S = 0.5
_SETTLE_S = 12.0  # in which a replica that stood still takes its hints; equal ones are not waited for
_QUIET_S = 0.5  # a plan may come in several parts
T = TypeVar("T")


class DemoFailed(Exception):
    """Something that must not happen did; the text says what."""


class Teller(Protocol):
    """Whoever watches."""

    def tell(self, line: str) -> None:
        """Something has happened."""

    def show(self, what: str, share: float | None, beside: str) -> None:
        """How far it is at this moment (None: nobody knows), and what goes on beside it."""


@dataclass(frozen=True)
class Plan:
    """What is asked for. `keep`: the cluster goes on afterwards."""

    rows: int = ROWS
    use_s: float = 3.0  # how long the table is only read and written
    keep: bool = False


def run(folder: Path, plan: Plan, teller: Teller) -> Outcome:
    """Play the story in a folder, with a cluster in it and what Spark needs beside it (`spark_folder`).

    Nothing that it started runs afterwards, but for a cluster that is to be kept.
    """
    cluster = LocalCluster(folder, attached=not plan.keep)
    kept = False
    try:
        with _Story(folder, plan, cluster, teller) as story:
            outcome = story.play()
        kept = plan.keep
        (folder / SPARK_LOG).unlink(missing_ok=True)
        return outcome
    finally:
        running = cluster.running() if cluster.exists else {}
        if running and not kept:
            # Nothing of it is kept, so there is nothing to leave in good order.
            cluster.kill(list(running))
        kill_descendants(spared=[each.pid for each in running.values()] if kept else ())


def spark_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-spark")


@dataclass
class _Story:
    folder: Path
    plan: Plan
    cluster: LocalCluster
    teller: Teller
    acts: list[Act] = field(default_factory=list)

    def __enter__(self) -> _Story:
        self._stack = ExitStack()
        self._began = time.monotonic()
        self._background = Background()
        self._stack.callback(self._background.close)
        self._computing = Computing(spark_folder(self.folder), self.folder / SPARK_LOG, self._background)
        self._traffic = Traffic(self.plan.rows)
        self._moves = Moves()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # After a failure, or an interrupt, everything is killed: there is nothing to leave in good order.
        if kind is None:
            self._stack.callback(self._computing.close)
            self._stack.close()

    def play(self) -> Outcome:
        self._form()
        self._load()
        self._begin_traffic()
        self._join()
        self._kill_and_heal()
        self._end_traffic()
        verified = self._verify()
        checked = self._check()
        return Outcome(
            acts=self.acts,
            rows=self.plan.rows,
            writes=self._traffic.acknowledged,
            reads=len(self._traffic.gets),
            failed=self._traffic.failed,
            wrong=len(self._traffic.wrong),
            errors=self._traffic.errors,
            replicas_equal=verified,
            rows_equal=checked,
            killed=self._killed,
            peers=list(self.cluster.addresses().values()),
            seconds=round(time.monotonic() - self._began, 1),
        )

    # The acts

    def _form(self) -> None:
        cluster, began = self.cluster, time.monotonic()
        with cluster.coming_up():
            cluster.create(NODES, free_base(NODES + 1))
            started = cluster.start_all()
        peers = list(cluster.addresses(started).values())
        warm = self._computing.start(peers)
        pids = ", ".join(str(known.pid) for known in started.values())
        self.teller.tell(f"Starting {', '.join(started)} (processes {pids}) and Spark beside them.")
        self._online(started)
        formed_s = time.monotonic() - began
        self._client = self._call(ClusterClient.connect(peers, timeout_s=_ASK_S))
        self._database = self._call(_opened(peers))
        self._stack.callback(self._leave)
        self.teller.tell(f"They have formed a cluster; {_leader(self._view())} leads. All are Online.")
        self._act("three instances form a cluster", formed_s)
        spark_s = self._await(warm, "Spark starts", lambda: None)
        self._computing.drive(peers, lambda _text: None)
        self._background.start(follow(self._client, self._moves))
        self.teller.tell(f"The pipeline runs: Spark was ready after {spark_s:.0f} s.")

    def _load(self) -> None:
        rows = self.plan.rows
        self._call(orders.create_table(self._database, replication=NODES, tablets=TABLETS))
        self.teller.tell(
            f"Keyspace {KEYSPACE} with {NODES} replicas, in it table {TABLE} of {TABLETS} tablets. Spark makes "
            f"{rows:,} rows and writes them: [bold]df.write.format('trimtab')[/]"
        )
        began, peer = time.monotonic(), self._peer
        parts = max(2, min(16, rows // 100_000))
        loading = self._computing.work(lambda spark: orders.load(spark, peer, rows, parts))
        self._await(loading, f"Spark loads {rows:,} rows", lambda: None, self._computing.progress)
        took_s = time.monotonic() - began
        self._act(f"Spark loads {rows:,} rows × {NODES}", took_s, f"{rows / took_s:,.0f} rows/s")
        self.teller.tell(f"Loaded in [bold]{took_s:.1f} s[/]: durable on all replicas, and seen all at once.")

    def _begin_traffic(self) -> None:
        self._going = self._background.start(self._traffic.run(self._database.table(TABLE, consistency="QUORUM")))
        self.teller.tell("From now on an application reads and writes at QUORUM.")
        until = time.monotonic() + self.plan.use_s
        self._until("the table is used", lambda: time.monotonic() > until, lambda: None)
        self._quiet_ms = self._traffic.slowest_ms(0.99)

    def _join(self) -> None:
        began = time.monotonic()
        self._moves.count_anew()
        (added,) = started = self.cluster.add()
        self.teller.tell(f"{added} joins (process {started[added].pid}).")
        self._online(started)
        self._act(f"{added} joins", time.monotonic() - began)
        self.teller.tell(f"{added} is Online and has nothing yet; tablets move to it, copied by Spark.")
        share = TABLETS * NODES // (NODES + 1)
        self._follow_moves(lambda: self._held().get(added, 0) >= share, f"tablets move to {added}")
        moved = self._tell_moved(f"tablets moved to {added}")
        held = ", ".join(f"{name} {count}" for name, count in sorted(self._held().items()))
        self.teller.tell(f"{moved}. Of {TABLETS * NODES} replicas they hold {held}.")

    def _kill_and_heal(self) -> None:
        settings = self._heal_after(HEAL_AFTER_MS)
        self._moves.count_anew()
        self._killed = victim = _leader(self._view())
        pid = self.cluster.running()[victim].pid
        before, killed_at = self._traffic.acknowledged, time.monotonic()
        self.cluster.kill([victim])
        self.teller.tell(f"[bold red]kill -9[/] of {victim} (process {pid}), which leads.")
        self._until(
            "the application goes on",
            lambda: self._traffic.acknowledged > before + 20 and self._traffic.puts[-1].ended > killed_at + 1,
            lambda: None,
        )
        self._until(
            f"{victim} is given up",
            lambda: _grade(self._view(), victim) is Grade.OFFLINE,
            lambda: None,
        )
        silence_ms = self._traffic.longest_silence_s(killed_at) * 1000
        self._act(f"kill -9 of {victim}, the leader", None, f"{silence_ms:,.0f} ms without an answer, at most")
        self.teller.tell(
            f"The application went on: at most [bold]{silence_ms:,.0f} ms[/] without an answer. {victim} is Offline "
            f"after {time.monotonic() - killed_at:.0f} s; in {HEAL_AFTER_MS / 1000:g} s (by default in 10 minutes) its "
            "replicas are made anew."
        )
        self._follow_moves(lambda: not self._held().get(victim), f"the replicas of {victim} are made anew")
        moved = self._tell_moved("replicas made anew")
        self.teller.tell(f"{moved}, each from what a quorum has. Every tablet has {NODES} again, none on {victim}.")
        self._heal_after(settings)

    def _end_traffic(self) -> None:
        self._traffic.stopped = True
        self._await(self._going, "the application ends", lambda: None)
        traffic = self._traffic
        count = traffic.acknowledged + len(traffic.gets) + traffic.failed
        self._act("requests at QUORUM meanwhile", None, f"{count:,}, of them {traffic.failed} failed")
        self._act(
            "99 % of them answered within", None, f"{traffic.slowest_ms(0.99):.0f} ms (before: {self._quiet_ms:.0f})"
        )
        self.teller.tell(f"The application stops after {traffic}.")

    def _verify(self) -> bool:
        """Whether all replicas hold the same, compared by checksums in Spark."""
        began = time.monotonic()
        parameters = {"table": TABLE, "settle_s": _SETTLE_S}
        job = self._call(self._client.jobs.create(JobKind.VERIFY, parameters, why="the demo"))
        seen: list[float] = [0.0]

        async def look() -> JobState:
            record, progress = await self._client.jobs.get(job.number)
            if progress is not None and progress.total_bytes:
                seen[0] = progress.progress_bytes / progress.total_bytes
            return record.state

        self._until("replicas are compared", lambda: self._call(look()).final, lambda: seen[0])
        record, _ = self._call(self._client.jobs.get(job.number))
        if record.state is not JobState.SUCCEEDED:
            raise DemoFailed(f"the job that compares replicas is {record.state.value}: {record.error}")
        equal = bool(record.result["equal"])
        verdict = "all equal" if equal else f"{record.result['differences']} rows differ; {record.result['troubles']}"
        self._act("all replicas compared by Spark", time.monotonic() - began, verdict)
        self.teller.tell(f"All {NODES} replicas of all {TABLETS} tablets compared: [bold]{verdict}[/].")
        return equal

    def _check(self) -> bool:
        """Whether every row is there, and what it was made as."""
        began, traffic, peer = time.monotonic(), self._traffic, self._peer
        rows, unknown = self.plan.rows + traffic.written, sorted(traffic.unknown)
        parts = max(2, min(16, rows // 100_000))

        def compare(spark: Any) -> tuple[orders.Checksum, orders.Checksum]:
            made = orders.checksum(orders.orders(spark, rows, parts), unknown)
            return made, orders.checksum(orders.stored(spark, peer), unknown)

        comparing = self._computing.work(compare)
        made, found = self._await(comparing, "every row is checked", lambda: None, self._computing.progress)
        verdict = "none lost, none changed" if made == found else f"made {made}, found {found}"
        self._act("all rows checked by Spark", time.monotonic() - began, f"{found.rows:,}, {verdict}")
        self.teller.tell(f"Checksum of {found.rows:,} rows against the generator: [bold]{verdict}[/].")
        return made == found

    # How

    @property
    def _peer(self) -> str:
        return ",".join(self.cluster.addresses().values())

    def _act(self, what: str, seconds: float | None, figure: str = "") -> None:
        self.acts.append(Act(what, None if seconds is None else round(seconds, 2), figure))

    def _tell_moved(self, what: str) -> str:
        moves = self._moves
        size, took_s = moves.done_bytes / 1e6, max(moves.took_s, 1e-3)
        self._act(f"{len(moves.done)} {what}", took_s, f"{size:,.0f} MB, {size / took_s:,.0f} MB/s")
        return f"{len(moves.done)} {what}, {size:,.0f} MB in [bold]{took_s:.1f} s[/]"

    def _follow_moves(self, over: Callable[[], bool], what: str) -> None:
        """Wait until it is over and nothing is under way any more."""
        began, moves = time.monotonic(), self._moves
        seen: dict[str, float] = {}

        def share() -> float | None:
            # How far copies are is known to the leader alone.
            if time.monotonic() > seen.get("looked", 0.0) + _LOOK_MOVES_S:
                seen["looked"] = time.monotonic()
                shown = self._call(self._client.moves.show()).moves
                done = moves.done_bytes + sum(each.progress_bytes for each in shown)
                total = moves.done_bytes + sum(each.total_bytes for each in shown)
                seen["share"] = done / total if total else 0.0
            return seen["share"] if moves.begun else None

        def settled() -> bool:
            if moves.under_way or time.monotonic() - max(began, moves.last_ended) < _QUIET_S:
                return False
            return over()

        self._until(what, settled, share, lambda: f"{moves}{': ' + moves.error if moves.error else ''}")

    def _held(self) -> dict[str, int]:
        """How many replicas each instance holds."""
        counts: dict[str, int] = {}
        for tablet in self._call(self._database.tablets(TABLE)):
            for name in tablet["replicas"]:
                counts[name] = counts.get(name, 0) + 1
        return counts

    def _heal_after(self, heal_after_ms: int) -> int:
        """Set after what time lost replicas are made anew; what it was before."""
        before = self._call(self._client.moves.settings()).settings
        self._call(self._client.moves.settings(msgspec.structs.replace(before, heal_after_ms=heal_after_ms)))
        return before.heal_after_ms

    def _view(self) -> ViewReply:
        return self._call(self._client.view())

    def _leave(self) -> None:
        self._traffic.stopped = True
        for closing in (self._database.close(), self._client.close()):
            self._background.call(closing, _CALL_S)

    def _online(self, started: dict[str, Known]) -> None:
        """Wait until those are Online."""
        seen: dict[str, str] = {}
        waiting = await_online(
            self.cluster.addresses(started),
            timeout_s=_WAIT_S,
            ended=lambda: self.cluster.ended(started),
            seen=lambda standings: seen.update(
                {name: each.text.partition(" (")[0] for name, each in standings.items()}
            ),
        )
        try:
            self._await(
                self._background.start(waiting),
                "waiting for Online",
                lambda: None,
                lambda: ", ".join(f"{name} {text}" for name, text in seen.items()),
            )
        except NotOnline as error:
            raise DemoFailed(f"not all instances became Online: {error}") from error

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._background.call(work, _CALL_S)
        except Error as error:
            raise DemoFailed(str(error)) from error

    def _await(
        self,
        future: Future[T],
        what: str,
        share: Callable[[], float | None],
        beside: Callable[[], str] = lambda: "",
    ) -> T:
        self._until(what, future.done, share, beside)
        try:
            return future.result()
        except (NotOnline, DemoFailed):
            raise
        except Exception as error:
            # Of Spark, say, whose stories are long.
            raise DemoFailed(f"{what}: {reason_of(error)}") from error

    def _until(
        self,
        what: str,
        happened: Callable[[], bool],
        share: Callable[[], float | None],
        beside: Callable[[], str] = lambda: "",
    ) -> None:
        deadline = time.monotonic() + _WAIT_S + self.plan.rows / 10_000
        while not happened():
            going = str(self._traffic) if self._traffic.written and not self._traffic.stopped else ""
            self.teller.show(what, share(), " · ".join(filter(None, (beside(), going))))
            if why := self._computing.failed:
                raise DemoFailed(why)
            if time.monotonic() > deadline:
                raise DemoFailed(f"{what}: not within {deadline - self._began:.0f} s; {beside()}")
            time.sleep(_LOOK_S)


async def _opened(peers: list[str]) -> Database:
    return await connect(peers, timeout=_CALL_S)


def _leader(view: ViewReply) -> str:
    for each in view.instances:
        if each.raft_id == view.leader:
            return each.record.instance_id
    raise DemoFailed("there is no leader")


def _grade(view: ViewReply, instance_id: str) -> Grade:
    return next(each.record.grades.current.grade for each in view.instances if each.record.instance_id == instance_id)
