"""The first write of a cluster: what its log holds before anybody was elected.

The founder puts it into its own log as the entry after the configuration. So the founder's row is read and applied by
the same code as all that come after it, and a crash in the middle of founding leaves either nothing or all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from trimtab.topology import names
from trimtab.topology.grades import Grades
from trimtab.topology.records import (
    FENCE_KEY,
    MAX_RAFT_ID,
    VERSION_KEY,
    EventRecord,
    InstanceRecord,
    encode,
    event_key,
    instance_key,
)
from trimtab.topology.states import NodeState

FIRST_RAFT_ID = 1
FIRST_VERSION = 1


def founder_record(
    instance_id: str,
    address: str,
    *,
    uuid: str = "",
    failure_domain: Mapping[str, str] | None = None,
    release: str = "",
    http_address: str = "",
    capacity_bytes: int = 0,
    now_ms: int = 0,
    bulk_address: str = "",
) -> InstanceRecord:
    """The row of an instance that founds: a normal member from the start, Offline until it says it runs. ValueError."""
    domain = failure_domain or {}
    for wrong in (
        names.wrong_instance_id(instance_id),
        names.unreachable_address(address),
        names.wrong_failure_domain(domain),
        names.wrong_address(http_address) if http_address else None,
        names.wrong_address(bulk_address) if bulk_address else None,
    ):
        if wrong:
            raise ValueError(wrong)
    return InstanceRecord(
        instance_id,
        address,
        uuid=uuid,
        state=NodeState.NORMAL,
        grades=Grades(),
        failure_domain=names.plain_failure_domain(domain),
        capacity_bytes=capacity_bytes,
        release=release,
        http_address=http_address,
        joined_ms=now_ms,
        bulk_address=bulk_address,
    )


def founding_records(
    founders: Mapping[int, InstanceRecord] | InstanceRecord, cluster_id: str, genesis: str, now_ms: int
) -> dict[bytes, bytes]:
    """Key and value of everything in the first write. One founder gets raft id 1; the simulator may found with more."""
    rows = {FIRST_RAFT_ID: founders} if isinstance(founders, InstanceRecord) else dict(founders)
    if not rows or not all(0 < raft_id <= MAX_RAFT_ID for raft_id in rows):
        raise ValueError(f"a cluster is founded by instances with raft ids from 1 on, not by {sorted(rows)}")
    if len({row.instance_id for row in rows.values()}) != len(rows):
        raise ValueError("two founders have the same instance id")
    who = [rows[raft_id].instance_id for raft_id in sorted(rows)]
    text = f"{', '.join(who)} founded the cluster '{cluster_id}' ({genesis})"
    puts = {instance_key(raft_id): encode(rows[raft_id]) for raft_id in sorted(rows)}
    puts[VERSION_KEY] = b"%d" % FIRST_VERSION
    puts[FENCE_KEY] = b"0"
    puts[event_key(1)] = encode(EventRecord(now_ms, "founded", text, instances=who))
    return puts
