"""Comparing what two replicas hold: digests of ranges, and whether a row from elsewhere says anything new.

Replicas that were given the same writes hold them in different pieces: in any order, folded or not. Merged (`reading`)
they are the same pairs. The digest of a range is over the keys of merged pairs alone: a key ends with the hash of its
value, and two values with one key are one pair to every replica. How it was put together does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from trimtab.rows.deletions import Pair
from trimtab.rows.digests import DIGEST_BYTES
from trimtab.rows.keys import PARTITION_DELETED, RANGE_DELETED, STATIC, prefix_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import canonical
from trimtab.rows.protocol import Pairs


class Digest:
    """Of one range; empty as long as the range is."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self.pairs = 0

    def add(self, keys: Sequence[bytes]) -> None:
        if keys:
            self.pairs += len(keys)
            self._hash.update(b"".join(keys))

    def bytes(self) -> bytes:
        return self._hash.digest() if self.pairs else b""


def adds_nothing(layout: RowLayout, own: Sequence[Pair], theirs: Sequence[Pair]) -> bool:
    """Whether the versions of a row here say already all that those of another replica do."""
    known = {key for key, _ in own}
    if all(key in known for key, _ in theirs):
        return True
    if not own:
        return False
    section = b""
    if layout.clustering:
        at = len(prefix_of(layout, own[0][0]))
        section = own[0][0][at : at + 1]
        if section in (PARTITION_DELETED, RANGE_DELETED):
            return False
    mine, both = _flat(own), _flat([*own, *theirs])
    static = section == STATIC
    return canonical(layout, both, static=static) == canonical(layout, mine, static=static)


def _flat(pairs: Sequence[Pair]) -> Pairs:
    return [part for pair in pairs for part in pair]
