"""What a client's watch is told besides changes: where it begins, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.metastore.dict_store import DictStore

from trimtab.metastore import commands
from trimtab.metastore.machine import Metastore
from trimtab.metastore.requests import WatchKind, WatchRequest, decode_watch_item
from trimtab.node.metastore_machine import MetastoreMachine
from trimtab.node.settings import Limits


class Receiver:
    """A request to watch, as the network shows it to a handler."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.done = False
        self.told: list[tuple[int, int]] = []
        self.failed = ""

    def push(self, body: bytes) -> bool:
        if self.room == 0:
            return False
        self.room -= 1
        item = decode_watch_item(body)
        self.told.append((item.revision, len(item.changes)))
        return True

    def fail(self, code: str, _text: str) -> None:
        self.failed, self.done = code, True

    def on_cancel(self, _callback: Callable[[str], None]) -> None:
        pass


class Machine:
    def __init__(self) -> None:
        self.machine = MetastoreMachine(None, "metastore", Limits(), lambda *_: None)  # type: ignore[arg-type]
        self.machine.metastore = Metastore(DictStore())

    def put(self, *keys: bytes) -> None:
        for key in keys:
            metastore = self.machine.metastore
            metastore.apply([(metastore.applied_index + 1, 1, commands.encode(commands.put(key, b"v")))])

    def watch(self, receiver: Any) -> None:
        self.machine.serve_watch(receiver, WatchRequest(WatchKind.PREFIX, b"k"))


def test_a_watch_for_the_next_change_is_told_where_it_begins() -> None:
    machine, receiver = Machine(), Receiver()
    machine.put(b"a", b"b")
    machine.watch(receiver)
    assert receiver.told == [(2, 0)]


def test_a_watch_that_can_not_be_told_where_it_begins_is_refused() -> None:
    machine, receiver = Machine(), Receiver(room=0)
    machine.watch(receiver)
    assert receiver.failed == "slow_watch" and len(machine.machine.metastore.watches) == 0


def test_a_quiet_watch_is_told_how_far_it_is_but_only_when_there_is_news() -> None:
    machine, receiver = Machine(), Receiver()
    machine.watch(receiver)
    machine.machine.tell_progress()
    assert receiver.told == [(0, 0)]
    machine.put(b"a", b"k", b"b")
    machine.machine.tell_progress()
    machine.machine.tell_progress()
    assert receiver.told == [(0, 0), (2, 1), (3, 0)]


def test_a_notice_that_found_no_room_comes_later_and_one_for_nobody_never() -> None:
    machine, receiver = Machine(), Receiver(room=1)
    machine.watch(receiver)
    machine.put(b"a")
    machine.machine.tell_progress()
    receiver.room = 1
    machine.machine.tell_progress()
    assert receiver.told == [(0, 0), (1, 0)] and not receiver.failed
    receiver.done, receiver.room = True, 1
    machine.put(b"a")
    machine.machine.tell_progress()
    assert receiver.room == 1 and not machine.machine._served
