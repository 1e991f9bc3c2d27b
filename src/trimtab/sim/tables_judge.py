"""The judgement of what clients of tables saw, from their history alone.

A cell is the greatest of all that was written to it: the later stamp wins; of equal ones a deletion, then what expires,
then the greater value. So a read gives the greatest of a set of writes, and the rule is which sets there may be:

    must  what was acknowledged, at a level that meets the read's in every case, before the read began; and what an
          earlier read (likewise) had shown. And of a row, whatever belongs to a write that the same answer shows.
    may   what was asked for before the read ended, and was not refused

The answer has to be an element of `may`, and no less than any of `must`. That says at once: nothing acknowledged is
lost or unseen; no read is stale, or takes back what another has shown; nothing deleted or expired comes back; what was
refused never happened. After everything has healed, all that was acknowledged, at any level but ANY, belongs to `must`.

A load is a write of many rows, and what a read shows of it in one row has to be there in all. It must be seen by
whoever asks a member that knows of its epoch.

Stamps that a client did not hear of are unknown until a read shows one. Clocks may be wrong by the skew, so around the
end of a time to live both is right.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from trimtab.sim.checks import Violation
from trimtab.sim.tables_history import MARKER, Cells, Delete, Outcome, Put, Read, Row, TablesHistory, Write
from trimtab.tablets.consistency import Level, needed

PLAIN, EXPIRING, DELETED = 0, 1, 2
_SOON_S = 1.1  # expiry is kept in whole seconds


@dataclass(frozen=True)
class Element:
    """One candidate for the value of a cell."""

    write: Write
    stamp_us: int  # 0: not known
    rank: int
    value: bytes = b""
    ends_s: tuple[float, float] = (0.0, 0.0)  # EXPIRING: between these times of the world

    def beats(self, other: Element) -> bool:
        """Whether it is certainly the greater one of the two."""
        if self.stamp_us != other.stamp_us:
            return self.stamp_us > other.stamp_us
        if self.rank != other.rank:
            return self.rank > other.rank
        return self.rank == PLAIN and self.value > other.value

    def may_be_gone(self, at_s: float) -> bool:
        return self.rank == DELETED or (self.rank == EXPIRING and at_s >= self.ends_s[0])

    def must_be_gone(self, at_s: float) -> bool:
        return self.rank == DELETED or (self.rank == EXPIRING and at_s > self.ends_s[1])


def meets(write: Level, read: Level, replication: Mapping[str, int], write_dc: str, read_dc: str) -> bool:
    """Whether every set of replicas that a write reaches has one in common with every set that a read asks."""
    if write is Level.ANY:
        return False
    written = dict(needed(write, replication, write_dc, for_write=True).needs)
    asked = dict(needed(read, replication, read_dc, for_write=False).needs)
    total = sum(replication.values())
    if sum(written.values()) + sum(asked.values()) > total:
        return True
    return any(
        written.get(dc, 0) + asked.get(dc, 0) > count
        for dc, count in replication.items()
        if dc in written and dc in asked
    )


class Judge:
    """Of one history."""

    def __init__(self, history: TablesHistory) -> None:
        self._history = history
        self._deletes: dict[tuple[int, int], list[tuple[Write, Delete]]] = {}
        self._puts: dict[tuple[Row, int], list[Element]] = {}
        self._known: dict[tuple[Row, int], list[Element]] = {}
        self._stamps: dict[int, int] = {}  # of writes whose stamp only a read has shown
        self._shown: dict[tuple[Row, int], list[tuple[float, Level, str, Element]]] = {}
        self._meets: dict[tuple[Level, Level, str, str], bool] = {}
        for write in history.writes:
            for part in write.parts:
                if isinstance(part, Put):
                    self._add_put(write, part)
                else:
                    self._deletes.setdefault((part.table, part.partition), []).append((write, part))

    def judge(self) -> None:
        """Violation: the history can't be."""
        reads = sorted(self._history.reads, key=lambda read: (read.returned_s, read.number))
        for read in reads:
            for row, cells in read.rows.items():
                self._learn(row, cells)
        self._known.clear()
        # What a read has shown counts for those that began after its end; all of those end later than it.
        for read in reads:
            shown = {
                row: {
                    column: self._source(read, row, column, value, stamp_us)
                    for column, (value, stamp_us) in (cells or {}).items()
                    if value is not None
                }
                for row, cells in read.rows.items()
            }
            loads = {
                element.write.number for each in shown.values() for element in each.values() if element.write.epoch
            }
            for row, cells in read.rows.items():
                self._judge_row(read, row, cells, shown[row], loads)

    # -- elements --------------------------------------------------------------------------------------------------

    def _add_put(self, write: Write, put: Put) -> None:
        cells = dict(put.cells)
        if put.marker:
            cells[MARKER] = b""
        slack_s = self._history.skew_s + _SOON_S
        began = (write.invoked_s, write.returned_s if write.returned_s is not None else write.invoked_s + 60.0)
        ends = (began[0] + put.ttl_s - slack_s, began[1] + put.ttl_s + slack_s)
        for column, value in cells.items():
            rank = DELETED if value is None else EXPIRING if put.ttl_s else PLAIN
            element = Element(write, write.stamp_us, rank, value or b"", ends if put.ttl_s else (0.0, 0.0))
            self._puts.setdefault((put.row, column), []).append(element)

    def _learn(self, row: Row, cells: Cells | None) -> None:
        """Stamps that were not known."""
        for column, (value, stamp_us) in (cells or {}).items():
            if value is not None:
                for element in self._puts.get((row, column), ()):
                    if element.value == value and not element.write.stamp_us:
                        self._stamps.setdefault(element.write.number, stamp_us)

    def places(self) -> list[tuple[Row, int]]:
        """All cells that anything was ever put into."""
        return [place for place in self._puts if place[1] != MARKER]

    def elements(self, row: Row, column: int) -> list[Element]:
        """Everything that was ever asked to be there."""
        found = self._known.get((row, column))
        if found is None:
            found = [
                element if element.stamp_us else _stamped(element, self._stamps.get(element.write.number, 0))
                for element in self._puts.get((row, column), ())
                if element.write.outcome is not Outcome.REFUSED
            ]
            found += [
                Element(write, write.stamp_us, DELETED)
                for write, delete in self._deletes.get((row.table, row.partition), ())
                if write.outcome is not Outcome.REFUSED and delete.covers(row, column)
            ]
            self._known[row, column] = found
        return found

    # -- judging ---------------------------------------------------------------------------------------------------

    def _judge_row(
        self, read: Read, row: Row, cells: Cells | None, shown: Mapping[int, Element], loads: Collection[int]
    ) -> None:
        together = {*loads, *(element.write.number for element in shown.values())}
        for column in (MARKER, *read.columns):
            elements = self.elements(row, column)
            must = [
                element for element in elements if self._must(element.write, read) or element.write.number in together
            ]
            must += [
                element
                for at_s, level, dc, element in self._shown.get((row, column), ())
                if at_s < read.invoked_s and self._level_meets(level, read.level, dc, read.dc)
            ]
            top = _greatest(must)
            if column in shown:
                if top is not None and top.beats(shown[column]):
                    raise self._violation(read, row, column, shown[column], top)
                self._show(read, row, column, shown[column])
            elif column != MARKER or cells is None:
                self._judge_nothing(read, row, column, elements, top)
            elif not shown:
                self._judge_bare(read, row, elements, top)

    def _source(self, read: Read, row: Row, column: int, value: bytes, stamp_us: int) -> Element:
        """The write that a value comes from."""
        where = f"column {column} of {row}"
        for element in self._puts.get((row, column), ()):
            if element.value != value or element.rank == DELETED:
                continue
            write = element.write
            if write.outcome is Outcome.REFUSED:
                raise Violation(f"{read} shows in {where} what was refused: {value.decode()}", str(write))
            if write.invoked_s > read.returned_s:
                raise Violation(f"{read} shows in {where} what was not written yet: {value.decode()}", str(write))
            known = write.stamp_us or self._stamps.get(write.number, 0)
            if stamp_us != known:
                raise Violation(
                    f"{read} shows {value.decode()} in {where} with the stamp {stamp_us}, not {known}", str(write)
                )
            if element.must_be_gone(read.invoked_s):
                raise Violation(f"{read} shows in {where} what had expired: {value.decode()}", str(write))
            return _stamped(element, stamp_us)
        raise Violation(f"{read} shows in {where} what nobody wrote there: {value!r}", self._told(row, column))

    def _judge_nothing(self, read: Read, row: Row, column: int, elements: list[Element], top: Element | None) -> None:
        """It shows nothing in this cell: something deletes it, or has expired, or nothing has to be there."""
        gone = [
            element
            for element in elements
            if element.write.invoked_s <= read.returned_s
            and element.may_be_gone(read.returned_s)
            and (top is None or not element.stamp_us or not top.beats(element))
        ]
        if top is not None and not top.may_be_gone(read.returned_s) and not gone:
            raise self._violation(read, row, column, None, top)
        if top is not None and gone and all(element.stamp_us for element in gone):
            # One of them it was; so later reads show nothing that is older than the oldest of them.
            oldest = min(gone, key=lambda element: (element.stamp_us, element.rank))
            if oldest.rank == DELETED:
                self._show(read, row, column, oldest)

    def _judge_bare(self, read: Read, row: Row, elements: list[Element], top: Element | None) -> None:
        """A row without cells: it exists because somebody said so."""
        for element in elements:
            begun = element.write.invoked_s <= read.returned_s
            covered = element.stamp_us and top is not None and top.beats(element)
            if begun and not covered and not element.must_be_gone(read.invoked_s):
                return
        raise self._violation(read, row, MARKER, None, top)

    def _must(self, write: Write, read: Read) -> bool:
        if write.outcome is not Outcome.ACKED:
            return False
        assert write.returned_s is not None
        if write.epoch:
            return read.final or read.epoch >= write.epoch
        if write.returned_s >= read.invoked_s:
            return False
        if read.final:
            return write.level is not Level.ANY
        return self._level_meets(write.level, read.level, write.dc, read.dc)

    def _level_meets(self, write: Level, read: Level, write_dc: str, read_dc: str) -> bool:
        key = (write, read, write_dc, read_dc)
        if key not in self._meets:
            self._meets[key] = meets(write, read, self._history.replication, write_dc, read_dc)
        return self._meets[key]

    def _show(self, read: Read, row: Row, column: int, element: Element) -> None:
        # Of a load another member may not know yet.
        if element.stamp_us and not element.write.epoch:
            self._shown.setdefault((row, column), []).append((read.returned_s, read.level, read.dc, element))

    # -- telling ---------------------------------------------------------------------------------------------------

    def _violation(self, read: Read, row: Row, column: int, shown: Element | None, top: Element | None) -> Violation:
        what = "nothing" if shown is None else f"{shown.value.decode()!r} of stamp {shown.stamp_us}"
        where = "whether there is a row" if column == MARKER else f"column {column}"
        instead = ""
        if top is not None:
            said = "a deletion" if top.rank == DELETED else repr(top.value.decode())
            instead = f", though {said} of stamp {top.stamp_us} (write #{top.write.number}) must be known to it"
        return Violation(f"{read} shows {what} in {row}, {where}{instead}", self._told(row, column))

    def _told(self, row: Row, column: int) -> str:
        numbers = {element.write.number: element.write for element in self.elements(row, column)}
        lines = [str(write) for _, write in sorted(numbers.items())]
        for read in self._history.reads:
            if row in read.rows:
                cells = read.rows[row]
                if cells is None:
                    lines.append(f"{read}: no row")
                elif column in cells:
                    lines.append(f"{read}: {cells[column]}")
        return "\n".join(lines[-40:])


