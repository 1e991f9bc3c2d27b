"""Three replicas made of dicts, written to and read through `trimtab.rows`, beside the model.

Every write reaches some replica at once and the others whenever chance lets it, so the union of all three is always
complete. In between replicas are folded, in part, and repaired with what was read. `check` asks both sides the same.
"""

from __future__ import annotations

import random
from typing import Any

from tests.unit.rows import cells, tables
from tests.unit.rows.model import Model, Row, Write

from trimtab.catalog.schema import ColumnKind, Table
from trimtab.catalog.types import Kind, parse
from trimtab.rows import keys, tokens
from trimtab.rows.digests import digest_of
from trimtab.rows.folding import FoldRule, fold_range
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import Forgetting
from trimtab.rows.mutations import pairs_of_delete, pairs_of_put
from trimtab.rows.projection import Rows
from trimtab.rows.protocol import Bound, DeleteRequest, PutRequest, RangeRead, RangeRows, Way
from trimtab.rows.reading import NO_LIMITS, Limits, Reading, judged_s, merge_answers, read_range, rows_of, scan_of

START_MS = 1_700_000_000_000
WINDOW_MS = 5_000  # stamps lie between now and so long ago
HISTORY_MS = 12_000
TINY = Limits(answer_bytes=200, scanned_bytes=600, scanned_pairs=5)


