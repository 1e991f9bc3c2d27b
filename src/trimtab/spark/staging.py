"""A task of a load: Arrow batches in; files of sorted rows on every replica out; what it did as a `StagedPart`.

    batches ─▶ chunk ─▶ rows encoded and sorted ─▶ one run for each tablet ─▶ sent to all its replicas, in parallel

Nothing is shuffled: each task writes its own runs, and stores merge those that overlap. They are in memory until they
are sent: a file of a disk would be written here, read again and deleted, on the processors of those who serve. Names
are the attempt's own, so that attempts of one task, at the same time even, don't meet; which of them counts the driver
says when it seals. What can't succeed however often the task is tried (a bad row, a full disk, a load that was ended)
is returned as the part's `failed`; all else is raised, and Spark tries the task again.
"""

from __future__ import annotations

import contextlib
import gc
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trimtab.bulk.sources import Pieces
from trimtab.rows.layout import RowLayout
from trimtab.spark.encoding import chunks, encode_chunk, without
from trimtab.spark.known_rows import MAX_ROWS, KnownRows
from trimtab.spark.load_plan import LoadFailed, LoadPlan, OutOfReach, StagedPart
from trimtab.spark.rejecting import RejectFiles, name_of
from trimtab.spark.sending import Connect, Sending
from trimtab.storage import sst

Progress = Callable[[int, int], None]  # rows and bytes that were staged since it was called last
Aside = Callable[[Any], None]  # takes a table of what can't be loaded, with reasons
Read = Callable[[Aside], Iterable[Any]]


def stage(
    plan: LoadPlan,
    read: Read,
    attempt: str,
    *,
    tls: ssl.SSLContext | None = None,
    fresh_ticket: Callable[[], bytes] | None = None,
    trusted: bool = True,
    progress: Progress | None = None,
    connect: Connect | None = None,
) -> StagedPart:
    """Stage the rows of the batches that `read` gives, as attempt `attempt`, which nobody else is called.

    `read` may put aside what it can't make rows of. `trusted`: texts are UTF-8 for certain. OutOfReach: too few
    replicas could be reached; another attempt may do better.
    """
    rejects = RejectFiles(plan.rejected, name_of(plan.table.full_name, plan.id), attempt)
    rows = 0
    try:
        with (
            without_collector(),
            Sending(plan, tls=tls, fresh_ticket=fresh_ticket, connect=connect) as sending,
        ):
            runs = _Runs(plan, attempt, sending, progress)
            known = KnownRows(runs.layout, plan.compare_rows or MAX_ROWS)
            for chunk, more in chunks(read(rejects.add), plan.chunk_rows, plan.chunk_bytes):
                encoded = encode_chunk(runs.layout, chunk, plan, trusted=trusted)
                encoded = without(runs.layout, encoded, known.conflicts(encoded), plan)
                if more or plan.compare_rows:
                    known.remember(encoded)
                if encoded.rejected is not None:
                    rejects.add(encoded.rejected)
                if encoded.rows is not None:
                    runs.write(encoded.rows)
                rows += encoded.taken.num_rows
            files = sending.finish()
            missing = dict(sending.missing)
            prints = known.to_bytes() if plan.compare_rows else b""
        rejected_files = rejects.close()
    except LoadFailed as error:
        with contextlib.suppress(LoadFailed):
            rejects.close()
        if isinstance(error, OutOfReach):
            raise
        return StagedPart(attempt, failed=str(error), again=error.again)
    return StagedPart(
        attempt,
        files,
        rows=rows,
        size_bytes=sum(each.file.size_bytes for each in files),
        rejected=rejects.rows,
        rejected_files=rejected_files,
        missing=missing,
        prints=prints,
    )


class _Runs:
    """Writes the runs of one attempt, numbered, and has them sent."""

    def __init__(self, plan: LoadPlan, attempt: str, sending: Sending, progress: Progress | None) -> None:
        self.layout = RowLayout(plan.table, plan.types)
        self._plan, self._attempt = plan, attempt
        self._sending, self._progress = sending, progress
        self._chunk = 0

    def write(self, rows: Any) -> None:
        for tablet, part in rows.by_tablet(len(self._plan.replicas)):
            name = f"{self._attempt}-{self._chunk}.sst"
            run = Pieces()
            sst.write_table(run, part)
            self._sending.send(run, tablet, name, len(part))
            if self._progress is not None:
                self._progress(len(part), run.size_bytes)
        self._chunk += 1


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Encoding makes millions of objects and no cycles; looking for those takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
