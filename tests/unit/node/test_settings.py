"""An instance is told what it is before it does anything; what can't work is refused with the way out."""

from pathlib import Path

import pytest

from trimtab.node.settings import Settings, SettingsError, TlsFiles, split_address

PEERS = ("127.0.0.1:3301", "127.0.0.1:3311", "127.0.0.1:3321")


def test_a_founder_is_numbered_by_its_place_in_the_peer_list() -> None:
    assert Settings("i2", PEERS[1], PEERS).member_id == 2


def test_a_newcomer_brings_its_own_number() -> None:
    settings = Settings("i4", "127.0.0.1:3331", PEERS, raft_id=4)
    assert settings.member_id == 4
    assert not settings.founder


def test_a_newcomer_without_a_number_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"needs --raft-id with a number above 3"):
        Settings("i4", "127.0.0.1:3331", PEERS)


def test_a_newcomer_with_a_founders_number_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"above 3"):
        Settings("i4", "127.0.0.1:3331", PEERS, raft_id=2)


def test_a_number_that_contradicts_the_peer_list_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"contradicts"):
        Settings("i1", PEERS[0], PEERS, raft_id=3)


def test_an_instance_is_known_by_the_address_it_advertises() -> None:
    settings = Settings("i2", "0.0.0.0:3311", PEERS, advertise=PEERS[1])
    assert settings.founder and settings.member_id == 2 and settings.address == PEERS[1]
    with pytest.raises(SettingsError, match=r"--advertise HOST:PORT"):
        Settings("i2", "0.0.0.0:3311", PEERS)


def test_a_newcomer_may_stand_where_a_removed_founder_stood() -> None:
    settings = Settings("i2", PEERS[1], PEERS, raft_id=7)
    assert settings.member_id == 7 and not settings.founder


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
    assert Settings("i4", listen, PEERS, raft_id=4).exposed is exposed
    tls = TlsFiles(Path("a"), Path("c"), Path("k"))
    assert not Settings("i4", listen, PEERS, raft_id=4, tls=tls).exposed


def test_founders_with_the_peers_in_another_order_have_another_genesis() -> None:
    assert Settings("i1", PEERS[0], PEERS).genesis != Settings("i1", PEERS[0], PEERS[::-1]).genesis


def test_the_same_peer_twice_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"twice"):
        Settings("i1", PEERS[0], (PEERS[0], PEERS[0]))


@pytest.mark.parametrize("address", ["", "3301", "host", ":3301", "host:", "host:x", "host:70000", "host:-1"])
def test_what_is_no_address_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(SettingsError, match=r"HOST:PORT"):
        split_address(address)


def test_an_ipv6_host_stands_in_brackets() -> None:
    assert split_address("[::1]:3301") == ("::1", 3301)


def test_no_peers_and_no_name_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"--peer"):
        Settings("i1", PEERS[0], ())
    with pytest.raises(SettingsError, match=r"--instance-id"):
        Settings("", PEERS[0], PEERS)
