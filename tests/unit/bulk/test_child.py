"""What a bulk child does with the answers of its node, and without one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.unit.bulk.serving import KEY, serving

from trimtab.bulk import child
from trimtab.loads import protocol
from trimtab.loads.protocol import BulkState
from trimtab.net.errors import NotConnected


class Node:
    """Answers with the next of these rates; None: it does not."""

    def __init__(self, *rates: int | None) -> None:
        self._rates = list(rates)

    async def wait_connected(self, _timeout_s: float) -> None:
        if self._rates[0] is None:
            self._rates.pop(0)
            raise NotConnected("it is starting")

    async def call(self, method: str, body: bytes, _timeout_s: float) -> bytes:
        assert method == protocol.BULK_STATE and protocol.decode_bulk_report(body).token == b"token"
        rate = self._rates.pop(0)
        assert rate is not None
        return protocol.encode(BulkState("i1", KEY, rate, ["s1"], 1 << 40, 0))


def test_every_answer_sets_the_rate_and_without_one_the_last_stays(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        node: Any = Node(5_000_000, None, 200_000, 0)
        rates = []
        for _ in range(4):
            asyncio.run(child._ask(node, b"token", served.told, served.pace, served.server))
            rates.append(served.pace.rate_bytes_s)
        assert rates == [5_000_000, 5_000_000, 200_000, 0]
