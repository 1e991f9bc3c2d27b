"""The HTTP door of real instances."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cluster.doors import Doors, follow
from tests.conftest import Processes
from tests.unit.http.strangers import try_everything
from tests.unit.net.certificates import Authority
from trimtab.net.tls import client_context

pytestmark = pytest.mark.cluster
Ports = Callable[[int], list[int]]


def test_every_door_shows_the_same_cluster_and_passes_changes_on(
    processes: Processes, free_ports: Ports, tmp_path: Path
) -> None:
    doors = Doors(processes, tmp_path, free_ports(6))
    doors.form()
    leader = doors.leader()
    first, second = (number for number in (1, 2, 3) if number != leader)
    shown = [doors.get(number, "/api/v1/status").json() for number in (1, 2, 3)]
    assert {status["leader"] for status in shown} == {f"i{leader}"}
    assert {status["topology_version"] for status in shown} == {shown[0]["topology_version"]}
    assert [each["current_grade"] for each in shown[0]["instances"]] == ["Online"] * 3
    heard = doors.get(leader, "/metrics").text
    assert f'trimtab_heartbeat_age_seconds{{instance_id="i{first}"}}' in heard
    assert 'trimtab_governor_steps_total{kind="online",outcome="done"}' in heard
    assert "trimtab_heartbeat_age_seconds{" not in doors.get(first, "/metrics").text
    probe = doors.get(first, f"/api/v1/probe?target=i{second}").json()
    assert (probe["instance_id"], probe["stale"]) == (f"i{second}", False)

    last = doors.get(first, "/api/v1/events").json()["last_event"]
    asked = doors.post(first, f"/api/v1/instances/i{second}/expel", {})
    assert asked.status_code == 202
    told = []
    for event in follow(f"http://{doors.http[first - 1]}", last):
        told.append(event)
        if doors.get(first, f"/api/v1/instances/i{second}?local=true").json()["state"] == "left":
            break
    page = doors.get(first, f"/api/v1/events?after={last}").json()["events"]
    assert told == page[: len(told)], "a stream tells what a page shows"
    doors.until(lambda: doors.get(first, asked.headers["location"]).json()["state"] == "done", "the task is done")
    again = doors.post(first, f"/api/v1/instances/i{second}/expel", {})
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


def test_a_follower_of_events_goes_on_at_another_door_when_the_leader_dies(
    processes: Processes, free_ports: Ports, tmp_path: Path
) -> None:
    doors = Doors(processes, tmp_path, free_ports(6))
    doors.form()
    leader = doors.leader()
    survivor = next(number for number in (1, 2, 3) if number != leader)
    stream = follow(f"http://{doors.http[leader - 1]}", 0)
    before = doors.get(leader, "/api/v1/events?after=0").json()["events"]
    seen = [next(stream)["number"] for _ in before]
    doors.kill(leader)
    assert list(stream) == [], "the stream of a dead instance ends"
    doors.until(lambda: doors.leader() not in (0, leader), "another leads")
    for event in follow(f"http://{doors.http[survivor - 1]}", seen[-1]):
        seen.append(event["number"])
        if "Offline" in event["text"] and f"i{leader}" in event["instances"]:
            break
    page = doors.get(survivor, "/api/v1/events?after=0").json()["events"]
    assert seen == [event["number"] for event in page][: len(seen)], "nothing was missed, nothing came twice"


def test_without_a_majority_an_instance_is_healthy_but_not_ready(
    processes: Processes, free_ports: Ports, tmp_path: Path
) -> None:
    doors = Doors(processes, tmp_path, free_ports(6))
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


def test_a_stopping_instance_ends_its_streams_and_leaves_in_time(
    processes: Processes, free_ports: Ports, tmp_path: Path
) -> None:
    doors = Doors(processes, tmp_path, free_ports(2))
    doors.form()
    stream = follow(f"http://{doors.http[0]}", 0)
    next(stream)
    before = time.monotonic()
    assert doors.stop(1) == 0
    assert time.monotonic() - before < 5
    list(stream)


def test_a_taken_http_port_is_told_before_anything_is_begun(
    processes: Processes, free_ports: Ports, tmp_path: Path
) -> None:
    doors = Doors(processes, tmp_path, free_ports(2))
    host, _, port = doors.http[0].partition(":")
    with socket.create_server((host, int(port))):
        doors.start(1)
        assert doors.running[1].wait(20) == 1
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
    assert httpx.get(url, verify=client_context(files.ca, files.cert, files.key)).json()["status"] == "ok"
    for stranger in (url, f"http://{doors.http[0]}/health"):
        with pytest.raises(httpx.TransportError):
            httpx.get(stranger, verify=False)


@pytest.mark.slow
def test_a_real_instance_answers_as_described(processes: Processes, free_ports: Ports, tmp_path: Path) -> None:
    doors = Doors(processes, tmp_path, free_ports(2))
    doors.form()
    asyncio.run(try_everything(f"http://{doors.http[0]}", tmp_path, examples=25, seed=5))
    assert doors.ready(1)
    assert "failed at" not in doors.output(1)
