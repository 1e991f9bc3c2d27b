"""Sessions of Spark that know the data source "trimtab": `spark = trimtab.spark.session(peer="127.0.0.1:3301")`.

What a session has that Spark alone has not: a Java wherever there is none, quiet logs, a start in half the time, the
Python that runs this for its workers, filters that reach the source, tasks that are tried again, and the lowest
priority for all its processes. Everything can be set otherwise with settings of Spark: `session(**{"spark.ui.enabled":
"true"})`. `spark.trimtab.priority` "normal" (or the variable TRIMTAB_SPARK_PRIORITY) is for a machine of Spark's own.

A process has one session of Spark. Where one is running already (a notebook's, a cluster's) the source is registered
with that one, and it is left as it is but for the settings that the source needs. A thread that did not make the
session asks for it by `session()` as well: Spark finds registered sources only in threads that have one.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.spark import java, quiet_planners
from trimtab.spark.class_archive import ClassArchive, cache_directory
from trimtab.spark.options import PEER, checked_peer
from trimtab.spark.work_folder import WorkFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRIORITY = "spark.trimtab.priority"
PRIORITY_VARIABLE = "TRIMTAB_SPARK_PRIORITY"
ATTEMPTS = 4  # of a task: with plain `local[N]` Spark gives it one
_SOCKETS = "spark.python.unix.domain.socket.dir"
_MAX_FOLDER_BYTES = 60  # the path of a socket has at most 107, and its own name takes some forty
_sockets: tuple[int, WorkFolder] | None = None  # of which process, and where
_STOP_S = 120.0  # on a busy machine the archive takes a while
_GIB = 1 << 30
_COLLECTOR = "-XX:+UseParallelGC"  # takes a fifth off the processor time that Java needs to hand rows over
_ROOM = "-XX:MaxDirectMemorySize"  # for batches, which lie outside of Java's heap
_UNMEASURED = 2**31 - 1  # bytes of a batch: Spark counts its rows, and nothing else
_FEW_ROWS, _MANY_ROWS = 512, 2048  # of a batch: fewer would be slow, and more don't make it faster
_WIDE_ROW_BYTES = 256 * 1024
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\d+)?\])?")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_NEEDED = {"spark.sql.python.filterPushdown.enabled": "true"}
# PySpark prints what a wrong query raises a second time, as one line of JSON with all of Java's stack.
_TOLD_TWICE = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_LOG4J2 = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# A query that fails is told to whoever asked; the log would tell it a second time.
logger.runner.name = org.apache.spark.api.python.PythonRunner
logger.runner.level = off
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
logger.set.name = org.apache.spark.scheduler.TaskSetManager
logger.set.level = off
logger.write.name = org.apache.spark.sql.execution.datasources.v2
logger.write.level = off
"""


def session(peer: str | Sequence[str] | None = None, master: str | None = None, **conf: Any) -> SparkSession:
    """A session with the source registered. `peer` (HOST:PORT of any member, or several) is what reads and writes use
    that name no other; `master` is a Spark master, by default all cores of this machine.
    """
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() or _of_another_thread()
    if active is None:
        active = _start(master, {name: str(value) for name, value in conf.items()})
    else:
        _check_fits(active, master, conf)
    register(active, peer)
    return active


def register(spark: SparkSession, peer: str | Sequence[str] | None = None) -> None:
    """Make the source known to a session that somebody else has made. Filters reach it where that is safe."""
    from trimtab.spark import fresh_scans
    from trimtab.spark.source import source_for

    for name, value in _NEEDED.items():
        spark.conf.set(name, value)
    known = checked_peer(peer) if peer is not None else spark.conf.get(PEER, "") or ""
    if known:
        spark.conf.set(PEER, known)
    spark.dataSource.register(source_for(known, narrows=fresh_scans.install(spark)))


def stop(spark: SparkSession) -> None:
    """Stop a session, and the Java of this process with it; returns when that has ended."""
    from pyspark import SparkContext

    spark.stop()
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    # It ends when its input does, and then writes the archive of its classes. That is not worth any length of time: one
    # that is not whole is not used.
    process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _remove_sockets()


def _socket_folder() -> str:
    """Where Java and its workers have their sockets, which they leave behind when they are not told to stop.

    It goes with this process, or when somebody else makes such a folder after this process was killed.
    """
    global _sockets
    if _sockets is None:
        # Names of sockets are short, and the place for large files may have a long one.
        folder = WorkFolder(tempfile.gettempdir())
        folder.__enter__()
        _sockets = os.getpid(), folder
        atexit.register(_remove_sockets)
    return str(_sockets[1].path)


def _remove_sockets() -> None:
    global _sockets
    if _sockets is not None and _sockets[0] == os.getpid():
        _sockets[1].__exit__()
        _sockets = None


