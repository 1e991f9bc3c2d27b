"""The HTTP door of real instances."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchmarks import processes as processes_of_benchmarks

from tests.cluster.doors import Doors, follow
from tests.conftest import Processes
from tests.unit.http.strangers import try_everything
from tests.unit.net.certificates import Authority
from trimtab.net.tls import client_context

pytestmark = pytest.mark.cluster
Ports = Callable[[int], list[int]]


def opened(folder: Path, count: int) -> Iterator[Doors]:
    """Instances for several stories, in their order; each begins with all of them up. None is started yet."""
    processes = Processes()
    try:
        yield Doors(processes, folder, processes_of_benchmarks.free_ports(2 * count))
    finally:
        processes.end_all()


@pytest.fixture(scope="module")
def three_doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    yield from opened(tmp_path_factory.mktemp("three"), 3)


@pytest.fixture(scope="module")
def one_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    yield from opened(tmp_path_factory.mktemp("one"), 1)


def test_a_follower_of_events_goes_on_at_another_door_when_the_leader_dies(three_doors: Doors) -> None:
    doors = three_doors
    doors.form()
    leader = doors.any_leader()
    survivor = next(number for number in (1, 2, 3) if number != leader)
    stream = follow(f"http://{doors.http[leader - 1]}", 0)
    before = doors.ok(leader, "/api/v1/events?after=0")["events"]
    seen = [next(stream)["number"] for _ in before]
    doors.kill(leader)
    # The stream of a dead instance ends; what happened since the page was asked for was in it.
    seen += [event["number"] for event in stream]
    doors.until(lambda: doors.leader() not in (0, leader), "another leads")
    for event in follow(f"http://{doors.http[survivor - 1]}", seen[-1]):
        seen.append(event["number"])
        if "Offline" in event["text"] and f"i{leader}" in event["instances"]:
            break
    page = doors.ok(survivor, "/api/v1/events?after=0")["events"]
    assert seen == [event["number"] for event in page][: len(seen)], "nothing was missed, nothing came twice"


def test_without_a_majority_an_instance_is_healthy_but_not_ready(three_doors: Doors) -> None:
    doors = three_doors
    doors.form()
    doors.kill(2)
    doors.kill(3)
    doors.until(lambda: not doors.ready(1), "its lease has ended")
    assert doors.get(1, "/health").json()["status"] == "ok"
    assert "no lease" in doors.get(1, "/ready").json()["reason"]
    refused = doors.get(1, "/api/v1/probe")
    assert (refused.status_code, refused.json()["code"]) == (503, "no_lease")
    assert doors.get(1, "/api/v1/probe?level=ONE").json()["stale"] is True
    assert len(doors.get(1, "/api/v1/status?local=true").json()["instances"]) == 3
    assert doors.get(1, "/api/v1/status").status_code in (503, 504)
    assert doors.get(1, "/metrics").status_code == 200


def test_every_door_shows_the_same_cluster_and_passes_changes_on(three_doors: Doors) -> None:
    doors = three_doors
    doors.form()
    shown: list[Any] = []
    metrics: list[str] = []

    def all_show_the_same() -> bool:
        """In one and the same term: another may begin between two looks."""
        shown[:] = [doors.ok(number, "/api/v1/status") for number in (1, 2, 3)]
        metrics[:] = [doors.get(number, "/metrics").text for number in (1, 2, 3)]
        again = [doors.ok(number, "/api/v1/status") for number in (1, 2, 3)]
        return len({(each["leader"], each["term"], each["topology_version"]) for each in (*shown, *again)}) == 1

    doors.until(all_show_the_same, "every door shows the same cluster")
    leader = int(shown[0]["leader"].removeprefix("i"))
    first, second = (number for number in (1, 2, 3) if number != leader)
    assert [each["current_grade"] for each in shown[0]["instances"]] == ["Online"] * 3
    assert f'trimtab_heartbeat_age_seconds{{instance_id="i{first}"}}' in metrics[leader - 1]
    assert "trimtab_heartbeat_age_seconds{" not in metrics[first - 1]
    # Whoever led then.
    assert any('trimtab_governor_steps_total{kind="online",outcome="done"}' in each for each in metrics)
    probe = doors.ok(first, f"/api/v1/probe?target=i{second}")
    assert (probe["instance_id"], probe["stale"]) == (f"i{second}", False)

    last = doors.ok(first, "/api/v1/events")["last_event"]
    asked = doors.taken(first, f"/api/v1/instances/i{second}/expel", {})
    told = []
    for event in follow(f"http://{doors.http[first - 1]}", last):
        told.append(event)
        if doors.get(first, f"/api/v1/instances/i{second}?local=true").json()["state"] == "left":
            break
    page = doors.ok(first, f"/api/v1/events?after={last}")["events"]
    assert told == page[: len(told)], "a stream tells what a page shows"
    doors.until(lambda: doors.get(first, asked.headers["location"]).json().get("state") == "done", "the task is done")
    again = doors.post(first, f"/api/v1/instances/i{second}/expel", {})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_instance_answers_as_described(one_door: Doors, tmp_path: Path) -> None:
    doors = one_door
    doors.form()
    asyncio.run(try_everything(f"http://{doors.http[0]}", tmp_path, examples=8, seed=5))
    assert doors.ready(1)
    assert "failed at" not in doors.output(1)


def test_a_stopping_instance_ends_its_streams_and_leaves_in_time(one_door: Doors) -> None:
    doors = one_door
    doors.form()
    stream = follow(f"http://{doors.http[0]}", 0)
    next(stream)
    before = time.monotonic()
    assert doors.stop(1) == 0
    assert time.monotonic() - before < 30
    list(stream)


def test_a_taken_http_port_is_told_before_anything_is_begun(
    processes: Processes, free_ports: Ports, tmp_path: Path
) -> None:
    doors = Doors(processes, tmp_path, free_ports(2))
    host, _, port = doors.http[0].partition(":")
    with socket.create_server((host, int(port))):
        doors.start(1)
        assert doors.running[1].wait(60) == 1
    last = doors.output(1).strip().splitlines()[-1]
    assert f"can't serve HTTP on {doors.http[0]}: the port is taken" in last
    assert "--http HOST:PORT" in last
    assert not (tmp_path / "i1" / "log").exists()


def test_with_tls_the_door_speaks_https_with_certificates(
    processes: Processes, free_ports: Ports, tmp_path: Path
) -> None:
    files = Authority().issue(tmp_path, "i1")
    doors = Doors(processes, tmp_path, free_ports(2))
    names = {"--tls-authority": files.ca, "--tls-certificate": files.cert, "--tls-key": files.key}
    doors.start(1, options=[part for name, file in names.items() for part in (name, str(file))])
    doors.until(lambda: "ready on" in doors.output(1), "it is ready")
    url = f"https://{doors.http[0]}/health"
    ours = client_context(files.ca, files.cert, files.key)
    assert httpx.get(url, verify=ours, timeout=60).json()["status"] == "ok"
    for stranger in (url, f"http://{doors.http[0]}/health"):
        with pytest.raises(httpx.TransportError):
            httpx.get(stranger, verify=False)
