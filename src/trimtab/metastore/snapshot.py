r"""A metastore's whole state as a stream of checked chunks, and back.

    chunk     version, kind, snapshot's identity, sequence, CRC of all the rest, payload
    header    chunk 0: msgpack of `Header`
    pairs     chunks 1..n: one stream of (key length, value length, key, value), cut every `chunk_bytes`
    trailer   chunk n+1: msgpack of `Trailer`: how many pairs and bytes, and the CRC of the whole stream

The stream is cut without regard to pairs, so a chunk is never larger than asked for, however large a value is. The
exporter reads a store that nobody writes to (a checkpoint): the same chunk is the same bytes whenever it is asked for.

The importer takes chunks in order into a store that was empty. Each chunk's pairs are written in one batch together
with how far the import has come, so after a crash it goes on behind the last chunk that survived. Until the trailer
fits, the store is marked as incomplete and no metastore opens it. Chunks of two exports never mix: every chunk
carries the identity of its header, and the trailer's CRC covers the order and content of everything.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from hashlib import blake2b
from struct import Struct as Packed
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from trimtab.metastore.errors import MetastoreError, SnapshotRefused
from trimtab.metastore.layout import CONF_KEY, IMPORT_KEY, STATE_KEY, State, check_format, unpack_state
from trimtab.metastore.limits import MAX_COMMAND_BYTES
from trimtab.metastore.store import OrderedStore

VERSION = 1
DEFAULT_CHUNK_BYTES = 256 * 1024
MIN_CHUNK_BYTES = 64
MAX_CHUNK_BYTES = 8 * 1024 * 1024
_HEADER, _PAIRS, _TRAILER = 0, 1, 2
_IDENTITY_BYTES = 8
_CHUNK = Packed(f">BB{_IDENTITY_BYTES}sII")  # version, kind, identity, sequence, CRC
_PAIR = Packed(">II")
# No stored pair comes near this; a length beyond it is damage, not a reason to allocate.
_MAX_PAIR_BYTES = 4 * MAX_COMMAND_BYTES

_RESTART = "start the transfer again from the beginning, into an empty store"


class Header(Struct, frozen=True, array_like=True):
    format: int
    chunk_bytes: int
    applied_index: int
    applied_term: int
    revision: int
    checksum: bytes
    conf: bytes | None
    nonce: bytes  # distinguishes exports of one state, whose unpurged history may differ


class Trailer(Struct, frozen=True, array_like=True):
    pairs: int
    stream_bytes: int
    stream_crc: int


class _Progress(Struct, frozen=True, array_like=True):
    """What an importer must remember: written with every chunk."""

    header: Header
    identity: bytes
    next_sequence: int
    pairs: int
    stream_bytes: int
    stream_crc: int
    rest: bytes  # the beginning of a pair whose end is in a later chunk


_encode = msgspec.msgpack.Encoder().encode
T = TypeVar("T")


def _chunk(kind: int, identity: bytes, sequence: int, payload: bytes) -> bytes:
    head = _CHUNK.pack(VERSION, kind, identity, sequence, 0)
    return _CHUNK.pack(VERSION, kind, identity, sequence, zlib.crc32(payload, zlib.crc32(head))) + payload


class SnapshotExport:
    """The chunks of one frozen store, in order or again. Chunks that are asked for in order cost one pass in all."""

    def __init__(self, store: OrderedStore, *, chunk_bytes: int = DEFAULT_CHUNK_BYTES, nonce: bytes = b"") -> None:
        if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
            raise MetastoreError(f"chunks have {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES} bytes, not {chunk_bytes}")
        self._store = store
        if not check_format(store):
            raise MetastoreError("there is no snapshot of an empty store; bootstrap or apply first")
        state = unpack_state(store.get(STATE_KEY) or b"")
        self.header = Header(
            VERSION,
            chunk_bytes,
            state.applied_index,
            state.applied_term,
            state.revision,
            state.checksum,
            store.get(CONF_KEY),
            nonce,
        )
        self._chunks = self._produce()
        self._made = -1
        self._last = b""

    def __iter__(self) -> Iterator[bytes]:
        return self._produce()

    def chunk(self, sequence: int) -> bytes | None:
        """Chunk number `sequence`, from 0; None past the last. Going back starts another pass."""
        if sequence < self._made:
            self._chunks, self._made = self._produce(), -1
        while self._made < sequence:
            made = next(self._chunks, None)
            if made is None:
                return None
            self._last = made
            self._made += 1
        return self._last

    def _produce(self) -> Iterator[bytes]:
        encoded = _encode(self.header)
        identity = blake2b(encoded, digest_size=_IDENTITY_BYTES).digest()
        yield _chunk(_HEADER, identity, 0, encoded)
        sequence, pairs, stream_bytes, crc = 0, 0, 0, 0
        # Payload and envelope together stay within chunk_bytes.
        room = self.header.chunk_bytes - _CHUNK.size
        pending = bytearray()
        for key, value in self._store.scan(b"", None):
            pairs += 1
            pending += _PAIR.pack(len(key), len(value))
            pending += key
            pending += value
            while len(pending) >= room:
                payload = bytes(pending[:room])
                del pending[:room]
                sequence += 1
                stream_bytes += len(payload)
                crc = zlib.crc32(payload, crc)
                yield _chunk(_PAIRS, identity, sequence, payload)
        if pending:
            payload = bytes(pending)
            sequence += 1
            stream_bytes += len(payload)
            crc = zlib.crc32(payload, crc)
            yield _chunk(_PAIRS, identity, sequence, payload)
        yield _chunk(_TRAILER, identity, sequence + 1, _encode(Trailer(pairs, stream_bytes, crc)))


class SnapshotImport:
    """Receives one snapshot into a store, chunk by chunk."""

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        self._done = False
        self._progress: _Progress | None = None
        found = store.get(IMPORT_KEY)
        if found is not None:
            self._progress = _decode(found, _Progress, "the record of an earlier import", restart=True)
        elif next(iter(store.scan(b"", None)), None) is not None:
            raise SnapshotRefused("the store to import into is not empty", "give an empty store", restart=True)

    @property
    def next_sequence(self) -> int:
        """The chunk to send next. Earlier ones are here already, also after a restart."""
        return 0 if self._progress is None else self._progress.next_sequence

    @property
    def header(self) -> Header | None:
        return None if self._progress is None else self._progress.header

    @property
    def done(self) -> bool:
        """Complete and checked: the store holds a metastore now."""
        return self._done

    def accept(self, chunk: bytes) -> bool:
        """Take the next chunk. True when it was the last and everything fits.

        A refused chunk changes nothing: unless the refusal says that only a restart helps, send it again.
        """
        if self._done:
            raise SnapshotRefused("this snapshot is complete already", "send no more chunks", restart=False)
        if len(chunk) < _CHUNK.size or len(chunk) > MAX_CHUNK_BYTES + _CHUNK.size:
            raise SnapshotRefused(f"{len(chunk)} bytes are no chunk", "send the whole chunk again", restart=False)
        version, kind, identity, sequence, crc = _CHUNK.unpack_from(chunk)
        if version != VERSION:
            raise SnapshotRefused(
                f"chunk format {version} is unknown, this member reads {VERSION}",
                "send it from a member of a version that this one knows",
                restart=True,
            )
        payload = chunk[_CHUNK.size :]
        if zlib.crc32(payload, zlib.crc32(_CHUNK.pack(version, kind, identity, sequence, 0))) != crc:
            raise SnapshotRefused(
                f"chunk {sequence} fails its CRC", f"send chunk {self.next_sequence} again", restart=False
            )
        progress = self._progress
        if progress is not None and identity != progress.identity:
            raise SnapshotRefused(
                f"chunk {sequence} belongs to another snapshot than the {progress.next_sequence} chunks before it",
                f"go on with the same export, or {_RESTART}",
                restart=True,
            )
        if sequence != self.next_sequence:
            raise SnapshotRefused(
                f"chunk {sequence} arrived where chunk {self.next_sequence} was expected",
                f"send chunk {self.next_sequence}",
                restart=False,
            )
        if progress is None or kind == _HEADER:
            self._begin(kind, identity, payload)
        elif kind == _PAIRS:
            self._pairs(progress, payload)
        elif kind == _TRAILER:
            self._finish(progress, payload)
        else:
            raise SnapshotRefused(f"chunk {sequence} is of unknown kind {kind}", _RESTART, restart=True)
        return self._done

    def _begin(self, kind: int, identity: bytes, payload: bytes) -> None:
        if kind != _HEADER or self._progress is not None:
            raise SnapshotRefused("a header belongs at the beginning, and only there", _RESTART, restart=True)
        header = _decode(payload, Header, "the header", restart=True)
        if header.format != VERSION:
            raise SnapshotRefused(f"snapshot format {header.format} is unknown", "use another sender", restart=True)
        self._write(self._store.batch(), _Progress(header, identity, 1, 0, 0, 0, b""))

    def _pairs(self, progress: _Progress, payload: bytes) -> None:
        stream = progress.rest + payload
        batch = self._store.batch()
        at, pairs = 0, progress.pairs
        while len(stream) - at >= _PAIR.size:
            key_bytes, value_bytes = _PAIR.unpack_from(stream, at)
            if key_bytes + value_bytes > _MAX_PAIR_BYTES:
                raise SnapshotRefused(f"a pair claims {key_bytes + value_bytes} bytes", _RESTART, restart=True)
            end = at + _PAIR.size + key_bytes + value_bytes
            if end > len(stream):
                break
            key_at = at + _PAIR.size
            key = stream[key_at : key_at + key_bytes]
            if key == IMPORT_KEY:
                raise SnapshotRefused("it was made of an incomplete store", "use another sender", restart=True)
            batch.put(key, stream[key_at + key_bytes : end])
            pairs += 1
            at = end
        after = _Progress(
            progress.header,
            progress.identity,
            progress.next_sequence + 1,
            pairs,
            progress.stream_bytes + len(payload),
            zlib.crc32(payload, progress.stream_crc),
            stream[at:],
        )
        self._write(batch, after)

    def _finish(self, progress: _Progress, payload: bytes) -> None:
        trailer = _decode(payload, Trailer, "the trailer", restart=True)
        got = Trailer(progress.pairs, progress.stream_bytes, progress.stream_crc)
        if progress.rest or got != trailer:
            raise SnapshotRefused(f"the trailer says {trailer}, received was {got}", _RESTART, restart=True)
        found = self._store.get(STATE_KEY)
        state = unpack_state(found) if found is not None else State()
        header = progress.header
        if (state.applied_index, state.applied_term, state.revision, state.checksum, self._store.get(CONF_KEY)) != (
            header.applied_index,
            header.applied_term,
            header.revision,
            header.checksum,
            header.conf,
        ):
            raise SnapshotRefused("its content is not at the index and revision of its header", _RESTART, restart=True)
        batch = self._store.batch()
        batch.delete(IMPORT_KEY)
        self._store.write(batch)
        self._done = True

    def _write(self, batch: Any, progress: _Progress) -> None:
        """A batch and how far it brings the import, together; believed only once it is written."""
        batch.put(IMPORT_KEY, _encode(progress))
        self._store.write(batch)
        self._progress = progress


def _decode(data: bytes, kind: type[T], what: str, *, restart: bool) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as reason:
        raise SnapshotRefused(f"{what} can't be read ({reason})", _RESTART, restart=restart) from None
