"""A copy takes the place of an arriving replica's store. A crash anywhere leaves the one or the other, and says which.

    arriving/<table id>-<tablet>.<generation>/       the copy: links to its files, before it is in its place
    arriving/<table id>-<tablet>.<generation>-old/   the store that was there
    x <table u64> <tablet u32> <generation u32>      in the log's store: they are being exchanged; and whether there was
                                                     a store, or the replica was in memory

    1  the copy is linked                           5  what the replica has taken meanwhile is put in, and its
    2  what is synced for the replica waits            own record, position and marker in place of the source's
    3  x is durable                                 6  all of that is in files; or, where it was in memory before, the
    4  old one, if there is one, aside; copy in        log's store has it (`unfiled`), and goes on to have the rows
       its place, and opened                        7  x is gone, durably; the copy is the replica
                                                    8  the old one is removed

A start that finds x puts back what was there, a store or nothing: it holds, together with the log, everything that was
acknowledged, and the copy is taken over once more. Without x whatever lies under `arriving/` is of no use any more, and
is removed.

A replica that was in memory, which is the usual case, need not be in files for the copy to become it: what it has taken
is in the log, from where a start takes it again, and its record in the same step in which x goes. To flush, and then to
merge, a table of a few rows made two files and some seven syncs for each tablet that moved.

The replica stays the incarnation that it was, so its entries of the log go on to count. What it has taken is little,
as a rule; where it is much, most of it is put in before writes have to wait (`_pour`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from trimtab.node import failpoints
from trimtab.node.answering import Refused
from trimtab.node.replicas.replaying import replay
from trimtab.node.replicas.replica import Replica
from trimtab.node.replicas.replica_files import Name, Place, ReplicaFiles, open_store
from trimtab.node.replicas.replica_meta import FIRST_KEY, ReplicaMeta, ReplicaState, read_meta, read_position
from trimtab.node.replicas.unfiled import Unfiled
from trimtab.node.replicas.waiting import flushed, off_loop, outcome, recorded
from trimtab.storage.late_store import LateStore
from trimtab.storage.mutation_log import MutationLog
from trimtab.storage.port import Corrupt, Disk, StorageError, Store

ROOT = "arriving"
# So much is put in while writes wait.
FEW_BYTES = 1 << 20
_SLICE_PAIRS = 500
_MAX_PASSES = 8  # over what comes while most of it is put in
_IN_MEMORY = b"memory"


def linked_path(name: Name) -> str:
    return f"{ROOT}/{name.table}-{name.tablet}.{name.generation}"


def old_path(name: Name) -> str:
    return f"{linked_path(name)}-old"


class Swaps:
    """Of one node."""

    def __init__(
        self,
        disk: Disk,
        log: MutationLog,
        files: ReplicaFiles,
        *,
        name: str = "",
        few_bytes: int = FEW_BYTES,
        fatal: Callable[[BaseException], None],
        complain: Callable[[str], None],
    ) -> None:
        self._disk = disk
        self._log = log
        self._files = files
        self._name = name
        self._few_bytes = few_bytes
        self._fatal = fatal
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self._records = log.records(b"x")

    async def settle(self) -> None:
        """At a start, before any replica is opened: undo what was under way, and sweep."""
        found = {Name.unpack(key): value == _IN_MEMORY for key, value in self._records.scan()}
        await off_loop(self._disk, partial(self._settle, found))
        for name in found:
            self._records.delete(name.record)

    def _settle(self, found: Mapping[Name, bool]) -> None:
        for name, in_memory in found.items():
            _put_back(self._disk, name, in_memory=in_memory)
        self._disk.remove(ROOT)

    async def link(self, name: Name, files: Mapping[str, str]) -> None:
        """Make the copy of files that lie here under other names; StorageError.

        An earlier exchange whose old store could not be removed has left it. Once x is written again that would be what
        is put back, in place of what was acknowledged since: it goes first, or nothing is exchanged.
        """

        def assemble() -> None:
            self._disk.remove(old_path(name))
            self._disk.remove(linked_path(name))
            self._disk.assemble(linked_path(name), files)

        await off_loop(self._disk, assemble)

    async def unlink(self, name: Name) -> None:
        """The copy is not taken over after all."""
        await self._remove(linked_path(name))

    async def _remove(self, path: str) -> None:
        """Of no use any more; it is complained of where that fails, and swept at the next start."""
        try:
            await off_loop(self._disk, partial(self._disk.remove, path))
        except StorageError as error:
            self._complain(f"{path} could not be removed: {error}")

    def remove_traces(self, places: Iterable[Place]) -> None:
        """Whatever attempts left of these tablets; not on the loop."""
        of = {f"{table}-{tablet}" for table, tablet in places}
        for entry in self._disk.entries(ROOT):
            if entry.partition(".")[0] in of:
                self._disk.remove(f"{ROOT}/{entry}")

    async def swap(self, replica: Replica, epoch: int, allowed: Callable[[], object]) -> None:
        """The copy that was linked becomes the replica, which is OPEN then. Refused, StorageError: it is as it was.

        `epoch`: the loads that the copy has. `allowed` raises Refused if it must not be taken over any more; it is
        asked at the last moment, not on the loop.
        """
        name = Name.of(replica)
        poured = await self._pour(replica, name) if replica.held_bytes > self._few_bytes else None
        try:
            while replica.flushing:
                await outcome(replica.flush)
            if replica.closed or replica.held or replica.stalled or (poured and poured[1] != replica.ingested):
                raise Refused("not_ready", f"the replica of {replica.title} can't be exchanged now; try again")
            replica.hold()
            try:
                await self._exchange(replica, name, epoch, poured[0] if poured else None, allowed)
            finally:
                if not replica.swapping:
                    replica.release()
        finally:
            replica.pinned = None
        # Only now, and by nobody else: as long as there is a record it is what a start goes back to.
        await self._remove(old_path(name))

    async def _pour(self, replica: Replica, name: Name) -> tuple[int, int]:
        """Put what the replica holds into the copy; up to which position, and how often it had taken over files.

        Much may come while that lasts. All of it would be read in one step, with the writers of every replica waiting;
        so it is put in too, and what comes meanwhile, until the log has grown by little since, whoever's that is.
        """
        position, ingested, seen_bytes = replica.position, replica.ingested, self._log.appended_bytes
        replica.pinned = position
        pairs = replica.scan(b"", None)
        try:
            opening = partial(open_store, self._disk, linked_path(name), resting=False)
            store = await off_loop(self._disk, opening, unwanted=_close)
            try:
                await self._put(store, pairs)
                await flushed(store)
                for _ in range(_MAX_PASSES):
                    if self._log.appended_bytes - seen_bytes <= self._few_bytes:
                        break
                    reached, seen_bytes = self._log.applied_position, self._log.appended_bytes
                    await self._put(store, self._logged(replica, position))
                    await flushed(store)
                    position = replica.pinned = reached
            finally:
                await off_loop(self._disk, store.close)
        except BaseException:
            replica.pinned = None
            raise
        return position, ingested

    async def _exchange(
        self, replica: Replica, name: Name, epoch: int, poured: int | None, allowed: Callable[[], object]
    ) -> None:
        # The store is closed in a moment: what it holds is read before.
        pairs = list(replica.scan(b"", None) if poured is None else self._logged(replica, poured))
        position, adopted = replica.position, max(replica.adopted, epoch)
        old, began = replica.store, False
        in_memory = isinstance(old, LateStore) and old.in_memory
        # All that it has taken is in the log, from here on.
        logged_from = replica.needed_from if in_memory and poured is None else None

        def exchange() -> Store:
            nonlocal began
            allowed()
            began = True
            old.close()
            if in_memory:
                self._disk.remove(name.path)  # half made, if there is anything
            else:
                self._disk.rename(name.path, old_path(name))
            self._disk.rename(linked_path(name), name.path)
            return open_store(self._disk, name.path)

        # Nothing has been waited for since it is held: nobody brings it into files from here on.
        replica.begin_swap()
        opened: Store | None = None
        try:
            await recorded(self._records, name.record, _IN_MEMORY if in_memory else b"")
            failpoints.hit("moves.adopt.recorded", self._name)
            if replica.closed:
                raise Refused("not_ready", f"the replica of {replica.title} was closed; try again")
            opened = await off_loop(self._disk, exchange, unwanted=_close)
            meta = _record_of(replica, opened, name)
            await self._put(opened, pairs)
            Unfiled(meta, position, adopted).put_into(opened)
            if logged_from is None:
                await flushed(opened)
                failpoints.hit("moves.adopt.swapped", self._name)
                await self._forget(name)
                self._files.has_files(name)
                store = opened
            else:
                unfiled = Unfiled(meta, logged_from, adopted)
                failpoints.hit("moves.adopt.swapped", self._name)
                self._files.note_copied(name, unfiled)
                await self._forget(name)
                store = self._files.copied(name, opened, unfiled)
        except Exception as error:
            if not began:
                replica.swapping = False
                # Whatever it takes, or brings into files, comes after this in the log.
                self._records.delete(name.record)
                raise
            try:
                await self._undo(replica, name, opened, in_memory=in_memory)
            except Exception as failure:
                # Neither store is open. A start puts the old one back.
                self._fatal(failure)
                raise
            if isinstance(error, Corrupt):
                text = f"the copy of {replica.title} can't be used: {error.where}: {error.what}"
                raise Refused("damaged", text) from error
            raise
        replica.end_swap(store, meta, position, logged_from)

    def _logged(self, replica: Replica, after: int) -> Iterator[tuple[bytes, bytes] | None]:
        """What the replica has taken beyond a position; None now and then, where there is much of others between."""
        for _position, _incarnation, pairs in self._log.entries({replica.incarnation: after}):
            if pairs is None:
                yield None
            else:
                yield from (pair for pair in zip(pairs[::2], pairs[1::2], strict=True) if pair[0] >= FIRST_KEY)

    async def _put(self, store: Store, pairs: Iterable[tuple[bytes, bytes] | None]) -> None:
        batch = store.batch()
        for pair in pairs:
            if pair is not None:
                batch.put(*pair)
            if pair is None or len(batch) >= _SLICE_PAIRS:
                if len(batch):
                    store.write(batch)
                    batch = store.batch()
                await asyncio.sleep(0)
        if len(batch):
            store.write(batch)

    async def _undo(self, replica: Replica, name: Name, opened: Store | None, *, in_memory: bool) -> None:
        """Open the old store again, and bring it up to date with the log."""

        def put_back() -> Store:
            if opened is not None:
                opened.close()
            _put_back(self._disk, name, in_memory=in_memory)
            return self._files.open_again(name)

        store = await off_loop(self._disk, put_back, unwanted=_close)
        replica.end_swap(store, replica.meta, read_position(store, name.path))
        await replay(self._log, [replica], self._loop)
        await self._forget(name)

    async def _forget(self, name: Name) -> None:
        """Returns when it is durable that nothing is being exchanged."""
        await outcome(lambda done: self._records.delete(name.record, done))


def _record_of(replica: Replica, store: Store, name: Name) -> ReplicaMeta:
    """The record of the replica once it is whole; Corrupt where the copy is of something else.

    How far it is repaired is the source's word: nobody's repair moves while a copy is under way, and what the source
    had then came with its files. The versions that it had folded are missing here too.
    """
    found, own = read_meta(store, name.path), replica.meta
    if found is None or (found.table, found.tablet, found.generation) != (own.table, own.tablet, own.generation):
        raise Corrupt(name.path, "it is no copy of that replica")
    if found.state is not ReplicaState.OPEN:
        raise Corrupt(name.path, f"it is the copy of a replica that is {found.state.value}")
    return replace(
        own,
        state=ReplicaState.OPEN,
        repaired_through_ms=found.repaired_through_ms,
        forgot_us=max(own.forgot_us, found.forgot_us),
        floor=0,
    )


def _close(store: Store) -> None:
    store.close()


def _put_back(disk: Disk, name: Name, *, in_memory: bool) -> None:
    """Undo an exchange, however far it came."""
    if in_memory:
        disk.remove(name.path)
    elif disk.exists(old_path(name)):
        disk.remove(name.path)
        disk.rename(old_path(name), name.path)
    disk.remove(linked_path(name))
