"""The systems we compare with: where they are, and how they get here.

Python clients go into an environment of their own, `.venv-peers`, so that nothing of theirs can reach Trimtab's.
Servers are Debian's packages; they are unpacked with what they need, not installed, so that no service starts and no
root is needed. A server that is on PATH is used as it is. Cassandra, and what Spark needs to write to it, are jars that
Maven fetches, and another Spark in the same environment; a machine that can't have them compares with the others.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import BenchmarkFailed
from benchmarks.maven import Artifact
from trimtab.spark.java import JavaMissing, find

HOW = "run `./trimtab bench --install-peers`"
_POSTGRES = "usr/lib/postgresql/*/bin"  # Debian keeps it off PATH


@dataclass(frozen=True)
class Server:
    """A program of Debian's, and the Python packages of its usual asyncio client."""

    name: str
    binary: str
    package: str
    clients: tuple[str, ...]


ETCD = Server("etcd", "etcd", "etcd-server", ("aetcd",))
REDIS = Server("redis", "redis-server", "redis-server", ("redis", "hiredis"))
POSTGRES = Server("postgresql", "postgres", "postgresql", ("asyncpg",))
SERVERS = (ETCD, REDIS, POSTGRES)
_JDBC_PACKAGE = "libpostgresql-jdbc-java"
_JDBC_JAR = "usr/share/java/postgresql.jar"
CASSANDRA = Artifact("org.apache.cassandra", "cassandra-all", "5.0.9")
CONNECTOR = Artifact("com.datastax.spark", "spark-cassandra-connector_2.12", "3.5.1")
_CONNECTOR_SPARK = "3.5"  # pinned in cassandra.lock
_CASSANDRA_JAVA = 17