def _of_another_thread() -> SparkSession | None:
    """The session that another thread of this process has made. It becomes this thread's, too: in one that has none
    Spark does not look for sources that were registered.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    found: Any = SparkSession._instantiatedSession
    if found is None or SparkContext._active_spark_context is None:
        return None
    found._jvm.SparkSession.setActiveSession(found._jsparkSession)
    made: SparkSession = found
    return made


def _check_fits(active: SparkSession, master: str | None, conf: Mapping[str, Any]) -> None:
    runs_on = active.conf.get("spark.master", "")
    if master is not None and master != runs_on:
        raise ValueError(f"a session on {runs_on} is running in this process; stop it before you ask for {master}")
    for name, value in conf.items():
        active.conf.set(name, str(value))


def _start(master: str | None, conf: dict[str, str]) -> SparkSession:
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    cache = cache_directory(os.environ)
    found = java.find(os.environ)
    cores = len(os.sched_getaffinity(0))
    memory_bytes = _memory_bytes()
    settings = defaults(master or conf.get("spark.master") or f"local[{cores},{ATTEMPTS}]", cores, memory_bytes)
    options = []
    if "SPARK_CONF_DIR" not in os.environ:
        quiet = _written(cache / "spark" / "log4j2.properties", _LOG4J2)
        options = [f"-Dlog4j2.configurationFile=file:{quiet}", *archive(found, cache).options()]
        given = java.options_given(os.environ, conf)
        if not java.chooses_collector(given):
            options.append(_COLLECTOR)
        counted = counted_rows(settings["spark.master"], cores, memory_bytes)
        if counted and not counted.keys() & conf.keys() and _ROOM not in given:
            settings |= counted
            options.append(f"{_ROOM}={memory_bytes // 2}")
    if settings["spark.master"].startswith("local"):
        folder = _socket_folder()
        if len(folder.encode()) <= _MAX_FOLDER_BYTES:
            settings[_SOCKETS] = folder
        else:
            # No socket could be bound there; ports do as well.
            settings["spark.python.unix.domain.socket.enabled"] = "false"
    settings |= conf
    settings[java.OPTIONS] = " ".join(filter(None, [*options, conf.get(java.OPTIONS, "")]))
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    priority = settings.get(PRIORITY) or os.environ.get(PRIORITY_VARIABLE) or "low"
    if priority not in ("low", "normal"):
        raise ValueError(f"{PRIORITY} is low or normal, not {priority!r}")
    home = java.home(
        found,
        cache / "spark" / f"java-{found.release}-{found.source}-{priority}",
        low_priority=priority == "low",
    )
    for name in _TOLD_TWICE:
        # By PySpark's own function: its loggers are of a class of their own, which whoever asks first decides.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    with environment(_variables(home, cache, settings["spark.master"])):
        return builder.getOrCreate()


def archive(found: java.Java, cache: Path) -> ClassArchive:
    """The class archive of this Java and of Spark as it is installed here."""
    import pyspark

    home = Path(pyspark.__file__).parent
    # As Java tells jars from each other.
    jars = {jar.name: jar.stat() for jar in sorted((home / "jars").glob("*.jar")) if jar.is_file()}
    return ClassArchive(
        cache,
        place=(str(found.program), found.release, str(home)),
        jars=[f"{name} {jar.st_size} {jar.st_mtime_ns}" for name, jar in jars.items()],
        program=None if found.has_classes else found.program,
    )


def defaults(master: str, cores: int, memory_bytes: int) -> dict[str, str]:
    """Settings of a session on this master."""
    found = {
        "spark.master": master,
        "spark.app.name": "trimtab",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{max(1, min(4, memory_bytes // (8 * _GIB)))}g",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.daemon.module": "trimtab.spark.daemon",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **_NEEDED,
    }
    if master.startswith("local"):
        found |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(2 * cores),
        }
    return found


def counted_rows(master: str, cores: int, memory_bytes: int) -> dict[str, str]:
    """Settings by which Java counts the rows that it hands over to Python at once; none where Spark should measure.

    Left to itself Spark measures all that it has gathered before every further row, which takes as long as everything
    else that it does for a load. Where it counts them, even wide ones must fit into half of the memory: thrice in Java,
    whose buffers double while they grow, and as often in Python. What a cluster's machines have is not known here.
    """
    local = _LOCAL.fullmatch(master)
    if local is None:
        return {}
    tasks = int(local[1]) if local[1] and local[1] != "*" else cores if local[1] else 1
    rows = memory_bytes // 2 // max(1, tasks) // 6 // _WIDE_ROW_BYTES
    if rows < _FEW_ROWS:
        return {}
    return {
        "spark.sql.execution.arrow.maxBytesPerBatch": str(_UNMEASURED),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(min(rows, _MANY_ROWS)),
    }


def _variables(home: Path, cache: Path, master: str) -> dict[str, str]:
    """What Java is started with. PYSPARK_PYTHON may name another Python for a cluster's machines."""
    python = sys.executable
    variables = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    if master.startswith("local"):
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    elif named := os.environ.get("PYSPARK_PYTHON"):
        variables["PYSPARK_PYTHON"] = named
    quiet = _written(cache / "spark" / "site" / "sitecustomize.py", Path(quiet_planners.__file__).read_text())
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(quiet.parent), os.environ.get("PYTHONPATH")]))
    if "SPARK_CONF_DIR" not in os.environ:
        empty = cache / "spark" / "conf"
        empty.mkdir(parents=True, exist_ok=True)
        variables["SPARK_CONF_DIR"] = str(empty)
    return variables


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """These variables are set inside of the block, for what is started there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _written(path: Path, text: str) -> Path:
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        aside.write_text(text)
        aside.replace(path)
    return path


def _memory_bytes() -> int:
    """Of this machine, or of the container that this runs in."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        return min(machine, int(_CGROUP_LIMIT.read_text()))
    return machine