def judge_batches(batches: Iterable[Write], found: Mapping[Row, Cells | None], *, whole: bool) -> None:
    """Rows that only one batch ever writes: in the end there are all of a batch, or none.

    `whole` off: a batch that was not acknowledged may have been dropped half-way, for it got too old.
    """
    for batch in batches:
        there = [part.row for part in batch.parts if isinstance(part, Put) and found.get(part.row) is not None]
        missing = [part.row for part in batch.parts if isinstance(part, Put) and found.get(part.row) is None]
        if batch.outcome is Outcome.ACKED and batch.level is not Level.ANY and missing:
            raise Violation(f"an acknowledged batch has lost {', '.join(map(str, missing))}", str(batch))
        if batch.outcome is Outcome.REFUSED and there:
            raise Violation(f"a refused batch has written {', '.join(map(str, there))}", str(batch))
        if whole and there and missing:
            raise Violation(
                f"half of a batch happened: {', '.join(map(str, there))}, but not {', '.join(map(str, missing))}",
                str(batch),
            )


def _stamped(element: Element, stamp_us: int) -> Element:
    return Element(element.write, stamp_us, element.rank, element.value, element.ends_s)


def _greatest(elements: Iterable[Element]) -> Element | None:
    top: Element | None = None
    for element in elements:
        if element.stamp_us and (top is None or element.beats(top)):
            top = element
    return top
