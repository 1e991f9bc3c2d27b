"""Waiting until instances are Online, and telling meanwhile where each of them is.

An instance that was killed a moment ago still counts as Online until its silence is noticed. So a row in the metastore
does not prove that it is back. The proof is made of two looks, in this order: the instance itself says that it holds a
lease, which it asks for only after its new life was written down; then a linearizable view says that it is Online, and
that nothing is left to do for it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trimtab.client.cluster import ClusterClient
from trimtab.client.errors import Error
from trimtab.topology.grades import Grade
from trimtab.topology.protocol import InstanceView, ViewReply

_LOOK_S = 1.0
_ANSWER_S = 0.3  # one that is only starting is asked again soon
_LAST_ANSWER_S = 2.0  # what is told in the end must not hang on one that is slow just then
_PAUSE_S = 0.05
_EXPLAIN_S = 4.0  # how long others get to tell why one has ended


@dataclass(frozen=True)
class Standing:
    """Where an instance is on its way: in words, whether it has arrived, and whether it was expelled for good."""

    text: str
    online: bool = False
    left: bool = False


class NotOnline(Exception):
    """Not all of them were Online in time, or one of them ended (`ended`: with these last words)."""

    def __init__(self, standings: dict[str, Standing], ended: dict[str, str]) -> None:
        words = [f"{name} ended by itself: {said}" for name, said in ended.items()]
        words += [f"{name}: {each.text}" for name, each in standings.items() if not each.online and name not in ended]
        super().__init__("; ".join(words))
        self.standings = standings
        self.ended = ended


async def await_online(
    wanted: Mapping[str, str],
    *,
    tls: ssl.SSLContext | None = None,
    timeout_s: float,
    ended: Callable[[], dict[str, str]],
    seen: Callable[[dict[str, Standing]], None],
) -> dict[str, Standing]:
    """Wait until these instances (id and address) are Online, or known to have left: where each of them is then.

    `ended` names those whose processes are gone, with their last words; `seen` is told where each of them is.
    """
    client = ClusterClient.unconnected(list(wanted.values()), tls=tls, timeout_s=_LOOK_S)
    deadline = time.monotonic() + timeout_s
    answer_s = _ANSWER_S
    try:
        while True:
            gone = ended()
            if len(gone) == len(wanted):
                raise NotOnline({name: Standing("ended") for name in wanted}, gone)
            standings, led = await look(client, wanted, answer_s)
            seen(standings)
            if all(each.online or (each.left and name in gone) for name, each in standings.items()):
                return standings
            failed = {name: said for name, said in gone.items() if not standings[name].left}
            if failed:
                # It may have been expelled earlier; the others can tell only when they have found a leader.
                deadline = min(deadline, time.monotonic() + (0 if led else _EXPLAIN_S))
            if time.monotonic() < deadline:
                await asyncio.sleep(_PAUSE_S)
            elif failed or answer_s == _LAST_ANSWER_S:
                raise NotOnline(standings, failed)
            else:
                answer_s = _LAST_ANSWER_S
    finally:
        await client.close()


async def look(client: ClusterClient, wanted: Mapping[str, str], answer_s: float) -> tuple[dict[str, Standing], bool]:
    """Where each of them is now, and whether there is a leader that could tell."""
    each_sees = await client.survey(list(wanted.values()), timeout_s=answer_s)
    view, why = None, ""
    if any(isinstance(seen, ViewReply) for seen in each_sees.values()):
        try:
            view = await client.view(timeout_s=_LOOK_S)
        except Error as error:
            why = str(error)
    standings = {name: standing(name, each_sees[address], view, why) for name, address in wanted.items()}
    return standings, view is not None


def standing(instance_id: str, itself: ViewReply | str, view: ViewReply | None, why_no_view: str = "") -> Standing:
    """Where an instance is, from what it says itself and then from what the cluster says of it."""
    row = None if view is None else _row(instance_id, view)
    if row is not None and row.record.left:
        why = f": {row.record.reason}" if row.record.reason else ""
        return Standing(f"has left the cluster{why}", left=True)
    if isinstance(itself, str):
        return Standing(f"does not answer yet ({itself})")
    if view is None:
        return Standing(f"up, but the cluster has no leader yet ({why_no_view})" if why_no_view else "up")
    if row is None:
        return Standing("up, not in the cluster yet")
    state, grades = row.record.state, row.record.grades
    if not grades.settled or grades.current.grade is not Grade.ONLINE:
        return Standing(f"{state.value}, {grades.current.grade.value} → {grades.target.grade.value}")
    if itself.lease_ms <= 0:
        return Standing("up, waiting for a lease")
    return Standing("Online", online=True)


def _row(instance_id: str, view: ViewReply) -> InstanceView | None:
    """Its row, and of several with that name the last: ids are given in order."""
    rows = [each for each in view.instances if each.record.instance_id == instance_id]
    return max(rows, key=lambda each: each.raft_id, default=None)
