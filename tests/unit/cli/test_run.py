"""`trimtab run`: what the options mean, and what is refused before anything is started."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.cli import main
from trimtab.cli import run as command
from trimtab.node.logs import LogSettings
from trimtab.node.settings import Settings

Started = tuple[Settings, Path, LogSettings]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Started]:
    """Run the command line up to where the supervisor would begin."""
    started: list[Started] = []

    def supervise(settings: Settings, data_dir: Path, log_settings: LogSettings, driver_idle_s: float | None) -> int:
        assert driver_idle_s == 60
        started.append((settings, data_dir, log_settings))
        return 0

    monkeypatch.setattr(command, "_supervise", supervise)
    for name in ("PEER", "CONTACT", "HTTP", "FAILPOINTS"):
        monkeypatch.delenv(f"TRIMTAB_{name}", raising=False)

    def run(*options: str) -> Started:
        assert main.run(["run", "--instance-id", "i1", "--data-dir", "d", *options]) == 0
        return started[-1]

    return run


def test_alone_an_instance_asks_nobody_but_itself(start: Callable[..., Started]) -> None:
    settings, data_dir, log = start()
    assert settings.peers == (settings.listen,) == ("127.0.0.1:3301",)
    assert settings.http == "127.0.0.1:3303"
    assert settings.failure_domain == {"host": socket.gethostname()}
    assert (data_dir, log) == (Path("d"), LogSettings("info", "text"))


def test_alone_behind_another_address_it_is_known_by_that(start: Callable[..., Started]) -> None:
    settings, _, _ = start("--listen", "0.0.0.0:4000", "--advertise", "db1:4000")
    assert settings.peers == ("db1:4000",) and settings.http == "0.0.0.0:4002" and settings.http_address == "db1:4002"


def test_every_option_reaches_the_settings(start: Callable[..., Started]) -> None:
    settings, _, log = start(
        *("--listen", "[::1]:4000", "--peer", "a:1", "--peer", "b:2", "--cluster-id", "shop"),
        *("--failure-domain", "rack=r1", "--failure-domain", "Host=h1", "--replace", "i9", "--http", "127.0.0.1:80"),
        *("--log-level", "debug", "--log-format", "json", "--disk-reserve-mb", "1", "--message-limit-kb", "2048"),
        *("--tick-ms", "50", "--lease-ms", "1200", "--offline-after-ms", "9000", "--hint-limit-kb", "3"),
        *("--capacity-mb", "7"),
    )
    assert settings.capacity_bytes == 7 << 20
    assert settings.peers == ("a:1", "b:2") and settings.cluster_id == "shop" and settings.replace == "i9"
    assert settings.failure_domain == {"rack": "r1", "Host": "h1"} and settings.http == "127.0.0.1:80"
    assert settings.limits.disk_reserve_bytes == 1 << 20 and settings.limits.frame_bytes == 2 << 20
    assert settings.limits.hint_bytes == 3 << 10
    timing = settings.timing
    assert (timing.tick_ms, timing.lease_ms, timing.lease_heartbeat_ms) == (50, 1200, 200)
    assert timing.offline_after_ms == 9000
    assert log == LogSettings("debug", "json")


def test_http_and_bulk_can_be_switched_off(start: Callable[..., Started]) -> None:
    settings, _, _ = start("--http", "off", "--bulk", "off", "--listen", "127.0.0.1:65535")
    assert settings.http == "" and settings.bulk == ""


def test_the_bulk_child_listens_three_ports_above_and_shares_a_token_with_the_node(
    start: Callable[..., Started],
) -> None:
    settings, _, _ = start("--listen", "0.0.0.0:3301", "--advertise", "10.0.0.1:3301")
    assert settings.bulk == "0.0.0.0:3304" and settings.bulk_address == "10.0.0.1:3304"
    assert len(settings.bulk_token) == 32 and settings.bulk_token.hex() not in repr(settings)


WRONG = [
    (["--listen", "here"], "'here' is not an address"),
    (["--listen", "127.0.0.1:99999"], "is not an address"),
    (["--listen", "::1:3301"], "is not an address"),
    (["--peer", "a:1", "--peer", "a:1"], "names an address twice"),
    (["--peer", "nowhere"], "'nowhere' is not an address"),
    (["--http", "nowhere"], "'nowhere' is not an address"),
    (["--listen", "127.0.0.1:65534"], "leaves no port for HTTP"),
    (["--listen", "127.0.0.1:65534", "--http", "off"], "leaves no port for bulk transfers"),
    (["--bulk", "nowhere"], "'nowhere' is not an address"),
    (["--bulk", "127.0.0.1:3303"], "can't be --bulk and another door as well"),
    (["--listen", "0.0.0.0:3301"], "--advertise"),
    (["--failure-domain", "rack"], "write KEY=VALUE"),
    (["--failure-domain", "rack=a", "--failure-domain", "RACK=b"], "twice"),
    (["--log-level", "loud"], "choose one of debug, info, warning, error"),
    (["--log-format", "xml"], "choose one of text, json"),
    (["--tls-key", "key.pem"], "TLS needs all three"),
    (["--cluster-id", ""], "a cluster needs an id"),
    (["--raft-id", "7"], "No such option"),
    (["--lease-ms", "soon"], "--lease-ms"),
    (["--lease-ms", "60000"], "lease"),
]


@pytest.mark.parametrize(("options", "says"), WRONG)
def test_wrong_usage_is_a_sentence_and_code_two(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir = tmp_path / "data"
    assert main.run(["run", "--instance-id", "i1", "--data-dir", str(data_dir), *options]) == 2
    said = capsys.readouterr().err
    assert says in said and said.startswith("trimtab: ") and said.count("\n") == 1
    assert not data_dir.exists(), "nothing may be touched"


def test_an_instance_without_a_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["run", "--data-dir", "d"]) == 2
    assert "--instance-id" in capsys.readouterr().err


def test_a_misspelt_failpoint_is_wrong_usage_and_lists_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIMTAB_FAILPOINTS", "governor.sink.before=kill")
    assert main.run(["run", "--instance-id", "i1", "--data-dir", str(tmp_path / "d")]) == 2
    assert "governor.sync.before" in capsys.readouterr().err


def test_what_a_node_needs_is_loaded_once_before_the_first_child_is_forked(tmp_path: Path) -> None:
    """A child that follows another begins without loading anything, and all of them share the memory."""
    script = (
        "import os, sys, trimtab.node.supervisor as supervisor; from trimtab.cli import main; "
        "heavy = ('rocksdict', 'uvloop', 'structlog', 'trimtab.node.instance'); "
        "told = lambda: print([name for name in heavy if name not in sys.modules], 'fastapi' in sys.modules, "
        "len(os.listdir('/proc/self/task'))); "
        "supervisor.supervise = lambda *_, **__: told() or 0; "
        f"sys.exit(main.run(['run', '--instance-id', 'i1', '--data-dir', {str(tmp_path / 'd')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    missing, fastapi, threads = done.stdout.rsplit(maxsplit=2)
    assert missing == "[]"
    assert fastapi == "False", "it takes too long: the node loads it beside what it does"
    assert threads == "1", "what is loaded starts no thread: a fork would lose it"
