"""The blocking client, on real sockets: the same names, many threads, and what a fork does to it."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import get_overloads

import pytest
from tests.unit.client.fake_cluster import FakeCluster, fails, ignores
from tests.unit.client.served import contact, served

import trimtab
from trimtab.catalog.options import ALIASES
from trimtab.catalog.schema import TableOptions
from trimtab.client import blocking, blocking_table, database, table
from trimtab.client.definitions import Options
from trimtab.rows import protocol


@pytest.fixture
def cluster(free_ports: Callable[[int], list[int]]) -> Iterator[FakeCluster]:
    with served(free_ports(2)) as cluster:
        cluster.create("shop.users", "id bigint, name text, score double", "id")
        cluster.create("shop.visits", "page text, at bigint, who text", "page", "at")
        yield cluster


@pytest.fixture
def db(cluster: FakeCluster) -> Iterator[trimtab.Database]:
    with trimtab.connect(contact(cluster)) as db:
        yield db


def test_rows_as_the_documentation_shows_them(db: trimtab.Database) -> None:
    db.create_table("shop.people", {"id": "bigint", "name": "text", "score": "double"}, primary_key=["id"], tablets=8)
    users = db.table("shop.people", consistency="QUORUM")
    users.put({"id": 1, "name": "Ada", "score": 0.5}, ttl=3600)
    assert users.get(id=1) == {"id": 1, "name": "Ada", "score": 0.5}
    found = users.get(id=1, with_meta=True)
    assert found is not None and set(found.writetime) == {"name", "score"} and not found.stale
    assert users.put_many({"id": each, "name": str(each)} for each in range(300)) == 300
    assert [row and row["id"] for row in users.get_many([{"id": 1}, {"id": 999}, {"id": 2}])] == [1, None, 2]
    users.delete(id=1)
    assert users.get(id=1) is None
    assert sum(1 for _ in users.scan(columns=["id"])) == 299
    users.update({"id": 5, "score": None})
    assert users.schema.full_name == "shop.people"
    assert sorted(db.tables()) == ["shop.people", "shop.users", "shop.visits"]
    db.drop_table("shop.people")
    with pytest.raises(trimtab.NotFound):
        users.get(id=2)


def test_slices_and_batches(db: trimtab.Database) -> None:
    visits = db.table("shop.visits")
    with db.batch() as batch:
        for at in range(10):
            batch.put(visits, {"page": "p", "at": at, "who": "u"})
    assert [row["at"] for row in visits.slice(page="p", after=3, until=8, page_rows=2)] == [4, 5, 6, 7, 8]
    visits.delete_range(page="p", before=5)
    assert [row["at"] for row in visits.slice(page="p", reverse=True, limit=2)] == [9, 8]
    with pytest.raises(ZeroDivisionError), db.batch() as batch:
        batch.delete(visits, page="p")
        raise ZeroDivisionError
    assert len(list(visits.slice(page="p"))) == 5


def test_many_threads_share_a_client(db: trimtab.Database, cluster: FakeCluster) -> None:
    users = db.table("shop.users")

    def work(number: int) -> list[int]:
        stamps = []
        for each in range(20):
            stamps.append(users.put({"id": number, "name": f"{each}"}))
            assert users.get(id=number)["name"] == f"{each}"  # type: ignore[index]
        return stamps

    with ThreadPoolExecutor(8) as threads:
        for stamps in threads.map(work, range(8)):
            assert stamps == sorted(set(stamps))


def test_rows_may_come_from_what_uses_the_client_itself(db: trimtab.Database) -> None:
    users = db.table("shop.users")
    users.put_many({"id": each, "name": "x"} for each in range(10))
    assert users.put_many({**row, "id": row["id"] + 100} for row in users.scan()) == 10


def test_errors_arrive_in_the_thread_that_asked(db: trimtab.Database, cluster: FakeCluster) -> None:
    users = db.table("shop.users")
    cluster.script(protocol.PUT, fails("write_timeout", "1 of 2", required=2, received=1))
    with pytest.raises(trimtab.Timeout) as caught:
        users.put({"id": 1})
    assert (caught.value.required, caught.value.received) == (2, 1)
    cluster.scripts.clear()
    with pytest.raises(trimtab.NotFound, match="did you mean shop"):
        db.table("shop.user")
    with pytest.raises(trimtab.InvalidRequest, match=r"shop\.users\.id"):
        users.put_many([{"id": 1.5}])
    cluster.script(protocol.PUT, ignores)
    with pytest.raises(trimtab.Timeout, match="may or may not"):
        users.put({"id": 1}, timeout=1)


def test_nobody_at_the_address_is_unavailable_and_a_wrong_address_is_named(
    free_ports: Callable[[int], list[int]],
) -> None:
    (port,) = free_ports(1)
    before = set(threading.enumerate())
    with pytest.raises(trimtab.Unavailable, match=str(port)):
        trimtab.connect(f"127.0.0.1:{port}", timeout=1)
    with pytest.raises(trimtab.InvalidRequest, match="not an address"):
        trimtab.connect("localhost")
    with pytest.raises(trimtab.InvalidRequest, match="needs the address"):
        trimtab.connect(" , ")
    with pytest.raises(trimtab.InvalidRequest, match="consistency level"):
        trimtab.connect(f"127.0.0.1:{port}", consistency="SOME")  # type: ignore[arg-type]
    for wrong in (5, None, [5]):
        with pytest.raises(
            trimtab.InvalidRequest, match=r"connect\(\) takes the addresses of members as text: .*, not"
        ):
            trimtab.connect(wrong)  # type: ignore[arg-type]
    with pytest.raises(trimtab.InvalidRequest, match=r"tls is an ssl\.SSLContext"):
        trimtab.connect(f"127.0.0.1:{port}", tls="yes")  # type: ignore[arg-type]
    with pytest.raises(trimtab.InvalidRequest, match="max_in_flight"):
        trimtab.connect(f"127.0.0.1:{port}", max_in_flight=0)
    assert _threads_end(before)


def test_a_closed_client_says_so(db: trimtab.Database) -> None:
    users = db.table("shop.users")
    rows = users.scan()
    db.close()
    db.close()
    for use in (lambda: users.get(id=1), lambda: users.put_many([{"id": 1}]), lambda: db.tables(), lambda: next(rows)):
        with pytest.raises(trimtab.Error, match="closed"):
            use()


def test_a_client_that_is_dropped_ends_its_thread(cluster: FakeCluster) -> None:
    before = set(threading.enumerate())
    db = trimtab.connect(contact(cluster))
    assert len(set(threading.enumerate()) - before) == 1
    del db
    gc.collect()
    assert _threads_end(before)


# Its end takes until somebody closes its input, when Python is no more; the loop has something to do meanwhile.
_ENDS_SLOWLY = """
import ctypes
from trimtab.client.loop_thread import LoopThread

