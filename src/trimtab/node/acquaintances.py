"""Whom this member has met: the data directory behind each raft id, and which ids were removed for good.

A raft id stands for promises, votes and acknowledgements, that are kept in one data directory. An empty directory under
the same id has broken them all, and nothing in Raft would notice:

    1 and 2 acknowledge W while 3 is down; 1 and 2 die, and 2's directory is lost.
    2 and 3 start: a majority, neither of which has ever heard of W.

So every data directory has a random id of its own, which its instance says in each hello, and every member remembers
which one it has met behind a raft id. Where the metastore has a record of the member, that says which directory it is;
this memory is for those it has no record of. It is on disk before anything that member says counts here. Another
directory behind the same raft id is refused from then on, whatever it says.

That is no more than a memory: who never talked to a member can't tell its new directory from its first, and a directory
set back to an older copy keeps its id.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from trimtab.storage.port import Corrupt, Disk, StorageError

PEERS_FILE = "peers.json"


class Peers(msgspec.Struct):
    """What `peers.json` holds: data ids by raft id, and the raft ids that are never used again."""

    data_ids: dict[int, str] = {}
    removed: list[int] = []


class LostData(Exception):
    """This instance started with an empty directory under a raft id that has promised something before."""


def lost_data(raft_id: int) -> str:
    """What a member with a new directory is told, and knows itself by."""
    return (
        f"member {raft_id} has lost its data (its directory is new); it must not vote again: "
        "remove it, and start it with an empty directory to join under a new raft id"
    )


def was_removed(raft_id: int) -> str:
    """What a removed member is told, and knows itself by."""
    return f"member {raft_id} was removed from this cluster"


class Acquaintances:
    """The memory of one member. Ids are only noted for members of the configuration, so it stays small."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        stored = disk.read_file(PEERS_FILE)
        try:
            self._peers = Peers() if stored is None else msgspec.json.decode(stored, type=Peers)
        except msgspec.DecodeError as error:
            raise Corrupt(PEERS_FILE, f"it is not readable: {error}") from error
        self.data_ids = self._peers.data_ids
        self.removed = set(self._peers.removed)

    def meet(self, raft_id: int, data_id: str) -> str | None:
        """Take note of who is behind a raft id; why not, when it is another than before or can't be written down."""
        known = self.data_ids.get(raft_id)
        if known is not None:
            return None if known == data_id else lost_data(raft_id)
        self.data_ids[raft_id] = data_id
        try:
            self._write()
        except StorageError as error:
            del self.data_ids[raft_id]
            return f"member {raft_id} is new here and can't be noted: {error}"
        return None

    def note_removed(self, raft_ids: Iterable[int]) -> None:
        """These ids left the configuration. StorageError: it is known in this life only, until the next change."""
        self.removed.update(raft_ids)
        self._write()

    def _write(self) -> None:
        self._peers.removed = sorted(self.removed)
        self._disk.write_file(PEERS_FILE, msgspec.json.encode(self._peers))
