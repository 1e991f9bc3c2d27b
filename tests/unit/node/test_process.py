"""A node that can't start says why in one word to its supervisor, and ends without a traceback."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ports import taken

from trimtab.metastore.errors import DamagedStore, UnknownFormat
from trimtab.metastore.layout import FORMAT, FORMAT_KEY, STATE_KEY
from trimtab.node import failpoints
from trimtab.node.errors import JoinRejected
from trimtab.node.process import run_child
from trimtab.node.settings import Settings, TlsFiles
from trimtab.node.supervision import Fatal, Phase, Ready, Rebootstrap, Word
from trimtab.raft.errors import InvariantViolated
from trimtab.storage.port import DiskFull
from trimtab.storage.rocks import RocksDisk


@pytest.fixture
def settings(free_ports: Callable[[int], list[int]]) -> Settings:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return Settings("i1", address, (address,))


class Told:
    """What the supervisor hears; a node that becomes ready is told to stop."""

    def __init__(self) -> None:
        self.words: list[Word] = []

    def __call__(self, word: Word) -> None:
        self.words.append(word)
        if isinstance(word, Ready):
            os.kill(os.getpid(), signal.SIGTERM)


def reason(settings: Settings, data_dir: Path) -> str:
    """Why it does not start."""
    told = Told()
    assert run_child(settings, data_dir, Phase.DISCOVER, told) == 1
    (word,) = told.words
    assert isinstance(word, Fatal) and word.code == 1
    return word.text


def found(settings: Settings, data_dir: Path) -> None:
    """Let it find out that it is alone; the next start founds the cluster."""
    told = Told()
    assert run_child(settings, data_dir, Phase.DISCOVER, told) == 0
    assert told.words == [Rebootstrap(Phase.BOOT, drop=True)]


def serve(settings: Settings, data_dir: Path) -> list[Word]:
    told = Told()
    assert run_child(settings, data_dir, Phase.DISCOVER, told) == 0
    return told.words


def test_alone_it_discovers_founds_and_is_ready_and_a_restart_goes_straight_to_that(
    settings: Settings, tmp_path: Path
) -> None:
    found(settings, tmp_path)
    assert serve(settings, tmp_path) == [Ready()]
    assert json.loads((tmp_path / "instance.json").read_text())["raft_id"] == 1
    assert serve(settings, tmp_path) == [Ready()]


def test_told_to_stop_while_it_looks_for_others_it_stops(settings: Settings, tmp_path: Path) -> None:
    nobody = replace(settings, peers=("127.0.0.1:1",))

    def door() -> object:
        # Doors take their place first: the earliest moment at which it can be told.
        os.kill(os.getpid(), signal.SIGTERM)
        return None

    told = Told()
    assert run_child(nobody, tmp_path, Phase.DISCOVER, told, doors=[door]) == 0  # type: ignore[list-item]
    assert told.words == []


def test_a_door_opens_with_the_instance_and_closes_with_it(settings: Settings, tmp_path: Path) -> None:
    found(settings, tmp_path)
    story: list[str] = []

    async def close() -> None:
        story.append("closed")

    async def open_door(instance: object) -> object:
        story.append(f"opened for member {instance.raft_id}")  # type: ignore[attr-defined]
        return close

    told = Told()
    assert run_child(settings, tmp_path, Phase.BOOT, told, doors=[lambda: open_door]) == 0  # type: ignore[list-item, return-value]
    assert story == ["opened for member 1", "closed"]


def test_a_door_that_can_not_be_had_is_told_before_anything_is_begun(settings: Settings, tmp_path: Path) -> None:
    def taken() -> object:
        raise OSError(98, "can't serve HTTP on 127.0.0.1:1: the port is taken")

    told = Told()
    assert run_child(settings, tmp_path / "data", Phase.DISCOVER, told, doors=[taken]) == 1  # type: ignore[list-item]
    assert isinstance(told.words[0], Fatal) and "the port is taken" in told.words[0].text
    assert list((tmp_path / "data").iterdir()) == []


def test_a_listen_address_that_can_not_be_had_is_told_first_and_by_its_option(
    settings: Settings, tmp_path: Path
) -> None:
    told, opened = Told(), []
    host, port = settings.listen.split(":")
    with socket.create_server((host, int(port))):
        assert run_child(settings, tmp_path / "data", Phase.DISCOVER, told, doors=[lambda: opened.append(1)]) == 1  # type: ignore[list-item, func-returns-value]
    (word,) = told.words
    assert isinstance(word, Fatal) and opened == []
    assert word.text == (
        f"could not start: can't listen on {settings.listen}: the port is taken; stop what listens there, or choose "
        "another with --listen HOST:PORT"
    )
    foreign = reason(replace(settings, listen="192.0.2.1:4000", peers=("192.0.2.1:4000",)), tmp_path / "data")
    assert "can't listen on 192.0.2.1:4000: it is no address of this machine" in foreign and "--listen" in foreign


def test_a_port_that_is_taken(settings: Settings, tmp_path: Path) -> None:
    found(settings, tmp_path)
    host, port = settings.listen.split(":")
    with taken(host, int(port)):
        assert "could not start: " in (text := reason(settings, tmp_path)) and port in text


def test_certificates_that_are_not_there(settings: Settings, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    text = reason(replace(settings, tls=TlsFiles(missing, missing, missing)), tmp_path / "data")
    assert text.startswith("could not start: cannot use")


def test_a_data_directory_that_is_a_file(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert reason(settings, tmp_path / "data").startswith("could not start: ")


def test_a_data_directory_of_another_cluster_or_instance(settings: Settings, tmp_path: Path) -> None:
    found(settings, tmp_path)
    assert "belongs to cluster 'trimtab', but this is cluster 'x'" in reason(
        replace(settings, cluster_id="x"), tmp_path
    )
    assert "belongs to instance 'i1', but this is instance 'i2'" in reason(
        replace(settings, instance_id="i2"), tmp_path
    )


def test_a_data_directory_of_a_newer_version(settings: Settings, tmp_path: Path) -> None:
    found(settings, tmp_path)
    identity = json.loads((tmp_path / "instance.json").read_text())
    (tmp_path / "instance.json").write_text(json.dumps({**identity, "format": 99}))
    assert "made by a newer version" in reason(settings, tmp_path)


@pytest.mark.parametrize(
    ("written", "says"),
    [({FORMAT_KEY: b"trimtab from the future"}, "format"), ({FORMAT_KEY: None, STATE_KEY: b"x"}, "damaged")],
)
def test_a_metastore_that_can_not_be_read(
    settings: Settings, tmp_path: Path, written: dict[bytes, bytes | None], says: str
) -> None:
    found(settings, tmp_path)
    serve(settings, tmp_path)
    disk = RocksDisk(tmp_path)
    for name in disk.names("metastore"):
        disk.remove(name)
    store = disk.open("metastore", wal=False)
    batch = store.batch()
    for key, value in written.items():
        batch.put(key, FORMAT if value is None else value)
    store.write(batch)
    store.close()
    disk.close()
    text = reason(settings, tmp_path)
    assert text.startswith("could not start: ") and says in text


@pytest.mark.parametrize(
    "error", [InvariantViolated("a gap"), DamagedStore("a hole"), UnknownFormat("too new"), JoinRejected("no rack")]
)
def test_anything_else_that_another_start_would_not_mend(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def become_member(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("trimtab.node.process.become_member", become_member)
    assert str(error) in reason(settings, tmp_path)


def test_a_defect_is_no_word_but_a_crash(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def become_member(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("trimtab.node.process.become_member", become_member)
    told = Told()
    with pytest.raises(ZeroDivisionError):
        run_child(settings, tmp_path, Phase.DISCOVER, told)
    assert told.words == []


def test_on_a_full_disk_it_waits_for_space_and_asks_for_another_start(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def become_member(*_: object, disk: RocksDisk, **__: object) -> None:
        for number in range(20):
            disk.write_file(f"snapshots/{number}/file", bytes(1000))
            disk.remove(f"snapshots/{number}")
        raise DiskFull("log", free_bytes=0, reserve_bytes=1)

    monkeypatch.setattr("trimtab.node.process.become_member", become_member)
    told = Told()
    assert run_child(settings, tmp_path, Phase.DISCOVER, told) == 0
    assert told.words == [Rebootstrap(Phase.POSTJOIN, drop=False)]
    # What was removed before takes no space while it waits: nobody would delete it then.
    assert not list(tmp_path.rglob(".unfinished-*"))
    assert "waiting for space: disk full" in (said := capfd.readouterr().err) and "has space again" in said


def test_a_failpoint_that_is_misspelt(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "boot.lodged=kill")
    assert "boot.logged" in reason(settings, tmp_path)
