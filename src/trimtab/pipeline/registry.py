"""Which code runs which kind of job: by name, so that nothing is imported before a job of that kind is taken.

TRIMTAB_JOB_MODULE may name a module with `JOBS`, a map of kinds to functions, whose entries take the place of these:
for jobs of one's own, and for tests of the driver that need no Spark.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from trimtab.jobs.records import JobKind
from trimtab.pipeline.failures import JobFailed
from trimtab.pipeline.running import JobCode

VARIABLE = "TRIMTAB_JOB_MODULE"

# kind -> module:function
JOBS: dict[JobKind, str] = {
    JobKind.LOAD: "trimtab.pipeline.loads:load",
    JobKind.EXPORT: "trimtab.pipeline.exports:export",
    JobKind.VERIFY: "trimtab.pipeline.verifying:verify",
    JobKind.REPAIR: "trimtab.pipeline.repairing:repair",
    JobKind.COUNT: "trimtab.pipeline.counting:count",
    JobKind.ANALYZE: "trimtab.pipeline.analyzing:analyze",
    JobKind.STREAM: "trimtab.pipeline.streaming:stream",
}


class Registry:
    """What a driver looks its jobs up in."""

    def __init__(
        self, named: Mapping[JobKind, str] | None = None, given: Mapping[JobKind, JobCode] | None = None
    ) -> None:
        self._named = dict(JOBS if named is None else named)
        self._given = dict(given or {})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Registry:
        """With what TRIMTAB_JOB_MODULE names; ValueError where that can't be used."""
        module = environment.get(VARIABLE, "").strip()
        if not module:
            return cls()
        try:
            given = importlib.import_module(module).JOBS
            return cls(given={JobKind(getattr(kind, "value", kind)): code for kind, code in given.items()})
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"{VARIABLE} names {module!r}, which gives no jobs: {error}") from error

    def code(self, kind: JobKind) -> JobCode:
        """The function of this kind; JobFailed where this driver has none."""
        if (given := self._given.get(kind)) is not None:
            return given
        named = self._named.get(kind)
        if named is None:
            known = ", ".join(sorted(each.value for each in self._named.keys() | self._given.keys()))
            raise JobFailed(f"this driver can't run jobs of the kind '{kind.value}'; it knows: {known}")
        module, _, function = named.partition(":")
        try:
            code: JobCode = getattr(importlib.import_module(module), function)
        except ImportError as error:
            raise JobFailed(f"jobs of the kind '{kind.value}' need something that is not installed: {error}") from error
        return code
