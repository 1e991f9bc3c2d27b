"""Which replicas take writes and which answer reads, stage by stage, while a tablet moves from an old set to a new one.

A tablet that does not move has one set, and it does both. The table is the rule: coordinator and replica differ by at
most one stage, so whatever two neighbouring stages say must go together. `barrier`: before the stage is left, everybody
has seen it and has no request under way that was routed by an older one.

While both sets take writes, the consistency level has to be reached in each of them: a quorum of the old set alone
could be all that is left behind, a quorum of the new set alone is not read yet.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

Replicas = tuple[int, ...]


class Stage(enum.Enum):
    """Where the move of a tablet is. The last two undo it."""

    ALLOW_WRITE_BOTH_READ_OLD = "allow_write_both_read_old"
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    STREAMING = "streaming"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
    USE_NEW = "use_new"
    CLEANUP = "cleanup"
    END_MIGRATION = "end_migration"
    CLEANUP_TARGET = "cleanup_target"
    REVERT_MIGRATION = "revert_migration"


class Side(enum.Enum):
    OLD = "old"
    NEW = "new"
    BOTH = "both"


class Selector(NamedTuple):
    writes: Side
    reads: Side
    barrier: bool


OLD, NEW, BOTH = Side.OLD, Side.NEW, Side.BOTH
SELECTORS: dict[Stage, Selector] = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: Selector(writes=OLD, reads=OLD, barrier=True),
    Stage.WRITE_BOTH_READ_OLD: Selector(writes=BOTH, reads=OLD, barrier=True),
    Stage.STREAMING: Selector(writes=BOTH, reads=OLD, barrier=False),
    Stage.WRITE_BOTH_READ_NEW: Selector(writes=BOTH, reads=NEW, barrier=True),
    Stage.USE_NEW: Selector(writes=NEW, reads=NEW, barrier=True),
    Stage.CLEANUP: Selector(writes=NEW, reads=NEW, barrier=False),
    Stage.END_MIGRATION: Selector(writes=NEW, reads=NEW, barrier=True),
    Stage.CLEANUP_TARGET: Selector(writes=OLD, reads=OLD, barrier=False),
    Stage.REVERT_MIGRATION: Selector(writes=OLD, reads=OLD, barrier=True),
}


class ReplicaSets(NamedTuple):
    """Of one tablet now: each set in `writes` has to reach the level; `reads` answers."""

    writes: tuple[Replicas, ...]
    reads: Replicas

    @property
    def writers(self) -> Replicas:
        """Everybody a write goes to, once."""
        return self.writes[0] if len(self.writes) == 1 else tuple(dict.fromkeys(sum(self.writes, ())))


def replica_sets(stage: Stage | None, old: Replicas, new: Replicas = ()) -> ReplicaSets:
    """The sets of a tablet in this stage; None: it does not move, and `old` is all there is."""
    if stage is None:
        return ReplicaSets((old,), old)
    assert new, f"a tablet in the stage {stage.value} has a set that it moves to"
    selector = SELECTORS[stage]
    sets = {OLD: (old,), NEW: (new,), BOTH: (old, new)}
    return ReplicaSets(sets[selector.writes], sets[selector.reads][0])
