"""The stages of a tablet under way as documents show them, made from the table that routers go by.

`SECTIONS` are these and those of the topology (`trimtab.topology.diagrams`, which compares and renews).
"""

from __future__ import annotations

from trimtab.tablets.selectors import SELECTORS, Side, Stage
from trimtab.topology import diagrams

_SETS = {Side.OLD: "the old set", Side.NEW: "the new set", Side.BOTH: "both, the level in each"}
_DONE = {
    Stage.ALLOW_WRITE_BOTH_READ_OLD: "whoever arrives makes an empty replica",
    Stage.WRITE_BOTH_READ_OLD: "everybody writes to both sets",
    Stage.STREAMING: "a job copies; whoever arrives verifies the copy and takes it over",
    Stage.WRITE_BOTH_READ_NEW: "everybody reads the new set",
    Stage.USE_NEW: "everybody writes to the new set alone",
    Stage.CLEANUP: "whoever leaves drops its files",
    Stage.END_MIGRATION: "the new set becomes the tablet's own",
    Stage.CLEANUP_TARGET: "undone: whoever would have arrived drops its files",
    Stage.REVERT_MIGRATION: "undone: all is as it was",
}


def stage_table() -> str:
    """Who takes writes and who answers reads, stage by stage."""
    lines = [
        "| stage | writes go to | reads go to | barrier after it | what is done |",
        "| --- | --- | --- | --- | --- |",
    ]
    for stage, selector in SELECTORS.items():
        barrier = "yes" if selector.barrier else ""
        writes, reads = _SETS[selector.writes], _SETS[selector.reads]
        lines.append(f"| {stage.value} | {writes} | {reads} | {barrier} | {_DONE[stage]} |")
    return "\n".join(lines)


SECTIONS = diagrams.SECTIONS | {"tablet stages": stage_table}
