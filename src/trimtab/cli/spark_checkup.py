"""What `trimtab doctor` says about Spark: its Java, its packages, and whether sessions start quickly.

An instance serves without any of it, so nothing here is worse than `warn`: what would not work are loads, exports,
repairs and whatever else is a job.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trimtab.cli.checkup import Check, ok, warn

if TYPE_CHECKING:
    from trimtab.spark.java import Java

_PACKAGES = ("pyspark", "pyarrow", "pandas")
_MIB = 1 << 20


def spark(environment: Mapping[str, str] | None = None) -> list[Check]:
    """Java, packages, class archive."""
    from trimtab.spark import java

    given = os.environ if environment is None else environment
    found = [_packages()]
    try:
        used = java.find(given)
    except java.JavaMissing as error:
        what, _, to_do = str(error).partition(". ")
        return [*found, warn("java", what, f"{to_do}; without it no job runs")]
    if used.passed_over:
        found.append(warn("java", used.passed_over, f"set JAVA_HOME; {_java(used)} is used instead"))
    else:
        found.append(ok("java", _java(used)))
    return [*found, _archive(used, given)]


def _java(used: Java) -> str:
    return f"Java {used.release} from {used.source} ({used.program})"


def _packages() -> Check:
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return warn("spark", f"{', '.join(missing)} can't be loaded", "run ./trimtab again, it sets up what is missing")
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    if int(versions["pandas"].split(".")[0]) >= 3:
        return warn("spark", text, "use pandas below 3: Spark does not know newer ones yet")
    return ok("spark", text)


def _archive(used: Java, environment: Mapping[str, str]) -> Check:
    from trimtab.spark.class_archive import cache_directory
    from trimtab.spark.sessions import archive

    made = archive(used, cache_directory(environment))
    made.settle()
    if made.ready:
        size = made.path.stat().st_size // _MIB
        return ok("spark", f"the class archive is there ({size} MiB in {made.folder}): sessions start quickly")
    return ok("spark", f"the first session that ends writes a class archive to {made.folder}; later ones start faster")
