"""The key and the limit that all bulk children share, as an instance knows them."""

from __future__ import annotations

import pytest

from trimtab.loads.bulk_settings import (
    RATE_KEY,
    SECRET_KEY,
    BulkRate,
    BulkSecret,
    BulkSettings,
    encode,
    read_rate,
    show_rate,
)

KEY = bytes(range(32))


def test_settings_are_what_the_metastore_says_and_nothing_before_it_does() -> None:
    settings = BulkSettings()
    assert settings.key == b"" and settings.share_bytes_s(3) == 0
    settings.change(SECRET_KEY, encode(BulkSecret(KEY.hex(), 5)), 7)
    settings.change(RATE_KEY, encode(BulkRate(9_000_000, 5)), 8)
    settings.change(b"settings/other", b"?", 9)
    assert settings.key == KEY and settings.share_bytes_s(3) == 3_000_000
    assert KEY.hex() not in repr(settings) and repr(KEY) not in repr(settings)
    settings.change(RATE_KEY, None, 10)
    assert settings.share_bytes_s(3) == 0
    settings.load([(RATE_KEY, encode(BulkRate(100_000)), 3)])
    assert settings.key == b"" and settings.rate_bytes_s == 100_000


def test_what_can_not_be_read_counts_as_not_set() -> None:
    settings = BulkSettings()
    for wrong in (b"", b"{", b'{"key": "xyz"}', b'{"key": 1}', b"[]"):
        settings.change(SECRET_KEY, wrong, 1)
        assert settings.key == b""
    for wrong in (b"", b'{"bytes_s": "much"}', b'{"bytes_s": -5}'):
        settings.change(RATE_KEY, wrong, 1)
        assert settings.rate_bytes_s == 0


def test_every_instance_gets_an_even_share_that_lets_transfers_live() -> None:
    settings = BulkSettings()
    settings.change(RATE_KEY, encode(BulkRate(100_000)), 1)
    assert [settings.share_bytes_s(online) for online in (0, 1, 2, 100)] == [100_000, 100_000, 50_000, 16_000]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10MB/s", 10_000_000),
        ("10 mb/s", 10_000_000),
        ("500k", 500_000),
        ("1.5GiB/s", 3 << 29),
        ("64000", 64_000),
        ("250000 bytes/s", 250_000),
        ("2MBps", 2_000_000),
        ("off", 0),
        (" OFF ", 0),
        ("0", 0),
    ],
)
def test_a_rate_is_read_as_people_write_it(text: str, rate: int) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "10XB/s", "-5MB/s", "10MB/h", "63999", "1e9", "10**30", "9999999999GB/s"])
def test_what_is_no_rate_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no rate|a limit is at (least|most)"):
        read_rate(text)


def test_rates_are_shown_short() -> None:
    shown = [show_rate(rate) for rate in (0, 999, 64_000, 1_500_000, 10**10)]
    assert shown == ["off", "999 B/s", "64 kB/s", "1.5 MB/s", "10 GB/s"]
