"""A Raft cluster in memory for stories: members, a network that can be cut, disks that sync when told to.

Everything is delivered in order of the members' ids, and chance comes from a seed, so a story always runs the same way.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from trimtab.raft.config import Config
from trimtab.raft.errors import ConfChangeRefused, RaftError
from trimtab.raft.messages import (
    LOCAL_APPEND,
    LOCAL_APPLY,
    AnyConfChange,
    ConfState,
    Entry,
    EntryType,
    HardState,
    Message,
    Snapshot,
    SnapshotMetadata,
    decode_conf_change,
    decode_message,
    encode_message,
)
from trimtab.raft.node import RawNode, ReadState, StateType
from trimtab.raft.storage import MemoryStorage

_MAX_ROUNDS = 5_000


class MemberStorage(MemoryStorage):
    """The log on disk, beside a state machine that stores its configuration and gives a snapshot whenever asked."""

    __slots__ = ("member",)

    def __init__(self, member: "Member") -> None:
        super().__init__()
        self.member = member

    def initial_state(self) -> tuple[HardState, ConfState]:
        return super().initial_state()[0], self.member.conf_state

    def snapshot(self) -> Snapshot:
        member = self.member
        metadata = SnapshotMetadata(member.conf_state, member.applied_index, self.term(member.applied_index))
        return Snapshot(metadata, msgspec.msgpack.encode(member.applied))


class Member:
    """One member with its disk and its state machine, which remembers all it applied."""

    def __init__(self, node: int, conf_state: ConfState, chance: random.Random, settings: dict[str, Any]) -> None:
        self.id = node
        self._chance = chance
        self._settings = settings
        self.storage = MemberStorage(self)
        if conf_state != ConfState():
            self.storage.apply_snapshot(Snapshot(SnapshotMetadata(conf_state, 1, 1)))
            self.storage.set_hard_state(HardState(1, 0, 1))
        self.conf_state = conf_state
        self.applied: list[Entry] = []
        self.applied_index = self.storage.first_index() - 1
        self.reads: list[ReadState] = []
        self.append_work: list[Message] = []
        self.apply_work: list[Message] = []
        self.raw = self._start()

    def _start(self) -> RawNode:
        settings: dict[str, Any] = {"election_tick": 10, "heartbeat_tick": 1, "random": self._chance.randrange}
        return RawNode(
            Config(id=self.id, storage=self.storage, applied=self.applied_index, **settings | self._settings)
        )

    def restart(self) -> None:
        """Lose everything that is not on disk. The state machine kept what it applied."""
        self.append_work.clear()
        self.apply_work.clear()
        self.raw = self._start()

    @property
    def data(self) -> list[bytes]:
        return [entry.data for entry in self.applied if entry.type == EntryType.NORMAL and entry.data]

    @property
    def log(self) -> list[tuple[int, int]]:
        log = self.raw.raft.log
        return [(index, log.term(index)) for index in range(log.first_index(), log.last_index() + 1)]

    def write(self, state: HardState | None, entries: Sequence[Entry], snapshot: Snapshot | None) -> None:
        if state is not None and state != HardState():
            self.storage.set_hard_state(state)
        if snapshot is not None:
            self.storage.apply_snapshot(snapshot)
            self.conf_state = snapshot.metadata.conf_state
            self.applied_index = snapshot.metadata.index
            self.applied = msgspec.msgpack.decode(snapshot.data, type=list[Entry]) if snapshot.data else []
        self.storage.append(entries)

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.index <= self.applied_index and self.raw.raft.config.async_storage_writes:
                continue  # a snapshot overtook it
            assert entry.index == self.applied_index + 1, f"{self.id} applies {entry.index} after {self.applied_index}"
            self.applied_index = entry.index
            self.applied.append(entry)
            if entry.type != EntryType.NORMAL:
                try:
                    self.conf_state = self.raw.apply_conf_change(decode_conf_change(entry))
                except ConfChangeRefused:
                    continue

    def take_ready(self) -> list[Message]:
        """Work off a Ready; the messages for others. With asynchronous writes storage work is only queued."""
        ready = self.raw.ready()
        self.reads.extend(ready.read_states)
        if not self.raw.raft.config.async_storage_writes:
            self.write(ready.hard_state, ready.entries, ready.snapshot)
            self.apply(ready.committed_entries)
            self.raw.advance()
            return list(ready.messages)
        for message in ready.messages:
            if message.to == LOCAL_APPEND:
                self.append_work.append(message)
            elif message.to == LOCAL_APPLY:
                self.apply_work.append(message)
        return [message for message in ready.messages if message.to not in (LOCAL_APPEND, LOCAL_APPLY)]

    def sync(self) -> list[Message]:
        """Finish the oldest write; the responses for others. Own ones are taken in at once."""
        message = self.append_work.pop(0)
        self.write(HardState(message.term, message.vote, message.commit), message.entries, message.snapshot)
        return self._respond(message)

    def apply_next(self) -> list[Message]:
        message = self.apply_work.pop(0)
        self.apply(message.entries)
        return self._respond(message)

    def _respond(self, message: Message) -> list[Message]:
        for response in message.responses:
            if response.to == self.id:
                self.raw.step(response)
        return [response for response in message.responses if response.to != self.id]

    def compact(self) -> None:
        """Drop the log up to the applied index."""
        if self.applied_index >= self.storage.first_index():
            self.storage.compact(self.applied_index)


class Cluster:
    """Members 1..size, all founders. `cut` holds the links (from, to) over which nothing gets through."""

    def __init__(
        self, size: int = 3, *, learners: Sequence[int] = (), seed: int = 1, start: bool = True, **settings: Any
    ) -> None:
        self.chance = random.Random(seed)
        self.settings = settings
        self.conf_state = ConfState(
            voters=tuple(node for node in range(1, size + 1) if node not in learners), learners=tuple(learners)
        )
        self.members: dict[int, Member] = {}
        self.cut: set[tuple[int, int]] = set()
        self.network: list[Message] = []
        self.delivered: list[Message] = []
        # Asked before a message is put on the network; False loses it.
        self.passes: Callable[[Message], bool] = lambda _: True
        for node in range(1, size + 1):
            self.members[node] = Member(node, self.conf_state, self.chance, settings)
        if start:
            self.elect(1)

    def __getitem__(self, node: int) -> Member:
        return self.members[node]

    def add(self, node: int) -> Member:
        """A newcomer without log or configuration."""
        self.members[node] = Member(node, ConfState(), self.chance, self.settings)
        return self.members[node]

    def raw(self, node: int) -> RawNode:
        return self.members[node].raw

    @property
    def leaders(self) -> list[int]:
        return [node for node, member in self.members.items() if member.raw.raft.state is StateType.LEADER]

    @property
    def leader(self) -> int:
        assert len(self.leaders) == 1, f"leaders: {self.leaders}"
        return self.leaders[0]

    def state(self, node: int) -> StateType:
        return self.raw(node).raft.state

    def isolate(self, node: int) -> None:
        for other in self.members:
            self.cut |= {(node, other), (other, node)}

    def heal(self) -> None:
        self.cut.clear()

    def elect(self, node: int) -> None:
        self.raw(node).campaign()
        self.settle()
        assert self.state(node) is StateType.LEADER, f"{node} was not elected"

    def post(self, messages: Iterable[Message]) -> None:
        for message in messages:
            # Through the encoding, as on a real network: nobody shares objects with anybody.
            if (message.from_, message.to) not in self.cut and self.passes(message):
                self.network.append(decode_message(encode_message(message)))

    def deliver(self) -> bool:
        """Deliver what is on the network now; whether there was anything."""
        messages, self.network = self.network, []
        for message in messages:
            self.delivered.append(message)
            member = self.members.get(message.to)
            if member is not None:
                try:
                    member.raw.step(message)
                except RaftError:
                    continue
        return bool(messages)

    def work(self) -> bool:
        """Work off one round of Readies and storage work; whether there was any."""
        worked = False
        for member in self.members.values():
            if member.raw.has_ready():
                self.post(member.take_ready())
                worked = True
            while member.append_work:
                self.post(member.sync())
                worked = True
            while member.apply_work:
                self.post(member.apply_next())
                worked = True
        return worked

    def settle(self) -> None:
        """Until nothing happens any more."""
        for _ in range(_MAX_ROUNDS):
            worked = self.work()
            if not self.deliver() and not worked:
                return
        raise AssertionError("the cluster did not come to rest")

    def tick(self, ticks: int = 1, *, only: Iterable[int] | None = None) -> None:
        """Let time pass, everybody's or only for some, settling after each tick."""
        for _ in range(ticks):
            for node in only if only is not None else self.members:
                self.raw(node).tick()
            self.settle()

    def propose(self, data: bytes, *, at: int | None = None) -> None:
        self.raw(at or self.leader).propose(data)
        self.settle()

    def change(self, change: AnyConfChange, *, at: int | None = None) -> None:
        self.raw(at or self.leader).propose_conf_change(change)
        self.settle()
