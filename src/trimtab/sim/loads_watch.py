"""The invariants of loads, judged at every write of the metastore, in their order, against the disks and replicas.

- A load goes from state to state as its records say and no other way; its stamp stays; epochs are given and become
  visible one by one; a session is open as long as its load is staging or committed, and no longer.
- At a commit every replica of the table, wherever it is by then, has all files of its tablets on its own disk, or is
  down. At a publication every replica that is up has taken the load over.
- No file is ever taken over into a replica but under an open session, for a committed load, as that instance knows it.

What each epoch shows is written down for those who judge what readers saw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trimtab.loads.records import LoadRecord, LoadState, SessionKind
from trimtab.loads.view import LoadView, load_of, table_of_epoch
from trimtab.node.replicas.staging import ROOT, path_of, read_sealed
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster
from trimtab.sim.loads_history import Load, LoadsHistory
from trimtab.sim.machines import Machine
from trimtab.sim.tables_history import Outcome
from trimtab.storage.model import ModelDisk
from trimtab.storage.port import StorageError
from trimtab.tablets.view import TableView
from trimtab.topology.grades import Grade
from trimtab.topology.records import EPOCHS, LOADS, SESSIONS
from trimtab.topology.view import View

_NEXT: dict[LoadState | None, frozenset[LoadState]] = {
    None: frozenset((LoadState.STAGING,)),
    LoadState.STAGING: frozenset((LoadState.STAGING, LoadState.COMMITTED, LoadState.ABORTED)),
    LoadState.COMMITTED: frozenset((LoadState.COMMITTED, LoadState.PUBLISHED)),
    LoadState.PUBLISHED: frozenset((LoadState.PUBLISHED, LoadState.ROLLED_BACK)),
    LoadState.ABORTED: frozenset((LoadState.ABORTED,)),
    LoadState.ROLLED_BACK: frozenset((LoadState.ROLLED_BACK,)),
}
_DIRECT: dict[LoadState | None, frozenset[LoadState]] = {
    None: frozenset((LoadState.STAGING,)),
    LoadState.STAGING: frozenset((LoadState.STAGING, LoadState.PUBLISHED, LoadState.ABORTED)),
    LoadState.ABORTED: frozenset((LoadState.ABORTED, LoadState.STAGING)),
    LoadState.PUBLISHED: frozenset((LoadState.PUBLISHED, LoadState.ROLLED_BACK)),
    LoadState.ROLLED_BACK: frozenset((LoadState.ROLLED_BACK,)),
}
_DOWN = (Grade.OFFLINE, Grade.EXPELLED)


class LoadsWatch:
    """The metastore's own order of things, with its views. `also` is told of every write after it was judged."""

    def __init__(self, cluster: GovernedCluster, history: LoadsHistory) -> None:
        self._cluster = cluster
        self._history = history
        self.view = View()
        self.tables = TableView()
        self.loads = LoadView()
        self.also: list[Callable[[int, Mapping[bytes, bytes | None]], None]] = []
        self.taken_over = 0
        cluster.topology.on_commit = self._commit

    def watch_disk(self, machine: Machine) -> None:
        """Look at every file that a store of this machine takes over."""
        machine.disk.model.on_taken_over = lambda name: self._taken_over(machine, name)  # type: ignore[attr-defined]

    # -- writes ----------------------------------------------------------------------------------------------------

    def _commit(self, index: int, changes: dict[bytes, bytes | None]) -> None:
        before = {key: self.loads.loads.get(load_of(key)) for key in changes if key.startswith(LOADS)}
        tables = {table_of_epoch(key) for key in changes if key.startswith(EPOCHS)}
        epochs = {table: self.loads.epoch_record(table) for table in tables}
        closed = {key.removeprefix(SESSIONS).decode() for key, value in changes.items() if _ends(key, value)}
        for key, value in changes.items():
            self.view.change(key, value, index)
            self.tables.change(key, value, index)
            self.loads.change(key, value, index)
        for key, record in before.items():
            self._changed(record, self.loads.loads.get(load_of(key)))
        for table, earlier in epochs.items():
            now = self.loads.epoch_record(table)
            if not earlier.visible <= now.visible <= now.committed or now.visible > earlier.visible + 1:
                raise Violation(f"epochs of table {table} went from {earlier} to {now}")
            if now.visible > earlier.visible:
                self._shows(table, now.visible)
        for id in closed:
            self._closed(id)
        for also in self.also:
            also(index, changes)

    def _changed(self, before: LoadRecord | None, now: LoadRecord | None) -> None:
        if now is None:
            if before is not None and not before.state.final:
                raise Violation(f"load {before.id} was forgotten before its end")
            return
        allowed = (_DIRECT if now.direct else _NEXT)[before.state if before is not None else None]
        dropped = now.table not in self.tables.catalog.tables
        if now.state not in allowed and not (
            dropped and now.state is LoadState.ABORTED and before and not before.state.final
        ):
            raise Violation(f"load {now.id} went from {before.state.value if before else 'nothing'} to {now.state}")
        if before is not None and (before.stamp_us, before.kind, before.direct) != (now.stamp_us, now.kind, now.direct):
            raise Violation(f"load {now.id} became another one: {before} is {now}")
        if not now.state.final and now.id not in self.loads.sessions:
            raise Violation(f"load {now.id} is {now.state.value}, but its session is closed")
        if before is None or before.state is now.state:
            return
        if now.state.final:
            self._history.ended[now.state] = self._history.ended.get(now.state, 0) + 1
            if now.id in self.loads.sessions:
                raise Violation(f"load {now.id} is {now.state.value}, but its session is open")
        if now.state is LoadState.COMMITTED:
            self._committed(now)
        elif now.state is LoadState.PUBLISHED and not now.direct:
            self._published(now)

    def _closed(self, id: str) -> None:
        for load in self.loads.open_loads.values():
            if load.id == id:
                raise Violation(f"the session of load {id} was closed while it is {load.state.value}")

    def _committed(self, load: LoadRecord) -> None:
        """Wherever the replicas are by this very write, they have the files."""
        places = self.tables.held(load.table)
        known = self._history.loads.get(load.id)
        for raft_id in sorted(places.loads()):
            if raft_id not in load.sealed:
                if not self._down(raft_id):
                    raise Violation(
                        f"load {load.id} was committed, though instance {raft_id} holds replicas, is up, and has not "
                        "sealed it",
                        f"sealed {load.sealed}, missed {load.missed}; replicas {list(places)}",
                    )
                continue
            machine = self._cluster.of_raft_id(raft_id)
            if known is not None and machine is not None:
                self._staged(known, load.nonce, machine, raft_id)

    def _staged(self, load: Load, nonce: str, machine: Machine, raft_id: int) -> None:
        disk = machine.disk.model
        sealed = read_sealed(disk, load.id, nonce)
        if sealed is None:
            raise Violation(f"load {load.id} was committed, but {machine.name} has not noted which files it has")
        for tablet in self.tables.held(load.table).of(raft_id):
            found: dict[bytes, bytes] = {}
            for file in sealed.files:
                if file.tablet == tablet:
                    try:
                        found.update(ModelDisk.read_table(disk, path_of(load.id, tablet, file.name)))
                    except StorageError as error:
                        raise Violation(f"load {load.id} was committed, but on {machine.name} {error}") from error
            if found != dict(load.tablets.get(tablet, ())):
                raise Violation(
                    f"load {load.id} was committed, but {machine.name} has {len(found)} of "
                    f"{len(load.tablets.get(tablet, ()))} pairs of tablet {tablet}"
                )

    def _published(self, load: LoadRecord) -> None:
        for tablet, replicas in self.tables.map(load.table):
            for raft_id in replicas:
                if raft_id not in load.sealed or self._down(raft_id):
                    continue
                machine = self._cluster.of_raft_id(raft_id)
                holdings = getattr(machine.instance, "holdings", None) if machine is not None else None
                replica = holdings.shelf.find(load.table, tablet, load.generation) if holdings is not None else None
                if replica is not None and replica.adopted < load.epoch:
                    raise Violation(
                        f"load {load.id} can be seen as epoch {load.epoch}, though {machine.name if machine else ''} "
                        f"has not taken it over in tablet {tablet}: it is at {replica.adopted}"
                    )
        known = self._history.loads.get(load.id)
        if known is not None and known.write is not None:
            known.write.outcome, known.write.epoch = Outcome.ACKED, load.epoch
            known.write.invoked_s = known.write.returned_s = self._cluster.world.now

    def _shows(self, table: int, epoch: int) -> None:
        generation = self.loads.generation(table)
        shown = tuple(
            load.id
            for load in self.loads.of_table(table)
            if load.state is LoadState.PUBLISHED
            and not load.direct
            and load.generation == generation
            and load.epoch <= epoch
        )
        self._history.visible.setdefault(table, {})[epoch] = (generation, shown)

    def _down(self, raft_id: int) -> bool:
        record = self.view.instances.get(raft_id)
        return record is None or record.left or record.grades.current.grade in _DOWN

    # -- files -----------------------------------------------------------------------------------------------------

    def _taken_over(self, machine: Machine, name: str) -> None:
        root, _, rest = name.partition("/")
        session = rest.partition("/")[0]
        if root != ROOT or session not in self._history.loads or machine.instance is None:
            return
        self.taken_over += 1
        loads = machine.instance.watching.loads
        load = loads.loads.get((self._history.loads[session].table, session))
        state = load.state.value if load is not None else "unknown"
        if session not in loads.sessions or load is None or load.state is not LoadState.COMMITTED:
            self._cluster.world.fail(
                f"{machine.name} takes over {name}, though its session is "
                f"{'open' if session in loads.sessions else 'closed'} and the load {state}"
            )

    # -- the end ---------------------------------------------------------------------------------------------------

    def unfinished(self) -> str | None:
        """Which load or session has not ended; None: all have."""
        for load in self.loads.open_loads.values():
            return f"load {load.id} of table {load.table} is {load.state.value}: {load}"
        for id, session in self.loads.sessions.items():
            if session.kind is SessionKind.LOAD:
                return f"the session {id} is open"
        return None

    def unswept(self) -> str | None:
        """Who still has staged files; None: nobody."""
        for machine in self._cluster.machines.values():
            if left := machine.disk.model.entries(ROOT):
                return f"{machine.name} has staged files of {', '.join(left)}"
        return None

    def judge(self) -> None:
        """Violation: a load became something else than its driver was told."""
        for load in self._history.loads.values():
            record = self.loads.loads.get((load.table, load.id))
            if load.table not in self.tables.catalog.tables:
                continue
            state = record.state if record is not None else None
            promised = {LoadState.COMMITTED, LoadState.PUBLISHED, LoadState.ROLLED_BACK}
            if promised & set(load.told) and state not in (LoadState.PUBLISHED, LoadState.ROLLED_BACK):
                raise Violation(f"the driver of load {load.id} was told {load.told}, but it is {state}")
            if LoadState.ABORTED in load.told and not load.direct and state is not LoadState.ABORTED:
                raise Violation(f"the driver of load {load.id} was told {load.told}, but it is {state}")


def _ends(key: bytes, value: bytes | None) -> bool:
    return key.startswith(SESSIONS) and value is None
