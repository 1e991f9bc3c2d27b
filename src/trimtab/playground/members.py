"""An instance of a local cluster as processes of this machine: the same `trimtab run` an operator would start.

The supervisor leads a session of its own and outlives the command that started it, unless it is `attached`: then it
ends with the process that started it, whatever ends that. What it says goes to `<dir>/<id>/log`, its data to
`<dir>/<id>/data`. Only processes that are known to be the instance's own are ever signalled.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from trimtab.node.attending import NAME as BULK_NAME
from trimtab.playground.processes import Known, await_end, find_leader, known, lives, name_of, send, session_of
from trimtab.playground.record import LocalFailed, LocalInstance

STOP_S = 25.0  # a supervisor gives its node 20
_KILL_S = 3.0
_GONE_S = 20.0
_PR_SET_PDEATHSIG = 1
# What is meant for one instance, or for another cluster, must not reach all of this one through the environment.
_NOT_PASSED_ON = re.compile(r"TRIMTAB_(INSTANCE_ID|LISTEN|PEER|ADVERTISE|DATA_DIR|REPLACE|HTTP_LISTEN|CONTACT|TLS_.*)")
_libc = ctypes.CDLL(None)


def log_path(directory: Path, instance_id: str) -> Path:
    return directory / instance_id / "log"


def data_path(directory: Path, instance_id: str) -> Path:
    return directory / instance_id / "data"


def command_of(directory: Path, cluster_id: str, instance: LocalInstance) -> list[str]:
    """The command line of its supervisor."""
    command = [sys.executable, "-m", "trimtab", "run", *_mark(directory, instance)]
    command += ["--instance-id", instance.instance_id, "--cluster-id", cluster_id, "--listen", instance.listen]
    for peer in instance.peers:
        command += ["--peer", peer]
    for key, value in instance.failure_domain.items():
        command += ["--failure-domain", f"{key}={value}"]
    if instance.replaces:
        command += ["--replace", instance.replaces]
    return command


def _mark(directory: Path, instance: LocalInstance) -> tuple[str, str]:
    """What no other process has in its command line."""
    return "--data-dir", str(data_path(directory, instance.instance_id))


def supervisor_of(directory: Path, instance: LocalInstance) -> Known | None:
    """Its supervisor, if that runs; also one that was started by a command that died before it could note it."""
    if instance.supervisor is not None and lives(instance.supervisor):
        return instance.supervisor
    return find_leader(*_mark(directory, instance))


def _end_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(directory: Path, cluster_id: str, instance: LocalInstance, *, attached: bool = False) -> Known:
    """Start its supervisor; returns at once."""
    log = log_path(directory, instance.instance_id)
    environment = {name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.fullmatch(name)}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as stream:
            process = subprocess.Popen(
                command_of(directory, cluster_id, instance),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=log.parent,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent if attached else None,
            )
    except OSError as error:
        raise LocalFailed(f"can't start {instance.instance_id}: {error}") from error
    found = known(process.pid)
    # It outlives us as it should; being waited for is none of its needs.
    process.returncode = 0
    if found is None:
        raise LocalFailed(f"{instance.instance_id} ended at once: {last_words(directory, instance.instance_id)}")
    return found


def kill(supervisor: Known, instance_id: str) -> None:
    """SIGKILL, as when the machine's memory ran out: no goodbye, nothing flushed. Returns when all of it is gone."""
    send(supervisor, signal.SIGKILL)
    # Its children end with it; one that does not, within a moment, is ended here.
    for process in await_end(supervisor, _KILL_S):
        send(process, signal.SIGKILL)
    if left := await_end(supervisor, _GONE_S):
        pids = ", ".join(str(process.pid) for process in left)
        raise LocalFailed(f"processes of {instance_id} can't be killed: {pids}; is its disk stuck?")


def tell_to_stop(supervisor: Known) -> None:
    """SIGTERM: leave in good order."""
    send(supervisor, signal.SIGTERM)


def await_stop(supervisor: Known, instance_id: str, timeout_s: float) -> bool:
    """Wait for its end in good order; False if it took too long and was killed."""
    if not await_end(supervisor, timeout_s):
        return True
    kill(supervisor, instance_id)
    return False


def children_of(supervisor: Known) -> list[int]:
    """The processes it started."""
    return [process.pid for process in session_of(supervisor) if process.pid != supervisor.pid]


def bulk_pid(supervisor: Known) -> int | None:
    """Its bulk child, if that runs."""
    return next((pid for pid in children_of(supervisor) if name_of(pid) == BULK_NAME), None)


def last_words(directory: Path, instance_id: str, *, lines: int = 1) -> str:
    """The end of its log."""
    try:
        with log_path(directory, instance_id).open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 16_384, 0))
            said = file.read().decode(errors="replace").strip().splitlines()
    except OSError as error:
        return f"its log can't be read: {error.strerror}"
    return "\n".join(said[-lines:]) or "it said nothing"
