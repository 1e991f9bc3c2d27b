"""The leader's writes: all or nothing, with numbered events, and only so many of these are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.metastore.dict_store import DictStore

from trimtab.governor.steps import Write
from trimtab.metastore.machine import Metastore
from trimtab.node import cluster_writes
from trimtab.node.cluster_writes import ClusterWrites, Outdated
from trimtab.node.errors import NotLeader, ProposalRefused
from trimtab.raft.roles import StateType
from trimtab.topology.records import (
    TRANSITION_KEY,
    InstanceRecord,
    RequestKind,
    TransitionRecord,
    encode,
    instance_key,
)
from trimtab.topology.states import TransitionState
from trimtab.topology.view import View

KEY = b"topology/version"


class Leader:
    """Proposals are applied when `apply` is called; the view follows."""

    def __init__(self) -> None:
        self.metastore = Metastore(DictStore())
        self.view = View()
        self.raft = SimpleNamespace(state=StateType.LEADER, term=3, lead=1)
        self.proposed: list[tuple[bytes, Any]] = []
        group: Any = SimpleNamespace(raw=SimpleNamespace(raft=self.raft))
        host: Any = SimpleNamespace(propose=lambda _group, data, done: self.proposed.append((data, done)))
        self.writes = ClusterWrites(host, group, self.view, lambda: 1_000)

    async def write(self, write: Write, *texts: str) -> None:
        await self.writes.write(write, [self.writes.event("test", text, ["i1"]) for text in texts], term=3)

    def apply(self) -> None:
        proposed, self.proposed = self.proposed, []
        for data, done in proposed:
            (result,) = self.metastore.apply([(self.metastore.applied_index + 1, 3, data)])
            page = self.metastore.range(b"", None, limit=10_000)
            self.view.load((entry.key, entry.value, entry.mod_revision) for entry in page.entries)
            done(result, None)


def play(story: Callable[[Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Leader())

    asyncio.run(main())


async def begun(*writing: Awaitable[None]) -> list[asyncio.Future[None]]:
    tasks = [asyncio.ensure_future(each) for each in writing]
    await asyncio.sleep(0)
    return tasks


def test_a_write_and_its_events_are_one_command() -> None:
    async def story(leader: Leader) -> None:
        (writing,) = await begun(leader.write(Write({KEY: 0}, {KEY: b"1"}), "first", "second"))
        leader.apply()
        await writing
        assert leader.metastore.revision == 1 and leader.view.version == 1
        assert [(event.text, event.term, event.at_ms) for event in leader.view.events.values()] == [
            ("first", 3, 1_000),
            ("second", 3, 1_000),
        ]

    play(story)


def test_two_writes_on_their_way_get_different_event_numbers() -> None:
    async def story(leader: Leader) -> None:
        writing = await begun(leader.write(Write({}, {}), "one"), leader.write(Write({}, {}), "two"))
        leader.apply()
        await asyncio.gather(*writing)
        assert {number: event.text for number, event in leader.view.events.items()} == {1: "one", 2: "two"}

    play(story)


def test_a_write_whose_ground_has_changed_leaves_nothing_behind() -> None:
    async def story(leader: Leader) -> None:
        row = encode(InstanceRecord("i1", "h1:1"))
        key = instance_key(1)
        writing = await begun(
            leader.write(Write({key: 0}, {key: row}), "one"), leader.write(Write({key: 0, KEY: 0}, {KEY: b"2"}), "two")
        )
        leader.apply()
        await writing[0]
        with pytest.raises(Outdated):
            await writing[1]
        assert leader.view.version == 0 and [event.text for event in leader.view.events.values()] == ["one"]
        # It is known now, so nothing is proposed.
        with pytest.raises(Outdated):
            await leader.write(Write({key: 0}, {key: row}), "again")
        assert leader.proposed == []

    play(story)


def test_a_write_that_was_overtaken_by_a_number_only_takes_the_next() -> None:
    """A flapping instance raises the version again and again: a transition must not begin anew each time."""

    async def story(leader: Leader) -> None:
        goes = encode(TransitionRecord(TransitionState.WRITE_BOTH_READ_OLD, RequestKind.JOIN, [7], version=1))
        writing = await begun(
            leader.write(Write({KEY: 0}, {KEY: b"1"}), "one"),
            leader.write(Write({KEY: 0, TRANSITION_KEY: 0}, {KEY: b"1", TRANSITION_KEY: goes}), "two"),
        )
        leader.apply()
        await writing[0]
        await asyncio.sleep(0)
        leader.apply()
        await writing[1]
        assert leader.view.version == 2 and leader.view.transition is not None
        assert leader.view.transition.version == 2

    play(story)


def test_who_leads_no_more_or_in_another_term_writes_nothing() -> None:
    async def story(leader: Leader) -> None:
        leader.raft.term = 4
        with pytest.raises(NotLeader):
            await leader.write(Write({}, {KEY: b"1"}))
        leader.raft.term, leader.raft.state = 3, StateType.FOLLOWER
        with pytest.raises(NotLeader):
            await leader.write(Write({}, {KEY: b"1"}))
        assert leader.proposed == []

    play(story)


def test_only_the_newest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_writes, "MAX_EVENTS", 100)

    async def story(leader: Leader) -> None:
        for number in range(150):
            (writing,) = await begun(leader.write(Write({}, {}), f"event {number}"))
            leader.apply()
            await writing
        assert 68 <= len(leader.view.events) <= 100 and leader.view.next_event() == 151

    play(story)


def test_what_can_not_be_read_is_not_written_over() -> None:
    async def story(leader: Leader) -> None:
        key = instance_key(2)
        leader.view.change(key, b'{"of":"a newer release"}', 7)
        with pytest.raises(ProposalRefused, match="newest release"):
            await leader.write(Write({key: 7}, {key: b"{}"}), "no")
        assert leader.proposed == []

    play(story)


def test_a_write_that_was_overtaken_leaves_no_gap_in_the_numbers_of_events() -> None:
    async def story(leader: Leader) -> None:
        row, key = encode(InstanceRecord("i1", "h1:1")), instance_key(1)
        writing = await begun(
            leader.write(Write({key: 0}, {key: row}), "one"), leader.write(Write({key: 0}, {key: row}), "two", "three")
        )
        leader.apply()
        await asyncio.gather(*writing, return_exceptions=True)
        (writing,) = await begun(leader.write(Write({}, {}), "four"))
        leader.apply()
        await writing
        assert {number: event.text for number, event in leader.view.events.items()} == {1: "one", 2: "four"}

    play(story)
