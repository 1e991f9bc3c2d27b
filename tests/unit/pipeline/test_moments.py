"""The moment that a job reads at: what members say, and nothing of the driver's own clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trimtab.loads import protocol
from trimtab.loads.protocol import TimeReply
from trimtab.net.errors import NotConnected
from trimtab.pipeline import exports, moments
from trimtab.pipeline.parameters import SETTLE_S
from trimtab.spark.options import Connection
from trimtab.spark.scan_plan import Holder

TOLD_US = 1_800_000_000_000_000


class Members:
    """By address how far the clock of each is ahead; None: it can't be reached."""

    def __init__(self, *ahead_us: int | None) -> None:
        self.ahead_us = {f"h{number}": each for number, each in enumerate(ahead_us, 1)}

    def __call__(self, _tls: object) -> Members:
        return self

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, address: str, method: str, _body: bytes, _timeout_s: float) -> bytes:
        assert method == protocol.TIME
        if (ahead_us := self.ahead_us[address]) is None:
            raise NotConnected(address)
        return protocol.encode(TimeReply(TOLD_US + ahead_us))

    def scan(self) -> Any:
        holders = {number: Holder(number, f"i{number}", f"h{number}", "dc1") for number in (1, 2, 3, 4)}
        known = SimpleNamespace(now_us=TOLD_US, online={1, 2, 3}, holders=holders)
        return SimpleNamespace(known=known, plan=SimpleNamespace(connection=Connection("h1")))


@pytest.mark.parametrize("driver_s", [0.0, 9e9])
@pytest.mark.parametrize(
    ("ahead_us", "latest_us"),
    [
        ((10, 400_000, -300_000), 400_000),
        ((None, 20, -5), 20),
        ((-1, -2, -3), 0),
        ((None, None, None), 0),
    ],
)
def test_it_is_the_latest_that_any_member_tells(
    ahead_us: tuple[int | None, ...], latest_us: int, driver_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members(*ahead_us)
    monkeypatch.setattr(moments, "Instances", members)
    monkeypatch.setattr("time.time", lambda: driver_s)
    assert moments.latest_us(members.scan()) == TOLD_US + latest_us


def test_an_export_waits_by_the_cluster_s_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    context: Any = SimpleNamespace(stopped=SimpleNamespace(wait=waited.append), check=lambda: None)
    monkeypatch.setattr("time.time", lambda: 0.0)
    exports._await_closed(context, TOLD_US, TOLD_US)
    exports._await_closed(context, TOLD_US - 1_000_000, TOLD_US)
    exports._await_closed(context, TOLD_US - 10_000_000, TOLD_US)
    assert waited == [SETTLE_S, SETTLE_S - 1]
