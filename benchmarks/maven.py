"""Jars that peers need, with all that they need themselves, by their coordinates; Maven knows where it gets them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import BenchmarkFailed

FETCH_TIMEOUT_S = 900
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


@dataclass(frozen=True)
class Artifact:
    group: str
    name: str
    version: str

    @property
    def folder(self) -> str:
        """Of its jars: another version is looked for in another place."""
        return f"{self.name}-{self.version}"

    def project(self) -> str:
        """A project that has it as its only dependency."""
        wanted = f"<groupId>{self.group}</groupId><artifactId>{self.name}</artifactId><version>{self.version}</version>"
        return (
            "<project><modelVersion>4.0.0</modelVersion><packaging>pom</packaging>"
            "<groupId>benchmarks</groupId><artifactId>jars</artifactId><version>1</version>"
            f"<dependencies><dependency>{wanted}</dependency></dependencies></project>\n"
        )

    def fetch(self, program: Path, java: Path, target: Path) -> None:
        """All jars or none: the folder gets its name when it is whole."""
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            project = Path(folder) / "pom.xml"
            project.write_text(self.project())
            jars = Path(folder) / "jars"
            command = [str(program), "--batch-mode", "--quiet", "--file", str(project), _COPY]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
            environment = {**os.environ, "JAVA_HOME": str(java.parents[1])}
            try:
                done = subprocess.run(command, stdout=sys.stderr, env=environment, timeout=FETCH_TIMEOUT_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise BenchmarkFailed(f"could not fetch {self.folder}: {error}") from error
            if done.returncode != 0 or not list(jars.glob(f"{self.folder}.jar")):
                raise BenchmarkFailed(f"could not fetch {self.folder} (see above).")
            jars.rename(target)
