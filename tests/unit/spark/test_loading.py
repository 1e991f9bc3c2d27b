"""The driver of a load, against a cluster that is only a script."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import structs
from tests.unit.spark.plans import users

from trimtab.bulk.client import BulkLost
from trimtab.catalog.schema import Table, UserType
from trimtab.client.errors import NotFound, Timeout, Unavailable
from trimtab.client.loads import LoadRefused
from trimtab.loads.protocol import BeginRequest, CommitRequest, SealReply, SealRequest, StagedFile, TicketReply
from trimtab.loads.records import LoadRecord, LoadState
from trimtab.spark import loading
from trimtab.spark.contact import Places
from trimtab.spark.load_plan import HeldFile, LoadFailed, NotNow, StagedPart
from trimtab.spark.loading import LoadPending, LoadRequest, LoadRun
from trimtab.spark.options import Connection


@dataclass
class FakeCluster:
    """`staged`: what each instance has; `down`: who does not answer; `offline`: who is known not to."""

    replicas: tuple[tuple[int, ...], ...] = ((1, 2, 3),) * 4
    staged: dict[int, set[tuple[int, str]]] = field(default_factory=dict)
    down: set[int] = field(default_factory=set)
    offline: set[int] = field(default_factory=set)
    record: LoadRecord | None = None
    sealed: dict[int, list[StagedFile]] = field(default_factory=dict)
    told: list[tuple[str, int, int]] = field(default_factory=list)
    damaged: dict[int, set[tuple[int, str]]] = field(default_factory=dict)
    nonces: list[str] = field(default_factory=list)
    on_seal: Callable[[SealRequest], None] = lambda request: None
    on_commit: Callable[[], None] = lambda: None
    commits: int = 0
    connection: Connection = field(default_factory=lambda: Connection("127.0.0.1:1"))
    tls: None = None
    bulk: dict[int, str] | None = None

    def table(self, name: str) -> tuple[Table, Mapping[str, UserType]]:
        if name != "shop.users":
            raise NotFound(f"there is no table {name}")
        return users(), {}

    def places(self, table: int) -> Places:
        everybody = range(1, 6)
        return Places(self.replicas, dict.fromkeys(everybody, "dc1"), {each: f"i{each}" for each in everybody})

    def begin(self, request: BeginRequest) -> LoadRecord:
        if self.record is None:
            self.record = LoadRecord(request.id, request.table, request.kind, LoadState.STAGING, 999)
        return self.record

    def renew(self, table: int, id: str) -> None:
        assert self.record is not None
        if self.record.state is LoadState.ABORTED:
            raise LoadFailed("it was aborted")

    def ticket(self, session: str, life_ms: int) -> TicketReply:
        known = {each: f"bulk:{each}" for each in range(1, 6) if each not in self.offline}
        return TicketReply(b"good", 1, known if self.bulk is None else self.bulk)

    def seal(self, raft_id: int, request: SealRequest) -> SealReply:
        if raft_id in self.down:
            raise Unavailable(f"i{raft_id} does not answer")
        self.on_seal(request)
        self.nonces.append(request.nonce)
        have = self.staged.get(raft_id, set())
        self.sealed[raft_id] = ([] if request.part == 0 else self.sealed[raft_id]) + request.files
        return SealReply([(file.tablet, file.name) for file in request.files if (file.tablet, file.name) not in have])

    def commit(self, request: CommitRequest) -> LoadRecord:
        self.commits += 1
        self.on_commit()
        assert self.record is not None
        if self.record.state is LoadState.ABORTED:
            raise LoadRefused("the load was aborted", "ended")
        if self.record.state is LoadState.STAGING:
            holders = {each for some in self.replicas for each in some}
            if missing := holders - set(request.sealed) - self.offline:
                raise LoadRefused("not sealed everywhere", "moved", sorted(missing))
            self.record = structs.replace(
                self.record,
                state=LoadState.COMMITTED,
                rows=request.rows,
                sealed=request.sealed,
                nonce=request.nonce,
            )
        return self.record

    def abort(self, table: int, id: str, reason: str) -> LoadRecord:
        assert self.record is not None
        if self.record.state is not LoadState.STAGING:
            raise LoadRefused("it is too late", "conflict")
        self.record = structs.replace(self.record, state=LoadState.ABORTED, reason=reason)
        return self.record

    def show(self, table: int, id: str) -> LoadRecord | None:
        return self.record

    def wait_ended(self, table: int, id: str, timeout_s: float) -> LoadRecord | None:
        assert self.record is not None
        if self.record.state is LoadState.COMMITTED:
            self.record = structs.replace(self.record, state=LoadState.PUBLISHED, adopted=self.record.sealed)
        return self.record


class Carrier:
    """A bulk client between the instances of a FakeCluster."""

    def __init__(self, cluster: FakeCluster, address: str) -> None:
        self._cluster, self._raft_id = cluster, int(address.partition(":")[2])

    def fetch_to(self, target: Path, path: str, ticket: bytes, *, size_bytes: int) -> int:
        _, _, tablet, name = path.split("/")
        if self._raft_id in self._cluster.down or (int(tablet), name) not in self._cluster.staged[self._raft_id]:
            raise BulkLost(f"bulk:{self._raft_id} does not answer")
        target.write_bytes(b"x" * size_bytes)
        return size_bytes

    def stage(
        self, source: Path, session: str, tablet: int, name: str, ticket: bytes, *, checksum: int, replace: bool
    ) -> None:
        assert replace == ((tablet, name) in self._cluster.damaged.get(self._raft_id, ()))
        if self._raft_id in self._cluster.down:
            raise BulkLost(f"bulk:{self._raft_id} does not answer")
        assert source.exists()
        self._cluster.staged.setdefault(self._raft_id, set()).add((tablet, name))

    def close(self) -> None:
        pass


def begun(cluster: FakeCluster, **changes: object) -> LoadRun:
    run = LoadRun.begin(cluster, replace(LoadRequest("shop.users", "load1"), **changes))  # type: ignore[arg-type]
    run.connect = lambda address: Carrier(cluster, address)  # type: ignore[assignment, return-value]
    run.settle_s = 5.0
    run.progress = lambda *news: cluster.told.append(news)
    return run


def part(cluster: FakeCluster, attempt: str = "a0", holders: tuple[int, ...] = (1, 2, 3)) -> StagedPart:
    """One file for each tablet, on these of its replicas."""
    files = []
    for tablet, replicas in enumerate(cluster.replicas):
        held = tuple(each for each in replicas if each in holders)
        files.append(HeldFile(StagedFile(tablet, f"{attempt}.sst", 10, 7, 5), held))
        for each in held:
            cluster.staged.setdefault(each, set()).add((tablet, f"{attempt}.sst"))
    return StagedPart(attempt, tuple(files), rows=5 * len(files), size_bytes=10 * len(files))


def test_a_load_is_sealed_everywhere_committed_and_seen_through() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    record = run.commit([part(cluster, "a0"), part(cluster, "a1")])
    assert (record.state, record.rows, record.sealed) == (LoadState.PUBLISHED, 40, (1, 2, 3))
    assert [len(cluster.sealed[each]) for each in (1, 2, 3)] == [8, 8, 8]
    assert cluster.told[-1] == ("adopt", 3, 3)


def test_only_files_of_attempts_that_count_are_sealed() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    part(cluster, "lost-attempt")
    run.commit([part(cluster, "a0")])
    assert {file.name for file in cluster.sealed[1]} == {"a0.sst"}


def test_many_files_are_sealed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "FILES_PER_SEAL", 3)
    cluster = FakeCluster()
    run = begun(cluster)
    record = run.commit([part(cluster, f"a{n}") for n in range(5)])
    assert len(cluster.sealed[2]) == 20
    assert record.nonce and set(cluster.nonces) == {record.nonce}, "one list, on all instances"


def test_a_part_has_no_more_bytes_than_an_instance_can_read_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "BYTES_PER_SEAL", 25)  # a file has 10
    cluster = FakeCluster()
    run = begun(cluster)
    parts: list[tuple[int, int, bool]] = []
    cluster.on_seal = lambda request: parts.append((request.part, len(request.files), request.last))
    run.commit([part(cluster)])
    assert sorted(set(parts)) == [(0, 2, False), (1, 2, True)]
    monkeypatch.setattr(loading, "BYTES_PER_SEAL", 5)
    assert [len(each) for each in loading._in_parts([StagedFile(0, f"{n}", 10, 7) for n in range(3)])] == [1, 1, 1]


@pytest.mark.parametrize("told", [True, False])
def test_a_load_that_ends_before_it_has_leave_to_write_says_why(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()

    def gone(session: str, life_ms: int) -> TicketReply:
        assert cluster.record is not None
        ended = structs.replace(cluster.record, state=LoadState.ABORTED, reason="an operator ended it")
        cluster.record = ended if told else None
        raise LoadRefused(f"the session {session} is not open", "unknown_session")

    monkeypatch.setattr(cluster, "ticket", gone)
    monkeypatch.setattr(cluster, "abort", lambda *_: cluster.record)
    with pytest.raises(NotNow, match=r"ended it$" if told else r" was dropped meanwhile$"):
        begun(cluster)


def test_a_replica_that_reads_for_long_is_waited_for_while_it_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "FILES_PER_SEAL", 1)
    cluster = FakeCluster(replicas=((1,),) * 6)
    run = begun(cluster)
    run.settle_s = 0.5
    staged = part(cluster)
    clock = 0.0
    # Its own, and not everybody's: threads of other tests may be at it.
    monkeypatch.setattr(loading, "time", SimpleNamespace(monotonic=lambda: clock, sleep=lambda _seconds: None))
    done = -1

    def slow(request: SealRequest) -> None:
        # One part more with each time of asking, and each takes almost as long as a load is waited for.
        nonlocal clock, done
        if request.part > done:
            clock += 0.4
            done = request.part
            raise Unavailable("i1 is still looking at the files")

    cluster.on_seal = slow
    assert run.commit([staged]).state is LoadState.PUBLISHED
    assert clock > 4 * run.settle_s


def test_a_list_in_parts_of_which_a_file_is_missing_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "FILES_PER_SEAL", 3)
    cluster = FakeCluster()
    run = begun(cluster)
    staged = part(cluster)
    cluster.staged[3].discard((0, "a0.sst"))
    cluster.damaged[3] = {(0, "a0.sst")}
    ends: list[bool] = []
    cluster.on_seal = lambda request: ends.append(request.last)
    assert run.commit([staged]).sealed == (1, 2, 3)
    assert ends.count(True) == 3 and len(ends) == 8


def test_two_drivers_of_one_load_seal_lists_of_different_names() -> None:
    cluster = FakeCluster()
    first, second = begun(cluster), begun(cluster)

    def meanwhile() -> None:
        cluster.on_commit = lambda: None
        second.commit([part(cluster, "theirs")])

    cluster.on_commit = meanwhile
    first.commit([part(cluster, "ours")])
    assert cluster.record is not None and len(set(cluster.nonces)) == 2
    assert cluster.record.nonce == cluster.nonces[-1], "the second was committed first"


def test_nothing_more_is_sealed_when_the_lease_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "FILES_PER_SEAL", 1)
    cluster = FakeCluster(replicas=((1,),) * 4)
    run = begun(cluster)
    staged = part(cluster)
    renewing = run.renewing()

    def lose(request: SealRequest) -> None:
        renewing._ended = "the lease of the load ended" if request.part == 1 else ""

    cluster.on_seal = lose
    monkeypatch.setattr(LoadRun, "renewing", lambda _run: renewing)
    with pytest.raises(NotNow, match="the lease of the load ended"):
        run.commit([staged])
    assert len(cluster.nonces) == 2 and not cluster.commits


def test_a_load_without_a_row_is_sealed_by_everybody_too() -> None:
    cluster = FakeCluster()
    assert begun(cluster).commit([StagedPart("a0")]).state is LoadState.PUBLISHED
    assert cluster.sealed == {1: [], 2: [], 3: []}


def test_files_that_a_replica_lacks_are_brought_to_it() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    record = run.commit([part(cluster, holders=(1, 3))])
    assert record.sealed == (1, 2, 3)
    assert cluster.staged[2] == cluster.staged[1]


def test_a_replica_that_lost_what_it_had_gets_it_again() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    staged = part(cluster)
    cluster.damaged[3] = set(cluster.staged[3])
    cluster.staged[3].clear()
    assert run.commit([staged]).sealed == (1, 2, 3)


def test_a_tablet_that_moved_meanwhile_is_staged_where_it_is_now() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    staged = part(cluster)

    def move() -> None:
        cluster.replicas = ((1, 2, 4),) * 4

    cluster.on_commit = move
    record = run.commit([staged])
    assert cluster.commits == 2
    assert record.sealed == (1, 2, 4)
    assert len(set(cluster.nonces)) == 2 and record.nonce == cluster.nonces[-1]
    assert cluster.staged[4] == cluster.staged[1]


def test_a_replica_that_died_is_waited_for_until_it_is_known_to_be_down() -> None:
    cluster = FakeCluster(down={2})
    run = begun(cluster)
    staged = part(cluster, holders=(1, 3))

    def notice() -> None:
        if cluster.commits == 3:
            cluster.offline.add(2)

    cluster.on_commit = notice
    assert run.commit([staged]).sealed == (1, 3)


def test_a_load_that_can_not_be_sealed_in_time_is_aborted_with_the_reason() -> None:
    cluster = FakeCluster(down={2})
    run = begun(cluster)
    run.settle_s = 0.2
    with pytest.raises(NotNow, match=r"can't be committed.*i2: .*does not answer"):
        run.commit([part(cluster, holders=(1, 3))])
    assert cluster.record is not None and cluster.record.state is LoadState.ABORTED
    assert "i2" in cluster.record.reason


def test_one_failed_task_is_the_reason_and_not_its_echoes() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    echo = StagedPart("a0", failed="the load load1 is not open any more")
    with pytest.raises(LoadFailed, match="key column p0 is null"):
        run.commit([echo, StagedPart("a1", failed="the row with p0=None: key column p0 is null")])
    assert cluster.record is not None and cluster.record.state is LoadState.ABORTED


def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    staged = part(cluster)
    answers = iter([Timeout("no answer came in time"), None])

    def lose() -> None:
        if (error := next(answers)) is not None:
            raise error

    cluster.on_commit = lose
    assert run.commit([staged]).state is LoadState.PUBLISHED


def test_a_load_that_was_committed_while_its_driver_gave_it_up_counts() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    staged = part(cluster)
    run.settle_s = 0.0

    def done_but_lost() -> None:
        assert cluster.record is not None
        cluster.record = structs.replace(cluster.record, state=LoadState.COMMITTED, sealed=(1, 2, 3))
        raise Timeout("no answer came in time")

    cluster.on_commit = done_but_lost
    assert run.commit([staged]).state is LoadState.PUBLISHED


def test_a_commit_of_which_nobody_can_say_whether_it_happened_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    staged = part(cluster)
    run.settle_s = 0.0

    def cut_off(*_: object) -> None:
        raise Unavailable("nobody answers")

    cluster.on_commit = cut_off  # type: ignore[assignment]
    monkeypatch.setattr(cluster, "abort", cut_off)
    monkeypatch.setattr(cluster, "show", cut_off)
    with pytest.raises(LoadPending, match=r"not known whether load load1 of shop.things counts.*`trimtab loads list`"):
        run.commit([staged])


def test_a_load_that_failed_before_its_commit_has_failed_though_nobody_answers_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster()
    run = begun(cluster)

    def cut_off(*_: object) -> None:
        raise Unavailable("nobody answers")

    monkeypatch.setattr(cluster, "abort", cut_off)
    monkeypatch.setattr(cluster, "show", cut_off)
    with pytest.raises(LoadFailed, match="key column p0 is null"):
        run.commit([StagedPart("a0", failed="key column p0 is null")])


def test_a_committed_load_that_takes_long_is_pending_and_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    monkeypatch.setattr(cluster, "wait_ended", lambda *_: cluster.record)
    run = begun(cluster)
    run.publish_s = 0.0
    with pytest.raises(LoadPending, match="i1, i2, i3 has taken it over"):
        run.commit([part(cluster)])


def test_a_table_dropped_meanwhile_is_told() -> None:
    cluster = FakeCluster()
    run = begun(cluster)
    staged = part(cluster)

    def drop() -> None:
        raise LoadRefused("there is no load load1 of table 1", "not_found")

    cluster.on_commit = drop
    with pytest.raises(LoadRefused, match="there is no load"):
        run.commit([staged])


def test_the_same_load_again_has_nothing_to_do() -> None:
    cluster = FakeCluster()
    begun(cluster).commit([part(cluster)])
    again = begun(cluster)
    assert again.plan.done
    assert again.commit([]).rows == 20


def test_a_load_whose_first_attempt_was_aborted_is_tried_again_and_then_loaded_once() -> None:
    class Remembering(FakeCluster):
        def begin(self, request: BeginRequest) -> LoadRecord:
            known = {each.id: each for each in (*earlier, *((self.record,) if self.record else ()))}
            if (found := known.get(request.id)) is None:
                found = self.record = LoadRecord(request.id, request.table, request.kind, LoadState.STAGING, 999)
            if found.state is LoadState.ABORTED:
                raise LoadRefused("it was aborted", "ended")
            return found

    earlier: list[LoadRecord] = []
    cluster = Remembering()
    first = LoadRun.begin_again(cluster, LoadRequest("shop.users", "nightly"))
    first.abort("a task failed")
    assert cluster.record is not None
    earlier.append(cluster.record)
    again = LoadRun.begin_again(cluster, LoadRequest("shop.users", "nightly"))
    assert (again.id, again.plan.done) == ("nightly-1", False)
    again.commit([part(cluster)])
    third = LoadRun.begin_again(cluster, LoadRequest("shop.users", "nightly"))
    assert (third.id, third.plan.done) == ("nightly-1", True)


def test_nothing_is_begun_where_too_few_can_take_files() -> None:
    cluster = FakeCluster(bulk={1: "bulk:1"})
    with pytest.raises(NotNow, match="tablet 0 is on i2, i3, which can't take files"):
        begun(cluster)
    assert cluster.record is not None and cluster.record.state is LoadState.ABORTED


def test_the_lease_is_renewed_until_the_load_is_over() -> None:
    cluster = FakeCluster()
    run = begun(cluster, lease_ms=40)
    renewed = threading.Event()
    real = cluster.renew

    def renew(table: int, id: str) -> None:
        real(table, id)
        renewed.set()

    cluster.renew = renew  # type: ignore[method-assign]
    with run.renewing() as renewing:
        assert renewed.wait(60)
        run.abort("enough")
        renewing._thread.join(60)
        with pytest.raises(LoadFailed, match="it was aborted"):
            renewing.check()
