"""What metrics say of requests for rows."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from trimtab.node.router.figures import figures
from trimtab.node.router.overload import Overload


def test_every_kind_of_request_is_counted_from_zero_and_refusals_by_their_code() -> None:
    answers = defaultdict(int, {("data.get", ""): 5, ("data.put", "unavailable"): 2})
    router: Any = SimpleNamespace(
        door=SimpleNamespace(answers=answers),
        overload=Overload(),
        reads=SimpleNamespace(repaired=1, speculated=2),
        writes=SimpleNamespace(hinted=3),
        batches=SimpleNamespace(replayed=4, held=5, dropped=6),
        replica_door=SimpleNamespace(refused_stamps=7),
    )
    samples = list(figures(router))
    counted = {
        dict(each.labels)["method"] + " " + dict(each.labels)["outcome"]: each.value for each in samples if each.labels
    }
    assert counted == {
        **dict.fromkeys(("batch done", "delete done", "put done", "scan done", "slice done"), 0),
        "get done": 5,
        "put unavailable": 2,
    }
    others = {each.name: each.value for each in samples if not each.labels}
    assert [others[name] for name in ("reads_repaired", "reads_speculated", "writes_hinted")] == [1, 2, 3]
    assert [others[f"batches_{name}"] for name in ("replayed", "held", "dropped")] == [4, 5, 6]
    assert others["stamps_refused"] == 7 and others["row_requests_overloaded"] == 0
