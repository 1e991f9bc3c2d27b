from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.operator import Operator
from tests.unit.cli.typing_commands import typist

__all__ = ["typist"]


@pytest.fixture(autouse=True)
def no_local_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs the tests may have a local cluster; no test may find it."""
    monkeypatch.setenv("TRIMTAB_LOCAL_DIR", str(tmp_path / "local"))
    monkeypatch.delenv("TRIMTAB_CONTACT", raising=False)


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(monkeypatch, capsys)
