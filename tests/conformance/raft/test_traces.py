"""Interaction traces of etcd's raft: every Ready, message, state and entry to the letter; log lines masked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.raft.datadriven import mask_log, read_cases, vector_files
from tests.conformance.raft.interaction import Environment


@pytest.mark.parametrize("path", vector_files("raft/traces") or [None], ids=lambda path: path and path.stem)
def test_the_cluster_says_what_the_trace_says(path: Path | None, vectors: Callable[[str], Path]) -> None:
    vectors("raft/traces")
    assert path is not None, "the folder of traces is empty"
    environment = Environment()
    for case in read_cases(path):
        assert mask_log(environment.run(case)) == mask_log(case.expected), f"{case.where}: {case.command}"
