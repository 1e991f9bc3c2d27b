"""Places between rows: they sort where they should, and keep what they say."""

from __future__ import annotations

import random

from tests.unit.rows.cells import random_cell
from tests.unit.rows.tables import KEY_TYPES, USER_TYPES, table

from trimtab.rows import keys
from trimtab.rows.layout import RowLayout
from trimtab.rows.resuming import begins_whole, ends_whole, moved, stopped_at


def test_places_lie_between_the_versions_of_two_rows_and_tell_whether_they_are_bare() -> None:
    rng = random.Random(5)
    for text in KEY_TYPES:
        layout = RowLayout(table(["int"], [f"{text} desc", text]), USER_TYPES)
        prefix = keys.partition_prefix(layout, [bytes(4)])
        rows = sorted(
            {
                keys.row_in(layout, prefix, [random_cell(rng, each.type) for each in layout.clustering])
                for _ in range(12)
            }
        )
        for at, row in enumerate(rows):
            for bare in (False, True):
                place = stopped_at(row, bare=bare, reverse=False)
                assert row + b"\xff" * keys.TAIL < place
                assert at + 1 == len(rows) or place < rows[at + 1]
                assert begins_whole(layout, prefix, place) is bare
                assert begins_whole(layout, prefix, moved(layout, place, bare=not bare, reverse=False)) is not bare
                back = stopped_at(row, bare=bare, reverse=True)
                assert back <= row + bytes(keys.TAIL)
                assert at == 0 or back > rows[at - 1] + b"\xff" * keys.TAIL
                assert ends_whole(layout, prefix, back) is bare
                assert ends_whole(layout, prefix, moved(layout, back, bare=not bare, reverse=True)) is not bare
            assert moved(layout, row, bare=True, reverse=False) == row
        assert begins_whole(layout, prefix, prefix + keys.ROWS)
        assert not begins_whole(layout, prefix, prefix + keys.ROWS + b"\x00")
        assert ends_whole(layout, prefix, prefix + keys.AFTER_ROWS)
