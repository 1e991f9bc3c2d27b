"""A cluster from one survivor: what is left to do when the majority of the voters is lost for good.

Raft can't go on then, and rightly so: nobody knows what the lost ones had acknowledged. Only an operator can decide to
go on with what one survivor has. `recover` rewrites that survivor's directory, while it is stopped, into a cluster of
which it is the only member. Everything in its log counts from then on, the end of it that may never have been
committed included: it may have been acknowledged. What the lost members had acknowledged among themselves is lost.

The recovered cluster has a new genesis, so nobody of the old one, should it come back, is taken for a member. The
others are marked `left`, requests under way are cancelled. They, or others, join again with empty directories.

Steps, each durable before the next; whatever a crash interrupts, `recover` is simply run again:

1. instance.json gets the new genesis: the old members are strangers from here on. It also says that the recovery is
   under way, so that nobody starts what is half done.
2. The log's end counts as committed, and is applied.
3. Entries of a new term are added and count as committed: changes of the members until only this one is left, and a
   command that says so in the cluster's records.
4. instance.json says that it is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from trimtab.metastore import commands
from trimtab.node import identity as identities
from trimtab.node.acquaintances import Acquaintances
from trimtab.node.founding import CLUSTER_GROUP, FOUNDING_INDEX, METASTORE, synced
from trimtab.node.identity import LOG, Identity, Phase
from trimtab.node.metastore_machine import MetastoreMachine
from trimtab.node.settings import Limits, SettingsError
from trimtab.node.watching import Watching
from trimtab.raft.confchange import Changer, restore
from trimtab.raft.errors import ConfChangeRefused
from trimtab.raft.messages import (
    LEAVE_JOINT,
    ConfChangeSingle,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    EntryType,
    HardState,
    decode_conf_change,
    encode_conf_change,
)
from trimtab.raft.tracker import Tracker
from trimtab.storage.group_log import GroupLog
from trimtab.storage.node_log import NodeLog
from trimtab.storage.port import Disk
from trimtab.topology.grades import Grade, Grades, Standing
from trimtab.topology.records import (
    INSTANCES,
    TRANSITION_KEY,
    VERSION_KEY,
    EventRecord,
    InstanceRecord,
    RequestState,
    encode,
    event_key,
    instance_key,
    parse_instance,
    request_key,
)
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

_PAGE_BYTES = 4 << 20
_BATCH_OPERATIONS = 100


@dataclass(frozen=True)
class Survey:
    """What a directory holds: how far its log goes, and who voted, as it knows it."""

    identity: Identity
    last_term: int
    last_index: int
    committed: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    instances: dict[int, tuple[str, str]]  # instance id and address by raft id; without those that left
    addresses: dict[int, frozenset[str]]  # where they may be: also by what is not known to be committed

    @property
    def sole_voter(self) -> bool:
        """Whether it needs nobody else already."""
        return self.voters == (self.identity.raft_id,) and not self.identity.recovering

    @property
    def genesis(self) -> str:
        """That of the cluster as the others know it: an interrupted recovery has changed the one here."""
        return self.identity.recovering or self.identity.genesis

    @property
    def position(self) -> tuple[int, int]:
        """Of two survivors the one with the greater position has everything the other has acknowledged."""
        return (self.last_term, self.last_index)


@dataclass(frozen=True)
class Recovered:
    """What was done."""

    genesis: str
    raft_id: int
    uncommitted_entries: int
    left: list[str]
    cancelled_requests: int


class _Survivor:
    """The stopped member's files, open."""

    def __init__(self, disk: Disk) -> None:
        identity = identities.load(disk)
        if identity is None:
            raise SettingsError("the data directory is empty; name the one of a member that survived")
        if identity.phase is not Phase.MEMBER:
            raise SettingsError(
                f"{identity.instance_id} has never been a member (it was at '{identity.phase.value}'), so there is "
                "nothing in its directory to recover from; choose another survivor"
            )
        self.disk = disk
        self.identity = identity
        self.log = NodeLog.open(disk, LOG)
        self.group: GroupLog = self.log.group(CLUSTER_GROUP)
        self.machine = MetastoreMachine(disk, METASTORE, Limits(), asyncio.get_running_loop().call_soon)
        self.machine.recover(self.group.snapshot_metadata, FOUNDING_INDEX)
        mine = self.view().instances.get(identity.raft_id)
        if identity.raft_id in Acquaintances(disk).removed or (mine is not None and mine.left):
            self.close()
            raise SettingsError(f"{identity.instance_id} has left the cluster, so it is no survivor; choose another")

    def configuration(self) -> Tracker:
        """The members as of the end of the log, whether that is committed or not."""
        state = self.machine.conf_state or self.group.initial_state()[1]
        tracker = Tracker(1, 1)
        tracker.switch(*restore(tracker, 0, state))
        for entry in self.entries():
            if entry.type != EntryType.NORMAL:
                _change(tracker, decode_conf_change(entry).as_v2())
        return tracker

    def entries(self) -> list[Entry]:
        """What is in the log and not applied yet."""
        found: list[Entry] = []
        index = max(self.machine.applied_index + 1, self.group.first_index())
        while index <= self.group.last_index():
            page = self.group.entries(index, self.group.last_index() + 1, _PAGE_BYTES)
            found += page
            index += len(page)
        return found

    def view(self) -> View:
        watching = Watching(self.machine, on_record=lambda _key, _value: None, fatal=_impossible)
        watching.load()
        watching.close()
        return watching.view

    def close(self) -> None:
        self.machine.close()
        self.log.close()


