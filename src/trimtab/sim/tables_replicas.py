"""What the replicas of a cluster hold, side by side: whether they agree, and what coordinators still owe to others."""

from __future__ import annotations

from trimtab.node.replicas.replica import Replica
from trimtab.rows.errors import BadRow
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import Forgetting
from trimtab.rows.protocol import RangeRead
from trimtab.rows.reading import NO_LIMITS, read_range
from trimtab.sim.checks import Violation
from trimtab.sim.governed import GovernedCluster

_ALL_ROWS = 1 << 40
_FIRST, _LAST = bytes(8), b"\xff" * 64


def owed(cluster: GovernedCluster) -> str | None:
    """Who still has hints, or knows of somebody who missed something; None: nobody."""
    for machine in cluster.taking_part():
        control = machine.instance.control if machine.instance is not None else None
        if control is None:
            return f"{machine.name} does not take part"
        hints = control.missed.hints
        if hints.held_count:
            return f"{machine.name} holds {hints.held_count} hints"
        if marked := hints.marked():
            return f"{machine.name} has not heard that {marked} were repaired"
        if control.router.batches.held:
            return f"{machine.name} holds {control.router.batches.held} batches"
    return None


def differing(cluster: GovernedCluster) -> str | None:
    """Which replicas differ, and in what; None: all are open, and those of a tablet hold the same rows. Violation.

    Deletions that a round of repair has covered may be forgotten by some and not yet by others: they are left out.
    """
    found: dict[tuple[int, int], list[tuple[str, Replica, RowLayout]]] = {}
    for machine in cluster.taking_part():
        instance = machine.instance
        if instance is None or instance.control is None:
            return f"{machine.name} does not take part"
        shelf = instance.holdings.shelf
        if missing := shelf.missing():
            return f"{machine.name} has not opened {missing}"
        for replica in shelf.held():
            if replica.table not in instance.watching.tables.catalog.tables:
                return f"{machine.name} still holds {replica.name}"
            if not replica.readable:
                return f"{replica.name} of {machine.name} is {replica.state.value}"
            layout = instance.control.schemas.layout(replica.table)
            found.setdefault((replica.table, replica.tablet), []).append((machine.name, replica, layout))
    for (table, tablet), replicas in sorted(found.items()):
        forgetting = Forgetting(max(replica.repaired_through_ms for _, replica, _ in replicas))
        try:
            contents = {name: contents_of(replica, layout, forgetting) for name, replica, layout in replicas}
        except BadRow as error:
            raise Violation(f"tablet {tablet} of table {table} holds what can't be its own: {error}") from error
        first, *others = contents
        for other in others:
            if contents[first] != contents[other]:
                one, two = contents[first], contents[other]
                return f"tablet {tablet} of table {table}: {_only(first, one, two)}; {_only(other, two, one)}"
    return None


def contents_of(replica: Replica, layout: RowLayout, forgetting: Forgetting) -> dict[bytes, bytes]:
    """All its rows, merged as a read would."""
    wanted = RangeRead(_FIRST, _LAST, _ALL_ROWS)
    pairs = read_range(layout, replica.scan, wanted, 0, limits=NO_LIMITS, forgetting=forgetting).pairs
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _only(name: str, mine: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> str:
    lacking = [f"{key.hex()}={value.hex()}" for key, value in mine.items() if theirs.get(key) != value]
    return f"{name} alone has {', '.join(lacking[:3]) or 'nothing'}"
