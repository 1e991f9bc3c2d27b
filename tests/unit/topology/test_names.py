"""Names: what the cluster stores for ever is checked at the door."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.net.addresses import parse_address
from trimtab.topology import names


@pytest.mark.parametrize("text", ["i1", "node-7.eu_west", "9", "A" * 64])
def test_instance_ids_people_use_are_fine(text: str) -> None:
    assert names.wrong_instance_id(text) is None


@pytest.mark.parametrize("text", ["", " ", "-i1", "i 1", "i/1", "i\n1", "é", "A" * 65, "i1,i2"])
def test_other_instance_ids_are_refused_in_a_sentence(text: str) -> None:
    assert "can't be an instance id" in (names.wrong_instance_id(text) or "")


@pytest.mark.parametrize("text", ["", "\n", "x" * 65, "a\x00b"])
def test_uuids_are_short_and_printable(text: str) -> None:
    assert names.wrong_uuid(text)
    assert names.wrong_uuid("1e9b1f0c") is None


@given(st.text(max_size=40) | st.from_regex(r"[a-z0-9.\[\]:]{0,12}:[0-9]{1,6}", fullmatch=True))
def test_an_address_is_what_the_network_takes_for_one(text: str) -> None:
    """One rule for all doors: what is taken here can be called, and what can be called is taken here."""
    try:
        parse_address(text)
    except ValueError:
        assert names.wrong_address(text)
    else:
        assert names.wrong_address(text) is None or not text.isprintable()


def test_an_address_that_nobody_else_can_call_is_told_apart() -> None:
    assert "--advertise" in (names.unreachable_address("0.0.0.0:3301") or "")
    assert "--advertise" in (names.unreachable_address("[::]:3301") or "")
    assert names.unreachable_address("[::1]:3301") is None
    assert "HOST:PORT" in (names.unreachable_address("x") or "")


def test_addresses_have_an_order_in_which_ports_are_numbers() -> None:
    assert sorted(["h:10000", "h:9000", "a:1"], key=names.address_order) == ["a:1", "h:9000", "h:10000"]


def test_failure_domain_keys_are_the_same_whatever_their_case() -> None:
    assert names.plain_failure_domain({"Rack": "R1", "DC": "Eu"}) == {"dc": "Eu", "rack": "R1"}
    assert "twice" in (names.wrong_failure_domain({"rack": "a", "Rack": "b"}) or "")


@pytest.mark.parametrize(
    "domain",
    [
        {"": "x"},
        {"1dc": "x"},
        {"d c": "x"},
        {"dc": ""},
        {"dc": " x"},
        {"dc": "a\nb"},
        {"dc": "x" * 129},
        {"k" * 65: "x"},
        {f"k{number}": "x" for number in range(17)},
    ],
)
def test_failure_domains_that_nobody_could_type_are_refused(domain: dict[str, str]) -> None:
    assert names.wrong_failure_domain(domain)


def test_only_adjacent_minor_releases_run_side_by_side() -> None:
    assert names.apart("1.4.2", "1.5.0.dev1") is None
    assert names.apart("1.4.2", "1.4.9") is None
    assert "only two adjacent minor versions" in (names.apart("1.4.2", "1.6.0") or "")
    assert names.apart("1.0.0", "2.0.0")
    assert names.apart("", "1.0.0") == "'' is not a release such as 1.4.2"
    assert names.apart("1.0.0", "one") == "'one' is not a release such as 1.4.2"
