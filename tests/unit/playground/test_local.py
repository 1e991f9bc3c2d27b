"""A local cluster whose instances are no nodes but processes that only wait: how they are started, known and ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.ports import taken

from trimtab.playground import members
from trimtab.playground.local import LocalCluster
from trimtab.playground.ports import free_base
from trimtab.playground.processes import Known, known, lives, send, session_of
from trimtab.playground.record import FILE, LocalFailed, LocalInstance, load, save

# Like a supervisor: a child that ends with it, SIGTERM obeyed (or not: `stubborn`).
STAND_IN = """
import ctypes, os, signal, sys, time
if 'stubborn' in os.environ.get('STAND_IN', ''):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if 'orphans' not in os.environ.get('STAND_IN', ''):
    death = 9
else:
    death = 0
if os.fork() == 0:
    ctypes.CDLL(None).prctl(1, death)
    time.sleep(60)
    os._exit(0)
print('said', sys.argv[2], flush=True)
while 'ends' in os.environ.get('STAND_IN', ''):
    if os.path.exists(os.environ['STAND_IN_MAY_END']):
        sys.exit(1)
    time.sleep(0.01)
time.sleep(60)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    def command(directory: Path, _cluster_id: str, instance: LocalInstance) -> list[str]:
        return [sys.executable, "-c", STAND_IN, "--data-dir", str(members.data_path(directory, instance.instance_id))]

    monkeypatch.setattr(members, "command_of", command)
    monkeypatch.setattr(members, "STOP_S", 1.0)
    made = LocalCluster(tmp_path / "cluster", attached=True)
    yield made
    if made.exists and (running := made.running()):
        made.kill(list(running))


def until(holds: Callable[[], bool], timeout_s: float = 50) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def up(cluster: LocalCluster, nodes: int = 2) -> None:
    with cluster.coming_up():
        cluster.create(nodes, free_base(nodes + 2))
        cluster.start_all()


def test_instances_are_ten_ports_apart_and_share_a_peer(cluster: LocalCluster) -> None:
    with cluster.coming_up():
        base = free_base(5)
        cluster.create(5, base)
    record = cluster.record()
    assert [each.instance_id for each in record.instances] == ["i1", "i2", "i3", "i4", "i5"]
    last = record.instances[-1]
    ports = [f"127.0.0.1:{base + 40 + each}" for each in range(4)]
    assert [last.listen, last.cql, last.http, last.bulk] == ports
    assert last.failure_domain == {"host": "i5"}
    seeds = [each.listen for each in record.instances[:3]]
    assert all(each.peers == seeds for each in record.instances)


def test_what_is_started_is_listed_and_what_is_killed_is_gone(cluster: LocalCluster) -> None:
    up(cluster)
    shown = cluster.as_json(["i1"])
    assert shown["dir"] == str(cluster.directory) and shown["changed"] == ["i1"]
    assert [each["pid"] for each in shown["instances"]] == [each.pid for each in cluster.running().values()]
    assert {"instance_id", "listen", "cql", "http", "bulk", "pid"} <= shown["instances"][0].keys()
    victim = cluster.running()["i1"]
    everybody = session_of(victim)
    cluster.kill(["i1"])
    assert not any(lives(each) for each in everybody)
    assert list(cluster.running()) == ["i2"]
    assert cluster.as_json()["instances"][0]["pid"] is None
    assert list(cluster.start(["i1"])) == ["i1"]
    assert list(cluster.running()) == ["i1", "i2"]


def test_a_child_that_survives_its_supervisor_is_killed_too(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "orphans")
    monkeypatch.setattr(members, "_KILL_S", 0.3)
    up(cluster, 1)
    supervisor = cluster.running()["i1"]
    until(lambda: len(session_of(supervisor)) == 2)
    cluster.kill(["i1"])
    assert session_of(supervisor) == []


