"""How balancing is set: what makes sense, and when it keeps still."""

from __future__ import annotations

import pytest

from trimtab.tablets import rebalance_settings
from trimtab.tablets.rebalance_settings import (
    MAX_HEAL_AFTER_MS,
    SETTINGS_KEY,
    RebalanceSettings,
    RebalanceView,
    wrong_settings,
)

_HOUR_MS = 3_600_000


def test_off_and_outside_its_window_balancing_keeps_still() -> None:
    assert RebalanceSettings().keeps_still(0) == ""
    assert "off" in RebalanceSettings(enabled=False).keeps_still(0)
    by_day = RebalanceSettings(window=(8 * 60, 17 * 60))
    assert by_day.keeps_still(8 * _HOUR_MS) == "" and "08:00 to 17:00" in by_day.keeps_still(17 * _HOUR_MS)
    by_night = RebalanceSettings(window=(22 * 60, 6 * 60))
    assert [bool(by_night.keeps_still(hour * _HOUR_MS)) for hour in (21, 22, 0, 5, 6)] == [
        True,
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        RebalanceSettings(window=(5, 5)),
        RebalanceSettings(window=(0, 24 * 60)),
        RebalanceSettings(window=(-1, 5)),
        RebalanceSettings(window=(5,)),
        RebalanceSettings(window=(1, 2, 3)),
        RebalanceSettings(heal_after_ms=0),
        RebalanceSettings(heal_after_ms=MAX_HEAL_AFTER_MS + 1),
        RebalanceSettings(moving=0),
        RebalanceSettings(moving_bytes=0),
    ],
)
def test_what_makes_no_sense_is_said_and_never_counts(wrong: RebalanceSettings) -> None:
    assert wrong_settings(wrong)
    view = RebalanceView()
    view.change(SETTINGS_KEY, rebalance_settings.encode(wrong), 5)
    assert view.settings == RebalanceSettings()


def test_what_was_set_is_read_back_and_what_can_t_be_read_counts_as_not_set() -> None:
    night = RebalanceSettings(False, (22 * 60, 6 * 60), 30_000, set_ms=9)
    view = RebalanceView()
    view.load([(SETTINGS_KEY, rebalance_settings.encode(night), 5), (b"settings/other", b"{", 6)])
    assert (view.settings, view.revision) == (night, 5)
    view.change(SETTINGS_KEY, b"{", 6)
    assert (view.settings, view.revision) == (RebalanceSettings(), 6)
    view.change(SETTINGS_KEY, None, 7)
    assert (view.settings, view.revision) == (RebalanceSettings(), 0)
