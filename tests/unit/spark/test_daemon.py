"""What the process does from which Spark forks its workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

# Pages that the system had to clear while a large array was made and freed again and again; and Arrow's pool.
_FAULTS = """
import json, resource, sys
from trimtab.spark.daemon import keep_memory
kept = sys.argv[1] == "keep" and keep_memory()
import numpy as np
import pyarrow as pa
np.ones(64 << 20, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(48 << 20, np.uint8)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(json.dumps({"kept": kept, "faults": faults, "pool": pa.default_memory_pool().backend_name}))
"""


def said(how: str, **environment: str) -> dict[str, object]:
    # Without huge pages, so that faults tell of bytes.
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0", **environment}
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS, how], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_worker_uses_memory_again_that_it_has_freed():
    usual, keeping = said("usual"), said("keep")
    assert keeping["kept"] and keeping["pool"] == "system"
    assert keeping["faults"] < usual["faults"] / 10, (usual, keeping)


def test_a_pool_of_arrow_that_somebody_chose_is_left_alone():
    assert said("keep", ARROW_DEFAULT_MEMORY_POOL="mimalloc")["pool"] == "mimalloc"