def test_who_does_not_stop_in_time_is_killed_and_that_is_said(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(cluster)
    cluster.kill(["i2"])
    members.log_path(cluster.directory, "i2").unlink()
    monkeypatch.setenv("STAND_IN", "stubborn")
    cluster.start(["i2"])
    until(lambda: "said /" in members.last_words(cluster.directory, "i2"))
    await_stop = members.await_stop

    def patiently(supervisor: Known, instance_id: str, timeout_s: float) -> bool:
        """The other one has all the time that it may need on a busy machine."""
        return await_stop(supervisor, instance_id, timeout_s if instance_id == "i2" else 50)

    monkeypatch.setattr(members, "await_stop", patiently)
    assert cluster.down() == (["i1", "i2"], ["i2"])
    assert cluster.running() == {}


def test_an_instance_that_ended_by_itself_is_told_with_its_last_words(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STAND_IN", "ends")
    monkeypatch.setenv("STAND_IN_MAY_END", str(tmp_path / "may end"))
    up(cluster, 1)
    (tmp_path / "may end").touch()
    supervisor = cluster.record().instances[0].supervisor
    assert supervisor is not None
    until(lambda: not lives(supervisor))
    assert cluster.ended({"i1": supervisor}) == {"i1": f"said {members.data_path(cluster.directory, 'i1')}"}


def test_one_that_was_started_but_not_noted_is_found_by_its_command_line(cluster: LocalCluster) -> None:
    up(cluster)
    running = cluster.running()
    record = load(cluster.directory)
    assert record is not None
    save(
        cluster.directory,
        record.with_instances({"i1": msgspec.structs.replace(record.instances[0], supervisor=None)}),
    )
    assert cluster.running() == running
    cluster.kill(["i1"])
    assert not lives(running["i1"])


def test_a_number_that_went_to_another_process_is_not_signalled(cluster: LocalCluster) -> None:
    up(cluster)
    send(cluster.running()["i1"], signal.SIGKILL)
    until(lambda: "i1" not in cluster.running())
    record = load(cluster.directory)
    assert record is not None
    ours = known(os.getpid())
    assert ours is not None
    reused = msgspec.structs.replace(record.instances[0], supervisor=Known(ours.pid, ours.started - 1, ours.boot))
    save(cluster.directory, record.with_instances({"i1": reused}))
    with pytest.raises(LocalFailed, match="i1 is not running"):
        cluster.kill(["i1"])


def test_an_instance_is_added_beside_those_that_run(cluster: LocalCluster) -> None:
    up(cluster)
    cluster.kill(["i1"])
    assert list(cluster.add(replaces="i1")) == ["i3"]
    record = cluster.record()
    added = record.instances[-1]
    assert added.peers == [record.instances[1].listen], "a dead one can't let it in"
    assert added.replaces == "i1"
    assert record.next_number == 4


def test_who_has_left_is_not_started_again(cluster: LocalCluster) -> None:
    up(cluster)
    cluster.kill(["i2"])
    cluster.note_left(["i2"])
    with cluster.coming_up():
        assert cluster.start_all() == {}
    assert cluster.as_json()["instances"][1]["left"] is True


def test_nothing_but_its_own_is_deleted(cluster: LocalCluster) -> None:
    up(cluster)
    (cluster.directory / "mine").write_text("keep me")
    cluster.down(purge=True)
    assert [path.name for path in cluster.directory.iterdir()] == ["mine"]
    assert not cluster.exists
    (cluster.directory / "mine").unlink()
    up(cluster)
    cluster.down(purge=True)
    assert not cluster.directory.exists()


def test_what_can_not_be_done_is_said(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(LocalFailed, match="there is no local cluster in"):
        cluster.kill(["i1"])
    assert not cluster.directory.exists(), "looking makes nothing"
    up(cluster)
    for change in (cluster.kill, cluster.stop, cluster.start):
        with pytest.raises(LocalFailed, match="has no instance 'i9'; it has i1, i2"):
            change(["i9"])
    with pytest.raises(LocalFailed, match=r"i1 runs already \(process \d+\)"):
        cluster.start(["i1"])
    with (
        cluster.coming_up(),
        pytest.raises(LocalFailed, match="is at work"),
        LocalCluster(cluster.directory).coming_up(),
    ):
        pass
    cluster.down()
    with pytest.raises(LocalFailed, match="no instance runs that a new one could join"):
        cluster.add()
    with pytest.raises(LocalFailed, match="i1 is not running"):
        cluster.stop(["i1"])
    assert cluster.down() == ([], [])


def test_a_new_cluster_needs_room(cluster: LocalCluster) -> None:
    with cluster.coming_up():
        with pytest.raises(LocalFailed, match="and ports end at 65535; choose a lower --base-port"):
            cluster.create(3, 65_520)
        with pytest.raises(LocalFailed, match="1 to 100 instances, not 101"):
            cluster.create(101, 20_000)
        base = free_base(2)
        told = rf"i2 can't have its ports .*: port {base + 12} is taken by process"
        with taken("127.0.0.1", base + 12), pytest.raises(LocalFailed, match=told):
            cluster.create(2, base)
        assert not (cluster.directory / FILE).exists()
        (cluster.directory / "letters").mkdir()
        with pytest.raises(LocalFailed, match=r"is not empty \(it has letters\)"):
            cluster.create(2, base)


def test_the_command_line_says_all_an_instance_must_know(tmp_path: Path) -> None:
    instance = LocalInstance("i2", "a:1", "a:2", "a:3", "a:4", {"host": "i2"}, ["a:1", "b:1"], replaces="i1")
    text = " ".join(members.command_of(tmp_path, "shop", instance)[1:])
    assert text == (
        f"-m trimtab run --data-dir {tmp_path}/i2/data --instance-id i2 --cluster-id shop --listen a:1 --peer a:1 "
        "--peer b:1 --failure-domain host=i2 --replace i1"
    )


def test_settings_of_one_instance_do_not_reach_the_others(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRIMTAB_PEER", "TRIMTAB_TLS_KEY", "TRIMTAB_LISTEN"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("TRIMTAB_LOG_LEVEL", "debug")
    up(cluster, 1)
    pid = cluster.running()["i1"].pid
    names = {entry.partition(b"=")[0] for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
    assert not names & {b"TRIMTAB_PEER", b"TRIMTAB_TLS_KEY", b"TRIMTAB_LISTEN"}
    assert b"TRIMTAB_LOG_LEVEL" in names
