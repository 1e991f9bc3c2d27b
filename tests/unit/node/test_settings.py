"""An instance is told what it is before it does anything; what can't work is refused with the way out."""

from pathlib import Path
from typing import Any

import pytest

from trimtab.node.settings import Settings, SettingsError, Timing, TlsFiles, read_failure_domain, split_address

PEERS = ("127.0.0.1:3301", "127.0.0.1:3311", "127.0.0.1:3321")


def settings(**changed: Any) -> Settings:
    return Settings(**{"instance_id": "i1", "listen": PEERS[0], "peers": PEERS, **changed})


def test_an_instance_need_not_be_among_its_peers() -> None:
    assert settings(listen="127.0.0.1:3331").address == "127.0.0.1:3331"


def test_an_instance_is_known_by_the_address_it_advertises() -> None:
    assert settings(listen="0.0.0.0:3311", advertise=PEERS[1]).address == PEERS[1]


@pytest.mark.parametrize("listen", ["0.0.0.0:3311", "[::]:3311"])
def test_an_address_that_nobody_can_reach_is_refused_with_the_way_out(listen: str) -> None:
    with pytest.raises(SettingsError, match=r"--advertise HOST:PORT"):
        settings(listen=listen)


@pytest.mark.parametrize(
    ("http", "advertised", "expected"),
    [
        ("", "", ""),
        ("127.0.0.1:3303", "", "127.0.0.1:3303"),
        ("0.0.0.0:3303", "10.0.0.1:3301", "10.0.0.1:3303"),
        ("[::]:3303", "[::1]:3301", "[::1]:3303"),
    ],
)
def test_the_http_door_is_reached_at_the_host_of_the_instance(http: str, advertised: str, expected: str) -> None:
    assert settings(http=http, advertise=advertised).http_address == expected


def test_two_doors_need_two_ports() -> None:
    with pytest.raises(SettingsError, match=r"another port"):
        settings(http=PEERS[0])


@pytest.mark.parametrize(
    ("listen", "exposed"),
    [
        ("127.0.0.1:1", False),
        ("127.8.8.8:1", False),
        ("localhost:1", False),
        ("[::1]:1", False),
        ("0.0.0.0:1", True),
        ("[::]:1", True),
        ("10.0.0.1:1", True),
        ("db1.example:1", True),
    ],
)
def test_only_loopback_is_not_exposed_without_tls(listen: str, exposed: bool) -> None:
    assert settings(listen=listen, advertise="10.0.0.1:1").exposed is exposed
    tls = TlsFiles(Path("a"), Path("c"), Path("k"))
    assert not settings(listen=listen, advertise="10.0.0.1:1", tls=tls).exposed


def test_the_same_peer_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"twice"):
        settings(peers=(PEERS[0], PEERS[0]))


@pytest.mark.parametrize("address", ["", "3301", "host", ":3301", "host:", "host:x", "host:70000", "host:-1"])
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(SettingsError, match=r"HOST:PORT"):
        split_address(address)


def test_an_ipv6_host_stands_in_brackets() -> None:
    assert split_address("[::1]:3301") == ("::1", 3301)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"peers": ()}, r"--peer HOST:PORT"),
        ({"instance_id": ""}, r"--instance-id"),
        ({"instance_id": "a b"}, r"can't be an instance id"),
        ({"cluster_id": ""}, r"--cluster-id"),
        ({"replace": "a/b"}, r"can't be an instance id"),
        ({"peers": ("nowhere",)}, r"'nowhere' is not an address"),
        ({"http": "nowhere"}, r"'nowhere' is not an address"),
        ({"failure_domain": {"rack": ""}}, r"'rack' can't have the value"),
        ({"timing": Timing(lease_ms=5_000)}, r"offline_after_ms \(6000\) must be at least"),
    ],
)
def test_what_can_not_work_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        settings(**changed)


def test_a_failure_domain_is_given_in_pairs() -> None:
    assert read_failure_domain(["dc=d1", "rack=r=1"]) == {"dc": "d1", "rack": "r=1"}


@pytest.mark.parametrize("pairs", [["rack"], ["rack=1", "rack=2"], ["rack=1", "RACK=2"], ["=1"], ["rack="]])
def test_a_failure_domain_that_is_none_is_refused(pairs: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"failure.domain"):
        read_failure_domain(pairs)