libc = ctypes.CDLL(None)
assert libc.__cxa_atexit(ctypes.cast(libc.getchar, ctypes.c_void_p), None, None) == 0
thread = LoopThread()
thread._loop.call_soon_threadsafe(thread._loop.call_later, 0.2, print)
print("ends", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have another way of ending slowly")
def test_a_program_that_ends_with_a_client_open_does_not_crash() -> None:
    """A loop that woke up when the interpreter was gone ended Spark's drivers with SIGSEGV, their work being done."""
    command = [sys.executable, "-c", _ENDS_SLOWLY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ends\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.communicate()
    assert process.returncode == 0


def test_a_forked_process_is_told_to_connect_itself(db: trimtab.Database) -> None:
    users = db.table("shop.users")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            users.get(id=1)
            said = "it answered"
        except trimtab.Error as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        assert "call trimtab.connect() in the new process" in answer.read()
    assert users.get(id=1) is None


def test_both_clients_have_the_same_names_and_parameters() -> None:
    for mine, other in ((blocking.Table, table.Table), (blocking.Database, database.Database)):
        names = {name for name in vars(mine) if not name.startswith("_")}
        assert names == {name for name in vars(other) if not name.startswith("_")}
        for name in names - {"catalog"}:
            ours, theirs = inspect.signature(getattr(mine, name)), inspect.signature(getattr(other, name))
            assert list(ours.parameters) == list(theirs.parameters), name
    assert list(inspect.signature(blocking.connect).parameters) == list(inspect.signature(database.connect).parameters)


def test_types_say_what_comes_back_whichever_client_it_is() -> None:
    for kind, many in ((blocking_table.Table, "Iterator[{}]"), (table.Table, "AsyncIterator[{}]")):
        for name, result in (("get_many", "list[{} | None]"), ("slice", many), ("scan", many)):
            said = [each.__annotations__["return"] for each in get_overloads(getattr(kind, name))]
            assert said == [result.format("Row"), result.format("RowWithMeta")], name


def test_the_options_of_a_table_are_named_for_those_who_check_types() -> None:
    there = TableOptions.__struct_fields__
    assert set(Options.__annotations__) == {*there, *ALIASES}
    for kind in (blocking.Database, database.Database):
        for method in (kind.create_table, kind.alter_table):
            assert method.__annotations__["options"] == "Unpack[Options]"


def _threads_end(but: set[threading.Thread]) -> bool:
    deadline = time.monotonic() + 60
    while set(threading.enumerate()) - but and time.monotonic() < deadline:
        time.sleep(0.01)
    return not set(threading.enumerate()) - but
