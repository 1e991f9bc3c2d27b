"""The snapshots that a job copies replicas from: taken by its driver, many tablets in one call, and kept while it runs.

Names follow from the job alone, so a driver that takes over finds the same snapshots, and targets have what was sent of
them. A tablet that an instance can't copy now is asked for again under the next name, for a while.

Several sources of one tablet are merged, so their snapshots must go together: a replica that was repaired further after
another one was copied may have forgotten a deletion which that copy does not have yet, and what it deleted would come
back. So all say how far they are repaired before any of them is copied, and one that is further by then is not copied
(`through`). Snapshots of which only some are from an earlier attempt are given up, and all are taken anew.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field

from trimtab.client.errors import Error
from trimtab.client.loads import BlockingLoads, LoadRefused
from trimtab.loads.protocol import SnapshotReply, SnapshotRequest
from trimtab.pipeline.copies import NOT_READY, SOURCE_GONE, Source
from trimtab.pipeline.failures import JobFailed
from trimtab.spark.call_threads import CallThreads

LEASE_MS = 60_000
PER_NAME = 256  # tablets in one snapshot
AGAIN_S = 30.0  # for a source that is just restarting, or has not taken over a load yet
_ASK_S = 4.0
_ASK_TABLET_S = 0.1
_PAUSE_S = 0.25
_GRACE_S = 0.5  # who takes longer is copied from in another Spark job
_CALLS = 8
_MAX_NAMES = 1_000
_CODES = {"gone": SOURCE_GONE, "not_found": SOURCE_GONE}


@dataclass
class Group:
    """Tablets that have the same sources. `wanted` of them are still to be had, and `why` says what keeps them."""

    sources: tuple[int, ...]
    tablets: tuple[int, ...]
    base: str
    wanted: set[int]
    turn: int = 0
    until_s: float = 0.0
    why: dict[int, tuple[str, str]] = field(default_factory=dict)


Found = dict[int, tuple[Source, ...]]  # by tablet


class HeldSources:
    """Of one job. A context manager: renews what it has taken until it is left; `release` gives it back."""

    def __init__(
        self,
        loads: BlockingLoads,
        table: int,
        epoch: int,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loads = loads
        self._table = table
        self._epoch = epoch
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._names: dict[tuple[int, str], None] = {}
        self._asking: dict[Future[Found], Group] = {}
        self._over = threading.Event()
        self._calls = CallThreads(_CALLS, "trimtab-sources")

    def __enter__(self) -> HeldSources:
        threading.Thread(target=self._renew, name="trimtab-renewing", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._calls.close()

    def ask(self, groups: Sequence[Group]) -> None:
        """Ask for these groups, beside everything else; `came` tells what came of it."""
        now_s = self._clock_s()
        for group in groups:
            pause_s = _PAUSE_S if group.until_s else 0.0
            group.until_s = group.until_s or now_s + AGAIN_S
            self._asking[self._calls.submit(self._take_after, group, pause_s)] = group

    @property
    def asking(self) -> bool:
        return bool(self._asking)

    def came(self) -> list[tuple[Group, Found]]:
        """What has come, by now or when something does; a moment is waited for all. What did not is still wanted."""
        wait(self._asking, _GRACE_S)
        done, _ = wait(self._asking, return_when=FIRST_COMPLETED)
        return [(self._asking.pop(each), each.result()) for each in done]

    def is_over(self, group: Group) -> bool:
        """Whether its time to become ready is up."""
        hopeless = all(group.why.get(tablet, ("", ""))[0] == SOURCE_GONE for tablet in group.wanted)
        return hopeless or self._clock_s() >= group.until_s or group.turn >= _MAX_NAMES

    def keep(self, lease_ms: int) -> None:
        """Let all snapshots stay for so long, though nobody renews them."""
        with self._lock:
            names = list(self._names)
        self._calls.each(lambda held: self._renew_one(held[0], held[1], lease_ms), names)

    def release(self) -> None:
        """Give all snapshots back; who can't be told forgets them when their lease is over."""
        with self._lock:
            names, self._names = list(self._names), {}
        self._calls.each(self._drop, names)

    # Asking

    def _take_after(self, group: Group, pause_s: float) -> Found:
        self._over.wait(pause_s)
        return self._take(group)

    def _take(self, group: Group) -> Found:
        name = f"{group.base}-{group.turn}"
        tablets = list(group.tablets) if group.turn == 0 else sorted(group.wanted)
        through: Mapping[int, Sequence[int]] = {}
        if len(group.sources) > 1:
            stand = self._look(group, tablets)
            tablets = [tablet for tablet in tablets if all(tablet in each for each in stand.values())]
            through = {raft_id: [each[tablet] for tablet in tablets] for raft_id, each in stand.items()}
            if not tablets:
                return {}
        group.turn += 1
        replies: dict[int, SnapshotReply] = {}
        for raft_id in group.sources:
            request = SnapshotRequest(
                self._table,
                tablets,
                self._epoch,
                LEASE_MS,
                name,
                copying=True,
                partial=True,
                through=list(through.get(raft_id, ())),
            )
            reply = self._ask(group, raft_id, request)
            if reply is None:
                return {}
            replies[raft_id] = reply
            if reply.tablets:
                with self._lock:
                    self._names[raft_id, name] = None
        if len({reply.found for reply in replies.values()}) > 1:
            self._forget(name, replies)
            return {}
        return self._found(group, replies)

    def _look(self, group: Group, tablets: Sequence[int]) -> dict[int, dict[int, int]]:
        """How far the replicas of each source are repaired, by tablet."""
        stand: dict[int, dict[int, int]] = {}
        for raft_id in group.sources:
            request = SnapshotRequest(self._table, list(tablets), self._epoch, copying=True, only_tell=True)
            reply = self._ask(group, raft_id, request)
            told = reply.tablets if reply is not None else []
            stand[raft_id] = {each.tablet: each.repaired_through_ms for each in told}
        return stand

    def _ask(self, group: Group, raft_id: int, request: SnapshotRequest) -> SnapshotReply | None:
        """An instance's answer; None where there is none, and the group knows why."""
        if raft_id not in self._loads.instances:
            self._note(group, SOURCE_GONE, f"there is no instance {raft_id} to copy from")
            return None
        member = self._loads.instances[raft_id].instance_id
        try:
            timeout_s = _ASK_S + _ASK_TABLET_S * len(request.tablets)
            reply = self._loads.snapshot(raft_id, request, timeout_s=timeout_s)
        except LoadRefused as error:
            if error.code == "not_found":
                raise JobFailed(f"its table was dropped: {error}") from error
            self._note(group, NOT_READY, f"{member}: {error}")
            return None
        except Error as error:
            # It may be restarting; when the time is up that is what is said.
            self._note(group, NOT_READY, f"{member}: {error}")
            return None
        for tablet, code, text in reply.refused:
            group.why[tablet] = _CODES.get(code, NOT_READY), f"{member}: {text}"
        return reply

    def _note(self, group: Group, code: str, text: str) -> None:
        for tablet in group.wanted:
            group.why[tablet] = code, text

    def _found(self, group: Group, replies: Mapping[int, SnapshotReply]) -> Found:
        by_tablet: dict[int, list[Source]] = {}
        for raft_id, reply in replies.items():
            member = self._loads.instances[raft_id].instance_id
            for each in reply.tablets:
                by_tablet.setdefault(each.tablet, []).append(
                    Source(
                        raft_id,
                        member,
                        reply.name,
                        reply.directory,
                        reply.proof,
                        each.path,
                        tuple((str(name), int(size_bytes)) for name, size_bytes in each.files),
                        reply.bulk_address,
                        reply.ticket,
                        each.generation,
                        each.adopted,
                        each.repaired_through_ms,
                        each.forgot_us,
                    )
                )
        found: Found = {}
        for tablet, sources in by_tablet.items():
            if tablet not in group.wanted or len(sources) < len(group.sources):
                continue
            if len({source.generation for source in sources}) > 1:
                group.why[tablet] = NOT_READY, "its sources are of different generations: it is being overwritten"
                continue
            found[tablet] = tuple(sources)
            group.wanted.discard(tablet)
        return found

    # Keeping

    def _renew(self) -> None:
        while not self._over.wait(LEASE_MS / 6000):
            with self._lock:
                names = list(self._names)
            for raft_id, name in names:
                self._renew_one(raft_id, name, LEASE_MS)

    def _renew_one(self, raft_id: int, name: str, lease_ms: int) -> None:
        # Who can't be told now is told again; and whoever forgot it is asked for another. Cancelled: the job is over.
        with suppress(Error, CancelledError):
            self._loads.renew_snapshot(raft_id, name, lease_ms)

    def _forget(self, name: str, replies: Mapping[int, SnapshotReply]) -> None:
        for raft_id in replies:
            with self._lock:
                self._names.pop((raft_id, name), None)
            self._drop((raft_id, name))

    def _drop(self, held: tuple[int, str]) -> None:
        with suppress(Error):
            self._loads.release_snapshot(*held)


def grouped(copies: Sequence[tuple[int, tuple[int, ...], str]], wanted: set[int], job: str, table: int) -> list[Group]:
    """Groups of the copies (tablet, sources, session) of a job: the same for whoever takes it over.

    `wanted`: the tablets of which a copy is still to be made; a group without any is left out.
    """
    by_sources: dict[tuple[int, ...], dict[int, None]] = {}
    for tablet, sources, _ in copies:
        by_sources.setdefault(tuple(sorted(sources)), {})[tablet] = None
    groups = []
    for sources, found in sorted(by_sources.items()):
        tablets = sorted(found)
        for start in range(0, len(tablets), PER_NAME):
            some = tuple(tablets[start : start + PER_NAME])
            told = f"{job}/{table}/{sources}/{some}"
            base = f"stream-{hashlib.blake2b(told.encode(), digest_size=10).hexdigest()}"
            if left := wanted & set(some):
                groups.append(Group(sources, some, base, left))
    return groups
