"""One Cassandra on loopback as it comes: what it answers is in its log, and that is synced every ten seconds.

Its settings and Java's are those that Cassandra is shipped with for Java 17; only addresses, folders and the heap are
our own. It has no door for JMX.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.load import BenchmarkFailed
from benchmarks.peers import CASSANDRA, Peers
from benchmarks.redis_server import answers

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
REQUEST_TIMEOUT_S = 60.0
PROTOCOL = 5  # the newest that it has
HEAP = "2g"
COUNT_RANGES = 64
_FIRST_TOKEN, _LAST_TOKEN = -(2**63), 2**63 - 1
_JAVA_OPTIONS = (
    "-ea",
    "-da:net.openhft...",
    "-Xss256k",
    "-XX:+AlwaysPreTouch",
    "-XX:+UseNUMA",
    "-XX:+PerfDisableSharedMem",
    "-XX:+UseG1GC",
    "-XX:+ParallelRefProcEnabled",
    "-XX:MaxTenuringThreshold=1",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1RSetUpdatingPauseTimePercent=5",
    "-XX:MaxGCPauseMillis=300",
    "-XX:InitiatingHeapOccupancyPercent=70",
    "-Djava.net.preferIPv4Stack=true",
    "-Djdk.attach.allowAttachSelf=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.useCacheForAllThreads=true",
    "-Dio.netty.allocator.maxOrder=11",
)
_EXPORTS = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.compiler/com.sun.tools.javac.file",
    "jdk.unsupported/sun.misc",
)
_OPENS = (
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.util",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/sun.nio.ch",
    "jdk.compiler/com.sun.tools.javac",
    "jdk.management/com.sun.management.internal",
)
# Without one it would log everything there is to know.
_LOGGING = """\
<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{1} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="console"/></root>
</configuration>
"""


def settings(data: Path, port: int, storage_port: int) -> dict[str, object]:
    """Of cassandra.yaml. What is not here, or is here without being an address or a folder, is Cassandra's default."""
    seeds = {"class_name": "org.apache.cassandra.locator.SimpleSeedProvider"}
    return {
        "cluster_name": "bench",
        "num_tokens": 16,
        "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
        "endpoint_snitch": "SimpleSnitch",
        "seed_provider": [{**seeds, "parameters": [{"seeds": f"127.0.0.1:{storage_port}"}]}],
        "listen_address": "127.0.0.1",
        "storage_port": storage_port,
        "native_transport_port": port,
        "rpc_address": "127.0.0.1",
        "commitlog_sync": "periodic",
        "commitlog_sync_period": "10000ms",
        "disk_failure_policy": "stop",
        "commit_failure_policy": "stop",
        "data_file_directories": [str(data / "data")],
        "commitlog_directory": str(data / "commitlog"),
        "saved_caches_directory": str(data / "saved_caches"),
        "hints_directory": str(data / "hints"),
        "cdc_raw_directory": str(data / "cdc_raw"),
    }


def command(java: Path, jars: Path, data: Path) -> list[str]:
    """That starts a node whose settings are in its folder."""
    found = [str(java), f"-Xms{HEAP}", f"-Xmx{HEAP}", *_JAVA_OPTIONS]
    for option, packages in (("--add-exports", _EXPORTS), ("--add-opens", _OPENS)):
        found += [f"{option}={package}=ALL-UNNAMED" for package in packages]
    found += [f"-javaagent:{agent}" for agent in sorted(jars.glob("jamm-*.jar"))]
    found += [f"-Dcassandra.config={(data / 'cassandra.yaml').as_uri()}", f"-Dcassandra.storagedir={data}"]
    found += [f"-Dlogback.configurationFile={data / 'logback.xml'}", f"-Djava.io.tmpdir={data / 'tmp'}"]
    # It is alone: there is nobody whose gossip it could wait for.
    found += ["-Dcassandra.skip_wait_for_gossip_to_settle=0"]
    return [*found, "-classpath", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"]


class CassandraServer:
    """As a context it runs, and ends with it."""

    def __init__(self, peers: Peers, folder: Path) -> None:
        self._peers = peers
        self._folder = folder
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> CassandraServer:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        data = self._folder / "cassandra"
        (data / "tmp").mkdir(parents=True)
        self.port, storage_port = processes.free_ports(2)
        # JSON is YAML, too.
        (data / "cassandra.yaml").write_text(json.dumps(settings(data, self.port, storage_port), indent=2))
        (data / "logback.xml").write_text(_LOGGING)
        starts = command(self._peers.cassandra_java(), self._peers.jars(CASSANDRA), data)
        self._process = processes.start(starts, self._folder / "cassandra.log")
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(self.port):
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise BenchmarkFailed(f"Cassandra did not start; its log is in {self._folder}")
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            processes.stop(self._process, STOP_TIMEOUT_S)

    def create_tables(self, *names: str) -> None:
        """Empty ones, with one replica."""
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        with self._session() as session:
            session.execute(f"create keyspace bench with replication = {replication}")
            for name in names:
                columns = "id bigint primary key, amount double, name text, count int"
                session.execute(f"create table bench.{name} ({columns})")

    def count(self, table: str) -> int:
        """Rows that can be read, by ranges of tokens: a count of all at once would take longer than it may."""
        asked = f"select count(*) from bench.{table} where token(id) >= %s and token(id) <= %s"
        with self._session() as session:
            return sum(int(session.execute(asked, both).one()[0]) for both in token_ranges(COUNT_RANGES))

    @contextmanager
    def _session(self) -> Iterator[Any]:
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import RoundRobinPolicy

        profile = ExecutionProfile(RoundRobinPolicy(), request_timeout=REQUEST_TIMEOUT_S)
        profiles = {EXEC_PROFILE_DEFAULT: profile}
        cluster = Cluster(["127.0.0.1"], self.port, protocol_version=PROTOCOL, execution_profiles=profiles)
        try:
            yield cluster.connect()
        finally:
            cluster.shutdown()


def token_ranges(count: int) -> list[tuple[int, int]]:
    """First and last token of each: they don't overlap, and leave none out."""
    width = (_LAST_TOKEN - _FIRST_TOKEN + 1) // count
    firsts = [_FIRST_TOKEN + number * width for number in range(count)]
    return list(zip(firsts, [*(first - 1 for first in firsts[1:]), _LAST_TOKEN], strict=True))
