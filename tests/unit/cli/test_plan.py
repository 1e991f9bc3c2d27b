"""`trimtab plan`: of topology files, and of the running cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.operator import MadeUp
from tests.unit.cli.typing_commands import Typist
from tests.unit.topology.clusters import member

from trimtab.cli.main import run
from trimtab.client.cluster import ClusterClient
from trimtab.topology.protocol import InstanceView, ViewReply


def topology(nodes: int = 9, tablets: int = 100) -> dict[str, Any]:
    """Even, three replicas a tablet."""
    return {
        "nodes": [
            {"id": f"n{at}", "dc": "dc1", "rack": "r", "host": f"h{at}", "capacity_bytes": 10**12, "state": "normal"}
            for at in range(nodes)
        ],
        "tables": [{"id": "t", "keyspace": "ks", "replication": {"dc1": 3}}],
        "tablets": [
            {
                "table": "t",
                "tablet": at,
                "bytes": 10**9,
                "replicas": [f"n{(3 * at + shift) % nodes}" for shift in range(3)],
            }
            for at in range(tablets)
        ],
    }


class Files:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.path = folder / "topology.json"
        self.path.write_text(json.dumps(topology()))
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = run(["plan", "--input", str(self.path), *arguments])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    def json(self, *arguments: str) -> dict[str, Any]:
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found


@pytest.fixture
def files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Files:
    return Files(tmp_path, capsys)


def test_the_json_has_the_promised_shape(files: Files) -> None:
    found = files.json("--add", "1")
    fields = {"moves", "moved_bytes", "lower_bound_bytes", "lower_bound_moves", "ratio", "ratio_bytes"}
    assert set(found) >= fields | {"spread_before", "spread_after", "seconds"}
    assert len(found["moves"]) == found["lower_bound_moves"] == 30 and found["ratio"] == found["ratio_bytes"] == 1.0
    assert found["moved_bytes"] == found["lower_bound_bytes"] == 30 * 10**9
    assert found["spread_before"] > 1 and found["spread_after"] == 0 and found["seconds"] > 0
    move = found["moves"][0]
    assert set(move) >= {"keyspace", "table", "tablet", "from", "to", "bytes", "why"}
    assert (move["keyspace"], move["table"], move["to"], move["bytes"]) == ("ks", "t", "added-1", 10**9)


def test_what_is_healed_comes_from_nowhere(files: Files) -> None:
    said = topology()
    said["nodes"][4]["state"] = "dead"
    files.path.write_text(json.dumps(said))
    moves = files.json()["moves"]
    healed = [move for move in moves if move["from"] is None]
    assert len(healed) == 33 and all(move["why"].startswith("n4 is lost: 2 of 3 replicas are left") for move in healed)
    assert moves[:33] == healed and "n4" not in {move["to"] for move in moves} | {move["from"] for move in moves}


def test_an_even_topology_needs_nothing(files: Files) -> None:
    found = files.json()
    assert found["moves"] == [] and found["ratio"] == found["ratio_bytes"] == 1.0
    assert files()[1].startswith("Nothing to move.\n")


def test_people_read_what_it_costs_and_why(files: Files) -> None:
    out = files("--add", "1")[1]
    assert "30 moves (30 balance), 27.9 GiB to copy." in out
    assert "At least 30 moves and 27.9 GiB are needed for a state as even: 1.00× the moves, 1.00× the bytes." in out
    assert "added-1 is 100.0 % below its share" in out and "and 10 more; --json shows all." in out


def test_several_suppositions_at_once(files: Files) -> None:
    found = files.json("--remove", "n1", "--remove", "n2", "--replication", "ks=2", "--add", "1")
    assert not any(move["to"] in ("n1", "n2") for move in found["moves"])
    assert {move["cause"] for move in found["moves"]} <= {"drain", "replication", "balance"}


@pytest.mark.parametrize("parquet", [False, True])
def test_the_output_is_a_topology_in_the_format_of_the_input(files: Files, parquet: bool) -> None:
    if parquet:
        # Of a running cluster, or from JSON to a directory: by way of the output itself.
        from trimtab.cli.plan import _read, _write
        from trimtab.tablets.balancer.planning import plan

        cluster, folder = _read(files.path), files.folder / "tables"
        folder.mkdir()
        _write(folder, cluster, plan(cluster), folder)
        files.path = folder
    output = files.folder / "after"
    files.json("--add", "1", "--output", str(output))
    assert output.is_dir() == parquet
    files.path = output
    assert files.json()["moves"] == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--remove", "x"), 1, "there is no node 'x'; there are n0, n1, n2, n3, n4 and 4 more."),
        (("--replication", "other=3"), 1, "there is no keyspace 'other'; there is ks."),
        (("--replication", "ks=70"), 1, "the table t wants 70 replicas in dc1; 0 to 64 can be."),
        (("--replication", "ks"), 2, "'ks' is no replication: write KEYSPACE=3"),
        (("--replication", "ks=many"), 2, "'many' is no replication"),
        (("--add", "-1"), 2, "Input should be greater than or equal to 0"),
        (("--add", "20000"), 1, "at most 10000 nodes are added"),
    ],
)
def test_suppositions_that_make_no_sense_are_refused(
    files: Files, arguments: tuple[str, ...], code: int, said: str
) -> None:
    found = files(*arguments)
    assert found[0] == code and said in found[2] and not found[1]


def test_input_that_can_not_be_read_is_named(files: Files) -> None:
    files.path.write_text("[1, 2")
    assert f"{files.path}: this is no topology" in files()[2]
    files.path = files.folder / "nowhere"
    assert f"{files.path} can't be read: No such file or directory." in files()[2]
    files.path = files.folder / "pipe"
    os.mkfifo(files.path)
    assert f"{files.path}: this is neither a file nor a directory." in files()[2]
    files.path = Path("/dev/zero")
    assert "this is neither a file nor a directory" in files()[2]
    files.path = files.folder
    assert "this directory has no nodes.parquet" in files()[2]
    (files.folder / "nodes.parquet").write_bytes(b"no parquet")
    assert "nodes.parquet can't be read as Parquet" in files()[2]


def test_what_can_not_be_had_is_told_and_is_no_failure(files: Files) -> None:
    code, out, _ = files("--replication", "ks=12")
    assert code == 0 and "Can't be had: tablet 0 of t" in out and "needs 12 distinct hosts" in out.replace("\n", " ")


def test_lack_of_room_is_told_with_the_numbers(files: Files) -> None:
    """It was "Nothing to move", with a spread of 200 %."""
    nodes = [{"id": id, "capacity_bytes": 1000} for id in ("a", "b")]
    tables = [{"id": "users", "keyspace": "shop", "replication": {"dc1": 1}}]
    tablets = [{"table": "users", "tablet": at, "bytes": 4 * 10**9, "replicas": ["a"]} for at in range(2)]
    files.path.write_text(json.dumps({"nodes": nodes, "tables": tables, "tablets": tablets}))
    code, out, _ = files()
    assert code == 0 and out.startswith("Nothing can be moved.\n")
    said = (
        "bytes per capacity stay uneven in data centre dc1: b is 100.0 % below its share and has room for 1,000 bytes, "
        "and the smallest tablet that is worth moving there takes 4,000,000,000 bytes (tablet 0 of users); make room "
        "there, or add instances, or larger ones"
    )
    assert f"Can't be had: {said}." in " ".join(out.split())
    assert files.json()["problems"] == [said]


def test_the_running_cluster_is_planned_by_the_same_code(typist: Typist, monkeypatch: pytest.MonkeyPatch) -> None:
    typist.cluster.create("shop.users", "id bigint, name text", "id", tablets=8)
    shown = [InstanceView(raft_id, member(raft_id), voter=True, learner=False) for raft_id in (1, 2)]
    seen = ViewReply("c", "g", 1, 1, 1, 1, 1, 1, None, shown, [])
    monkeypatch.setattr(ClusterClient, "unconnected", lambda *_, **__: MadeUp(seen))
    assert typist.json("plan")["moves"] == []
    found = typist.json("plan", "--add", "2")
    assert len(found["moves"]) == found["lower_bound_moves"] == 8
    assert {move["table"] for move in found["moves"]} == {"users"}
    assert found["weighed_bytes"] == found["lower_bound_bytes"] == 8 << 20 and found["ratio_bytes"] == 1.0
    assert found["moved_bytes"] == sum(move["bytes"] for move in found["moves"]) == 28_000
    out = " ".join(typist("plan", "--add", "2")[1].split())
    assert "8 moves (8 balance), 27.3 KiB to copy." in out
    assert "Tablets below 1.0 MiB count as 1.0 MiB, here and in the bound: that makes 8.0 MiB." in out
    assert "At least 8 moves and 8.0 MiB are needed for a state as even: 1.00× the moves, 1.00× the bytes." in out
