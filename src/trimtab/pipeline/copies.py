"""What a task that copies replicas is told, and what it says: plain values.

    Source      one replica's snapshot: where its files lie, how to fetch them, and how the replica stood
    Carry       one copy: from its sources to `staging/<session>/<tablet>/` of its target
    Carried     what became of it; `code` says why there is no copy, for programs

Names of staged files are `<stream>.<file>`, where `<stream>` tells one snapshot from another: files of two never mix.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SMALL_BYTES = 1 << 20  # a replica of less is sent as one run, together with others
MANIFEST = "manifest.json"

NO_SESSION = "no_session"  # it was closed meanwhile: nobody wants the copy any more
SOURCE_GONE = "source_gone"
TARGET_GONE = "target_gone"
DISK_FULL = "disk_full"
NOT_READY = "not_ready"
DAMAGED = "damaged"
FAILED = "failed"


@dataclass(frozen=True)
class Source:
    """`directory` is where the instance keeps its data; `path` and `files` (name, bytes) are below it."""

    raft_id: int
    name: str
    snapshot: str
    directory: str
    proof: str
    path: str
    files: tuple[tuple[str, int], ...]
    bulk_address: str
    ticket: bytes
    generation: int
    adopted: int
    repaired_through_ms: int
    forgot_us: int

    @property
    def size_bytes(self) -> int:
        return sum(size_bytes for _, size_bytes in self.files)


@dataclass(frozen=True)
class Carry:
    """`number` is the copy's place in its job."""

    number: int
    table: str
    tablet: int
    target: int
    target_name: str
    session: str
    ticket: bytes
    address: str
    sources: tuple[Source, ...]

    @property
    def size_bytes(self) -> int:
        """About what is going to be sent: replicas that are merged have most of their rows in common."""
        return max(source.size_bytes for source in self.sources)

    @property
    def as_it_is(self) -> bool:
        """Whether all files are sent as they lie."""
        return len(self.sources) == 1 and self.size_bytes > SMALL_BYTES

    @property
    def stream(self) -> str:
        """The same for every attempt at the same snapshots."""
        if self.as_it_is:
            return self.sources[0].proof[:12]
        proofs = "/".join(sorted(source.proof for source in self.sources))
        return "m" + hashlib.blake2b(proofs.encode(), digest_size=6).hexdigest()

    def manifest(self, files: list[dict[str, object]]) -> dict[str, object]:
        """What the last file says. A merge has as much for certain as the least of its sources."""
        return {
            "stream": self.stream,
            "tablet": self.tablet,
            "sources": [source.raft_id for source in self.sources],
            "kind": "copy" if self.as_it_is else "merge",
            "generation": self.sources[0].generation,
            "epoch": min(source.adopted for source in self.sources),
            "repaired_through_ms": min(source.repaired_through_ms for source in self.sources),
            "forgot_us": max(source.forgot_us for source in self.sources),
            "files": files,
        }


@dataclass(frozen=True)
class Carried:
    """`size_bytes` of the copy, `sent_bytes` of them now: the rest was there already."""

    number: int
    tablet: int
    target: int
    code: str = ""
    text: str = ""
    manifest: str = ""
    files: int = 0
    size_bytes: int = 0
    sent_bytes: int = 0
