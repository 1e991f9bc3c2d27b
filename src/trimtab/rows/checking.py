"""Pairs that come from elsewhere, looked at before they are stored: nothing is kept that could not be read again."""

from __future__ import annotations

from trimtab.rows import keys
from trimtab.rows.deletions import partition_deletion, range_deletion
from trimtab.rows.errors import BadRow
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import merge_versions
from trimtab.rows.protocol import Pairs
from trimtab.rows.tokens import token_of_cells, token_of_key


def check_pairs(layout: RowLayout, pairs: Pairs) -> None:
    """BadRow unless every pair is a version of a row of this table, or a deletion, byte for byte as it was made."""
    if len(pairs) % 2:
        raise BadRow(f"{len(pairs)} parts of pairs for {layout.name}: a key has no value")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        keys.check_content(key, value)
        at = len(keys.prefix_of(layout, key))
        section = key[at : at + 1]
        if len(key) < at + 1 + keys.TAIL:
            raise BadRow(f"a key of {layout.name} that ends inside its tail: {key[:64].hex()}")
        partition = keys.key_cells(layout, key[: -keys.TAIL])[: len(layout.partition)]
        if token_of_cells(partition) != token_of_key(key):
            raise BadRow(f"a key of {layout.name} whose token is not that of its partition: {key[:64].hex()}")
        if section == keys.PARTITION_DELETED and len(key) == at + 1 + keys.TAIL:
            partition_deletion(key, value)
        elif section == keys.RANGE_DELETED:
            range_deletion(key, value, at)
        elif section == keys.ROWS or (section == keys.STATIC and len(key) == at + 1 + keys.TAIL):
            merge_versions(layout, [(key, value)], static=section == keys.STATIC)
        else:
            raise BadRow(f"a key of {layout.name} that is none of a row or deletion: {key[:64].hex()}")
