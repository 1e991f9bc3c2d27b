"""A cluster on one machine: instances i1, i2, … on loopback, ten ports apart, each with a supervisor of its own.

`LocalCluster` is what the `local` commands, the demo and tests change it through: every change is made under the lock
of its directory and noted in its record. It knows processes and ports; how the instances stand in their cluster is
asked of the cluster itself (`forming`).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trimtab.playground import members
from trimtab.playground.ports import PORTS_EACH, SPACING, why_taken
from trimtab.playground.processes import Known
from trimtab.playground.record import FILE, LOCK, LocalFailed, LocalInstance, LocalRecord, load, locked, save

DEFAULT_NODES = 3
DEFAULT_BASE_PORT = 3301
DEFAULT_CLUSTER_ID = "trimtab"
MAX_NODES = 100
# More add nothing: instances learn of all others from any of them.
_SEEDS = 3
_LOCK_WAIT_S = 15.0
_HOST = "127.0.0.1"


class LocalCluster:
    """The local cluster of one directory. `attached` instances end with the process that started them."""

    def __init__(self, directory: Path, *, attached: bool = False) -> None:
        self.directory = directory.absolute()
        self._attached = attached

    # Looking

    @property
    def exists(self) -> bool:
        return load(self.directory) is not None

    def record(self) -> LocalRecord:
        """What is noted of it; LocalFailed when there is none."""
        record = load(self.directory)
        if record is None:
            raise LocalFailed(
                f"there is no local cluster in {self.directory}; `trimtab local up` makes one, --dir names another"
            )
        return record

    def running(self) -> dict[str, Known]:
        """The supervisors that run, by instance id."""
        found = {}
        for instance in self.record().instances:
            if supervisor := members.supervisor_of(self.directory, instance):
                found[instance.instance_id] = supervisor
        return found

    def addresses(self, instance_ids: Collection[str] | None = None) -> dict[str, str]:
        """Where instances listen; default: those that run."""
        wanted = self.running() if instance_ids is None else instance_ids
        return {each.instance_id: each.listen for each in self.record().instances if each.instance_id in wanted}

    def as_json(self, changed: Sequence[str] = ()) -> dict[str, Any]:
        """What scripts rely on; pid is that of the supervisor, null when it does not run; likewise the bulk child's."""
        running = self.running()
        instances = [
            {
                "instance_id": each.instance_id,
                "listen": each.listen,
                "cql": each.cql,
                "http": each.http,
                "bulk": each.bulk,
                "pid": running[each.instance_id].pid if each.instance_id in running else None,
                "bulk_pid": members.bulk_pid(running[each.instance_id]) if each.instance_id in running else None,
                "running": each.instance_id in running,
                "left": each.left,
                "failure_domain": each.failure_domain,
                "data_dir": str(members.data_path(self.directory, each.instance_id)),
                "log": str(members.log_path(self.directory, each.instance_id)),
            }
            for each in self.record().instances
        ]
        return {"dir": str(self.directory), "instances": instances, "changed": list(changed)}

    def ended(self, started: Mapping[str, Known]) -> dict[str, str]:
        """Those of the started that have ended by themselves, with their last words."""
        running = self.running()
        return {
            instance_id: members.last_words(self.directory, instance_id)
            for instance_id in started
            if instance_id not in running
        }

    # Changing

    @contextlib.contextmanager
    def coming_up(self) -> Iterator[None]:
        """Hold the lock from the beginning of `up` to its end: a second one is refused at once."""
        with locked(self.directory, "up", wait_s=0):
            yield

    def create(self, nodes: int, base_port: int, cluster_id: str = DEFAULT_CLUSTER_ID) -> None:
        """Note a new cluster of so many instances, once their ports are known to be free. Call it `coming_up`."""
        if not 1 <= nodes <= MAX_NODES:
            raise LocalFailed(f"a local cluster has 1 to {MAX_NODES} instances, not {nodes}")
        others = [each.name for each in self.directory.iterdir() if each.name not in (LOCK, FILE, FILE + ".new")]
        if others:
            raise LocalFailed(
                f"{self.directory} is not empty (it has {', '.join(sorted(others)[:3])}) and holds no local cluster; "
                "choose another directory with --dir"
            )
        empty = LocalRecord(str(self.directory), cluster_id, base_port, 1, [])
        record = self._extended(empty, nodes, seeds=[], replaces="")
        self._check_ports(record.instances)
        save(self.directory, record)

    def start_all(self) -> dict[str, Known]:
        """Start every instance that does not run and has not left; those that were started. Call it `coming_up`."""
        wanted = [each.instance_id for each in self.record().instances if not each.left]
        return self._start(wanted, skip_running=True)

    def add(self, nodes: int = 1, replaces: str = "") -> dict[str, Known]:
        """Start further instances; they ask those that run to be let in."""
        with self._changing("add"):
            record = self.record()
            running = self.addresses()
            if not running:
                raise LocalFailed("no instance runs that a new one could join; `trimtab local up` starts them")
            if replaces:
                record.named(replaces)
            before = len(record.instances)
            if before + nodes > MAX_NODES:
                raise LocalFailed(f"a local cluster has at most {MAX_NODES} instances, and {before} are there already")
            record = self._extended(record, nodes, seeds=list(running.values())[:_SEEDS], replaces=replaces)
            added = record.instances[before:]
            self._check_ports(added)
            save(self.directory, record)
            return self._start([each.instance_id for each in added], skip_running=False)

    def start(self, instance_ids: Sequence[str]) -> dict[str, Known]:
        """Start instances that were stopped or killed."""
        with self._changing("start"):
            return self._start(instance_ids, skip_running=False)

    def kill(self, instance_ids: Sequence[str]) -> None:
        """SIGKILL of all their processes; returns when they are gone."""
        with self._changing("kill"):
            found = self._running_of(instance_ids)
            for instance_id, supervisor in found.items():
                members.kill(supervisor, instance_id)
            self._note_ended(instance_ids)

    def stop(self, instance_ids: Sequence[str]) -> list[str]:
        """SIGTERM; returns when they are gone: those that had to be killed after all."""
        with self._changing("stop"):
            forced = self._stop(self._running_of(instance_ids))
            self._note_ended(instance_ids)
            return forced

    def down(self, *, purge: bool = False) -> tuple[list[str], list[str]]:
        """Stop whatever runs, and (`purge`) delete everything: those that ran, and those that had to be killed."""
        with self._changing("down"):
            running = self.running()
            forced = self._stop(running)
            self._note_ended([each.instance_id for each in self.record().instances])
            if purge:
                self._purge()
            return list(running), forced

    def note_left(self, instance_ids: Collection[str]) -> None:
        """Remember that these were expelled from their cluster. Call it `coming_up`."""
        record = self.record()
        gone = {each: msgspec.structs.replace(record.named(each), left=True) for each in instance_ids}
        save(self.directory, record.with_instances(gone))

    # How

    @contextlib.contextmanager
    def _changing(self, purpose: str) -> Iterator[None]:
        """Hold the lock for a change of a cluster that is there; nothing is made where there is none."""
        self.record()
        with locked(self.directory, purpose, wait_s=_LOCK_WAIT_S):
            yield

    def _extended(self, record: LocalRecord, nodes: int, *, seeds: list[str], replaces: str) -> LocalRecord:
        """The record with more instances. Without seeds they found a cluster, and the first of them are the seeds."""
        first = record.next_number
        bases = [record.base_port + (number - 1) * SPACING for number in range(first, first + nodes)]
        if bases[-1] + PORTS_EACH - 1 > 65_535:
            raise LocalFailed(
                f"i{first + nodes - 1} would need port {bases[-1] + PORTS_EACH - 1}, and ports end at 65535; "
                "choose a lower --base-port"
            )
        peers = seeds or [f"{_HOST}:{port}" for port in bases[:_SEEDS]]
        instances = []
        for number, port in enumerate(bases, start=first):
            listen, cql, http, bulk = (f"{_HOST}:{port + each}" for each in range(PORTS_EACH))
            domain = {"host": f"i{number}"}
            instances.append(LocalInstance(f"i{number}", listen, cql, http, bulk, domain, peers, replaces))
        return msgspec.structs.replace(
            record, instances=[*record.instances, *instances], next_number=record.next_number + nodes
        )

    def _check_ports(self, instances: Sequence[LocalInstance]) -> None:
        for instance in instances:
            first = int(instance.listen.rpartition(":")[2])
            for port in range(first, first + PORTS_EACH):
                if why := why_taken(_HOST, port):
                    raise LocalFailed(
                        f"{instance.instance_id} can't have its ports {first} to {first + PORTS_EACH - 1}: {why}; "
                        "end what uses it, or choose other ports with --base-port"
                    )

    def _start(self, instance_ids: Sequence[str], *, skip_running: bool) -> dict[str, Known]:
        record, running = self.record(), self.running()
        wanted = [record.named(instance_id) for instance_id in instance_ids]
        for each in wanted:
            if each.instance_id in running and not skip_running:
                raise LocalFailed(f"{each.instance_id} runs already (process {running[each.instance_id].pid})")
        wanted = [each for each in wanted if each.instance_id not in running]
        self._check_ports(wanted)
        started: dict[str, Known] = {}
        for each in wanted:
            supervisor = members.start(self.directory, record.cluster_id, each, attached=self._attached)
            started[each.instance_id] = supervisor
            # Noted one by one: who dies in between leaves nothing running that is not noted, but for the last one,
            # which is found by its command line.
            noted = msgspec.structs.replace(each, supervisor=supervisor)
            record = record.with_instances({each.instance_id: noted})
            save(self.directory, record)
        return started

    def _running_of(self, instance_ids: Sequence[str]) -> dict[str, Known]:
        record, running = self.record(), self.running()
        for instance_id in instance_ids:
            record.named(instance_id)
            if instance_id not in running:
                raise LocalFailed(f"{instance_id} is not running; `trimtab local start {instance_id}` starts it")
        return {instance_id: running[instance_id] for instance_id in instance_ids}

    def _stop(self, supervisors: dict[str, Known]) -> list[str]:
        for supervisor in supervisors.values():
            members.tell_to_stop(supervisor)
        return [
            instance_id
            for instance_id, supervisor in supervisors.items()
            if not members.await_stop(supervisor, instance_id, members.STOP_S)
        ]

    def _note_ended(self, instance_ids: Sequence[str]) -> None:
        record = self.record()
        ended = {each: msgspec.structs.replace(record.named(each), supervisor=None) for each in instance_ids}
        save(self.directory, record.with_instances(ended))

    def _purge(self) -> None:
        """Delete what is ours and nothing else, the record last."""
        for each in self.record().instances:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.directory / each.instance_id)
        (self.directory / FILE).unlink()
        (self.directory / LOCK).unlink(missing_ok=True)
        if not any(self.directory.iterdir()):
            self.directory.rmdir()
