"""What a replica's files should say of it, and don't yet: its record and position, kept in the log's store meanwhile.

    <session> \\0 <position u64> <record>                it arrives, and has no files: all of it is in memory
    <session> \\1 <position u64> <marker u64> <record>   its files are a copy, and speak of the replica they are from

What the log holds of it beyond the position is needed. It ends with a flush: then its files speak for themselves.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from trimtab.node.replicas.replica_meta import (
    META_KEY,
    POSITION_KEY,
    ReplicaMeta,
    ReplicaState,
    adopted_pair,
    decode_meta,
    encode_meta,
    pack_position,
    read_meta,
)
from trimtab.storage.port import Corrupt, Store

_WHERE = "the mutation log"
_IN_MEMORY, _COPIED = b"\0", b"\1"
_END_OF_SESSION = re.compile(b"([\0\1])")
_NUMBERS = {_IN_MEMORY: struct.Struct(">Q"), _COPIED: struct.Struct(">QQ")}


@dataclass(frozen=True)
class Unfiled:
    """Of one replica. `adopted`: see its marker; of one in memory that is among what it has taken."""

    meta: ReplicaMeta
    position: int
    adopted: int = 0

    @property
    def copied(self) -> bool:
        """Whether it has files, which are a copy."""
        return self.meta.state is not ReplicaState.ARRIVING

    @property
    def pairs(self) -> dict[bytes, bytes]:
        """As its store should have them."""
        found = {META_KEY: encode_meta(self.meta), POSITION_KEY: pack_position(self.position)}
        if self.copied:
            # Also where there is none: the files may have that of another.
            found.update([adopted_pair(self.adopted)])
        return found

    def is_filed(self, store: Store, name: str) -> bool:
        """Whether its files speak of it after all: it was flushed since this was written down."""
        found = read_meta(store, name)
        return found is not None and _whose(found) == _whose(self.meta)

    def put_into(self, store: Store) -> None:
        batch = store.batch()
        for key, value in self.pairs.items():
            batch.put(key, value)
        store.write(batch)

    @property
    def record(self) -> bytes:
        mark, numbers = (_COPIED, (self.position, self.adopted)) if self.copied else (_IN_MEMORY, (self.position,))
        return self.meta.session.encode() + mark + _NUMBERS[mark].pack(*numbers) + encode_meta(self.meta)


def _whose(meta: ReplicaMeta) -> tuple[int, int, str]:
    return meta.log_id, meta.incarnation, meta.session


def parse_record(value: bytes) -> tuple[str, Unfiled | None]:
    """The session that a replica was made for, and what its files don't say. Corrupt: the log's store is damaged."""
    session, *more = _END_OF_SESSION.split(value, maxsplit=1)
    if not more:
        return session.decode(), None
    mark, rest = more
    numbers = _NUMBERS[mark]
    if len(rest) < numbers.size:
        raise Corrupt(_WHERE, "the record of a replica that arrives is cut off")
    return session.decode(), Unfiled(decode_meta(rest[numbers.size :], _WHERE), *numbers.unpack_from(rest))
