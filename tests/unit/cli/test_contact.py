from __future__ import annotations

import pytest

from trimtab.cli.contact import contact_addresses, parse_address
from trimtab.cli.errors import WrongUsage


def test_an_address_is_a_host_and_a_port() -> None:
    assert parse_address("127.0.0.1:3301") == ("127.0.0.1", 3301)
    assert parse_address("node-1.example:1") == ("node-1.example", 1)
    assert parse_address("[::1]:3301") == ("::1", 3301)


NO_ADDRESSES = ["", "3301", "host", "host:", ":3301", "host:0", "host:65536", "host:x", "::1:3301", "h:²"]


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(WrongUsage, match=r"is not an address; write HOST:PORT, such as 127\.0\.0\.1:3301"):
        parse_address(text)


def test_without_a_member_to_talk_to_it_says_how_to_name_one() -> None:
    with pytest.raises(WrongUsage, match="give --peer HOST:PORT or set TRIMTAB_CONTACT"):
        contact_addresses(None)
    assert contact_addresses(["a:1", "b:2"]) == ["a:1", "b:2"]
