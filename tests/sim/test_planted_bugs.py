"""Every planted bug is found within 200 seeds, by invariants that know nothing of it."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.sim.planted_bugs import BUGS, SEEDS, SOURCE, NotPlanted, PlantedBug, hunt, plant

MUST_BE_FOUND = 10


def test_at_least_ten_different_bugs_are_planted() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= MUST_BE_FOUND


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_patch_fits_the_source_exactly_once(bug: PlantedBug, tmp_path: Path) -> None:
    package = tmp_path / "trimtab"
    (package / bug.file).parent.mkdir(parents=True)
    shutil.copy(SOURCE / bug.file, package / bug.file)
    plant(bug, package)
    compile((package / bug.file).read_text(), bug.file, "exec")


def test_a_patch_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    bug = dataclasses.replace(BUGS[0], old="a line that nobody wrote\n")
    (tmp_path / bug.file).parent.mkdir(parents=True)
    shutil.copy(SOURCE / bug.file, tmp_path / bug.file)
    with pytest.raises(NotPlanted, match="holds 0 times, not once"):
        plant(bug, tmp_path)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, record_property: pytest.RecordProperty) -> None:  # type: ignore[name-defined]
    """By the seed that has found it before; if schedules have changed, by another."""
    failed = hunt(bug, first=bug.seed, seeds=1)["failed"] or hunt(bug)["failed"]
    assert failed, f"{bug.name!r} is not found in {SEEDS} seeds"
    assert isinstance(failed, list)
    record_property("seed", failed[0]["seed"])
    record_property("why", failed[0]["why"])
