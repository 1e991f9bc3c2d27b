"""Changing an instance's row on somebody's word: where it is, what it runs, and whether it should be Online.

Anybody may ask (`instance.update`); the leader answers with the new row, which it then writes on the condition that the
row is still the one this was decided on. An update is only taken from the data directory that the row belongs to: an
instance whose disk was replaced under it is another instance, however much it looks the same.

Nothing happens twice: an update that changes nothing gives back the same row. Only a target Online always counts,
because it says that the instance has begun anew and must climb from the foot of the ladder.
"""

from __future__ import annotations

import msgspec

from trimtab.topology import leases, names
from trimtab.topology.grades import Grade, GradeRefused, set_target
from trimtab.topology.protocol import UpdateRequest
from trimtab.topology.records import InstanceRecord
from trimtab.topology.view import View


class UpdateRefused(ValueError):
    """The row stays as it is; the text says why and what to do. `code` is what programs look at."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


UNKNOWN = "unknown"
WRONG_UUID = "wrong_uuid"
LEFT = "left"
BAD_REQUEST = "bad_request"


def update(view: View, asked: UpdateRequest, now_ms: int = 0) -> InstanceRecord:
    """The row after the update; UpdateRefused where it can't be. Equal to the old one: there is nothing to write."""
    record = view.instances.get(asked.raft_id)
    if record is None:
        raise UpdateRefused(UNKNOWN, f"there is no instance with raft id {asked.raft_id} in this cluster")
    if asked.uuid != record.uuid:
        raise UpdateRefused(
            WRONG_UUID,
            f"{record.instance_id} (raft id {asked.raft_id}) belongs to the data directory {record.uuid or '(none)'}, "
            f"not to {asked.uuid[:64] or '(none)'}; start it with its own data directory, or add a new instance with "
            f"--replace {record.instance_id}",
        )
    if record.left or record.grades.target.grade is Grade.EXPELLED:
        raise UpdateRefused(
            LEFT,
            f"{record.instance_id} (raft id {asked.raft_id}) has left the cluster for good"
            f"{f': {record.reason}' if record.reason else ''}; to add it again start it with an empty data directory",
        )
    fields = _places(view, asked, record)
    if asked.target is not None:
        fields |= _wanted(asked, record)
    return msgspec.structs.replace(record, **fields) if fields else record


def _places(view: View, asked: UpdateRequest, record: InstanceRecord) -> dict[str, object]:
    fields: dict[str, object] = {}
    if asked.address and asked.address != record.address:
        if wrong := names.unreachable_address(asked.address):
            raise UpdateRefused(BAD_REQUEST, wrong)
        for raft_id, other in view.members().items():
            # Whoever is Offline may be anywhere, and tells when it comes back: else two that change places would keep
            # each other out for ever.
            taken = other.address == asked.address and other.grades.current.grade is not Grade.OFFLINE
            if raft_id != asked.raft_id and taken:
                raise UpdateRefused(
                    BAD_REQUEST,
                    f"{asked.address} is the address of {other.instance_id} (raft id {raft_id}); "
                    f"{record.instance_id} needs one of its own",
                )
        fields["address"] = asked.address
    if asked.http_address and asked.http_address != record.http_address:
        if wrong := names.wrong_address(asked.http_address):
            raise UpdateRefused(BAD_REQUEST, wrong)
        fields["http_address"] = asked.http_address
    if asked.bulk_address and asked.bulk_address != record.bulk_address:
        if wrong := names.wrong_address(asked.bulk_address):
            raise UpdateRefused(BAD_REQUEST, wrong)
        fields["bulk_address"] = asked.bulk_address
    if asked.capacity_bytes < 0:
        raise UpdateRefused(BAD_REQUEST, f"a capacity of {asked.capacity_bytes} bytes is below zero")
    if asked.capacity_bytes and asked.capacity_bytes != record.capacity_bytes:
        fields["capacity_bytes"] = asked.capacity_bytes
    if asked.release and asked.release != record.release:
        for raft_id, other in view.members().items():
            if raft_id != asked.raft_id and other.release and (wrong := names.apart(asked.release, other.release)):
                raise UpdateRefused(
                    BAD_REQUEST, f"{wrong} ({other.instance_id} runs {other.release}); upgrade one minor at a time"
                )
        fields["release"] = asked.release
    return fields


def _wanted(asked: UpdateRequest, record: InstanceRecord) -> dict[str, object]:
    assert asked.target is not None
    if asked.target is Grade.EXPELLED:
        raise UpdateRefused(BAD_REQUEST, f"an instance is expelled by a request: trimtab expel {record.instance_id}")
    if asked.target is record.grades.target.grade and asked.target is not Grade.ONLINE:
        return {}
    try:
        grades = set_target(record.grades, asked.target)
    except GradeRefused as error:
        raise UpdateRefused(BAD_REQUEST, f"{record.instance_id}: {error}") from error
    fields: dict[str, object] = {"grades": grades, "reason": asked.reason[: names.MAX_TEXT_CHARACTERS]}
    if asked.target is Grade.ONLINE:
        if wrong := leases.too_long(asked.lease_ms, asked.election_max_ms):
            raise UpdateRefused(BAD_REQUEST, f"{record.instance_id}: {wrong}")
        # Of the life that is announced. A lease of an earlier one ended with its process.
        fields |= {"lease_ms": asked.lease_ms, "election_max_ms": asked.election_max_ms}
    return fields
