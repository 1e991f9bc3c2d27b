"""Where an instance is, as far as replicas care: its data centre, its rack, its host.

An instance that names no data centre is in the one that all such instances share, and likewise for racks. One that
names no host is a host of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from trimtab.catalog.schema import DEFAULT_DATACENTER
from trimtab.topology.grades import Grade
from trimtab.topology.records import InstanceRecord
from trimtab.topology.states import NodeState
from trimtab.topology.view import View

DEFAULT_RACK = "rack1"
_PLACED = (NodeState.NORMAL, NodeState.REBUILDING)


class Domain(NamedTuple):
    dc: str
    rack: str
    host: str


def domain_of(record: InstanceRecord) -> Domain:
    """From the failure domain; the case of its keys does not matter."""
    said = {key.lower(): value for key, value in record.failure_domain.items()}
    return Domain(
        said.get("dc", DEFAULT_DATACENTER), said.get("rack", DEFAULT_RACK), said.get("host", record.instance_id)
    )


def datacenters(view: View) -> dict[str, int]:
    """How many members each data centre has, by name."""
    counts: dict[str, int] = {}
    for record in view.members().values():
        dc = domain_of(record).dc
        counts[dc] = counts.get(dc, 0) + 1
    return dict(sorted(counts.items()))


def may_hold(record: InstanceRecord) -> bool:
    """Whether new replicas may be placed there at all: it has its place in the cluster, and is to keep it."""
    return record.state in _PLACED and record.grades.target.grade is not Grade.EXPELLED


def is_online(record: InstanceRecord) -> bool:
    """Whether it is Online and nobody wants it to be anything else."""
    return record.grades.current.grade is Grade.ONLINE and record.grades.target.grade is Grade.ONLINE
