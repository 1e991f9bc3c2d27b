"""What tests of Spark pass over: stacks of its own processes that it hung up on, and no others."""

from __future__ import annotations

import pytest
from tests.spark.noise import without_sparks_own

BEGIN = "Traceback (most recent call last):\n"
BROKEN = "BrokenPipeError: [Errno 32] Broken pipe\n"
DAEMON = '  File "/venv/pyspark/python/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
RUNPY = '  File "<frozen runpy>", line 198, in _run_module_as_main\n'
SERIALIZERS = '  File "/venv/pyspark/serializers.py", line 621, in write_with_length\n    stream.write(obj)\n'
SOCKET = '  File "/usr/lib/python3.11/socket.py", line 724, in write\n    return self._sock.send(b)\n           ^^^^^\n'
OURS = '  File "/venv/trimtab/spark/source.py", line 7, in write\n'


@pytest.mark.parametrize(
    "said",
    [
        BEGIN + RUNPY + DAEMON + SERIALIZERS + BROKEN,
        BEGIN + DAEMON + SOCKET + BROKEN,
        BEGIN + DAEMON + SOCKET + "ConnectionResetError: [Errno 104] Connection reset by peer\n",
        f"PySpark daemon failed to flush the output to the worker process:\n{BEGIN}{DAEMON}{BROKEN}\n",
        BEGIN,
        BEGIN + DAEMON,
        BEGIN + RUNPY + DAEMON[:-20],
    ],
)
def test_a_stack_of_a_process_that_spark_hung_up_on_is_passed_over(said: str) -> None:
    assert without_sparks_own(f"before\n{said}") == "before\n"


@pytest.mark.parametrize(
    "said",
    [
        BEGIN + DAEMON + OURS + BROKEN,
        BEGIN + OURS,
        BEGIN + DAEMON + "KeyError: 'x'\n",
        f"{BEGIN}{DAEMON}{OURS}ValueError: no\n",
    ],
)
def test_a_stack_with_anything_of_ours_or_another_error_is_not(said: str) -> None:
    assert without_sparks_own(said) == said