@dataclass(frozen=True)
class Peers:
    root: Path

    @property
    def environment(self) -> Path:
        return self.root / ".venv-peers"

    @property
    def python(self) -> Path:
        return self.environment / "bin/python"

    def binary(self, server: Server) -> Path | None:
        """The server's program: the unpacked one, else one on PATH or where Debian puts it."""
        unpacked = self.environment / server.name
        places = [*unpacked.glob("usr/bin"), *unpacked.glob(_POSTGRES), *Path("/").glob(_POSTGRES)]
        for place in places:
            if (place / server.binary).is_file():
                return place / server.binary
        found = shutil.which(server.binary)
        return Path(found).resolve() if found else None

    def jdbc_driver(self) -> Path | None:
        """The driver by which Spark reaches PostgreSQL."""
        places = (self.environment / _JDBC_PACKAGE / _JDBC_JAR, Path("/") / _JDBC_JAR)
        return next((place.resolve() for place in places if place.is_file()), None)

    def jars(self, artifact: Artifact) -> Path:
        """The folder of an artifact and all that it needs, whether or not it is there."""
        return self.environment / artifact.folder

    def cassandra_java(self) -> Path:
        """The Java for Cassandra and for Spark beside it; neither knows a newer one."""
        try:
            found = find(os.environ)
        except JavaMissing as error:
            raise BenchmarkFailed(str(error)) from error
        if found.major != _CASSANDRA_JAVA:
            raise BenchmarkFailed(
                f"Cassandra and its connector need Java {_CASSANDRA_JAVA}, and {found.source} is {found.release}; "
                "name another in JAVA_HOME (Debian: openjdk-17-jre-headless)"
            )
        return found.program.resolve()

    def why_cassandra_is_missing(self) -> str | None:
        """None when its server, its connector, and the Spark and the Java for it are there."""
        for what, artifact in (("its server", CASSANDRA), ("its connector", CONNECTOR)):
            if not self.jars(artifact).is_dir():
                return f"{what} ({artifact.folder}) is not here; {HOW}"
        there = f"import pyspark; assert pyspark.__version__.startswith('{_CONNECTOR_SPARK}.')"
        if not self.python.exists() or self._run_quietly(self.python, "-c", there) != 0:
            return f"Spark {_CONNECTOR_SPARK}, which its connector needs, is not in .venv-peers; {HOW}"
        try:
            self.cassandra_java()
        except BenchmarkFailed as reason:
            return str(reason)
        return None

    def libraries(self, server: Server) -> dict[str, str]:
        """The environment in which an unpacked program finds the libraries that were unpacked with it."""
        unpacked = self.environment / server.name
        found = [str(place) for place in (*unpacked.glob("usr/lib/*-linux-gnu"), *unpacked.glob("lib/*-linux-gnu"))]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(found)} if found else dict(os.environ)

    def why_missing(self, server: Server) -> str | None:
        """None when both the server and its client are there."""
        if self.binary(server) is None:
            return f"the {server.name} server is not installed; {HOW}"
        imports = ", ".join((*server.clients, "uvloop"))
        if not self.python.exists() or self._run_quietly(self.python, "-c", f"import {imports}") != 0:
            return f"{server.clients[0]}, the client of {server.name}, is not installed; {HOW}"
        return None

    def version(self, server: Server) -> str:
        """What the server says about itself, the number alone."""
        done = subprocess.run(
            [str(self.binary(server)), "--version"], capture_output=True, text=True, env=self.libraries(server)
        )
        for word in done.stdout.replace("v=", "").split():
            if word[0].isdigit():
                return word
        return "of unknown version"

    def install(self, say: Callable[[str], None]) -> None:
        """Fetch what is missing; what is there already stays."""
        missing = [server for server in SERVERS if self.why_missing(server) is not None]
        if missing:
            self._install_clients(say)
        for server in missing:
            if self.binary(server) is None:
                say(f"fetching Debian's {server.package}")
                self._unpack(server.package, server.name)
            if reason := self.why_missing(server):
                raise BenchmarkFailed(reason)
        if self.jdbc_driver() is None:
            say(f"fetching Debian's {_JDBC_PACKAGE}")
            self._unpack(_JDBC_PACKAGE, _JDBC_PACKAGE, alone=True)
        for server in SERVERS:
            say(f"{server.name} {self.version(server)} and its client are installed.")
        try:
            self._install_cassandra(say)
            say(f"{CASSANDRA.folder} and {CONNECTOR.folder} are installed.")
        except BenchmarkFailed as reason:
            say(f"Cassandra is left out: {reason}")

    def _install_clients(self, say: Callable[[str], None]) -> None:
        say("installing the clients of peers into .venv-peers")
        if not self.python.exists():
            shutil.rmtree(self.environment, ignore_errors=True)
            self._must("make .venv-peers", sys.executable, "-m", "venv", str(self.environment))
        self._install_locked("peers.lock")

    def _install_locked(self, name: str) -> None:
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        lock = self.root / "benchmarks" / name
        self._must(f"install {name}", *pip, "--disable-pip-version-check", "-r", str(lock))

    def _install_cassandra(self, say: Callable[[str], None]) -> None:
        if self.why_cassandra_is_missing() is None:
            return
        java = self.cassandra_java()
        for artifact in (CASSANDRA, CONNECTOR):
            if not self.jars(artifact).is_dir():
                say(f"fetching {artifact.folder} and what it needs by Maven")
                artifact.fetch(self._maven(say), java, self.jars(artifact))
        if self.why_cassandra_is_missing() is not None:
            say(f"installing Spark {_CONNECTOR_SPARK} into .venv-peers")
            self._install_locked("cassandra.lock")
        if reason := self.why_cassandra_is_missing():
            raise BenchmarkFailed(reason)

    def _maven(self, say: Callable[[str], None]) -> Path:
        if found := shutil.which("mvn"):
            return Path(found)
        home = self.environment / "maven/usr/share/maven"
        if not (home / "bin/mvn").is_file():
            say("fetching Debian's maven")
            self._unpack("maven", "maven")
            # Two of its links say where it is when it is installed, not where it was unpacked.
            for link in (home / "conf", home / "bin/m2.conf"):
                meant = self.environment / "maven" / link.readlink().relative_to("/")
                link.unlink()
                link.symlink_to(meant)
        return home / "bin/mvn"

    def _unpack(self, package: str, name: str, *, alone: bool = False) -> None:
        """The package, and those of its dependencies that this machine does not have; `alone`: without any."""
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise BenchmarkFailed(f"{name} can't be fetched without apt-get; install {package} by other means.")
        listing = ["apt-get", "install", "--yes", "--no-install-recommends", "--print-uris", "-qq", package]
        done = subprocess.run(listing, capture_output=True, text=True)
        if done.returncode != 0:
            subprocess.run(["apt-get", "update", "-q"], stdout=sys.stderr)  # a fresh machine has no package lists
            done = subprocess.run(listing, capture_output=True, text=True)
        packages = [line.split()[1].partition("_")[0] for line in done.stdout.splitlines() if line.startswith("'")]
        # apt drops its privileges to a user that must be able to write here.
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            download = ["apt-get", "download", "-q", *([package] if alone else packages or [package])]
            self._must(f"download {package}", *download, cwd=Path(folder))
            for each in sorted(Path(folder).glob("*.deb")):
                self._must(f"unpack {each.name}", "dpkg-deb", "-x", str(each), str(self.environment / name))

    @staticmethod
    def _run_quietly(python: Path, *arguments: str) -> int:
        return subprocess.run([str(python), *arguments], capture_output=True).returncode

    @staticmethod
    def _must(what: str, *command: str, cwd: Path | None = None) -> None:
        if subprocess.run(command, cwd=cwd, stdout=sys.stderr).returncode != 0:
            raise BenchmarkFailed(f"could not {what} (see above).")
