"""Instances that give copies of replicas from one directory, without a process: what their doubles have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import rocksdict
from tests.unit.rows import tables

from trimtab.loads import protocol
from trimtab.loads.protocol import SnapshotReply, SnapshotRequest, SnapshotTablet
from trimtab.rows import protocol as rows_protocol
from trimtab.rows.protocol import SchemaReply
from trimtab.storage.sst import table_options
from trimtab.tablets.records import pack


class CopyingInstances:
    """Stands in for `Instances`; the copies lie here, and `kept` are those whose leases are renewed."""

    def __init__(self, folder: Path, tablets: int) -> None:
        self.folder = folder
        self.kept: set[str] = set()
        for tablet in range(tablets):
            rocksdict.Rdict(str(folder / f"t{tablet}"), table_options()).close()

    def __call__(self, tls: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def keep(self, name: str, address: str, method: str, body: bytes, every_s: float) -> None:
        self.kept.add(name)

    def let_go(self, name: str) -> None:
        self.kept.discard(name)

    def copied(self, request: SnapshotRequest, hidden: list[int]) -> bytes:
        """The answer of who has copied these tablets."""
        proof = self.folder / "snapshots" / request.name / "proof"
        proof.parent.mkdir(parents=True)
        proof.write_text("yes")
        found = [SnapshotTablet(each, f"t{each}", [("CURRENT", 16)]) for each in request.tablets]
        return protocol.encode(SnapshotReply(request.name, str(self.folder), "yes", found, hidden, "", b""))


def schema_reply(reading: tuple[int, ...]) -> bytes:
    """Of a cluster of four, in which these answer reads of the first tablet."""
    instances = {each: (f"i{each}", f"h{each}", "dc1", True) for each in (1, 2, 3, 4)}
    read_from = {tables.table(["int"]).id: [pack([reading])]}
    return rows_protocol.encode(SchemaReply(9, 9, b"", {}, instances, 1, {}, read_from))