class World:
    def __init__(self, rng: random.Random, table: Table | None = None) -> None:
        self.rng = rng
        self.table = table or tables.random_table(rng)
        self.model = Model(self.table, tables.USER_TYPES)
        self.layout = RowLayout(self.table, tables.USER_TYPES)
        self.replicas: list[dict[bytes, bytes]] = [{}, {}, {}]
        self.waiting: list[tuple[int, int, list[bytes]]] = []  # replica, when it was written, pairs
        self.now_ms = START_MS
        self.history_us = 0  # reads as of earlier than this may differ
        self.forgotten_ms = 0
        key_columns = self.layout.partition
        self.partitions = [
            [self._key_cell(each.type, alone=len(key_columns) == 1) for each in key_columns] for _ in range(3)
        ]
        self.clusterings = [[self._sometimes(pool) for pool in self._pools()] for _ in range(6)]

    def _pools(self) -> list[list[bytes]]:
        if not hasattr(self, "pools"):
            self.pools = [[cells.random_cell(self.rng, each.type) for _ in range(3)] for each in self.layout.clustering]
        return self.pools

    def _sometimes(self, pool: list[bytes]) -> bytes:
        return self.rng.choice(pool)

    def _key_cell(self, given: Any, alone: bool) -> bytes:
        for _ in range(50):
            found = cells.random_cell(self.rng, given)
            if found or not alone:
                return found
        return given.serialize("x")

    # Writing

    def stamp(self) -> int:
        """Often the same for several writes."""
        return (self.now_ms - self.rng.choice([0, 0, 0, 1000, 2000, WINDOW_MS])) * 1000

    def ttl(self) -> int:
        return self.rng.choice([0, 0, 0, 1, 5, 30])

    def spread(self, pairs: list[bytes]) -> None:
        rng = self.rng
        first = rng.randrange(3)
        for at in range(3):
            if at == first or rng.random() < 0.5:
                self.put(at, pairs)
            else:
                self.waiting.append((at, self.now_ms, pairs))

    def put(self, at: int, pairs: list[bytes]) -> None:
        self.replicas[at].update(zip(pairs[::2], pairs[1::2], strict=True))

    def deliver(self, share: float) -> None:
        rng = self.rng
        rng.shuffle(self.waiting)
        kept = []
        for each in self.waiting:
            if rng.random() < share:
                self.put(each[0], each[2])
            else:
                kept.append(each)
        self.waiting = kept

    def write_put(self) -> None:
        rng, table = self.rng, self.table
        update = rng.random() < 0.5
        regular = [each for each in table.of_kind(ColumnKind.REGULAR) if rng.random() < 0.6]
        static = [each for each in table.of_kind(ColumnKind.STATIC) if rng.random() < 0.4]
        only_static = bool(static) and rng.random() < 0.3
        if only_static:
            regular = []
        stamp, ttl, count = self.stamp(), self.ttl(), rng.choice([1, 1, 2])
        ids = [each.id for each in (*self.layout.partition, *(() if only_static else self.layout.clustering))]
        values = [*regular, *static]
        ids += [each.id for each in values]
        types = {each.id: parse(each.type, tables.USER_TYPES) for each in values}
        ways = {each.id: self._way(types[each.id]) for each in values}
        turn = len(self.model.writes)
        rows = []
        for _ in range(count):
            partition = rng.choice(self.partitions)
            clustering = [] if only_static else self.clustering()
            written = {each.id: self._cell(types[each.id], ways[each.id]) for each in values}
            rows.append([*partition, *clustering, *written.values()])
            self.model.writes.append(
                Write(
                    tuple(partition),
                    stamp,
                    self.now_ms,
                    ttl,
                    None if only_static else tuple(clustering),
                    marker=not update and not only_static,
                    cells=written,
                    ways=ways,
                    turn=len(self.model.writes),
                )
            )
        order = list(range(len(ids)))
        rng.shuffle(order)
        request = PutRequest(
            table.id,
            table.version,
            [ids[at] for at in order],
            [[row[at] for at in order] for row in rows],
            ttl_s=ttl,
            update=update,
            ways=[Way(ways.get(ids[at], 0)) for at in order] if any(ways.values()) else [],
        )
        for pairs in pairs_of_put(self.layout, request, stamp, self.now_ms, turn=turn).values():
            self.spread(pairs)

    def _way(self, given: Any) -> int:
        if not given.multicell or self.rng.random() < 0.4:
            return 0
        return self.rng.choice([1, 3] if given.kind is Kind.LIST else [1, 2])

    def _cell(self, given: Any, way: int) -> bytes | None:
        if way == Way.REMOVE:
            element = given.elements[0].name
            return cells.random_cell(self.rng, parse(f"set<{element}>", tables.USER_TYPES))
        if way == Way.WHOLE and self.rng.random() < 0.2:
            return None
        return cells.random_cell(self.rng, given)

    def clustering(self) -> list[bytes]:
        return list(self.rng.choice(self.clusterings)) if self.layout.clustering else []

    def bound(self) -> Bound | None:
        rng = self.rng
        if rng.random() < 0.25:
            return None
        return Bound(self.clustering()[: rng.randint(0, len(self.layout.clustering))], rng.random() < 0.5)

    def write_delete(self) -> None:
        rng, table, stamp = self.rng, self.table, self.stamp()
        partition = rng.choice(self.partitions)
        what = rng.choice(["row", "row", "cells", "cells", "range", "range", "partition"])
        written = Write(tuple(partition), stamp, self.now_ms)
        request: dict[str, Any] = {}
        if what == "range" and self.layout.clustering:
            start, end = self.bound(), self.bound()
            if start is None and end is None:
                start = Bound()
            written.deletes = "range"
            written.start = None if start is None else (tuple(start.cells), start.inclusive)
            written.end = None if end is None else (tuple(end.cells), end.inclusive)
            request = {"start": start, "end": end}
        elif what == "cells":
            columns = [
                each
                for each in table.columns
                if each.kind in (ColumnKind.REGULAR, ColumnKind.STATIC) and rng.random() < 0.5
            ]
            if not columns:
                return
            row = self.clustering()
            request = {"row": row, "columns": [each.id for each in columns]}
            static = {each.id for each in columns if each.kind is ColumnKind.STATIC}
            self.model.writes.append(Write(tuple(partition), stamp, self.now_ms, cells=dict.fromkeys(static)))
            written.row = tuple(row)
            written.cells = {each.id: None for each in columns if each.id not in static}
        elif what == "partition":
            written.deletes = "partition" if self.layout.clustering else "row"
            written.row = None if self.layout.clustering else ()
        else:
            row = self.clustering()
            written.deletes, written.row = "row", tuple(row)
            request = {"row": row}
        self.model.writes.append(written)
        asked = DeleteRequest(table.id, table.version, partition, **request)
        for pairs in pairs_of_delete(self.layout, asked, stamp, self.now_ms).values():
            self.spread(pairs)

    # What happens meanwhile

    def pass_time(self) -> None:
        self.now_ms += self.rng.choice([1, 500, 1000, 3000, 3000, 6000, 20_000])

    def change_schema(self) -> None:
        rng, table = self.rng, self.table
        droppable = [each for each in table.columns if each.kind in (ColumnKind.REGULAR, ColumnKind.STATIC)]
        if droppable and rng.random() < 0.5:
            self.table = tables.drop_column(table, rng.choice(droppable).id)
        else:
            kind = ColumnKind.STATIC if self.layout.clustering and rng.random() < 0.3 else ColumnKind.REGULAR
            self.table = tables.add_column(table, rng.choice(tables.VALUE_TYPES), kind)
        self.model.table = self.table
        self.layout = RowLayout(self.table, tables.USER_TYPES)

    def fold(self) -> None:
        """One replica, perhaps only in part. Deletions go only if everybody has all that was written before them.

        And no write with an older stamp is still to come: in CQL too, that would be seen once the deletion is gone.
        """
        rng = self.rng
        reached = min((each[1] for each in self.waiting), default=self.now_ms) - WINDOW_MS - 1000
        forget = max(0, reached) if rng.random() < 0.7 else 0
        rule = FoldRule(forget, (self.now_ms - HISTORY_MS) * 1000, max_versions=rng.choice([2, 64]))
        replica = rng.choice(self.replicas)
        self.history_us = max(self.history_us, rule.history_from_us)
        share = rng.choice([0.3, 1.0, 1.0])
        for step in fold_range(self.layout, sorted(replica.items()), rule):
            if step is None:
                continue
            if rng.random() > share:
                # What comes later in a partition relies on nothing that came before: any of it may be done.
                continue
            for key in step.deletes:
                del replica[key]
            replica.update(zip(step.puts[::2], step.puts[1::2], strict=True))
            self.history_us = max(self.history_us, step.forgot_us)
        self.forgotten_ms = max(self.forgotten_ms, forget)

    # Reading

    def read(self, wanted: RangeRead, as_of: int = 0, limits: Limits = NO_LIMITS) -> Reading:
        answers, now_s = [], judged_s(self.now_s, as_of)
        behind = {each[0] for each in self.waiting}
        complete = [replica for at, replica in enumerate(self.replicas) if at not in behind]
        asked = [self.rng.choice(complete)] if complete and self.rng.random() < 0.6 else self.replicas
        for replica in asked:
            found = read_range(self.layout, scan_of(sorted(replica.items())), wanted, now_s, as_of, limits=limits)
            answers.append(RangeRows(found.pairs, b"", found.more, found.end))
        merged = merge_answers(self.layout, wanted, answers, now_s, as_of)
        if not as_of and self.rng.random() < 0.2:
            self.put(self.rng.randrange(3), merged.pairs)
        return merged

    @property
    def now_s(self) -> int:
        return self.now_ms // 1000

    def pages(self, wanted: RangeRead, as_of: int, columns: list[int]) -> tuple[Rows, int]:
        """All rows, page by page."""
        limits = self.rng.choice([NO_LIMITS, NO_LIMITS, TINY])
        rows, live = Rows([], [], []), 0
        for _ in range(500):
            found = self.read(wanted, as_of, limits)
            low = found.end if found.more and wanted.reverse else wanted.low
            high = found.end if found.more and not wanted.reverse else wanted.high
            page = rows_of(
                self.layout,
                found.pairs,
                columns,
                judged_s(self.now_s, as_of),
                low=low,
                high=high,
                reverse=wanted.reverse,
                with_meta=True,
            )
            assert len(page.cells) == found.live <= wanted.limit
            for into, of in zip(rows, page, strict=True):
                into.extend(of)  # type: ignore[arg-type]
            live += found.live
            if not found.more:
                return rows, live
            if wanted.reverse:
                assert found.end < wanted.high
                wanted = RangeRead(wanted.low, found.end, wanted.limit, True)
            else:
                assert found.end > wanted.low
                wanted = RangeRead(found.end, wanted.high, wanted.limit)
        raise AssertionError("a read does not get on")

    def as_of(self) -> int:
        if self.rng.random() < 0.6 or self.history_us >= self.now_ms * 1000:
            return 0
        return self.rng.randrange(max(self.history_us, (self.now_ms - HISTORY_MS) * 1000), self.now_ms * 1000 + 1)

    def columns(self) -> list[int]:
        ids = [each.id for each in self.table.columns]
        return self.rng.sample(ids, self.rng.randint(1, len(ids)))

    def check_get(self) -> None:
        partition, row, as_of, columns = (
            self.rng.choice(self.partitions),
            self.clustering(),
            self.as_of(),
            self.columns(),
        )
        row_key = keys.row_key(self.layout, [*partition, *row])
        found = self.read(RangeRead(row_key, keys.after(row_key), 1, point=True), as_of)
        got = rows_of(self.layout, found.pairs, columns, judged_s(self.now_s, as_of), with_meta=True)
        expected = [
            each
            for each in self.model.read_partition(tuple(partition), self.now_s, as_of, whole=False)
            if each.row is not None and self.model.same_row(each.row, tuple(row))
        ]
        self.compare(got, expected, columns)

    def check_slice(self) -> None:
        rng = self.rng
        partition, start, end, as_of = rng.choice(self.partitions), self.bound(), self.bound(), self.as_of()
        reverse, limit, columns = rng.random() < 0.4, rng.choice([1, 2, 3, 1000]), self.columns()
        low, high = keys.slice_bounds(self.layout, partition, start, end)
        got, _ = self.pages(RangeRead(low, high, limit, reverse), as_of, columns)
        bounds = [None if each is None else (tuple(each.cells), each.inclusive) for each in (start, end)]
        whole = not any(each is not None and each[0] for each in bounds)
        expected = self.model.read_partition(tuple(partition), self.now_s, as_of, *bounds, whole=whole)
        self.compare(got, expected[::-1] if reverse else expected, columns)

    def check_scan(self) -> None:
        rng = self.rng
        as_of, columns = self.as_of(), self.columns()
        all_tokens = sorted(self.model.token(tuple(each)) for each in self.partitions)
        first = rng.choice([None, *all_tokens])
        last = rng.choice([None, *all_tokens])
        low, high = tokens.keys_between(first, last)
        got, _ = self.pages(RangeRead(low, high, rng.choice([1, 2, 1000])), as_of, columns)
        expected = [
            row
            for partition in self.model.partitions()
            if (first is None or self.model.token(partition) > first)
            and (last is None or self.model.token(partition) <= last)
            for row in self.model.read_partition(partition, self.now_s, as_of)
        ]
        self.compare(got, expected, columns)

    def compare(self, got: Rows, expected: list[Row], columns: list[int]) -> None:
        assert len(got.cells) == len(expected), (got, expected)
        kinds = {each.id: each for each in self.table.columns}
        partition_ids = [each.id for each in self.layout.partition]
        clustering_ids = [each.id for each in self.layout.clustering]
        for cells_, metas, row in zip(got.cells, got.metas, expected, strict=True):
            for id, cell, meta in zip(columns, cells_, metas, strict=True):
                if id in partition_ids:
                    assert cell == row.partition[partition_ids.index(id)]
                elif id in clustering_ids:
                    wanted = None if row.row is None else row.row[clustering_ids.index(id)]
                    assert (cell is None) == (wanted is None)
                    if cell is not None and wanted is not None:
                        # 1.0 and 1.00 are one clustering key.
                        order = parse(kinds[id].type, tables.USER_TYPES).order
                        assert order(cell) == order(wanted)
                else:
                    assert cell == row.cells.get(id), (kinds[id], cell, row)
                    known = row.metas.get(id)
                    assert (meta and (meta.writetime_us, meta.ttl_s)) == known, (kinds[id], meta, known)

    def check_digests(self) -> None:
        """Replicas that were given the same say the same, whatever was folded or repaired."""
        self.deliver(1.0)
        wanted = RangeRead(*tokens.keys_between(None, None), 1_000_000)
        found = set()
        for replica in self.replicas:
            reading = read_range(
                self.layout,
                scan_of(sorted(replica.items())),
                wanted,
                self.now_s,
                limits=NO_LIMITS,
                forgetting=Forgetting(self.forgotten_ms),
            )
            found.add(digest_of(reading.pairs))
        assert len(found) == 1

    def step(self) -> None:
        rng = self.rng
        doing = rng.choices(
            [
                self.write_put,
                self.write_delete,
                self.pass_time,
                self.change_schema,
                self.fold,
                lambda: self.deliver(rng.choice([0.3, 0.7, 1.0])),
                self.check_get,
                self.check_slice,
                self.check_scan,
                self.check_digests,
            ],
            [10, 5, 4, 0.5, 4, 2, 3, 3, 2, 0.7],
        )[0]
        doing()
