"""What the metastore refuses, in words for the person who reads them: what, where, and what to do."""

from __future__ import annotations


class MetastoreError(Exception):
    """Anything the metastore refuses."""


class InvalidCommand(MetastoreError, ValueError):
    """A command that is malformed or over a limit. `where` is the path inside the command."""

    def __init__(self, what: str, where: str = "command", what_to_do: str = "") -> None:
        self.what = what
        self.where = where
        self.what_to_do = what_to_do
        super().__init__(f"invalid command at {where}: {what}{'; ' + what_to_do if what_to_do else ''}")


class InvalidRequest(MetastoreError, ValueError):
    """A read or a watch with arguments that make no sense."""


class Compacted(MetastoreError):
    """The history at that revision is gone."""

    def __init__(self, requested: int, compacted: int, *, for_watch: bool = False) -> None:
        self.requested = requested
        self.compacted = compacted
        first = compacted + 1 if for_watch else compacted
        do = "read the current state and watch from the revision after it" if for_watch else "read at a newer revision"
        super().__init__(
            f"revision {requested} was compacted: history is kept from revision {first} on "
            f"(compacted up to {compacted}); {do}"
        )


class FutureRevision(MetastoreError):
    """A revision this member has not reached."""

    def __init__(self, requested: int, current: int) -> None:
        self.requested = requested
        self.current = current
        super().__init__(
            f"revision {requested} is in the future of this member, which is at {current}; "
            "retry, ask another member, or make a linearizable read"
        )


class AppliedGap(MetastoreError):
    """Entries that do not continue what was applied: applying them would lose the ones between."""

    def __init__(self, index: int, applied: int) -> None:
        self.index = index
        self.applied = applied
        super().__init__(
            f"entry {index} does not follow the applied index {applied}; "
            f"apply from entry {applied + 1} on, or install a snapshot"
        )


class UnknownFormat(MetastoreError):
    """The store was written by a version this code can't read, or is no metastore."""


class DamagedStore(MetastoreError):
    """The store breaks an invariant of its layout. Never repaired silently."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the metastore's store is damaged: {what}; do not use this copy: remove the member from the cluster, "
            "empty its data directory, and start and add it under a new raft id"
        )


class SnapshotRefused(MetastoreError):
    """A chunk or a whole snapshot that fails its checks. `restart` says whether only a new transfer can help."""

    def __init__(self, what: str, what_to_do: str, *, restart: bool) -> None:
        self.restart = restart
        super().__init__(f"snapshot refused: {what}; {what_to_do}")
