"""The invariants of moves, judged at every write of the metastore, at every read that is answered, on every disk.

- Each write keeps the rules of `moves_rules`; what needs a barrier before it has one, in fact, not only by its fence.
- When reads go over to a new set, and when a move ends, a quorum of that set has all that was acknowledged
  (`moves_promises`).
- A read is answered by a replica that answered reads at the version it was routed by, or does since.
- A replica that has its place by what is committed is removed by nobody. What was staged under a session becomes a
  replica's only while that session is open.
- In the end every tablet has as many replicas as are declared, instances that are alike have as much of each table
  (`moves_balance`), planning again gives nothing, and no instance has anything on its disk that is not its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from trimtab.catalog.schema import Table
from trimtab.node.replicas.replica_files import Name
from trimtab.node.replicas.replica_meta import META_KEY, ReplicaMeta, ReplicaState
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_watch import LoadsWatch
from trimtab.sim.machines import Machine, WatchedDisk
from trimtab.sim.moves_promises import Promises
from trimtab.sim.moves_rules import Around, Place, Replicas, Tablet, barrier_before, judge
from trimtab.tablets.domains import domain_of
from trimtab.tablets.transitions import TabletTransition, TransitionKind
from trimtab.tablets.view import TableView

_READ_BY_CLIENTS = ("sim.flat", "sim.rows", "sim.ledger")
_LEAVINGS = ("staging", "arriving", "snapshots", "quarantine")
# Copies before they are replicas, and what was there before them.
_COPIES, _ASIDE = "arriving/", "-old"


@dataclass
class Counted:
    """What a run came to."""

    begun: int = 0
    ended: int = 0
    undone: int = 0
    adjusted: int = 0
    planned: int = 0
    stages: int = 0
    taken: int = 0  # files, or copies, that became replicas
    kinds: dict[str, int] = field(default_factory=dict)


class MovesWatch:
    """Told by `LoadsWatch` of every write, after it has judged it and taken it over."""

    def __init__(self, cluster: GovernedCluster, loads: LoadsWatch, promises: Promises) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._loads = loads
        self._promises = promises
        self._tablets: dict[Place, Tablet] = {}
        self._triggers: dict[Place, int] = {}
        self._reads: dict[Place, list[tuple[int, Replicas]]] = {}  # since which version who answers
        self._declared: dict[str, list[tuple[int, int]]] = {}  # by keyspace: since which revision, how many
        self._sessions: set[str] = set()  # of all moves there ever were
        self._streaming_s: dict[str, float] = {}  # by session: since when it is copied
        self.counted = Counted()
        loads.also.append(self._commit)
        cluster.topology.on_read = self._read

    # -- writes ----------------------------------------------------------------------------------------------------

    def _commit(self, index: int, _changes: Mapping[bytes, bytes | None]) -> None:
        tables, version = self._loads.tables, self._cluster.topology.committed.version
        for name, keyspace in tables.catalog.keyspaces.items():
            known, now = self._declared.setdefault(name, []), sum(keyspace.replication.values())
            if not known or known[-1][1] != now:
                known.append((index, now))
        found = _tablets(tables)
        barrier = 0
        switched: list[tuple[Place, Tablet, str]] = []
        for place, after in found.items():
            before = self._tablets.get(place)
            if before is None:
                self._reads[place] = [(version, after.reads)]
                if after.now is not None:
                    raise Violation(f"tablet {place} was made while it moves: {after}")
                continue
            if before == after:
                continue
            barrier = max(barrier, barrier_before(before, after))
            last = self._triggers.get(place, 0)
            judge(place, before, after, self._around(place, after), last)
            if after.now is not None:
                self._sessions.add(after.now.session)
                self._triggers[place] = max(last, after.now.trigger)
            if before.reads != after.reads:
                self._reads[place].append((version, after.reads))
            self._count(before, after)
            if after.now is not None and after.stage == "streaming":
                self._streaming_s.setdefault(after.now.session, self._world.now)
            if before.stage == "streaming" and after.stage == "write_both_read_new":
                switched.append((place, after, "when reads go to the new replicas"))
            elif (before.stage, after.stage) == ("write_both_read_new", "write_both_read_old"):
                switched.append((place, after, "when reads go back to the old replicas"))
            elif before.stage == "end_migration" != after.stage:
                switched.append((place, Tablet(after.stable), "when its move has ended"))
            self._story(place, before, after)
        self._tablets = found
        if barrier:
            self._cluster.topology.barrier_passed(barrier)
        for place, tablet, when in switched:
            table = tables.catalog.tables.get(place[0])
            if table is None or table.full_name not in _READ_BY_CLIENTS:
                continue
            self._promises.kept(table, place[1], tablet.reads, when)
            move = tablet.now
            if move is not None and tablet.stage == "write_both_read_new" and move.kind is TransitionKind.REBUILD:
                arriving, since_s = move.arriving(tablet.stable), self._streaming_s[move.session]
                self._promises.whole(table, place[1], arriving, when, since_s)

    def _around(self, place: Place, after: Tablet) -> Around:
        tables, rows = self._loads.tables, self._cluster.topology.committed.rows
        table = tables.catalog.tables.get(place[0])
        trigger = after.now.trigger if after.now is not None else 0
        return Around(
            version=self._cluster.topology.committed.version,
            hosts={raft_id: domain_of(row).host for raft_id, row in rows.items()},
            declared=self._declared_since(table, trigger) if table is not None else 0,
            sessions=frozenset(self._loads.loads.sessions),
        )

    def _declared_since(self, table: Table, trigger: int) -> int:
        """The most that was declared since a target was computed."""
        known = self._declared.get(table.keyspace, [])
        newer = [number for since, number in known if since > trigger]
        then = [number for since, number in known if since <= trigger][-1:]
        return max([*then, *newer], default=0)

    def _count(self, before: Tablet, after: Tablet) -> None:
        counted = self.counted
        was, now = before.now, after.now
        counted.stages += before.stage != after.stage
        if now is not None and (was is None or was.session != now.session):
            counted.begun += 1
            counted.kinds[now.kind.value] = counted.kinds.get(now.kind.value, 0) + 1
            counted.adjusted += was is not None and before.stage not in ("end_migration", "revert_migration")
        if was is not None and before.stage == "end_migration" != after.stage:
            counted.ended += 1
        if after.stage == "cleanup_target" != before.stage:
            counted.undone += 1
        if now is not None and now.planned and (was is None or was.planned != now.planned):
            counted.planned += 1

    def _story(self, place: Place, before: Tablet, after: Tablet) -> None:
        if before.stage != after.stage or (before.now and after.now and before.now.session != after.now.session):
            now = after.now
            what = f"{now.kind.value} {after.stable} -> {now.pending} {after.stage}" if now else f"at {after.stable}"
            more = f" ({now.cause.value}: {now.why})" if now and before.now is None else ""
            error = f" error: {now.error}" if now and now.error else ""
            self._world.tell("moves", f"{place[0]}/{place[1]}: {what}{more}{error}")

    # -- reads -----------------------------------------------------------------------------------------------------

    def _read(self, machine: Machine, version: int, place: Place) -> None:
        known = self._reads.get(place)
        if known is None or machine.instance is None or not version:
            return
        raft_id = machine.instance.raft_id
        at = max((number for number, (since, _) in enumerate(known) if since <= version), default=0)
        if not any(raft_id in replicas for _, replicas in known[at:]):
            raise Violation(
                f"{machine.name} ({raft_id}) answered a read of tablet {place[1]} of table {place[0]} that was routed "
                f"by version {version}, though since then {' and '.join(str(each) for _, each in known[at:])} answer",
                f"it is {self._tablets.get(place)}",
            )

    # -- disks -----------------------------------------------------------------------------------------------------

    def watch_disk(self, machine: Machine) -> None:
        """Look at everything that is removed from this machine's disk, and at every copy that becomes a replica."""
        disk = machine.disk.model
        assert isinstance(disk, WatchedDisk)
        remove, rename, taken = disk.remove, disk.rename, disk.on_taken_over

        def removed(name: str, *, synced: bool = True) -> None:
            self._removed(machine, name)
            remove(name, synced=synced)

        def renamed(old: str, new: str) -> None:
            if old.startswith(_COPIES) and new.startswith("tablets/") and not old.endswith(_ASIDE):
                self._taken(machine, old, _session_of(machine, new))
            rename(old, new)

        def taken_over(name: str) -> None:
            taken(name)
            root, _, rest = name.partition("/")
            if root == "staging" and (session := rest.partition("/")[0]) in self._sessions:
                self._taken(machine, name, session)

        disk.remove, disk.rename = removed, renamed  # type: ignore[method-assign]
        disk.on_taken_over = taken_over

    def _taken(self, machine: Machine, name: str, session: str) -> None:
        """What was staged under a session becomes a replica's: only while that is open, as this instance knows it."""
        instance = machine.instance
        if instance is None or not instance.holdings.shelf.ready:
            return
        self.counted.taken += 1
        if session not in instance.watching.loads.sessions:
            self._world.fail(f"{machine.name} takes {name} over, though the session {session} is closed")

    def _removed(self, machine: Machine, path: str) -> None:
        name, instance = Name.parse(path), machine.instance
        tablet = self._tablets.get((name.table, name.tablet)) if name is not None else None
        if name is None or tablet is None or instance is None or instance.raft_id not in tablet.reads:
            return
        if self._loads.loads.generation(name.table) == name.generation and _is_whole(machine, path):
            self._world.fail(
                f"{machine.name} ({instance.raft_id}) removes {path}, though it answers reads of that tablet",
                f"it is {tablet}",
            )

    # -- the end ---------------------------------------------------------------------------------------------------

    def unfinished(self) -> str | None:
        """What is still under way, or not where it should be; None: nothing."""
        for place, tablet in sorted(self._tablets.items()):
            if tablet.now is not None:
                return f"tablet {place[1]} of table {place[0]} is in the stage {tablet.stage}: {tablet.now}"
        tables = self._loads.tables
        rows = self._cluster.topology.committed.rows
        for place, tablet in sorted(self._tablets.items()):
            table = tables.catalog.tables[place[0]]
            declared = sum(tables.catalog.keyspaces[table.keyspace].replication.values())
            gone = [raft_id for raft_id in tablet.stable if rows[raft_id].left]
            if len(tablet.stable) != declared or gone:
                return f"tablet {place[1]} of {table.full_name} is at {tablet.stable}, of {declared}; gone: {gone}"
            hosts = [domain_of(rows[raft_id]).host for raft_id in tablet.stable]
            if len(set(hosts)) != len(hosts):
                return f"tablet {place[1]} of {table.full_name} is at {tablet.stable}, on the hosts {hosts}"
        return None

    def left_behind(self) -> str | None:
        """What lies on a disk that is nobody's; None: nothing."""
        for machine in self._cluster.taking_part():
            disk, raft_id = machine.disk.model, machine.raft_id
            for root in _LEAVINGS:
                if found := disk.names(root + "/"):
                    return f"{machine.name} has {', '.join(found[:5])}"
            held = self._loads.tables.held_by(raft_id)
            for path in disk.names("tablets/"):
                name = Name.parse(path)
                if name is None or name.tablet not in held.get(name.table, ()):
                    return f"{machine.name} has {path}"
                if name.generation not in self._loads.loads.generations(name.table):
                    return f"{machine.name} has {path}, which is of no generation that is kept"
        return None

    def sizes(self) -> dict[int, int]:
        """How many replicas each instance holds."""
        return self._loads.tables.loads()


def _is_whole(machine: Machine, path: str) -> bool:
    """Whether what lies there says of itself that it has all rows."""
    meta = _meta(machine, path)
    return meta is not None and meta.state is ReplicaState.OPEN


def _session_of(machine: Machine, path: str) -> str:
    """The session that the replica which is open for that place was made for."""
    name, instance = Name.parse(path), machine.instance
    found = name and instance and instance.holdings.shelf.find(name.table, name.tablet, name.generation)
    return found.meta.session if found else ""


def _meta(machine: Machine, path: str) -> ReplicaMeta | None:
    disk = machine.disk.model
    assert isinstance(disk, WatchedDisk)
    record = disk.peek(path, META_KEY)
    return None if record is None else msgspec.msgpack.decode(record, type=ReplicaMeta)


def _tablets(tables: TableView) -> dict[Place, Tablet]:
    found: dict[Place, Tablet] = {}
    for table, tablets in tables.maps.items():
        under_way: Mapping[int, TabletTransition] = tables.transitions.get(table, {})
        for number, replicas in tablets:
            found[table, number] = Tablet(tuple(replicas), under_way.get(number))
    return found
