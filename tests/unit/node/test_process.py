"""A member that can't start says why in its last line and ends with exit code 1, without a traceback."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.metastore.errors import DamagedStore, UnknownFormat
from trimtab.metastore.layout import FORMAT, FORMAT_KEY, STATE_KEY
from trimtab.node import process
from trimtab.node.settings import Settings, TlsFiles
from trimtab.raft.errors import InvariantViolated
from trimtab.storage.rocks import RocksDisk


@pytest.fixture
def settings() -> Settings:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return Settings("i1", address, (address,))


def test_certificates_that_are_not_there(settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.pem"
    assert process.run(replace(settings, tls=TlsFiles(missing, missing, missing)), tmp_path / "data") == 1
    assert "could not start: cannot use" in capfd.readouterr().err


def test_a_data_directory_that_is_a_file(settings: Settings, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").write_text("")
    assert process.run(settings, tmp_path / "data") == 1
    assert "could not start: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("written", "says"),
    [({FORMAT_KEY: b"trimtab from the future"}, "format"), ({FORMAT_KEY: None, STATE_KEY: b"x"}, "damaged")],
)
def test_a_metastore_that_can_not_be_read(
    settings: Settings,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    written: dict[bytes, bytes | None],
    says: str,
) -> None:
    store = RocksDisk(tmp_path).open("metastore", wal=False)
    batch = store.batch()
    for key, value in written.items():
        batch.put(key, FORMAT if value is None else value)
    store.write(batch)
    store.close()
    assert process.run(settings, tmp_path) == 1
    error = capfd.readouterr().err
    assert "could not start: " in error and says in error and "Traceback" not in error


@pytest.mark.parametrize("error", [InvariantViolated("a gap"), DamagedStore("a hole"), UnknownFormat("too new")])
def test_anything_else_that_the_data_does_not_allow(
    settings: Settings,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    async def start(_instance: object) -> None:
        raise error

    monkeypatch.setattr("trimtab.node.instance.Instance.start", start)
    assert process.run(settings, tmp_path) == 1
    assert str(error) in capfd.readouterr().err