async def survey(disk: Disk) -> Survey:
    """Look, and change nothing that matters (opening a log drops a torn tail, as every start does)."""
    survivor = _Survivor(disk)
    try:
        config = survivor.configuration().config
        group = survivor.group
        noted, members = _noted(survivor.entries()), survivor.view().members()
        known = {raft_id: records[-1] for raft_id, records in noted.items() if not records[-1].left} | members
        return Survey(
            identity=survivor.identity,
            last_term=group.term(group.last_index()),
            last_index=group.last_index(),
            committed=max(group.hard_state.commit, survivor.machine.applied_index),
            voters=tuple(sorted(config.voters.ids())),
            learners=tuple(sorted({*config.learners, *config.learners_next} - config.voters.ids())),
            instances={raft_id: (each.instance_id, each.address) for raft_id, each in sorted(known.items())},
            addresses={
                raft_id: frozenset(
                    each.address
                    for each in (*noted.get(raft_id, ()), *((members[raft_id],) if raft_id in members else ()))
                    if each.address
                )
                for raft_id in sorted({*noted, *members})
            },
        )
    finally:
        survivor.close()


def _noted(entries: Iterable[Entry]) -> dict[int, list[InstanceRecord]]:
    """Who is spoken of in entries that are not applied yet, committed or not, and whether they take effect or not: all
    of them may be there, and can be asked.
    """
    found: dict[int, list[InstanceRecord]] = {}
    for entry in entries:
        if entry.type != EntryType.NORMAL or not entry.data:
            continue
        with contextlib.suppress(ValueError):  # whatever can't be read here says nothing of anybody
            for operation in commands.operations_of(commands.decode(entry.data).body):
                if isinstance(operation, commands.Put) and operation.key.startswith(INSTANCES):
                    raft_id, record = parse_instance(operation.key, operation.value)
                    found.setdefault(raft_id, []).append(record)
    return found


async def recover(disk: Disk, rng: random.Random, now_ms: int) -> Recovered:
    """Make the stopped member in this directory the only one of a recovered cluster."""
    survivor = _Survivor(disk)
    try:
        return await _recover(survivor, rng, now_ms)
    finally:
        survivor.close()


async def _recover(survivor: _Survivor, rng: random.Random, now_ms: int) -> Recovered:
    raft_id, group, log = survivor.identity.raft_id, survivor.group, survivor.log
    identity = survivor.identity
    if not identity.recovering:
        identity = msgspec.structs.replace(
            identity, genesis=identities.fresh_id(rng), recovering=identity.genesis, contacts=[], founders={}
        )
        identities.store(survivor.disk, identity)

    config = survivor.configuration()
    hard_state = group.hard_state
    uncommitted = group.last_index() - max(hard_state.commit, survivor.machine.applied_index)
    term = max(hard_state.term, group.term(group.last_index())) + 1
    log.stage(CLUSTER_GROUP, hard_state=HardState(term=term, vote=raft_id, commit=group.last_index()))
    log.write()
    await synced(log)
    _apply(survivor)

    view = survivor.view()
    left = sorted(record.instance_id for other, record in view.members().items() if other != raft_id)
    puts, cancelled = _records_after(view, raft_id, now_ms)
    operations: list[commands.Operation] = [commands.Put(key, value) for key, value in puts.items()]
    if view.transition is not None:
        operations.append(commands.Delete(TRANSITION_KEY))
    data = [(EntryType.NORMAL, _command(batch, now_ms)) for batch in _batches(operations)]
    data += [encode_conf_change(change) for change in _changes_to_sole(config, raft_id)]
    first = group.last_index() + 1
    entries = [Entry(term=term, index=first + place, type=kind, data=body) for place, (kind, body) in enumerate(data)]
    log.stage(
        CLUSTER_GROUP,
        entries=entries,
        hard_state=HardState(term=term, vote=raft_id, commit=entries[-1].index),
    )
    log.write()
    await synced(log)
    identities.store(survivor.disk, msgspec.structs.replace(identity, recovering=""))
    return Recovered(identity.genesis, raft_id, uncommitted, left, cancelled)


