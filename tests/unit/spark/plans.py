"""Plans of loads for tests, and bulk servers that are only directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.rows import tables

from trimtab.bulk.client import BulkLost, BulkRefused, Patience
from trimtab.bulk.sources import Pieces
from trimtab.catalog.schema import Table
from trimtab.spark.load_plan import LoadPlan
from trimtab.spark.options import Connection
from trimtab.storage.file_sums import sum_of

STAMP_US = 1_700_000_000_000_999


def users(tablets: int = 4) -> Table:
    """p0 bigint, v0 double, v1 text, v2 int."""
    return msgspec.structs.replace(tables.table(["bigint"], [], ["double", "text", "int"]), tablets=tablets)


def plan(table: Table | None = None, replicas: tuple[tuple[int, ...], ...] | None = None, **changes: Any) -> LoadPlan:
    table = table or users()
    replicas = replicas or ((1, 2, 3),) * table.tablets
    everybody = sorted({each for some in replicas for each in some})
    given: dict[str, Any] = {
        "connection": Connection("127.0.0.1:1"),
        "id": "load1",
        "table": table,
        "types": tables.USER_TYPES,
        "stamp_us": STAMP_US,
        "now_ms": 1_700_000_000_000,
        "ttl_s": 0,
        "replicas": replicas,
        "bulk": {each: f"bulk:{each}" for each in everybody},
        "dcs": dict.fromkeys(everybody, "dc1"),
        "names": {each: f"i{each}" for each in everybody},
        "ticket": b"good",
        "lease_ms": 60_000,
    }
    return LoadPlan(**given | changes)


class FakeServers:
    """`down`: addresses that can't be reached; `refusing`: a code and text by address; only `ticket` is good."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.down: set[str] = set()
        self.refusing: dict[str, tuple[str, str]] = {}
        self.ticket = b"good"
        self.before: Callable[[str, str], None] = lambda address, name: None

    def connect(self, address: str, patience: Patience) -> FakeClient:
        return FakeClient(self, address)

    def files(self, raft_id: int) -> list[Path]:
        return sorted(path for path in (self.folder / f"bulk:{raft_id}").rglob("*") if path.is_file())


class FakeClient:
    def __init__(self, servers: FakeServers, address: str) -> None:
        self._servers, self._address = servers, address

    def stage(self, source: Pieces, session: str, tablet: int, name: str, ticket: bytes, *, checksum: int) -> object:
        self._servers.before(self._address, name)
        if self._address in self._servers.down:
            raise BulkLost(f"the bulk server {self._address} got nowhere in 8 attempts")
        if self._address in self._servers.refusing:
            raise BulkRefused(self._address, *self._servers.refusing[self._address])
        if ticket != self._servers.ticket:
            raise BulkRefused(self._address, "expired_ticket", "this ticket expired 5 s ago")
        data = source.to_bytes()
        assert sum_of(data) == checksum == source.checksum()
        target = self._servers.folder / self._address / session / str(tablet) / name
        assert not target.exists()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return None

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass
