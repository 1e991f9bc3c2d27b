from __future__ import annotations

import pytest

from trimtab.cli.contact import contact_addresses
from trimtab.cli.errors import WrongUsage


def test_a_member_that_is_no_address_is_refused() -> None:
    with pytest.raises(WrongUsage, match=r"'::1:3301' is not an address; .*\[::1\]:3301\."):
        contact_addresses(["a:1", "::1:3301"])


def test_without_a_member_to_talk_to_it_says_how_to_name_one() -> None:
    with pytest.raises(WrongUsage, match="give --peer HOST:PORT or set TRIMTAB_CONTACT"):
        contact_addresses(None)
    assert contact_addresses(["a:1", "b:2"]) == ["a:1", "b:2"]
