"""Files in and out of real instances while bulk children and nodes are killed, and the rate that all of them obey."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

import trimtab
from tests.cluster.instances import Instances, loopback
from tests.cluster.patience import create_keyspace, create_table, put_rows
from tests.cluster.watching import run
from tests.conftest import Processes
from trimtab.bulk.client import BulkClient, BulkRefused, Patience
from trimtab.bulk.pace import BURST_S
from trimtab.client.errors import Error
from trimtab.client.loads import BlockingLoads
from trimtab.loads.protocol import BeginRequest, SnapshotRequest, TicketReply
from trimtab.metastore import commands
from trimtab.metastore.conditions import Compare, Value

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MEGABYTE = 1_000_000
_MOST_FILES = 200
# A child that is killed is back within a second or two, at first; on a busy machine its low priority lets it wait.
PATIENT = Patience(attempts=90, first_pause_s=0.1, longest_pause_s=1.0)


class Cluster:
    """Three instances with bulk children, a table, and an open session to stage files under."""

    def __init__(self, instances: Instances, folder: Path) -> None:
        self.instances = instances
        self.folder = folder
        self.peers = ",".join(instances.listen.values())

    def open_session(self, id: str) -> TicketReply:
        with BlockingLoads(list(self.instances.listen.values()), timeout_s=60) as loads:
            loads.refresh()
            (table,) = loads.catalog.tables.values()
            loads.begin(BeginRequest(id, table.id, table.version, lease_ms=600_000))
            return loads.ticket(id)

    def close_session(self, id: str) -> None:
        with BlockingLoads(list(self.instances.listen.values()), timeout_s=60) as loads:
            loads.refresh()
            (table,) = loads.catalog.tables
            loads.abort(table, id, "the test is over")

    def limit(self, rate_bytes_s: int) -> None:
        async def ask() -> None:
            async with self.instances.client() as client:
                await client.limit(rate_bytes_s)

        run(ask())

    def raft_id(self, number: int) -> int:
        async def ask() -> int:
            return (await self.instances.row(number)).raft_id

        return run(ask())

    def file(self, name: str, size_bytes: int) -> Path:
        path = self.folder / name
        path.write_bytes(random.Random(name).randbytes(size_bytes))
        return path

    def until(self, happened: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}\n{self.instances.said()}"
            time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("bulk")
    processes = Processes()
    addresses = loopback(6)
    instances = Instances(processes, folder, addresses[:3], bulk=addresses[3:])
    try:
        instances.start(1, 2, 3)
        run(instances.online())
        db = trimtab.connect(",".join(addresses[:3]), timeout=60)
        create_keyspace(db, "k", replication=3)
        create_table(db, "k.t", {"id": "bigint", "v": "text"}, tablets=4)
        put_rows(db.table("k.t"), [{"id": number, "v": "x" * 100} for number in range(200)])
        db.close()
        yield Cluster(instances, folder)
    finally:
        processes.end_all()


def test_a_bulk_child_killed_in_the_middle_of_an_upload_is_back_and_the_upload_completes(cluster: Cluster) -> None:
    instances, source = cluster.instances, cluster.file("up", 6 * MEGABYTE)
    ticket = cluster.open_session("up-1")
    raft_id = cluster.raft_id(1)
    node = instances.node(1)
    cluster.until(lambda: instances.bulk_child(1) != 0, "there is a bulk child")
    victims = [instances.bulk_child(1)]
    cluster.limit(9 * MEGABYTE)

    def kill_once(so_far: int, _total: int) -> None:
        if so_far > 3 * MEGABYTE and len(victims) == 1:
            os.kill(victims[0], signal.SIGKILL)
            victims.append(0)

    try:
        with BulkClient(ticket.bulk[raft_id], patience=PATIENT) as client:
            staged = client.stage(source, "up-1", 2, "a.sst", ticket.ticket, progress=kill_once)
            assert client.attempts > 1
            assert staged.sent_bytes < 2 * staged.size_bytes, "it went on where it was"
            assert client.stage(source, "up-1", 2, "a.sst", ticket.ticket).sent_bytes == 0
    finally:
        cluster.limit(0)
    held = instances.data_dir(1) / "staging/up-1/2"
    assert (held / "a.sst").read_bytes() == source.read_bytes()
    assert [each.name for each in held.iterdir()] == ["a.sst"], "no part is left"
    assert instances.bulk_child(1) not in (0, victims[0])
    assert instances.node(1) == node, "the node was not touched"
    cluster.close_session("up-1")
    cluster.until(lambda: not held.exists(), "the staged file is gone with its session")

    def refused() -> bool:
        with BulkClient(ticket.bulk[raft_id]) as client:
            try:
                client.stage(source, "up-1", 2, "b.sst", ticket.ticket)
            except BulkRefused as error:
                assert error.code == "unknown_session"
                return True
        return False

    # The child asks its node twice a second which sessions are open.
    cluster.until(refused, "nothing is taken for a session that is closed")


def test_a_snapshot_is_read_here_or_downloaded_while_the_bulk_child_and_the_node_are_killed(cluster: Cluster) -> None:
    instances = cluster.instances
    raft_id = cluster.raft_id(2)
    with BlockingLoads(list(instances.listen.values()), timeout_s=60) as loads:
        loads.refresh()
        (table,) = loads.catalog.tables
        # Nobody renews it here.
        request = SnapshotRequest(table, [0, 1, 2, 3], 0, lease_ms=600_000)
        taken = loads.snapshot(raft_id, request)
        again = loads.snapshot(raft_id, replace(request, name=taken.name))
        assert (again.proof, again.tablets) == (taken.proof, taken.tablets)
        data = Path(taken.directory)
        assert data == instances.data_dir(2)
        assert (data / "snapshots" / taken.name / "proof").read_text() == taken.proof
        assert data.stat().st_mode & 0o077 == 0, "others download"
        target = cluster.folder / "down"
        target.mkdir()
        wanted = [(each.path, name, size) for each in taken.tablets for name, size in each.files]
        assert any(name.endswith(".sst") and size for _, name, size in wanted)
        with BulkClient(taken.bulk_address, patience=PATIENT) as client:
            for place, (path, name, size) in enumerate(wanted):
                if place == 2:
                    instances.kill_bulk_child(2)
                if place == 5:
                    instances.kill_node(2)
                client.fetch_to(target / f"{place}", f"{path}/{name}", taken.ticket, size_bytes=size)
                assert (target / f"{place}").read_bytes() == (data / path / name).read_bytes()
            assert client.fetch(f"snapshots/{taken.name}/proof", taken.ticket).decode() == taken.proof
        run(instances.online(2))
        loads.release_snapshot(raft_id, taken.name)
        assert not (data / "snapshots" / taken.name).exists()


def test_a_new_limit_holds_within_a_second_in_the_middle_of_a_transfer(cluster: Cluster) -> None:
    """Counted is what lies on the disk of one child, which a busy machine only makes less.

    The child asks its node again and again. The limit is lowered when a higher one has just been seen to hold, so just
    after it has asked: longer than from then on it never takes to hear of it. A busy machine may let it wait all the
    same, so it is tried until it was in time once; a child that asks too seldom is so by no chance.
    """
    source, ticket = cluster.file("rated", 64 * MEGABYTE), cluster.open_session("rated-1")
    held = cluster.instances.data_dir(3) / "staging/rated-1/0"
    high, low = 12 * MEGABYTE, 600_000  # of the whole cluster; a third of it is the child's
    over = threading.Event()

    def send(client: BulkClient) -> None:
        for number in range(_MOST_FILES):
            if over.is_set():
                return
            client.stage(source, "rated-1", 0, f"{number}.sst", ticket.ticket)

    def taken() -> int:
        for _ in range(_MOST_FILES):
            with contextlib.suppress(FileNotFoundError):  # a part that has just got its name
                return sum(each.stat().st_size for each in held.iterdir())
        raise AssertionError(f"the files of {held} never stand still")

    async def try_once() -> bool:
        async with cluster.instances.client() as client:
            await client.limit(high)
            before, since = taken(), time.monotonic()
            while taken() - before < MEGABYTE // 4 + low * (time.monotonic() - since):
                assert time.monotonic() < since + 90, f"the higher limit does not hold\n{cluster.instances.said()}"
                await asyncio.sleep(0.01)
            await client.limit(low)
            await asyncio.sleep(1.0)
            since, before = time.monotonic(), taken()
            await asyncio.sleep(0.5)
            passed = taken() - before
        # What goes at once, and a piece at the beginning and at the end. By the higher limit it were five times that.
        return passed <= low * (time.monotonic() - since + 2 * BURST_S)

    with BulkClient(ticket.bulk[cluster.raft_id(3)], patience=PATIENT) as client, ThreadPoolExecutor(1) as pool:
        cluster.limit(low)
        sending = pool.submit(send, client)
        try:
            cluster.until(lambda: held.exists(), "the transfer is under way")
            cluster.until(lambda: run(try_once()), "the lower limit holds a second after it was acknowledged")
            cluster.limit(0)
            before = taken()
            cluster.until(lambda: taken() - before > 40 * MEGABYTE, "no limit holds: it would take minutes by the last")
        finally:
            cluster.limit(0)
            over.set()
            sending.result(90)
            cluster.close_session("rated-1")


def test_the_key_of_tickets_is_not_to_be_had_by_clients(cluster: Cluster) -> None:
    cluster.limit(10**9)
    cluster.limit(0)

    async def look() -> None:
        async with cluster.instances.client() as client:
            store = client.metastore
            for refused in (
                lambda: store.get(b"secrets/bulk"),
                lambda: store.get(b"secrets/bulk", linearizable=False),
                lambda: store.invoke(commands.invoke(Value(b"secrets/bulk", Compare.GE, b"{"), [])),
            ):
                with pytest.raises(Error, match="which only members read"):
                    await refused()
            page = await store.range(b"", None)
            keys = [entry.key for entry in page.entries]
            assert b"settings/bulk_rate" in keys and not any(key.startswith(b"secrets/") for key in keys)
            page = await store.range(b"secrets/", b"secrets0")
            assert list(page.entries) == []
            watched = store.watch(b"", from_revision=1)
            seen: list[bytes] = []
            async for item in watched:
                seen += [change.key for change in item.changes]
                if item.revision >= page.revision:
                    break
            assert any(key.startswith(b"instances/") for key in seen)
            assert not any(key.startswith(b"secrets/") for key in seen)

    run(asyncio.wait_for(look(), 90))


def test_the_end_of_a_supervisor_is_the_end_of_both_its_children(processes: Processes, tmp_path: Path) -> None:
    listen, bulk = loopback(2)
    one = Instances(processes, tmp_path, [listen], bulk=[bulk])

    def up() -> tuple[subprocess.Popen[bytes], list[int]]:
        one.start(1)
        run(one.online())
        deadline = time.monotonic() + 90
        while not one.bulk_child(1):
            assert time.monotonic() < deadline, one.said()
            time.sleep(0.02)
        children = [one.node(1), one.bulk_child(1)]
        while os.getpriority(os.PRIO_PROCESS, children[1]) != 19:
            assert time.monotonic() < deadline, "it does not give way"
            time.sleep(0.02)
        return one.running[1], [os.pidfd_open(pid) for pid in children]

    process, children = up()
    os.kill(process.pid, signal.SIGKILL)
    for child in children:
        assert select.select([child], [], [], 60)[0], "a child lives on"
        os.close(child)
    one.kill(1)
    process, children = up()
    assert one.stop(1) == 0
    for child in children:
        assert select.select([child], [], [], 60)[0], "a child lives on"
        os.close(child)


def test_a_port_that_is_taken_costs_the_bulk_child_and_nothing_else(processes: Processes, tmp_path: Path) -> None:
    import socket

    listen, bulk = loopback(2)
    host, _, port = bulk.rpartition(":")
    one = Instances(processes, tmp_path, [listen], bulk=[bulk])
    with socket.create_server((host, int(port))):
        one.start(1)
        run(one.online())
        deadline = time.monotonic() + 90
        while "the bulk server can't listen on" not in one.output(1):
            assert time.monotonic() < deadline, one.said()
            time.sleep(0.02)
        node = one.node(1)
    deadline = time.monotonic() + 90
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=1):
                break
        except OSError:
            assert time.monotonic() < deadline, one.said()
            time.sleep(0.05)
    assert one.node(1) == node
    assert one.stop(1) == 0