def _batches(operations: list[commands.Operation]) -> Iterator[list[commands.Operation]]:
    """Slices that are far from the limits of a command, however many instances there were."""
    for start in range(0, len(operations), _BATCH_OPERATIONS):
        yield operations[start : start + _BATCH_OPERATIONS]


def _command(operations: list[commands.Operation], now_ms: int) -> bytes:
    return commands.stamp(commands.encode(commands.Command(b"", commands.Actions(tuple(operations)))), now_ms)


def _impossible(error: BaseException) -> None:
    raise error


def _apply(survivor: _Survivor) -> None:
    """Apply the log to its end, as a start would."""
    machine = survivor.machine
    state = machine.conf_state or survivor.group.initial_state()[1]
    tracker = Tracker(1, 1)
    tracker.switch(*restore(tracker, 0, state))
    for entry in survivor.entries():
        if entry.type == EntryType.NORMAL:
            machine.apply([entry])
        else:
            conf_state = _change(tracker, decode_conf_change(entry).as_v2())
            machine.apply_conf_state(entry.index, entry.term, conf_state)


def _change(tracker: Tracker, change: ConfChangeV2) -> ConfState:
    # What is refused is refused by every member alike: an entry without effect.
    with contextlib.suppress(ConfChangeRefused):
        tracker.switch(*Changer(tracker, 0).apply(change))
    return tracker.config.conf_state()


def _changes_to_sole(tracker: Tracker, raft_id: int) -> list[ConfChangeV2]:
    """Simple changes, one after the other, after which only this member is left."""
    changes: list[ConfChangeV2] = []
    if tracker.config.is_joint:
        changes.append(LEAVE_JOINT)
        _change(tracker, LEAVE_JOINT)
    if raft_id not in tracker.config.voters.incoming:
        changes.append(ConfChangeV2(changes=(ConfChangeSingle(ConfChangeType.ADD_NODE, raft_id),)))
    for other in sorted(tracker.progress):
        if other != raft_id:
            changes.append(ConfChangeV2(changes=(ConfChangeSingle(ConfChangeType.REMOVE_NODE, other),)))
    return changes


def _records_after(view: View, raft_id: int, now_ms: int) -> tuple[dict[bytes, bytes], int]:
    """The cluster's records once the others are gone, and how many requests that cancels."""
    puts: dict[bytes, bytes] = {}
    why = f"lost: the cluster was recovered from member {raft_id} alone"
    names = []
    for other, record in view.members().items():
        if other == raft_id:
            continue
        names.append(record.instance_id)
        incarnation = record.grades.target.incarnation
        gone = Grades(Standing(Grade.EXPELLED, incarnation), Standing(Grade.EXPELLED, incarnation))
        puts[instance_key(other)] = encode(
            msgspec.structs.replace(record, state=NodeState.LEFT, grades=gone, weight=0.0, left_ms=now_ms, reason=why)
        )
    cancelled = 0
    for number, request in view.requests.items():
        if not request.state.final:
            cancelled += 1
            puts[request_key(number)] = encode(
                msgspec.structs.replace(request, state=RequestState.CANCELLED, reason=why, ended_ms=now_ms)
            )
    mine = view.instances.get(raft_id)
    if mine is not None and mine.state is not NodeState.NORMAL and not mine.left:
        puts[instance_key(raft_id)] = encode(msgspec.structs.replace(mine, state=NodeState.NORMAL))
    puts[VERSION_KEY] = b"%d" % (view.version + 1)
    gone_text = f"; {', '.join(sorted(names))} left" if names else ""
    text = f"an operator recovered the cluster from the survivor {mine.instance_id if mine else raft_id}{gone_text}"
    puts[event_key(view.next_event())] = encode(EventRecord(at_ms=now_ms, kind="recover", text=text))
    return puts, cancelled
