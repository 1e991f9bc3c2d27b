"""Keeps the processes quiet in which Spark plans reads and commits writes of Python sources.

When Spark hangs up on one of them, which it does with every one that has been idle for a minute, the process complains
of a broken pipe with all of its stack. No setting of Spark says otherwise or names another program for it. (Functions
of users run in the same processes: what these print stays as it is.) So a session
has a copy of this file as `sitecustomize.py` where the Pythons that Java starts look first; each runs it as it starts,
and then the `sitecustomize` that it would have had.
"""

from __future__ import annotations

import sys


def main() -> None:
    if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
        _silence()
    _run_the_next()


def _silence() -> None:
    import traceback
    from typing import Any

    told = traceback.print_exc

    def print_exc(*arguments: Any, **options: Any) -> None:
        # It is __main__ there, and so calls itself the code that a user's program sends; but that has no spec.
        caller = getattr(sys._getframe(1).f_globals.get("__spec__"), "name", "")
        hung_up = isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError)
        if not hung_up or caller != "pyspark.daemon":
            told(*arguments, **options)

    traceback.print_exc = print_exc


def _run_the_next() -> None:
    """The `sitecustomize` that this one hides, if there is one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = __file__.rpartition("/")[0]
    found = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if found is not None and found.loader is not None:
        found.loader.exec_module(module_from_spec(found))


if __name__ == "sitecustomize":
    main()
