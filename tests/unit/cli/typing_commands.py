"""Commands about rows and schemas, typed against a cluster of dictionaries on real sockets."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.client.fake_cluster import FakeCluster
from tests.unit.client.served import served

from trimtab.cli.main import run


class Typist:
    """Types commands; exit code, standard output, standard error."""

    def __init__(
        self, cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.cluster = cluster
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        self._monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        peers = [each for address in self.cluster.addresses.values() for each in ("--peer", address)]
        code = run([*arguments, *peers, "--timeout", "30"])
        said = self._capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    def json(self, *arguments: str, stdin: str = "") -> Any:
        code, out, err = self(*arguments, "--json", stdin=stdin)
        assert code == 0, err
        return json.loads(out)

    def refused(self, *arguments: str, code: int = 1, stdin: str = "") -> str:
        found, out, err = self(*arguments, stdin=stdin)
        assert found == code and not out, (found, out, err)
        return err


@pytest.fixture
def typist(
    free_ports: Callable[[int], list[int]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Typist]:
    with served(free_ports(2)) as cluster:
        yield Typist(cluster, capsys, monkeypatch)
