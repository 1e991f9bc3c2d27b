"""One rule for addresses, and every door that takes one keeps it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trimtab.cli.contact import checked_address
from trimtab.cli.errors import WrongUsage
from trimtab.net.addresses import format_address, parse_address
from trimtab.node.settings import SettingsError, split_address

WRONG_PARTS = ["", "3301", "host", "host:", ":3301", "host:x", "a b:1", "a,b:1", "u@host:1", " host:3301"]
WRONG_PORTS = ["host:0", "host:65536", "host:03301", "host:3301 ", "host:-1", "host:+1", "host:1_0", "h:²"]
WRONG_IPV6 = ["::1:3301", "::1", "[::1]", "[::1]:", "[::1]:0", "[host]:1", "[]:1", "[::1:1", "::1]:1", "[[::1]]:1"]


def test_an_address_is_a_host_and_a_port() -> None:
    assert parse_address("127.0.0.1:3301") == ("127.0.0.1", 3301)
    assert parse_address("node-1.example:1") == ("node-1.example", 1)
    assert parse_address("my_host:65535") == ("my_host", 65535)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert parse_address("[::1]:3301") == ("::1", 3301)
    assert parse_address("[fe80::1%eth0]:3301") == ("fe80::1%eth0", 3301)


@pytest.mark.parametrize("text", ["127.0.0.1:3301", "[::1]:3301"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert format_address(parse_address(text)) == text


@pytest.mark.parametrize("text", [*WRONG_PARTS, *WRONG_PORTS, *WRONG_IPV6])
def test_anything_else_is_refused_with_an_example_at_every_door(text: str) -> None:
    doors: list[tuple[Callable[[str], object], type[Exception]]] = [
        (parse_address, ValueError),
        (checked_address, WrongUsage),
        (split_address, SettingsError),
    ]
    for door, error in doors:
        with pytest.raises(error, match=r"is not an address; write HOST:PORT, such as 127\.0\.0\.1:3301"):
            door(text)
