"""What each kind of job is told: plain values, checked before a job is asked for and once more when it begins.

They are JSON in the queue. A name that nobody knows is refused: a misspelt `as_of_us` that was passed over would export
the wrong rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from trimtab.client.errors import InvalidRequest
from trimtab.client.known import table_name
from trimtab.jobs.records import JobKind

T = TypeVar("T", bound="Parameters")
Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Some = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Tablets = Annotated[list[Natural], msgspec.Meta(max_length=10_000)]
Paths = Annotated[list[str], msgspec.Meta(min_length=1, max_length=10_000)]
ReadLevel = Literal["ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "ALL"]
SETTLE_S = 3.0  # after so long a write that was under way is on all its replicas, or its coordinator has given it up
MAX_COPIES = 1_000
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_RENAMING = ("file", "hdfs", "viewfs")  # schemes of file systems that rename a directory, all of it at once
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`table` is KEYSPACE.TABLE."""

    table: str

    def check(self) -> None:
        """InvalidRequest if it makes no sense as a whole."""
        table_name(self.table)


class LoadParameters(Parameters, frozen=True, kw_only=True):
    """Files, or directories of them, to be loaded. `format` empty: by their names. `options` are those of the sink.

    `schema_from` is the schema.json of an export: a missing table is made as it says.
    """

    paths: Paths
    format: Literal["", "parquet", "csv", "json"] = ""
    mode: Literal["append", "overwrite"] = "append"
    options: dict[str, str] = {}
    reading: dict[str, str] = {}  # of the files: delimiter, header, …
    schema_from: str = ""

    def check(self) -> None:
        super().check()
        for path in (*self.paths, *((self.schema_from,) if self.schema_from else ())):
            _absolute(path)
        for name in self.options:
            if name.lower() in ("peer", "table", "path", "loadid"):
                raise InvalidRequest(f"the option {name} is given by the job itself")


class ExportParameters(Parameters, frozen=True, kw_only=True):
    """`path` is a directory that is not there yet, on a file system: it gets its name by being renamed, which makes it
    whole or not there, and object stores can't do that. `as_of_us` 0: when the job begins.
    """

    path: str
    columns: list[str] = []
    as_of_us: Natural = 0
    consistency: ReadLevel = "QUORUM"
    compression: Literal["zstd", "snappy", "lz4", "none"] = "zstd"

    def check(self) -> None:
        super().check()
        _absolute(self.path)
        url = _URL.match(self.path)
        if url and url[1].lower() not in _RENAMING:
            raise InvalidRequest(
                f"{self.path}: an export is a directory that is renamed when it is whole, which {url[1]}:// can't do; "
                f"export to a directory that all machines share ({', '.join(f'{each}://' for each in _RENAMING)}), "
                "then copy it; it can be loaded from either"
            )


class VerifyParameters(Parameters, frozen=True, kw_only=True):
    """`limit`: differences that are listed; all are counted."""

    tablets: Tablets = []
    limit: Annotated[int, msgspec.Meta(ge=0, le=1_000)] = 100
    settle_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = SETTLE_S


class RepairParameters(Parameters, frozen=True, kw_only=True):
    """`sources`: raft ids of those whose rows are wanted; only they, and the targets, take part then.

    `targets`: for each of `tablets` the replicas that have to be compared, with a read quorum of all; none: all that
    take part. Who else does not answer is left out. A tablet of which that can't be said is among the failed ones.
    """

    tablets: Tablets = []
    sources: Annotated[list[Natural], msgspec.Meta(max_length=1_000)] = []
    targets: Annotated[list[list[Natural]], msgspec.Meta(max_length=10_000)] = []

    def check(self) -> None:
        super().check()
        if self.targets and len(self.targets) != len(self.tablets):
            raise InvalidRequest("targets are given for each of the tablets, or for none")


class CountParameters(Parameters, frozen=True, kw_only=True):
    as_of_us: Natural = 0
    consistency: ReadLevel = "ONE"


class AnalyzeParameters(Parameters, frozen=True, kw_only=True):
    """`top`: how many of the largest partitions are told."""

    tablets: Tablets = []
    top: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10


class StreamCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A replica for `target`, from one source as it is, or merged from several; all are raft ids.

    `session` empty: that of the job.
    """

    tablet: Natural
    target: Natural
    sources: Annotated[list[Natural], msgspec.Meta(min_length=1, max_length=64)]
    session: str = ""


class StreamParameters(Parameters, frozen=True, kw_only=True):
    """Copies of replicas to `staging/<session>/<tablet>/` of their targets; where the session is not open a copy
    fails, and the others are made.
    """

    session: str = ""
    copies: Annotated[list[StreamCopy], msgspec.Meta(min_length=1, max_length=MAX_COPIES)]

    def check(self) -> None:
        super().check()
        for session in {copy.session or self.session for copy in self.copies}:
            if not _SESSION.fullmatch(session) or ".." in session:
                raise InvalidRequest(f"{session[:64]!r} is no name of a session")
        places = [(copy.tablet, copy.target) for copy in self.copies]
        if len(set(places)) < len(places):
            raise InvalidRequest("a tablet is to be copied to one instance twice")
        for copy in self.copies:
            if copy.target in copy.sources or len(set(copy.sources)) < len(copy.sources):
                raise InvalidRequest(f"tablet {copy.tablet}: sources are different instances, and none is the target")


KINDS: dict[JobKind, type[Parameters]] = {
    JobKind.LOAD: LoadParameters,
    JobKind.EXPORT: ExportParameters,
    JobKind.VERIFY: VerifyParameters,
    JobKind.REPAIR: RepairParameters,
    JobKind.COUNT: CountParameters,
    JobKind.ANALYZE: AnalyzeParameters,
    JobKind.STREAM: StreamParameters,
}
# msgspec looks at a type when it is first used, and two threads that do so at once crash the process (0.22). Jobs begin
# in threads; so all of these are looked at here.
for _kind in KINDS.values():
    msgspec.json.Decoder(_kind)


def parse(kind: type[T], given: Mapping[str, Any]) -> T:
    """Parameters of a job; InvalidRequest says what is wrong with them."""
    try:
        found = msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the job's parameters: {error}") from error
    found.check()
    return found


def plain(parameters: Parameters) -> dict[str, Any]:
    """As they are kept in the queue; checked."""
    parameters.check()
    found: dict[str, Any] = msgspec.to_builtins(parameters)
    return found


def _absolute(path: str) -> None:
    if not path.startswith("/") and not _URL.match(path):
        raise InvalidRequest(
            f"{path!r} is no absolute path: the job may run elsewhere, where the current directory is another"
        )
