"""Files of a task on their way to its replicas: in memory, and so many bytes at most wait."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.unit.spark.plans import plan, users

from trimtab.bulk.client import BulkCancelled, BulkLost, BulkRefused, Patience
from trimtab.bulk.sources import Pieces
from trimtab.spark import sending
from trimtab.spark.load_plan import LoadFailed, LoadPlan, NotNow, OutOfReach
from trimtab.spark.sending import Sending

BOUND = 1000
# On a busy machine any thread may stand still for seconds.
LONG_S = 60.0
SHORT_S = 0.05


class Gates:
    """Bulk servers that take a file only when the test lets them."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.given = 0
        self.open_for_all = False
        self.taken: list[tuple[str, str, int]] = []
        self.begun: list[tuple[str, str]] = []
        self.failing: dict[str, Exception] = {}

    def connect(self, address: str, patience: Patience) -> Gate:
        return Gate(self, address)

    def let(self, count: int) -> None:
        """So many more files of any of them are taken."""
        with self.lock:
            self.given += count
            self.lock.notify_all()

    def let_all(self) -> None:
        with self.lock:
            self.open_for_all = True
            self.lock.notify_all()

    def fail(self, address: str, error: Exception) -> None:
        """The next file of that one, or the one that it is at, ends like this."""
        with self.lock:
            self.failing[address] = error
            self.lock.notify_all()

    def until(self, so: Callable[[], bool]) -> None:
        with self.lock:
            assert self.lock.wait_for(so, LONG_S)


class Gate:
    def __init__(self, gates: Gates, address: str) -> None:
        self._gates, self._address = gates, address
        self._cancelled = False

    def stage(self, source: Pieces, session: str, tablet: int, name: str, ticket: bytes, *, checksum: int) -> object:
        gates = self._gates
        with gates.lock:
            gates.begun.append((self._address, name))
            gates.lock.notify_all()
            gates.lock.wait_for(
                lambda: gates.given or gates.open_for_all or self._cancelled or self._address in gates.failing
            )
            if self._cancelled:
                raise BulkCancelled("the transfer was cancelled")
            if self._address in gates.failing:
                raise gates.failing[self._address]
            gates.given -= not gates.open_for_all
            gates.taken.append((self._address, name, source.size_bytes))
            gates.lock.notify_all()
        return None

    def cancel(self) -> None:
        with self._gates.lock:
            self._cancelled = True
            self._gates.lock.notify_all()

    def close(self) -> None:
        pass


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    sending._lost_until.clear()
    monkeypatch.setattr(sending, "MAX_WAITING_BYTES", BOUND)
    made = Gates()
    yield made
    made.let_all()


def file_of(size_bytes: int) -> Pieces:
    made = Pieces()
    made.write(bytes(size_bytes))
    return made


def one() -> LoadPlan:
    """One tablet, with one replica."""
    return plan(table=users(1), replicas=((1,),))


