"""The writer of a DataFrame: which load it begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.spark import writing
from trimtab.spark.loading import LoadRequest, LoadRun

GIVEN = {"peer": "127.0.0.1:4100", "table": "shop.users"}


def test_a_job_that_is_tried_again_goes_on_with_its_load_id_though_the_first_try_was_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[LoadRequest] = []

    def begin_again(_cluster: object, request: LoadRequest) -> Any:
        begun.append(request)
        return SimpleNamespace(plan=request.id)

    monkeypatch.setattr(writing, "cluster_for", lambda _connection: None)
    monkeypatch.setattr(writing, "prepare_table", lambda *_: None)
    monkeypatch.setattr(LoadRun, "begin_again", begin_again)
    schema: Any = None
    writing.writer(schema, GIVEN | {"loadId": "nightly"}, False)
    writing.writer(schema, GIVEN, True)
    writing.writer(schema, GIVEN, True)
    assert begun[0].id == "nightly"
    assert len({each.id for each in begun}) == 3, "without an id each write is a load of its own"
