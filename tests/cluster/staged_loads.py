"""Loads without Spark: a test writes the files itself, straight into the staging directories of the instances."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import pyarrow as pa

import trimtab
from tests.cluster.instances import Instances
from tests.files import names_in
from trimtab.client.loads import BlockingLoads, LoadRefused
from trimtab.loads.protocol import BeginRequest, CommitRequest, SealRequest, StagedFile
from trimtab.loads.records import LoadKind, LoadRecord
from trimtab.rows.columns import encode_table
from trimtab.rows.layout import Layouts, RowLayout
from trimtab.storage.file_sums import sum_of
from trimtab.storage.port import StorageError
from trimtab.storage.sst import write_run

Rows = Mapping[int, str]
T = TypeVar("T")
_MAX_SCANS = 100_000
_PAUSE_S = 0.05
_PATIENCE_S = 90.0
_PASSING = ("unavailable", "not_ready")
_SHORT_MS = 2_000  # of a lease whose end is waited for; enough to stage a few rows, as a rule


class Loader:
    """The driver of loads of one table of (id bigint, value text)."""

    def __init__(self, instances: Instances, name: str) -> None:
        self._instances = instances
        self.client = BlockingLoads(list(instances.listen.values()), timeout_s=90)
        keyspace, _, table = name.partition(".")
        self.client.refresh()
        catalog = self.client.catalog
        self.table = next(each for each in catalog.tables.values() if (each.keyspace, each.name) == (keyspace, table))
        self._layout: RowLayout = Layouts().of(self.table, catalog.types_of(keyspace))

    def close(self) -> None:
        self.client.close()

    def number(self, raft_id: int) -> int:
        return int(self.client.instances[raft_id].instance_id.removeprefix("i"))

    def patiently(self, work: Callable[[], T]) -> T:
        """What a driver asks for until it is not refused any more because somebody is silent for a moment."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return work()
            except LoadRefused as error:
                if error.code not in _PASSING or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def begin(self, id: str, kind: LoadKind = LoadKind.APPEND, lease_ms: int = 600_000) -> LoadRecord:
        request = BeginRequest(id, self.table.id, self.table.version, kind, lease_ms=lease_ms)
        return self.patiently(lambda: self.client.begin(request))

    def abandon(self, id: str, rows: Rows) -> LoadRecord:
        """A load that nobody drives any more when its files are staged; the load when it was ended.

        On a busy machine that may be while they are staged: then they are swept meanwhile.
        """
        load = self.begin(id, lease_ms=_SHORT_MS)
        with contextlib.suppress(StorageError, FileNotFoundError):
            self.stage(load, rows, (1, 2, 3))
        return self.ended(id)

    def stage(
        self, load: LoadRecord, rows: Rows, numbers: Iterable[int], name: str = "a"
    ) -> dict[int, list[StagedFile]]:
        """Write the rows into the staging directories of these instances; the files of each, by raft id."""
        table = pa.table({"id": pa.array(list(rows), pa.int64()), "value": pa.array(list(rows.values()), pa.string())})
        encoded = encode_table(self._layout, table, timestamp_us=load.stamp_us, now_ms=load.stamp_us // 1000)
        files: dict[int, list[StagedFile]] = {}
        holders = self.client.tablets(self.table.id)
        wanted = set(numbers)
        for raft_id in self.client.instances:
            if self.number(raft_id) in wanted:
                files[raft_id] = []
        for tablet, part in encoded.by_tablet(self.table.tablets):
            for raft_id in holders.replicas(tablet):
                number = self.number(raft_id)
                if number not in wanted:
                    continue
                folder = self._instances.data_dir(number) / "staging" / load.id / str(tablet)
                folder.mkdir(parents=True, exist_ok=True)
                run = write_run(folder / f"{name}.sst", part)
                files[raft_id].append(
                    StagedFile(tablet, f"{name}.sst", run.file_bytes, sum_of(run.path.read_bytes()), run.rows)
                )
        return files

    def seal(self, load: LoadRecord, files: Mapping[int, list[StagedFile]]) -> tuple[int, ...]:
        for raft_id, each in files.items():
            reply = self.client.seal(raft_id, SealRequest(load.id, load.table, each))
            assert not reply.missing, reply
        return tuple(files)

    def commit(self, load: LoadRecord, sealed: Iterable[int], rows: int = 0) -> LoadRecord:
        request = CommitRequest(load.table, load.id, tuple(sealed), rows=rows)
        return self.patiently(lambda: self.client.commit(request))

    def run(
        self, id: str, rows: Rows, numbers: Iterable[int] = (1, 2, 3), kind: LoadKind = LoadKind.APPEND
    ) -> LoadRecord:
        """A whole load, up to its commit."""
        load = self.begin(id, kind)
        return self.commit(load, self.seal(load, self.stage(load, rows, numbers)), len(rows))

    def ended(self, id: str, timeout_s: float = 120.0) -> LoadRecord:
        """The load when it can be seen."""
        found = self.client.wait_ended(self.table.id, id, timeout_s)
        assert found is not None and found.state.final, f"{found}\n{self._instances.said()}"
        return found

    def staged(self) -> list[str]:
        """What is left in the staging directories of all instances."""
        found = []
        for number in self._instances.listen:
            found += [f"i{number}/{name}" for name in names_in(self._instances.data_dir(number) / "staging")]
        return found


class Reader:
    """Scans a table again and again, page by page: each scan must give one of the states that the table may have."""

    def __init__(self, addresses: str, name: str, *states: Rows, page_rows: int = 100) -> None:
        self.allowed = [dict(state) for state in states]
        self.scans = 0
        self.seen: list[int] = []  # which of the states, in the order in which they were first seen
        self.wrong: list[str] = []
        self.errors: list[str] = []
        self._db = trimtab.connect(addresses)
        self._table = self._db.table(name, consistency="QUORUM", timeout=5)
        self._page_rows = page_rows
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for _ in range(_MAX_SCANS):
            if self._over.is_set() or self.wrong:
                return
            try:
                found = {row["id"]: row["value"] for row in self._table.scan(page_rows=self._page_rows)}
            except trimtab.Error as error:
                self.errors.append(str(error))
                self._over.wait(_PAUSE_S)  # scans that are refused at once are no use
                continue
            self.scans += 1
            state = next((number for number, rows in enumerate(self.allowed) if rows == found), None)
            if state is None:
                values: dict[str, int] = {}
                for value in found.values():
                    values[value] = values.get(value, 0) + 1
                self.wrong.append(f"a scan of {len(found)} rows: {values}")
            elif state not in self.seen:
                self.seen.append(state)

    def await_state(self, state: int, timeout_s: float = 120.0) -> None:
        """Wait until a scan gave this state."""
        deadline = time.monotonic() + timeout_s
        while state not in self.seen:
            assert not self.wrong, self.wrong
            assert time.monotonic() < deadline, f"state {state} was not seen: {self.seen}, {self.errors[-3:]}"
            time.sleep(0.01)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(120)
        self._db.close()
        assert not self.wrong, self.wrong
