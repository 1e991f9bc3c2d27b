"""The governor's decisions: `plan(state)` gives the next step. Pure: deeds are the node's (`trimtab.node.executor`)."""
