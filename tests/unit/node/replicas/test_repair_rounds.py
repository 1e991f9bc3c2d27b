"""Rounds of repair: when one is due, and who lets itself be told how far it reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.unit.node.router.stage import play

from trimtab.net.hello import Hello
from trimtab.node.answering import Asked, Refused
from trimtab.node.replicas.repair_rounds import RepairRounds
from trimtab.rows import repair_protocol as protocol
from trimtab.rows.repair_protocol import TabletRequest, ThroughRequest

LIFE, EVERY = 1_000, 48_000


class Replica:
    table, tablet, name = 1, 0, "tablet 0 of ks.t"
    repaired_through_ms = 0

    async def set_repaired_through(self, through_ms: int) -> None:
        self.repaired_through_ms = through_ms


class Around:
    """An instance whose tablet has three replicas. `asked`: what was asked of whom."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.on_the_move = False
        self.asked: list[tuple[int, str]] = []
        self.loop = asyncio.get_running_loop()
        self.rounds: Any = None

    def kept(self) -> list[Any]:
        return [self.replica]

    def find(self, _table: int, _tablet: int) -> Any:
        if self.on_the_move:
            raise Refused("moving", "it is on the move")
        return self.replica

    def replicas(self, _table: int, _tablet: int) -> tuple[int, ...]:
        return (1, 2, 3)

    def moving(self, _table: int, _tablet: int) -> bool:
        return self.on_the_move

    def online(self, _raft_id: int) -> bool:
        return True

    def stands(self) -> bool:
        return True

    def wall_ms(self) -> int:
        return 1_000_000 + int(self.loop.time() * 1000)

    async def ask(self, raft_id: int, method: str, body: bytes, timeout_s: float) -> bytes:
        self.asked.append((raft_id, method))
        if raft_id != 1:
            return b""
        answer: bytes = await self.rounds.methods()[method](Asked(body, self.loop.time() + timeout_s, Hello()))
        return answer


class Comparing:
    def __init__(self) -> None:
        self.against_whom: list[int] = []

    async def against(self, _replica: Any, peer: int, *, gentle: bool) -> None:
        assert gentle
        self.against_whom.append(peer)


def rounds_of(around: Around, repair: Comparing) -> RepairRounds:
    around.rounds = RepairRounds(
        1,
        around,
        repair,  # type: ignore[arg-type]
        every_ms=EVERY,
        hint_life_ms=LIFE,
        max_skew_ms=10,
        complain=lambda _text: None,
        defect=_raise,
    )
    rounds: RepairRounds = around.rounds
    return rounds


def test_no_round_begins_while_a_copy_is_under_way_and_one_does_when_it_has_arrived() -> None:
    async def story() -> None:
        around, repair = Around(), Comparing()
        rounds = rounds_of(around, repair)
        around.on_the_move = True
        rounds.start()
        await asyncio.sleep(3 * EVERY / 24 / 1000)
        assert not around.asked and not rounds.done
        around.on_the_move = False
        await asyncio.sleep(3 * EVERY / 24 / 1000)
        assert rounds.done == 1 and repair.against_whom == [2, 3] and around.replica.repaired_through_ms > 0
        rounds.stop()

    play(story)


def test_what_has_just_come_is_left_alone_for_a_while() -> None:
    async def story() -> None:
        around, repair = Around(), Comparing()
        rounds = rounds_of(around, repair)
        rounds.start()
        look_s = EVERY / 24 / 1000
        await asyncio.sleep(1.5 * look_s)
        assert not around.asked and not rounds.done
        await asyncio.sleep(look_s)
        assert rounds.done == 1
        rounds.stop()

    play(story)


def test_a_round_that_began_before_the_move_is_not_stored_by_who_knows_of_it() -> None:
    async def story() -> None:
        around, repair = Around(), Comparing()
        methods = rounds_of(around, repair).methods()

        async def asked(method: str, body: bytes) -> bytes:
            return await methods[method](Asked(body, around.loop.time() + 5, Hello()))

        began_ms = around.wall_ms()
        await asked(protocol.TABLET, protocol.encode(TabletRequest(1, 0, began_ms)))
        around.on_the_move = True
        told = protocol.encode(ThroughRequest(1, 0, began_ms - LIFE - 20))
        assert await refusal(lambda: asked(protocol.THROUGH, told)) == "moving"
        assert around.replica.repaired_through_ms == 0
        around.on_the_move = False
        await asked(protocol.THROUGH, told)
        assert around.replica.repaired_through_ms == began_ms - LIFE - 20

    play(story)


async def refusal(work: Callable[[], Coroutine[Any, Any, bytes]]) -> str:
    try:
        await work()
    except Refused as refused:
        return refused.code
    return ""


def _raise(error: BaseException) -> None:
    raise error
