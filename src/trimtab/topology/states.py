"""An instance's place in the cluster: the node states, and which may follow which.

none ──▶ bootstrapping | replacing ──▶ normal ◀──▶ rebuilding
  │               │                       │
  │               ▼                       ▼
  └───────────▶ left ◀──── decommissioning | removing
"""

from __future__ import annotations

import enum


class NodeState(enum.Enum):
    """Where an instance is between coming and going. `left` is kept for ever: its ids are never used again."""

    NONE = "none"
    BOOTSTRAPPING = "bootstrapping"
    REPLACING = "replacing"
    NORMAL = "normal"
    REBUILDING = "rebuilding"
    DECOMMISSIONING = "decommissioning"
    REMOVING = "removing"
    LEFT = "left"


# state -> the states that may follow. A cancelled decommission or removal goes back to normal.
FOLLOWING: dict[NodeState, frozenset[NodeState]] = {
    NodeState.NONE: frozenset((NodeState.BOOTSTRAPPING, NodeState.REPLACING, NodeState.LEFT)),
    NodeState.BOOTSTRAPPING: frozenset((NodeState.NORMAL, NodeState.LEFT)),
    NodeState.REPLACING: frozenset((NodeState.NORMAL, NodeState.LEFT)),
    NodeState.NORMAL: frozenset(
        (NodeState.REBUILDING, NodeState.DECOMMISSIONING, NodeState.REMOVING, NodeState.LEFT),
    ),
    NodeState.REBUILDING: frozenset((NodeState.NORMAL, NodeState.DECOMMISSIONING, NodeState.REMOVING, NodeState.LEFT)),
    NodeState.DECOMMISSIONING: frozenset((NodeState.NORMAL, NodeState.REMOVING, NodeState.LEFT)),
    NodeState.REMOVING: frozenset((NodeState.NORMAL, NodeState.LEFT)),
    NodeState.LEFT: frozenset(),
}


class TransitionState(enum.Enum):
    """What the topology as a whole is going through while instances come or go."""

    COMMIT_CDC_GENERATION = "commit_cdc_generation"
    WRITE_BOTH_READ_OLD = "write_both_read_old"
    WRITE_BOTH_READ_NEW = "write_both_read_new"
