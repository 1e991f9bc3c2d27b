"""The one session of Spark that a driver has: made when the first job asks for it, and kept for all that follow.

Jobs run at the same time in threads; Spark knows which of its work belongs to which by the job's group, so that one can
be cancelled without touching the others, and gives each a fair share: a large one does not keep small ones waiting.
Cancelling a group also refuses what its thread would start afterwards.

No row of a job passes through Java, which only says which task does what. So it need not translate itself twice: with
its quick compiler alone, and the collector of few threads, it takes half of the processor and 100 MB less.

Spark lets go of a task, but the task's process may run on for seconds: whatever it writes must be fenced (sessions of
loads are), never trusted to have stopped.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trimtab.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_FAIR = {"spark.scheduler.mode": "FAIR"}
_QUICK = "-XX:TieredStopAtLevel=1"
_FEW_THREADS = "-XX:+UseSerialGC"


class Sessions:
    """Any thread may ask. `master` empty: all cores of this machine. `conf`: settings of Spark besides ours."""

    def __init__(self, peers: Sequence[str], master: str = "", **conf: str) -> None:
        self._peers = list(peers)
        self._master = master
        self._conf = _FAIR | conf
        if options := [*java_options(os.environ, conf), *filter(None, [conf.get(java.OPTIONS)])]:
            self._conf[java.OPTIONS] = " ".join(options)
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._closed = False

    @property
    def made(self) -> bool:
        return self._session is not None

    def get(self) -> SparkSession:
        """The session; made where there is none, or where it has died."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the driver is ending; no session of Spark is made any more")
            if self._session is not None and _stopped(self._session):
                _forget(self._session)
                self._session = None
            if self._session is None:
                from trimtab.spark.sessions import session

                self._session = session(peer=self._peers, master=self._master or None, **self._conf)
            return self._session

    def join(self, group: str, why: str) -> SparkSession:
        """The session, with everything that the calling thread asks of it belonging to this group."""
        session = self.get()
        session.sparkContext.setJobGroup(group, why, interruptOnCancel=True)
        session.sparkContext.setLocalProperty("spark.scheduler.pool", group)
        return session

    def cancel(self, group: str) -> None:
        """End everything of this group, now and later."""
        session = self._session
        if session is None:
            return
        context: Any = session.sparkContext
        # The session may die at this very moment, which ends the group as well.
        with contextlib.suppress(Exception):
            context._jsc.sc().cancelJobGroupAndFutureJobs(group)
            return
        with contextlib.suppress(Exception):
            context.cancelJobGroup(group)

    def close(self) -> None:
        """Stop it, and make no other."""
        with self._lock:
            self._closed = True
            session, self._session = self._session, None
        if session is not None:
            from trimtab.spark.sessions import stop

            with contextlib.suppress(Exception):
                # It is gone already, or its Java is; the process ends anyway.
                stop(session)


def _forget(session: SparkSession) -> None:
    """Spark remembers a session for the process; one whose Java has died would be given to whoever asks for another."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession as Kind

    from trimtab.spark.sessions import stop

    with contextlib.suppress(Exception):
        stop(session)
    forgotten: tuple[tuple[Any, str], ...] = (
        *((SparkContext, name) for name in ("_gateway", "_jvm", "_active_spark_context")),
        *((Kind, name) for name in ("_instantiatedSession", "_activeSession")),
    )
    for kind, name in forgotten:
        if hasattr(kind, name):
            setattr(kind, name, None)


def _stopped(session: SparkSession) -> bool:
    context: Any = session.sparkContext
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:
        return True  # its Java does not answer


def java_options(variables: Mapping[str, str], conf: Mapping[str, str]) -> list[str]:
    """For a Java that only says what is to be done; none where somebody has settings of Spark of their own."""
    if "SPARK_CONF_DIR" in variables:
        return []
    return [_QUICK] if java.chooses_collector(java.options_given(variables, conf)) else [_QUICK, _FEW_THREADS]
