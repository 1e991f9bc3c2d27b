"""Whom a request concerns: the replicas of a tablet, and how many of which of them have to answer at a level.

Replica sets come from the tablet's selector, so this is where a tablet that moves has two of them, and where a level
has to be reached in each. A level becomes quotas: so many of these members. A request is done when every one is met.

Routes are remembered until the topology or the catalog has another version.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.loads.view import LoadView
from trimtab.node.answering import Refused
from trimtab.node.router import refusals
from trimtab.node.router.epochs import is_coming
from trimtab.tablets.consistency import ANYWHERE, Level, count_by_dc, needed
from trimtab.tablets.domains import domain_of
from trimtab.tablets.selectors import ReplicaSets
from trimtab.tablets.view import TableView
from trimtab.topology.view import View

_MAX_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True)
class Quota:
    """`count` of `members` have to answer. `where` says in words which they are."""

    members: frozenset[int]
    count: int
    where: str


@dataclass(frozen=True, slots=True)
class WriteRoute:
    """`targets`: everybody a write goes to. `own`: that is this instance alone, and it is enough."""

    targets: tuple[int, ...]
    quotas: tuple[Quota, ...]
    own: bool = False


@dataclass(frozen=True, slots=True)
class ReadRoute:
    """`replicas`: everybody who may be asked."""

    replicas: tuple[int, ...]
    quotas: tuple[Quota, ...]
    local: bool  # one answer is enough, and this instance may give it


class Routes:
    """Of one instance, which is in a data centre of its own."""

    def __init__(self, raft_id: int, view: View, tables: TableView, loads: LoadView) -> None:
        self._raft_id = raft_id
        self._view = view
        self._tables = tables
        self._loads = loads
        self._at = (-1, -1)
        self._writes: dict[tuple[int, int, Level], WriteRoute] = {}
        self._reads: dict[tuple[int, int, Level], ReadRoute] = {}
        self._dc_of: dict[int, str] = {}

    def stamp(self) -> tuple[int, int]:
        """The versions of topology and catalog that requests are routed by now."""
        return self._view.version, self._tables.catalog.version

    def dc_of(self, raft_id: int) -> str:
        self._refresh()
        return self._dc_of.get(raft_id, ANYWHERE)

    @property
    def own_dc(self) -> str:
        return self.dc_of(self._raft_id)

    def exists(self, table: int, tablet: int, generation: int, epoch: int = 0) -> bool:
        """Whether there is such a tablet, and this generation of it is served, or will be; at `epoch` it is."""
        try:
            self._tables.sets(table, tablet)
        except LookupError:
            return False
        # A rollback makes one served again that was overwritten; until that is known here, nothing is certain.
        if generation == self._loads.generation(table) or epoch > self._loads.visible(table):
            return True
        return is_coming(self._loads, table, generation)

    def write(self, table: int, tablet: int, level: Level) -> WriteRoute:
        """Where a write goes; Refused where there is no such tablet."""
        if self._at != (self._view.version, self._tables.catalog.version):
            self._refresh()
        route = self._writes.get((table, tablet, level))
        if route is None:
            sets = self._sets(table, tablet)
            quotas = tuple(quota for each in sets.writes for quota in self._quotas(level, each, for_write=True))
            own = sets.writers == (self._raft_id,) and all(quota.count <= len(quota.members) for quota in quotas)
            self._refresh()
            route = self._writes[table, tablet, level] = WriteRoute(sets.writers, quotas, own)
        return route

    def read(self, table: int, tablet: int, level: Level) -> ReadRoute:
        """Whom a read may ask; Refused where there is no such tablet, or no read at such a level."""
        self._refresh()
        route = self._reads.get((table, tablet, level))
        if route is None:
            replicas = self._sets(table, tablet).reads
            quotas = self._quotas(level, replicas, for_write=False)
            local = len(quotas) == 1 and quotas[0].count == 1 and self._raft_id in quotas[0].members
            route = self._reads[table, tablet, level] = ReadRoute(replicas, quotas, local)
        return route

    def _sets(self, table: int, tablet: int) -> ReplicaSets:
        try:
            return self._tables.sets(table, tablet)
        except LookupError:
            text = f"table {table} has no tablet {tablet} here; it was dropped, or its tablets are not known yet"
            raise Refused(refusals.NOT_FOUND, text) from None

    def _quotas(self, level: Level, replicas: tuple[int, ...], *, for_write: bool) -> tuple[Quota, ...]:
        try:
            own = self._dc_of.get(self._raft_id, ANYWHERE)
            requirement = needed(level, count_by_dc(replicas, self._dc_of), own, for_write=for_write)
        except ValueError as error:
            raise refusals.invalid(str(error)) from None
        quotas = []
        for dc, count in requirement.needs:
            members = frozenset(each for each in replicas if dc in (ANYWHERE, self._dc_of.get(each, ANYWHERE)))
            where = f"of {len(members)}" if dc == ANYWHERE else f"of {len(members)} in data centre {dc}"
            quotas.append(Quota(members, count, where))
        return tuple(quotas)

    def _refresh(self) -> None:
        at = self._view.version, self._tables.catalog.version
        if at == self._at and len(self._writes) + len(self._reads) < _MAX_REMEMBERED:
            return
        self._at = at
        self._writes.clear()
        self._reads.clear()
        self._dc_of = {raft_id: domain_of(record).dc for raft_id, record in self._view.instances.items()}
