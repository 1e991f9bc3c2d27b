"""Whether a round of repair may promise anything of a tablet: that deletions from before can be forgotten.

A round makes those equal that it compares (`repair_rounds`, `tablets.missed`). While a tablet moves, others come to
have its rows:

    session opened · C is copied, without the deletion d · a round brings d to A, B, C, and moves how far they are
    repaired · A, B and C forget d, with what it deletes · D takes the copy over · the deleted row is back, on D

So nothing is promised from the moment on at which a copy may be taken until it is a replica like any other, or nobody
will take it over any more. Everybody knows of the move before anything is copied (the barrier of write_both_read_old):
a round that began earlier and ends later is refused by all, and one that ended earlier had given d to C.

That is stricter than not forgetting deletions younger than the session (`loads.unsettled`): d may be older than that.
And it makes the source's word good for the copy: how far C was repaired does not change while it is carried, so it
holds for D as well, and for a merge the least of the sources' does.

Once the new set is read, those who leave are no part of it, but a rollback would read them again: nothing is promised
before that has become impossible.
"""

from __future__ import annotations

from trimtab.tablets.selectors import Stage
from trimtab.tablets.transitions import ADJUSTABLE, same
from trimtab.tablets.view import TableView


def has_others(tables: TableView, table: int, tablet: int) -> bool:
    """Whether a tablet has, or may come to have, replicas that are not among those that answer reads now."""
    current = tables.transition(table, tablet)
    if current is None or table not in tables.maps:
        return False
    stable = tables.maps[table].replicas(tablet)
    if current.stage in ADJUSTABLE:
        return bool(current.arriving(stable))
    return current.stage is Stage.WRITE_BOTH_READ_NEW and not same(stable, current.pending)
