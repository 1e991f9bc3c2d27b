"""What people and scripts are shown of loads: the JSON of `trimtab loads`, and of the HTTP door.

Fields may be added, not renamed. Times are ISO 8601 in UTC; null means that it has not happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.loads.protocol import LimitReply, LoadsReply, RollbackReply
from trimtab.loads.records import LoadRecord
from trimtab.topology.shapes import moment

Shape = dict[str, Any]
Names = Callable[[int], str]


def load(record: LoadRecord, name_of: Names, names: Mapping[int, str]) -> Shape:
    """One load. `name_of` gives a table's name, `names` instance ids by raft id."""

    def instances(raft_ids: tuple[int, ...]) -> list[str]:
        return [names.get(raft_id, str(raft_id)) for raft_id in raft_ids]

    return {
        "id": record.id,
        "table": name_of(record.table),
        "kind": "direct" if record.direct else record.kind.value,
        "state": record.state.value,
        "epoch": record.epoch or None,
        "generation": record.generation,
        "rows": record.rows,
        "bytes": record.size_bytes,
        "rejected": record.rejected,
        "timestamp": record.stamp_us,
        "who": record.who,
        "reason": record.reason or None,
        "begun": moment(record.begun_ms),
        "committed": moment(record.committed_ms),
        "published": moment(record.published_ms),
        "ended": moment(record.ended_ms),
        "sealed": instances(record.sealed),
        "adopted": instances(record.adopted),
        "missed": instances(record.missed),
    }


def listing(reply: LoadsReply, name_of: Names, names: Mapping[int, str]) -> Shape:
    """All of them, in the order of beginning, and what is served of each table."""
    return {
        "loads": [load(record, name_of, names) for record in reply.loads],
        "tables": [
            {"table": name_of(table), "epoch": epoch, "generation": generation}
            for table, (epoch, generation) in sorted(reply.epochs.items())
        ],
    }


def rollback(reply: RollbackReply, name_of: Names, names: Mapping[int, str]) -> Shape:
    """What a rollback drops, or has dropped."""
    return {
        "table": name_of(reply.load.table),
        "drops": [load(record, name_of, names) for record in (reply.load, *reply.also)],
        "drops_writes_since": moment(reply.published_ms),
        "generation": reply.generation,
        "done": reply.applied,
    }


def limit(reply: LimitReply) -> Shape:
    """What all bulk transfers may move together, and each instance that is Online; 0: no limit."""
    return {"rate_bytes_s": reply.rate_bytes_s, "share_bytes_s": reply.share_bytes_s, "online": reply.instances}
