"""Copies of replicas that were staged here for a move: which are whole, whether their files are what was sent.

    staging/<session>/<tablet>/<stream>.<file>             a file of a copy
    staging/<session>/<tablet>/<stream>.manifest.json      which files make it up; it comes last

A stream is one attempt, from one set of snapshots: files of two never mix. Without its manifest it is not whole. The
checksums in the manifest were computed where the files came from, so nothing is used before it was read here and found
to be the same: whatever wrote it, and whatever the disk did with it since.
"""

from __future__ import annotations

import msgspec

from trimtab.node.answering import Refused
from trimtab.node.replicas.staging import ROOT, path_of
from trimtab.storage.port import Disk, StorageError, check_file_name

MANIFEST = ".manifest.json"
COPY, MERGE = "copy", "merge"
NO_COPY = "no_copy"
STALE_COPY = "stale_copy"
DAMAGED = "damaged"


class CopiedFile(msgspec.Struct, frozen=True):
    """`name` is what it is called here, `file` what it is called in the store that it is of."""

    name: str
    file: str
    bytes: int
    checksum: int


class Manifest(msgspec.Struct, frozen=True):
    """`epoch`: loads up to there are in it for certain.

    How far the sources were repaired (the least of them), and what they had folded (the latest), where that is told.
    """

    stream: str
    tablet: int
    kind: str
    generation: int
    files: list[CopiedFile]
    epoch: int = 0
    sources: list[int] = []
    repaired_through_ms: int = 0
    forgot_us: int = 0

    def links(self, session: str) -> dict[str, str]:
        """Where each file of the store lies."""
        return {file.file: path_of(session, self.tablet, file.name) for file in self.files}

    @property
    def size_bytes(self) -> int:
        return sum(file.bytes for file in self.files)


_decode = msgspec.json.Decoder(Manifest).decode


def staged_names(disk: Disk, session: str, tablet: int) -> frozenset[str]:
    """The manifests that lie here. Not for the loop."""
    entries = disk.entries(f"{ROOT}/{session}/{tablet}")
    return frozenset(name for name in entries if name.endswith(MANIFEST) and not name.startswith("."))


def staged_manifests(disk: Disk, session: str, tablet: int) -> list[Manifest]:
    """Of all streams that are whole. One that can't be read counts for nothing, and is removed. Not for the loop."""
    found = []
    for name in sorted(staged_names(disk, session, tablet)):
        path, stream = path_of(session, tablet, name), name.removesuffix(MANIFEST)
        manifest = _parsed(disk.read_file(path), stream, tablet)
        if manifest is None:
            remove_stream(disk, session, tablet, stream)
        else:
            found.append(manifest)
    return found


def _parsed(data: bytes | None, stream: str, tablet: int) -> Manifest | None:
    try:
        manifest = _decode(data or b"")
        if (manifest.stream, manifest.tablet) != (stream, tablet) or manifest.kind not in (COPY, MERGE):
            return None
        for file in manifest.files:
            check_file_name(file.name)
            check_file_name(file.file)
            if not file.name.startswith(f"{stream}."):
                return None
    except (msgspec.DecodeError, StorageError):
        return None
    return manifest


def choose(manifests: list[Manifest], generation: int, epoch: int) -> Manifest:
    """The one to take over, of a generation and with loads up to an epoch. Refused: there is none."""
    if not manifests:
        raise Refused(NO_COPY, "no whole copy is staged here")
    fresh = [manifest for manifest in manifests if manifest.generation == generation and manifest.epoch >= epoch]
    if not fresh:
        newest = max(manifests, key=_age)
        raise Refused(
            STALE_COPY,
            f"the copy that is staged is of generation {newest.generation} and has loads up to epoch {newest.epoch}; "
            f"generation {generation} and epoch {epoch} are needed",
        )
    return max(fresh, key=_age)


def _age(manifest: Manifest) -> tuple[int, int, str]:
    return manifest.generation, manifest.epoch, manifest.stream


def wrong_file(disk: Disk, session: str, manifest: Manifest) -> str:
    """Which file is not what was sent, and how; empty: all are. Reads everything: not for the loop."""
    for file in manifest.files:
        path = path_of(session, manifest.tablet, file.name)
        found = disk.digest(path)
        if found is None:
            return f"{path} is missing"
        if found[0] != file.bytes:
            return f"{path} has {found[0]} bytes instead of {file.bytes}"
        if found[1] != file.checksum:
            return f"{path} has the checksum {found[1]:016x} instead of {file.checksum:016x}"
    return ""


def remove_stream(disk: Disk, session: str, tablet: int, stream: str) -> None:
    """All its files; the manifest first, so that it is never taken for whole. Not for the loop."""
    folder = f"{ROOT}/{session}/{tablet}"
    names = [name for name in disk.entries(folder) if name.partition(".")[0] == stream]
    for name in sorted(names, key=lambda name: not name.endswith(MANIFEST)):
        disk.remove(f"{folder}/{name}")
