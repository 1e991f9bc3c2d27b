"""What decisions about loads are made of: the views they look at, the change they give, and how they say no.

A decision is a value: the records to write, and the revision of everything it looked at. Whoever writes it does so on
the condition that all of that is unchanged, and else decides anew. So two decisions that contradict each other can't
both be written, whoever makes them and however long their writes are on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from trimtab.catalog.schema import Table
from trimtab.loads.records import (
    EpochRecord,
    LoadRecord,
    SessionRecord,
    encode,
    epoch_key,
    load_key,
    session_key,
)
from trimtab.loads.view import LoadView
from trimtab.tablets.consistency import Level, goal
from trimtab.tablets.domains import domain_of
from trimtab.tablets.records import chunk_keys
from trimtab.tablets.selectors import Replicas
from trimtab.tablets.transitions import rebalance_key
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade
from trimtab.topology.records import instance_key
from trimtab.topology.view import View

_MAX_NAMED = 6
_DOWN = frozenset((Grade.OFFLINE, Grade.EXPELLED))


class LoadRefused(ValueError):
    """Why not, and what to do. `code` is for programs; `missing`: with `moved`, the instances that have yet to seal."""

    def __init__(self, code: str, text: str, missing: Collection[int] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.missing = tuple(sorted(missing))


@dataclass(frozen=True)
class Situation:
    """All that is looked at. `alive` is the leader's knowledge of who was heard from lately."""

    view: View
    tables: TableView
    loads: LoadView
    now_ms: int
    alive: Callable[[int], bool] = lambda _raft_id: True

    def table(self, table: int) -> Table:
        """LoadRefused: there is no such table, or not all of it is known here."""
        found = self.tables.catalog.tables.get(table)
        if found is None:
            raise LoadRefused("not_found", f"there is no table with the id {table} (any more); was it dropped?")
        if self.tables.map(table).count != found.tablets:
            raise LoadRefused("not_ready", f"not all tablets of {found.full_name} are known here; try again")
        if unread := self.loads.unread(table):
            # Perhaps a newer release wrote it; what this one would put there forgets what it can't read.
            raise LoadRefused("not_ready", f"{unread}; let an instance of the newest release lead")
        return found

    def load(self, table: int, id: str) -> LoadRecord:
        """LoadRefused: there is none."""
        if unread := self.loads.unread(table):
            raise LoadRefused("not_ready", f"{unread}; let an instance of the newest release lead")
        found = self.loads.loads.get((table, id))
        if found is None:
            where = self.tables.name_of(table)
            raise LoadRefused("not_found", f"there is no load {id} of {where}; it was never begun, or long ago")
        return found

    def names(self, raft_ids: Collection[int]) -> str:
        """Instance ids; of many only the first, and how many more."""
        shown = sorted(raft_ids)
        records = self.view.instances
        words = [records[each].instance_id if each in records else f"member {each}" for each in shown[:_MAX_NAMED]]
        more = f" and {len(shown) - _MAX_NAMED} more" if len(shown) > _MAX_NAMED else ""
        return ", ".join(words) + more

    # Replicas

    def down(self, raft_id: int) -> bool:
        """Whether an instance is certainly not serving: it is marked so, or has left."""
        record = self.view.instances.get(raft_id)
        return record is None or record.left or record.grades.current.grade in _DOWN

    def holders(self, table: int) -> frozenset[int]:
        """Everybody who holds a replica of any tablet, pending ones included."""
        return frozenset(self.tables.held(table).loads())

    def short_of(self, table: int, have: Collection[int], verb: str, asked: Collection[int] | None = None) -> str:
        """The first tablet of which `have` are no quorum, in every data centre and each of its sets; empty: none.

        `asked`: those who held replicas when they were asked to have it. Whoever came later got its replica as a copy
        of one that has it, or is still getting it: then it is enough that the old set has.
        """
        dc_of = {raft_id: domain_of(record).dc for raft_id, record in self.view.instances.items()}
        have = frozenset(have)
        under_way = self.tables.transitions.get(table, {})
        seen: set[tuple[Replicas, ...]] = set()
        for tablet, stable in self.tables.map(table):
            sets: tuple[Replicas, ...] = (stable,)
            if tablet in under_way:
                sets = self.tables.sets(table, tablet).writes
                if asked is not None and not under_way[tablet].locked:
                    # What comes later and is not locked is being copied, or will be, from replicas that have it.
                    sets = tuple(each for each in sets if each == stable or set(each) <= set(asked))
            # Few sets of replicas are different.
            if sets in seen:
                continue
            seen.add(sets)
            wanted = goal(Level.EACH_QUORUM, sets, dc_of, "", for_write=True)
            members = {raft_id for each in sets for raft_id in each}
            copied = members.difference(asked) if asked is not None else frozenset[int]()
            there = have.intersection(members) | copied
            if not wanted.reached(there):
                return f"tablet {tablet} of {self.tables.name_of(table)}: {wanted.describe(there, verb)}"
        return ""


@dataclass
class LoadChange:
    """A write under construction. What is looked up through it is expected to be unchanged when it is written.

    `text` tells of it. `quiet`: it is too common to be an event, such as one of a stream's many small loads.
    """

    situation: Situation
    text: str = ""
    quiet: bool = False
    expect: dict[bytes, int] = field(default_factory=dict)
    puts: dict[bytes, bytes] = field(default_factory=dict)
    deletes: list[bytes] = field(default_factory=list)

    def depend(self, key: bytes) -> None:
        self.expect[key] = self.situation.loads.revision_of(key)

    def depend_on_tablets(self, table: int) -> None:
        """Only while the replicas of the table are where they are, and no others are about to come.

        The rebalance record is written anew with every target that a tablet gets, and with every end of a move.
        """
        for key in (*chunk_keys(table, self.situation.tables.map(table).count), rebalance_key(table)):
            self.expect[key] = self.situation.tables.revisions.get(key, 0)

    def depend_on_instance(self, raft_id: int) -> None:
        key = instance_key(raft_id)
        self.expect[key] = self.situation.view.revisions.get(key, 0)

    def put_load(self, record: LoadRecord) -> None:
        key = load_key(record.table, record.id)
        self.depend(key)
        self.puts[key] = encode(record)

    def forget_load(self, record: LoadRecord) -> None:
        key = load_key(record.table, record.id)
        self.depend(key)
        self.deletes.append(key)

    def put_epochs(self, table: int, record: EpochRecord) -> None:
        key = epoch_key(table)
        self.depend(key)
        self.puts[key] = encode(record)

    def forget_epochs(self, table: int) -> None:
        key = epoch_key(table)
        self.depend(key)
        self.deletes.append(key)

    def open_session(self, id: str, record: SessionRecord) -> None:
        key = session_key(id)
        self.depend(key)
        self.puts[key] = encode(record)

    def close_session(self, id: str) -> None:
        key = session_key(id)
        self.depend(key)
        if id in self.situation.loads.sessions:
            self.deletes.append(key)
