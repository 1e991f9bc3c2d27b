"""The checksum of files: the same however a file comes, another for another file, and known by value."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from trimtab.storage.file_sums import MOST, FileSum, sum_of, sum_of_file


@given(st.lists(st.binary(max_size=50)))
def test_pieces_give_the_sum_of_the_whole(pieces: list[bytes]) -> None:
    found = FileSum()
    for piece in pieces:
        found.add(memoryview(piece))
    whole = b"".join(pieces)
    assert found.value == sum_of(whole) == sum_of_file(io.BytesIO(whole)) <= MOST


def test_a_file_is_summed_from_its_beginning_wherever_it_stands() -> None:
    file = io.BytesIO(b"x" * 3_000_000)
    file.seek(1_000_000)
    assert sum_of_file(file) == sum_of(b"x" * 3_000_000)


def test_it_is_xxh3_without_its_lowest_bit() -> None:
    """Files that were staged by one release are taken over by another."""
    assert sum_of(b"") == 0x2D06800538D394C2 >> 1


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_flipped_bit_is_another_file(content: bytes, data: st.DataObject) -> None:
    place, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(content)
    flipped[place] ^= 1 << bit
    assert sum_of(flipped) != sum_of(content)