class Producer(threading.Thread):
    """Has files of these sizes sent, one after the other."""

    def __init__(self, to: Sending, *sizes: int) -> None:
        super().__init__(daemon=True)
        self.sent: list[int] = []
        self.failed: Exception | None = None
        self._to, self._sizes = to, sizes
        self.start()

    def run(self) -> None:
        try:
            for number, size in enumerate(self._sizes):
                self._to.send(file_of(size), 0, f"f{number}", size // 10)
                self.sent.append(size)
        except Exception as error:
            self.failed = error

    def waits_after(self, *sizes: int) -> None:
        """It has had these sent, and gets no further."""
        deadline = time.monotonic() + LONG_S
        while self.sent != [*sizes]:
            assert time.monotonic() < deadline and self.failed is None, (self.sent, self.failed)
            time.sleep(0.001)
        self.join(SHORT_S)
        assert self.is_alive() and self.sent == [*sizes]

    def ended(self) -> Exception | None:
        self.join(LONG_S)
        assert not self.is_alive()
        return self.failed


def test_a_producer_waits_when_enough_bytes_wait_and_goes_on_when_they_were_sent(gates: Gates) -> None:
    with Sending(one(), connect=gates.connect) as to:
        producer = Producer(to, 400, 600, 300, 800)
        producer.waits_after(400, 600)
        gates.let(1)
        producer.waits_after(400, 600, 300)
        gates.let(1)
        producer.waits_after(400, 600, 300)
        gates.let(1)
        assert producer.ended() is None
        gates.let_all()
        held = to.finish()
    assert sorted(each.file.size_bytes for each in held) == [300, 400, 600, 800]
    assert all(each.holders == (1,) for each in held)


def test_what_waits_is_counted_until_the_last_replica_has_it(gates: Gates) -> None:
    with Sending(plan(table=users(1)), connect=gates.connect) as to:
        producer = Producer(to, 900, 900)
        producer.waits_after(900)
        for _ in range(2):
            gates.let(1)
            producer.waits_after(900)
        gates.let(1)
        assert producer.ended() is None
        gates.let_all()
        assert [each.holders for each in to.finish()] == [(1, 2, 3)] * 2


def test_a_file_that_is_larger_than_the_bound_goes_alone(gates: Gates) -> None:
    with Sending(one(), connect=gates.connect) as to:
        first = Producer(to, 10 * BOUND, 1)
        first.waits_after(10 * BOUND)
        gates.let(1)
        assert first.ended() is None
        second = Producer(to, 10 * BOUND)
        second.waits_after()
        gates.let(1)
        assert second.ended() is None
        gates.let_all()
        assert [each.file.size_bytes for each in to.finish()] == [10 * BOUND, 1, 10 * BOUND]


def test_files_without_a_byte_never_wait(gates: Gates) -> None:
    with Sending(one(), connect=gates.connect) as to:
        assert Producer(to, BOUND, 0, 0).ended() is None
        gates.let_all()
        assert len(to.finish()) == 3


def test_a_refusal_wakes_up_whoever_waits_with_the_reason(gates: Gates) -> None:
    """Another replica is in the middle of the same file, and would be for long."""
    with Sending(plan(table=users(1)), connect=gates.connect) as to:
        producer = Producer(to, 900, 900)
        producer.waits_after(900)
        gates.until(lambda: len(gates.begun) == 3)
        gates.fail("bulk:2", BulkRefused("bulk:2", "disk_full", "f0 needs 5000 bytes more"))
        error = producer.ended()
        assert isinstance(error, NotNow) and "i2 has no room for the load: f0 needs 5000 bytes more" in str(error)
        with pytest.raises(NotNow, match="i2 has no room"):
            to.finish()
    assert gates.taken == []


def test_too_few_replicas_wake_up_whoever_waits_too(gates: Gates) -> None:
    with Sending(plan(table=users(1)), connect=gates.connect) as to:
        producer = Producer(to, 900, 900)
        producer.waits_after(900)
        for address in ("bulk:1", "bulk:2"):
            gates.fail(address, BulkLost(f"{address} got nowhere"))
        gates.let(1)
        error = producer.ended()
        assert isinstance(error, OutOfReach) and "bulk:1 got nowhere" in str(error)


def test_a_failure_that_nobody_has_foreseen_wakes_up_whoever_waits_too(gates: Gates) -> None:
    with Sending(one(), connect=gates.connect) as to:
        producer = Producer(to, 900, 900)
        producer.waits_after(900)
        gates.fail("bulk:1", MemoryError("no memory is left"))
        assert isinstance(producer.ended(), MemoryError)


def test_a_connection_that_can_not_even_be_made_wakes_up_whoever_waits_too(gates: Gates) -> None:
    """Its thread ended, and nobody was done with its files any more: whoever had more of them waited for ever."""

    def connect(address: str, patience: Patience) -> Gate:
        raise OSError("too many open files")

    with Sending(one(), connect=connect) as to:
        error = Producer(to, 900, 900).ended()
        assert isinstance(error, OSError) and "too many open files" in str(error)
        with pytest.raises(OSError, match="too many open files"):
            to.finish()


def test_of_one_that_is_gone_nobody_waits_for_room(gates: Gates) -> None:
    with Sending(plan(table=users(1)), connect=gates.connect) as to:
        gates.fail("bulk:3", BulkLost("bulk:3 got nowhere"))
        gates.let_all()
        assert Producer(to, 900, 900, 900, 900).ended() is None
        assert [each.holders for each in to.finish()] == [(1, 2)] * 4
    assert to.missing == {3: "bulk:3 got nowhere"}
    assert gates.begun.count(("bulk:3", "f0")) == 1 and ("bulk:3", "f1") not in gates.begun


def test_a_task_that_ends_early_wakes_up_its_senders(gates: Gates) -> None:
    with Sending(plan(table=users(1)), connect=gates.connect) as to, suppress(KeyError):
        Producer(to, 900).ended()
        gates.until(lambda: len(gates.begun) == 3)
        raise KeyError("a row")
    assert not any(thread.is_alive() for thread in to._threads) and gates.taken == []
    with pytest.raises(LoadFailed, match="the task ended"):
        to.send(file_of(1), 0, "late", 1)


def test_a_file_is_forgotten_when_the_last_of_its_replicas_has_it(gates: Gates) -> None:
    """It is memory: else each connection kept one more file, beyond what is counted, until its next one comes."""
    gates.let_all()
    with Sending(plan(table=users(1)), connect=gates.connect) as to:
        source = file_of(100)
        gone = weakref.ref(source)
        to.send(source, 0, "a", 1)
        del source
        gates.until(lambda: len(gates.taken) == 3)
        deadline = time.monotonic() + 5
        while gone() is not None and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert gone() is None, "somebody still has it"
