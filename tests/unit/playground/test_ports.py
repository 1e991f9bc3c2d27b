from __future__ import annotations

import os
import socket

import pytest

from trimtab.playground import ports
from trimtab.playground.ports import PORTS_EACH, SPACING, free_base, owner_of, why_taken


def test_a_base_has_room_for_all_instances() -> None:
    base = free_base(3)
    for number in range(3):
        for each in range(PORTS_EACH):
            assert why_taken("127.0.0.1", base + number * SPACING + each) == ""


def test_a_port_that_is_listened_on_is_taken_and_its_owner_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert why_taken("127.0.0.1", port).startswith(f"port {port} is taken by process {os.getpid()} (")
        assert owner_of(port).startswith(f"process {os.getpid()} ")
    assert why_taken("127.0.0.1", port) == ""
    assert owner_of(port) == ""


def test_what_is_no_port_and_what_is_not_ours_is_said() -> None:
    assert why_taken("127.0.0.1", 70_000) == "70000 is no port"
    assert "can't be used" in why_taken("192.0.2.1", 40_000)


def test_the_search_for_ports_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "why_taken", lambda _host, _port: "taken")
    with pytest.raises(OSError, match="no free ports for 3 instances"):
        free_base(3, attempts=3)
