"""Rows in the form in which two replicas are compared: merged, in the order of their keys, a slice at a time.

Replicas that were given the same writes hold them in different pieces: in any order, folded or not, with deletions that
one has forgotten already and another has not. Merged they are the same pairs. `forget_ms` is a time up to which both
have forgotten deletions, or may: such deletions are left out (after what they cover), and so they make no difference.

The digest of a range is over keys alone: a key ends with the hash of its value, and two values with one key are one
pair to every replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from trimtab.rows.deletions import NO_COVERS, Covers, Pair, covers_of, written_ms_of
from trimtab.rows.keys import PUT, TAIL, prefix_of
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import Forgetting, canonical, is_canonical, merge_versions, pairs_of
from trimtab.rows.protocol import Pairs
from trimtab.rows.values import NEVER

DIGEST_BYTES = 16
_PARTITION, _RANGE, _STATIC = 0x10, 0x20, 0x30
# The flags of a value without TTL, deleted cells, and cells with stamps of their own: nothing in it is ever forgotten.
_PLAIN = b"\x01"


class Merger:
    """Takes stored pairs in the order of keys; `merged` holds what they come to, as far as that is certain."""

    def __init__(self, layout: RowLayout, forget_ms: int = 0) -> None:
        self._layout = layout
        self._forget = Forgetting(forget_ms)
        self._forgets_elements = {
            True: forget_ms > 0 and layout.static.multicell,
            False: forget_ms > 0 and layout.regular.multicell,
        }
        self._plain = not layout.clustering  # a partition is one row, and nothing but its versions deletes in it
        self._row = b""
        self._versions: list[Pair] = []
        self._prefix = b""
        self._partition: list[Pair] = []
        self._ranges: list[Pair] = []
        self._covers: Covers | None = NO_COVERS
        self._silent = False
        self.merged: list[Pair] = []

    def prime(self, deletions: Iterable[Pair]) -> None:
        """Begin in the middle of a partition: these are the deletions that lie before. They are not given out."""
        self._silent = True
        self.feed(deletions)
        if self._versions:
            self._end_row()
            self._cover()
        self._silent = False

    def feed(self, pairs: Iterable[Pair]) -> None:
        """The next pairs."""
        row, versions = self._row, self._versions
        for pair in pairs:
            found = pair[0][:-TAIL]
            if found != row:
                if versions:
                    self._end_row()
                    versions = self._versions
                self._row = row = found
            versions.append(pair)

    def finish(self) -> None:
        """There is nothing more: what was uncertain is not any longer."""
        if self._versions:
            self._end_row()
        self._end_partition()
        self._row, self._prefix = b"", b""

    def suspend(self) -> bytes:
        """Stop after some pairs: where another one has to begin so that, together, nothing is left out."""
        row = self._row
        if self._plain:
            return row
        if not self._prefix or not row.startswith(self._prefix):
            self._end_partition()
            prefix = prefix_of(self._layout, row + bytes(TAIL))
            return prefix if row[len(prefix)] in (_PARTITION, _RANGE) else row
        # Deletions that were not given out yet are met again.
        return self._prefix if self._covers is None else row

    def take(self) -> list[Pair]:
        """What was merged since the last time."""
        taken, self.merged = self.merged, []
        return taken

    def _end_row(self) -> None:
        versions, self._versions = self._versions, []
        if self._plain:
            self._merge(versions, NEVER, static=False)
            return
        row = self._row
        prefix = self._prefix
        if not prefix or not row.startswith(prefix):
            self._end_partition()
            prefix = self._prefix = prefix_of(self._layout, row + bytes(TAIL))
        at = len(prefix)
        section = row[at]
        if section == _PARTITION:
            self._covers = None
            self._partition.extend(versions)
        elif section == _RANGE:
            self._covers = None
            self._ranges.extend(versions)
        else:
            covers = self._cover()
            static = section == _STATIC
            self._merge(versions, covers.static_us if static else covers.covering(row[at + 1 :]), static=static)

    def _end_partition(self) -> None:
        self._cover()
        if self._covers is not NO_COVERS:
            self._covers = NO_COVERS
            self._partition, self._ranges = [], []

    def _cover(self) -> Covers:
        """What deletes in the partition; given out when it is first asked for."""
        if self._covers is None:
            covers = self._covers = covers_of(self._partition, self._ranges, len(self._prefix))
            if not self._silent:
                pairs, forget = covers.pairs(), self._forget
                self.merged.extend(
                    pair
                    for pair in zip(pairs[::2], pairs[1::2], strict=True)
                    if not forget.deletion(written_ms_of(*pair))
                )
        return self._covers

    def _merge(self, versions: list[Pair], covered_us: int, *, static: bool) -> None:
        layout = self._layout
        if len(versions) == 1:
            key, value = versions[0]
            if (
                key[-9] == PUT
                and value[:1] <= _PLAIN
                and not self._forgets_elements[static]
                and is_canonical(layout, key, value, covered_us, static=static)
            ):
                self.merged.append(versions[0])
                return
        merged = merge_versions(layout, versions, static=static, covered_us=covered_us)
        self._forget.row(merged)
        pairs = pairs_of(layout, versions[0][0][:-TAIL], merged, static=static)
        self.merged.extend(zip(pairs[::2], pairs[1::2], strict=True))


class Digest:
    """Of one range. Empty where the range is."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)
        self.pairs = 0

    def add(self, pairs: Sequence[Pair]) -> None:
        if pairs:
            self.pairs += len(pairs)
            self._hash.update(b"".join([key for key, _ in pairs]))

    def bytes(self) -> bytes:
        return self._hash.digest() if self.pairs else b""


def adds_nothing(layout: RowLayout, own: Sequence[Pair], theirs: Sequence[Pair]) -> bool:
    """Whether a row's versions here say already everything that those of another replica do. Of no deletions."""
    known = {key for key, _ in own}
    if all(key in known for key, _ in theirs):
        return True
    if not own or (layout.clustering and own[0][0][len(prefix_of(layout, own[0][0]))] in (_PARTITION, _RANGE)):
        return False
    static = bool(layout.clustering) and own[0][0][len(prefix_of(layout, own[0][0]))] == _STATIC
    mine = _flat(own)
    return canonical(layout, mine + _flat(theirs), static=static) == canonical(layout, mine, static=static)


def _flat(pairs: Sequence[Pair]) -> Pairs:
    return [part for pair in pairs for part in pair]
