"""The files of one task, on their way to every replica of their tablets.

One thread and one connection for each instance; a file goes to all its replicas at the same time, and is forgotten here
when the last of them is done with it. Connections that break are taken up again where they were (`bulk.client`). An
instance that can't be reached for good is left out for the rest of the task, as long as a quorum of every tablet's
replicas has its files: the driver sees to it later. What is refused ends the load, with the reason.

Bounded: files are in memory, and so many bytes wait at most; whoever makes them faster than they can be sent waits,
too.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Protocol

from trimtab.bulk.client import BulkCancelled, BulkClient, BulkError, BulkLost, BulkRefused, Patience
from trimtab.bulk.protocol import DISK_FULL, EXPIRED, NO_SESSION
from trimtab.bulk.sources import Pieces
from trimtab.client.errors import Error
from trimtab.loads.protocol import StagedFile
from trimtab.spark.load_plan import HeldFile, LoadFailed, LoadPlan, NotNow, OutOfReach

MAX_WAITING_BYTES = 64 << 20  # of one task, which are not everywhere yet; or one file that is larger
LOST_S = 30.0  # so long an instance that could not be reached is tried only once by tasks of this process
_JOIN_S = 30.0

_lost_until: dict[str, float] = {}  # by bulk address, on the monotonic clock


class Client(Protocol):
    """What is used of BulkClient."""

    def stage(
        self, source: Pieces, session: str, tablet: int, name: str, ticket: bytes, *, checksum: int
    ) -> object: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


Connect = Callable[[str, Patience], Client]


@dataclass(eq=False)
class _Outgoing:
    source: Pieces
    file: StagedFile
    waits_for: int
    holders: set[int] = field(default_factory=set)


class Sending:
    """A context manager: leaving it without `finish` cancels what is under way."""

    def __init__(
        self,
        plan: LoadPlan,
        *,
        tls: ssl.SSLContext | None = None,
        fresh_ticket: Callable[[], bytes] | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._plan = plan
        self._ticket = plan.ticket
        self._fresh_ticket = fresh_ticket
        self._connect: Connect = connect or (lambda address, patience: BulkClient(address, tls, patience=patience))
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting_bytes = 0
        self._queues: dict[int, SimpleQueue[_Outgoing | None]] = {}
        self._threads: list[threading.Thread] = []
        self._clients: list[Client] = []
        self._done: list[HeldFile] = []
        self._failure: Exception | None = None
        self.missing: dict[int, str] = {}

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *_: object) -> None:
        self._fail(LoadFailed("the task ended"))
        self._end()

    def send(self, source: Pieces, tablet: int, name: str, rows: int) -> None:
        """Have a file sent; raises what went wrong with an earlier one."""
        size_bytes = source.size_bytes
        with self._room:
            self._room.wait_for(
                lambda: not self._waiting_bytes or self._waiting_bytes + size_bytes <= MAX_WAITING_BYTES
            )
            self._waiting_bytes += size_bytes
        self._check()
        replicas = self._plan.replicas[tablet]
        file = StagedFile(tablet, name, size_bytes, source.checksum(), rows)
        outgoing = _Outgoing(source, file, len(replicas))
        for raft_id in replicas:
            self._queue(raft_id).put(outgoing)

    def finish(self) -> tuple[HeldFile, ...]:
        """All files with who holds them, when every replica has them or is known to be missing."""
        self._end()
        self._check()
        return tuple(self._done)

    def _end(self) -> None:
        for queue in self._queues.values():
            queue.put(None)
        self._queues.clear()
        for thread in self._threads:
            thread.join(_JOIN_S if self._failure is not None else None)

    def _check(self) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure

    def _fail(self, error: Exception) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error
            clients = list(self._clients)
        for client in clients:
            client.cancel()

    # One thread for each instance

    def _queue(self, raft_id: int) -> SimpleQueue[_Outgoing | None]:
        queue = self._queues.get(raft_id)
        if queue is None:
            queue = self._queues[raft_id] = SimpleQueue()
            thread = threading.Thread(
                target=self._run, args=(raft_id, queue), name=f"trimtab-send-{raft_id}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return queue

    def _run(self, raft_id: int, queue: SimpleQueue[_Outgoing | None]) -> None:
        client: Client | None = None
        while (outgoing := queue.get()) is not None:
            held = False
            try:
                if client is None and raft_id not in self.missing:
                    client = self._open(raft_id)
                if client is not None and raft_id not in self.missing and self._failure is None:
                    held = self._stage(raft_id, client, outgoing)
            except Exception as error:
                self._fail(error)
            self._settle(raft_id, outgoing, held)
            del outgoing  # else it would be in memory until there is another
        if client is not None:
            client.close()

    def _open(self, raft_id: int) -> Client | None:
        address = self._plan.bulk.get(raft_id)
        if not address:
            self.missing[raft_id] = "its bulk server is not known: it is not Online"
            return None
        patience = Patience()
        if _lost_until.get(address, 0.0) > time.monotonic():
            patience = replace(patience, attempts=1)
        client = self._connect(address, patience)
        with self._lock:
            self._clients.append(client)
        return client

    def _stage(self, raft_id: int, client: Client, outgoing: _Outgoing) -> bool:
        """Whether the instance has the file now. LoadFailed: it will not take it, whoever asks."""
        source, file, tickets = outgoing.source, outgoing.file, 2
        while True:
            tickets -= 1
            try:
                client.stage(source, self._plan.id, file.tablet, file.name, self._ticket, checksum=file.checksum)
                return True
            except BulkLost as error:
                self.missing[raft_id] = str(error)
                _lost_until[self._plan.bulk[raft_id]] = time.monotonic() + LOST_S
                return False
            except BulkCancelled:
                return False
            except BulkRefused as error:
                if error.code != EXPIRED or self._fresh_ticket is None or not tickets:
                    raise _refused(self._plan, raft_id, error) from error
                self._ticket = self._another_ticket(self._fresh_ticket)
            except BulkError as error:
                raise NotNow(f"{self._plan.name_of(raft_id)} did not take {file.name}: {error}") from error

    def _another_ticket(self, ask: Callable[[], bytes]) -> bytes:
        try:
            return ask()
        except Error as error:
            # Most likely another task has ended the load, and that is what is told then (`tasks`).
            raise NotNow(
                f"the ticket of the load {self._plan.id} has expired, and there is no other: {error}"
            ) from error

    def _settle(self, raft_id: int, outgoing: _Outgoing, held: bool) -> None:
        """The last one to be done with a file looks whether enough have it."""
        with self._lock:
            if held:
                outgoing.holders.add(raft_id)
            outgoing.waits_for -= 1
            if outgoing.waits_for:
                return
        holders = frozenset(outgoing.holders)
        if self._failure is None and (short := self._plan.short_of(outgoing.file.tablet, holders)):
            reasons = "; ".join(
                f"{self._plan.name_of(each)}: {self.missing[each]}"
                for each in self._plan.replicas[outgoing.file.tablet]
                if each in self.missing
            )
            self._fail(
                OutOfReach(f"too few replicas of tablet {outgoing.file.tablet} can be reached: {short}. {reasons}")
            )
        with self._lock:
            self._done.append(HeldFile(outgoing.file, tuple(sorted(holders))))
            self._waiting_bytes -= outgoing.file.size_bytes
            self._room.notify()


def _refused(plan: LoadPlan, raft_id: int, error: BulkRefused) -> NotNow:
    name = plan.name_of(raft_id)
    if error.code == DISK_FULL:
        return NotNow(f"{name} has no room for the load: {error.text}")
    if error.code == NO_SESSION:
        return NotNow(f"the load {plan.id} is not open any more: it was cancelled, or its driver was silent too long")
    if error.code == EXPIRED:
        return NotNow(f"{name} refuses the load's ticket: {error.text}")
    return NotNow(f"{name} refuses a file of the load: {error.text} ({error.code})")
