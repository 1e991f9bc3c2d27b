"""Replicas brought up to what any write quorum ever acknowledged: each is repaired against enough of its peers.

How many are enough is a question of quorums (`tablets.quorums`): together with what the replica has itself, every write
quorum must be met. Where that needs nobody (all of two replicas acknowledge a quorum), one is asked all the same, if it
can be: a write at ONE may have passed this replica by. One that lacks loads (`Subject.needs`) is repaired only from
those that have them.

Who left the cluster for good is not waited for: a replica whose data is intact, and of whose others too few are left,
goes on with what it and they have. What only the others had is lost, whether it waits or not.

It goes on for as long as it takes. Who can't be asked now is asked again, less and less often, and what is lacking is
told (`progress`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from trimtab.node.answering import Refused
from trimtab.node.replicas.repair import Repair, RepairFailed, Subject
from trimtab.storage.port import StorageError
from trimtab.tablets import quorums

AT_ONCE = 4
_FIRST_RETRY_S = 0.1
_MAX_RETRY_S = 5.0


class Hopeless(Exception):
    """Even all others together are not sure to have what this replica lost. The text says what to do."""


class Peers(Protocol):
    """Who else holds a tablet, and where everybody is."""

    def replicas(self, table: int, tablet: int) -> tuple[int, ...]:
        """All replicas of a tablet; none: there is no such tablet any more."""
        ...

    def dc_of(self) -> Mapping[int, str]: ...

    def likely(self, raft_ids: Iterable[int]) -> list[int]:
        """The same, those first that are near and most likely to answer; those that can't be reached are left out."""
        ...

    def left(self, raft_ids: Iterable[int]) -> list[int]:
        """Those of them that left the cluster: they never come back."""
        ...

    def name_of(self, raft_id: int) -> str: ...


class Mending:
    """Of one instance, whose raft id is `own`."""

    def __init__(self, own: int, repair: Repair, peers: Peers, *, story: Callable[[str], None]) -> None:
        self._own = own
        self._repair = repair
        self._peers = peers
        self._story = story
        self._loop = asyncio.get_running_loop()
        self._lacking: dict[str, str] = {}  # by the name of the replica
        self._left = 0
        self._all = 0

    def progress(self) -> str:
        """What it is at, in words; empty: nothing."""
        if not self._left:
            return ""
        text = f"{self._all - self._left} of {self._all} replicas are repaired"
        if self._lacking:
            name, why = next(iter(self._lacking.items()))
            more = f" (and {len(self._lacking) - 1} more)" if len(self._lacking) > 1 else ""
            text += f"; {name}{more} {why}"
        return text

    async def mend_all(self, subjects: list[Subject], *, gentle: bool) -> None:
        """Returns when all of them, whose data is intact, have been repaired against enough others."""
        waiting = iter(subjects)
        self._all, self._left = self._all + len(subjects), self._left + len(subjects)
        unfinished = len(subjects)

        async def one_after_another() -> None:
            nonlocal unfinished
            for subject in waiting:
                try:
                    await self.mend(subject, intact=True, gentle=gentle)
                except Hopeless as error:
                    # It answers nothing at that epoch; the others of this instance are needed.
                    self._story(str(error))
                unfinished -= 1
                self._left -= 1

        workers = [self._loop.create_task(one_after_another()) for _ in range(min(AT_ONCE, len(subjects)))]
        try:
            if workers:
                await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            self._left -= unfinished
            self._all = self._all if self._left else 0

    async def mend(self, subject: Subject, *, intact: bool, gentle: bool) -> bool:
        """Repair one replica against enough others; False: it is gone. Hopeless: even all others are not enough."""
        met: set[int] = set()
        retry_s, told = _FIRST_RETRY_S, ""
        try:
            while True:
                replicas = self._peers.replicas(subject.table, subject.tablet)
                if subject.gone or self._own not in replicas:
                    return False
                dc_of = self._peers.dc_of()
                left = self._peers.left(replicas)
                alone = len(replicas) - len(left) == 1 and subject.needs > 0
                if alone or quorums.hopeless(self._own, replicas, dc_of, intact=intact):
                    what = f"lacks loads up to epoch {subject.needs}" if alone else "has lost its data"
                    raise Hopeless(
                        f"{subject.name} {what}, and its {len(replicas) - 1 - len(left)} other replicas are not "
                        "sure to have all of it: restore the table from a copy, or write its rows again"
                    )
                failures = await self._meet(subject, replicas, met, intact, gentle)
                lacks = quorums.missing(self._own, replicas, met, dc_of, intact=intact, gone=left if intact else ())
                if lacks is None and subject.needs and not met:
                    lacks = f"lacks loads up to epoch {subject.needs}, and nobody could be asked for them"
                if lacks is None:
                    try:
                        await subject.mended()
                    except (Refused, StorageError) as error:
                        lacks = f"can't write down that it has the loads it lacked: {error}"
                    else:
                        return not subject.gone
                reasons = "; ".join(f"{self._peers.name_of(peer)}: {why}" for peer, why in sorted(failures.items()))
                text = f"{lacks} ({reasons})" if reasons else lacks
                if text != told and retry_s >= 1.0:
                    told = text
                    self._story(f"{subject.name} can't be repaired yet: it {text}; it goes on trying")
                self._lacking[subject.name] = text
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _MAX_RETRY_S)
        finally:
            self._lacking.pop(subject.name, None)

    async def mend_now(self, subject: Subject) -> bool:
        """Repair one replica, whose data is intact, against those who can be asked now, be it one of
        those who answer or not. Whether they were enough.
        """
        met: set[int] = set()
        replicas = self._peers.replicas(subject.table, subject.tablet)
        await self._meet(subject, replicas, met, intact=True, gentle=False)
        dc_of, left = self._peers.dc_of(), self._peers.left(replicas)
        return quorums.missing(self._own, replicas, met, dc_of, intact=True, gone=left) is None

    async def _meet(
        self, subject: Subject, replicas: tuple[int, ...], met: set[int], intact: bool, gentle: bool
    ) -> dict[int, str]:
        """Repair against one after another until it is enough; why it failed, by peer."""
        failures: dict[int, str] = {}
        others = [peer for peer in replicas if peer != self._own and peer not in met]
        for peer in self._peers.likely(others):
            dc_of = self._peers.dc_of()
            left = self._peers.left(replicas) if intact else ()
            wanted = quorums.peers_needed(self._own, replicas, dc_of, intact=intact, gone=left)
            dc = dc_of.get(peer, "")
            if sum(1 for each in met if dc_of.get(each, "") == dc) >= wanted.get(dc, 0) and (wanted or met):
                continue
            try:
                await self._repair.against(subject, peer, gentle=gentle)
            except RepairFailed as error:
                failures[peer] = str(error)
            else:
                met.add(peer)
        return failures
