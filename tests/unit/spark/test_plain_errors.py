"""Errors of ours come without their tracebacks; defects keep them."""

from __future__ import annotations

import traceback

import pytest

from trimtab.client.errors import InvalidRequest
from trimtab.spark.plain_errors import told_plainly


@told_plainly
def wrong(kind: type[Exception]) -> None:
    try:
        {}["here"]
    except KeyError as error:
        raise kind("option ttl: a whole number is expected") from error


def test_what_we_raise_is_told_without_the_way_it_took() -> None:
    with pytest.raises(InvalidRequest) as found:
        wrong(InvalidRequest)
    shown = "".join(traceback.format_exception(found.value))
    assert "InvalidRequest: option ttl: a whole number is expected" in shown
    assert "in wrong" not in shown
    assert "KeyError" not in shown


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError) as found:
        wrong(RuntimeError)
    shown = "".join(traceback.format_exception(found.value))
    assert "in wrong" in shown
    assert "KeyError" in shown
