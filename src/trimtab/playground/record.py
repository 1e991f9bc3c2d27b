"""What is remembered of a local cluster between commands: `cluster.json` in its directory, and a lock beside it.

The file is replaced whole (written aside, synced, renamed), so whoever dies in the middle leaves the old or the new
one. It is only changed under the lock, which the kernel releases when its holder ends, however that happens.

Directory: --dir, else TRIMTAB_LOCAL_DIR, else (except to make a new cluster) the one brought up last, else
`trimtab/local` in the user's state directory. Where the last one is, is noted in that state directory too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from trimtab.playground.processes import Known

FORMAT = 1
FILE = "cluster.json"
LOCK = "lock"
DIRECTORY_VARIABLE = "TRIMTAB_LOCAL_DIR"
_POLL_S = 0.05


class LocalFailed(Exception):
    """Something about a local cluster did not work; the text says what, where and what to do."""


class LocalInstance(msgspec.Struct, frozen=True):
    """One instance: its addresses, whom it asks first, and its supervisor (None: it was not started, or was ended).

    `left`: it was expelled from its cluster, so there is no use in starting it.
    """

    instance_id: str
    listen: str
    cql: str
    http: str
    bulk: str
    failure_domain: dict[str, str] = {}
    peers: list[str] = []
    replaces: str = ""
    supervisor: Known | None = None
    left: bool = False


class LocalRecord(msgspec.Struct, frozen=True):
    """A local cluster. `next_number` makes the names of instances, none of which is used twice."""

    dir: str
    cluster_id: str
    base_port: int
    next_number: int
    instances: list[LocalInstance]
    format: int = FORMAT

    def named(self, instance_id: str) -> LocalInstance:
        for each in self.instances:
            if each.instance_id == instance_id:
                return each
        names = ", ".join(each.instance_id for each in self.instances)
        raise LocalFailed(f"the local cluster in {self.dir} has no instance '{instance_id}'; it has {names}")

    def with_instances(self, changed: Mapping[str, LocalInstance]) -> LocalRecord:
        """The record with these instances in the place of those of the same name."""
        instances = [changed.get(each.instance_id, each) for each in self.instances]
        return msgspec.structs.replace(self, instances=instances)


def load(directory: Path) -> LocalRecord | None:
    """The record in a directory; None when there is none. LocalFailed when it can't be read."""
    path = directory / FILE
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LocalRecord)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalFailed(f"can't read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise LocalFailed(
            f"{path} is no record of a local cluster ({error}); choose another --dir, or delete it if it is yours"
        ) from error
    if record.format > FORMAT:
        raise LocalFailed(f"{path} was written by a newer version of trimtab (format {record.format}); use that one")
    return record


def save(directory: Path, record: LocalRecord) -> None:
    """Replace the record."""
    try:
        _replace(directory / FILE, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    except OSError as error:
        raise LocalFailed(f"can't write {directory / FILE}: {error.strerror}") from error


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + ".new")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def locked(directory: Path, purpose: str, *, wait_s: float) -> Iterator[None]:
    """Hold the directory's lock; LocalFailed, naming who holds it, when it is not free within `wait_s`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / LOCK).open("a+")
    except OSError as error:
        raise LocalFailed(
            f"can't use the directory {directory}: {error.strerror}; choose another with --dir"
        ) from error
    with file:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    holder = file.read(200).strip() or "another command"
                    raise LocalFailed(
                        f"{holder} is at work on the local cluster in {directory}; wait for its end, or interrupt it"
                    ) from None
                time.sleep(_POLL_S)
        file.truncate(0)
        file.write(f"`trimtab local {purpose}` (process {os.getpid()})")
        file.flush()
        yield


# Where it is


def _state_home(environment: Mapping[str, str]) -> Path:
    named = environment.get("XDG_STATE_HOME", "")
    base = Path(named) if Path(named).is_absolute() else Path.home() / ".local" / "state"
    return base / "trimtab"


def new_directory(environment: Mapping[str, str]) -> Path:
    """Where a new local cluster goes if nobody says otherwise."""
    if named := environment.get(DIRECTORY_VARIABLE):
        return Path(named).absolute()
    return _state_home(environment) / "local"


def present_directory(environment: Mapping[str, str]) -> Path:
    """Where the local cluster is that commands mean if nobody says otherwise."""
    if environment.get(DIRECTORY_VARIABLE):
        return new_directory(environment)
    try:
        noted = Path((_state_home(environment) / "local-cluster").read_text().strip())
    except OSError:
        noted = Path()
    return noted if noted.is_absolute() and (noted / FILE).is_file() else new_directory(environment)


def note_directory(directory: Path, environment: Mapping[str, str]) -> None:
    """Remember where the last local cluster was brought up. LocalFailed when that can't be written."""
    if environment.get(DIRECTORY_VARIABLE):
        return
    path = _state_home(environment) / "local-cluster"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, os.fsencode(directory) + b"\n")
    except OSError as error:
        raise LocalFailed(
            f"can't note in {path} where the local cluster is ({error.strerror}); "
            f"say --dir {directory} or set {DIRECTORY_VARIABLE}"
        ) from error
