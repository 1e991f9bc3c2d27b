"""The systems we compare with: where they are, and how they get here.

Python clients go into an environment of their own, `.venv-peers`, so that nothing of theirs can reach Trimtab's. etcd
is Debian's package; it is unpacked, not installed, so that no service starts and no root is needed. An etcd on PATH is
used as it is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import BenchmarkFailed

HOW = "run `./trimtab bench --install-peers`"


@dataclass(frozen=True)
class Peers:
    root: Path

    @property
    def environment(self) -> Path:
        return self.root / ".venv-peers"

    @property
    def python(self) -> Path:
        return self.environment / "bin/python"

    @property
    def unpacked_etcd(self) -> Path:
        return self.environment / "etcd/usr/bin/etcd"

    def etcd(self) -> Path | None:
        if self.unpacked_etcd.is_file():
            return self.unpacked_etcd
        found = shutil.which("etcd")
        return Path(found) if found else None

    def why_etcd_is_missing(self) -> str | None:
        """None when both the server and the client are there."""
        if self.etcd() is None:
            return f"the etcd server is not installed; {HOW}"
        if not self.python.exists() or self._run_quietly(self.python, "-c", "import aetcd, uvloop") != 0:
            return f"aetcd, the client of etcd, is not installed; {HOW}"
        return None

    def etcd_version(self) -> str:
        done = subprocess.run([str(self.etcd()), "--version"], capture_output=True, text=True)
        return done.stdout.partition("etcd Version:")[2].split("\n")[0].strip() or "of unknown version"

    def install(self, say: Callable[[str], None]) -> None:
        """Fetch what is missing; what is there already stays."""
        if self.why_etcd_is_missing() is None:
            say(f"etcd {self.etcd_version()} and its client are installed already.")
            return
        say("installing the clients of peers into .venv-peers")
        if not self.python.exists():
            shutil.rmtree(self.environment, ignore_errors=True)
            self._must("make .venv-peers", sys.executable, "-m", "venv", str(self.environment))
        lock = self.root / "benchmarks/peers.lock"
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        self._must(f"install {lock.name}", *pip, "--disable-pip-version-check", "-r", str(lock))
        if self.etcd() is None:
            say("fetching Debian's etcd-server")
            self._unpack_etcd()
        if reason := self.why_etcd_is_missing():
            raise BenchmarkFailed(reason)
        say(f"etcd {self.etcd_version()} and its client are installed.")

    def _unpack_etcd(self) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise BenchmarkFailed("etcd can't be fetched without apt-get; install it so that `etcd` is on PATH.")
        # apt drops its privileges to a user that must be able to write here.
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o777)
            download = ["apt-get", "download", "-q", "etcd-server"]
            if subprocess.run(download, cwd=name, stdout=sys.stderr).returncode != 0:
                subprocess.run(["apt-get", "update", "-q"], stdout=sys.stderr)  # a fresh machine has no package lists
                self._must("download etcd-server", *download, cwd=Path(name))
            (package,) = Path(name).glob("etcd-server_*.deb")
            self._must("unpack etcd-server", "dpkg-deb", "-x", str(package), str(self.environment / "etcd"))

    @staticmethod
    def _run_quietly(python: Path, *arguments: str) -> int:
        return subprocess.run([str(python), *arguments], capture_output=True).returncode

    @staticmethod
    def _must(what: str, *command: str, cwd: Path | None = None) -> None:
        if subprocess.run(command, cwd=cwd, stdout=sys.stderr).returncode != 0:
            raise BenchmarkFailed(f"could not {what} (see above).")
