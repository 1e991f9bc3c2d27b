"""The options of the data source, checked as soon as they are known: each error names the option and what it may be.

    reading           peer, table, columns, consistency, asOf, splitsPerTablet, meta, datacenter
    writing           those of `write_options`
    of the connection tlsAuthority, tlsCertificate, tlsKey, timeout

Spark gives options as text and without regard to their case. One that nobody knows is refused: a misspelt `asof` that
was passed over would read the wrong rows.
"""

from __future__ import annotations

import datetime as dt
import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.client.errors import InvalidRequest

CONTACT_VARIABLE = "TRIMTAB_CONTACT"
PEER = "spark.trimtab.peer"  # a setting of Spark: the peer that a session was made with
CONNECTION = ("peer", "table", "timeout", "tlsAuthority", "tlsCertificate", "tlsKey")
READING = (*CONNECTION, "columns", "consistency", "asOf", "splitsPerTablet", "meta", "datacenter")
READING_FILES = ("columns", "delimiter", "quote", "header", "null", "tasks", "duplicates")
MAX_SPLITS = 256
DEFAULT_TIMEOUT_S = 30.0
_LEVELS = ("ONE", "LOCAL_ONE", "QUORUM", "LOCAL_QUORUM", "ALL")
_MICROSECONDS = re.compile(r"\d{1,19}")
_YES, _NO = ("true", "1", "yes"), ("false", "0", "no", "")


@dataclass(frozen=True)
class Connection:
    """How to reach the cluster. The files of TLS are where they are on every machine that reads or writes."""

    peer: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    tls_files: tuple[str, str, str] | None = None


@dataclass(frozen=True)
class ReadOptions:
    """`columns` None: all. `as_of_us` 0: now. `table` is a full name."""

    connection: Connection
    table: str
    columns: tuple[str, ...] | None = None
    consistency: str = "ONE"
    as_of_us: int = 0
    splits_per_tablet: int = 1
    meta: bool = False
    datacenter: str = ""


@dataclass
class Options:
    """Options by their names as documented, whatever case they were given in.

    `known` are the names that may be given; `purpose` ("reading", "writing") is for the error.
    """

    given: Mapping[str, str]
    known: Sequence[str]
    purpose: str
    default_peer: str = ""
    values: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        by_lower = {name.lower(): name for name in self.known}
        self.values = {}
        for name, value in self.given.items():
            if name.lower() not in by_lower:
                raise InvalidRequest(_unknown(name, self.known, self.purpose))
            self.values[by_lower[name.lower()]] = value

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, default).strip()

    def names(self, name: str) -> tuple[str, ...] | None:
        """Names, separated by commas; None where it was not given."""
        if name not in self.values:
            return None
        found = tuple(each.strip() for each in self.values[name].split(","))
        if not all(found):
            raise InvalidRequest(f"option {name}: names separated by commas are expected, not {self.values[name]!r}")
        return found

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name)
        if not text:
            return default
        if not re.fullmatch(r"-?\d{1,19}", text) or not least <= int(text) <= most:
            raise InvalidRequest(f"option {name}: a whole number from {least} to {most} is expected, not {text!r}")
        return int(text)

    def flag(self, name: str) -> bool:
        text = self.text(name).lower()
        if text not in (*_YES, *_NO):
            raise InvalidRequest(f"option {name}: true or false is expected, not {text!r}")
        return text in _YES

    def one_of(self, name: str, choices: Sequence[str], default: str) -> str:
        """One of several words, in whatever case."""
        text = self.text(name) or default
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise InvalidRequest(f"option {name}: one of {', '.join(choices)} is expected, not {text!r}")

    def table(self) -> str:
        """The full name of the table: option `table`, else what was given to `load()` or `save()`."""
        named, path = self.text("table"), self.text("path")
        if not named and not path:
            raise InvalidRequest('no table was named: .option("table", "keyspace.name")')
        if named and path and named != path:
            raise InvalidRequest(
                f"two tables are named: {named} by the option table, {path} where it is loaded or saved (its path); "
                "leave one out"
            )
        from trimtab.client.known import table_name

        keyspace, short = table_name(named or path)
        return f"{keyspace}.{short}"

    def connection(self) -> Connection:
        peer = self.text("peer") or self.default_peer or os.environ.get(CONTACT_VARIABLE, "")
        if not peer:
            raise InvalidRequest(
                'no member of the cluster was named: .option("peer", "HOST:PORT"), trimtab.spark.session(peer=...), '
                f"or the environment variable {CONTACT_VARIABLE}"
            )
        text = self.text("timeout")
        try:
            timeout_s = float(text) if text else DEFAULT_TIMEOUT_S
        except ValueError:
            timeout_s = 0.0
        if not 0 < timeout_s <= 3600:
            raise InvalidRequest(f"option timeout: seconds, up to 3600, are expected, not {text!r}")
        files = [self.text(name) for name in ("tlsAuthority", "tlsCertificate", "tlsKey")]
        if any(files) and not all(files):
            raise InvalidRequest("TLS needs all three of the options tlsAuthority, tlsCertificate and tlsKey")
        return Connection(checked_peer(peer), timeout_s, (files[0], files[1], files[2]) if all(files) else None)


def read_options(given: Mapping[str, str], default_peer: str = "") -> ReadOptions:
    """The options of a read; InvalidRequest names the one that is wrong."""
    options = Options(given, (*READING, "path"), "reading", default_peer)
    columns = options.names("columns")
    if columns and len(set(columns)) < len(columns):
        raise InvalidRequest(f"option columns: {next(c for c in columns if columns.count(c) > 1)} is named twice")
    return ReadOptions(
        options.connection(),
        options.table(),
        columns=columns,
        consistency=options.one_of("consistency", _LEVELS, "ONE"),
        as_of_us=time_us(options.text("asOf"), "asOf") if options.text("asOf") else 0,
        splits_per_tablet=options.whole("splitsPerTablet", 1, 1, MAX_SPLITS),
        meta=options.flag("meta"),
        datacenter=options.text("datacenter"),
    )


def time_us(text: str, name: str) -> int:
    """A moment after 1970: ISO 8601 (UTC where it names no zone), or microseconds since then."""
    if _MICROSECONDS.fullmatch(text):
        found_us = int(text)
        if not 0 < found_us < 1 << 63:
            raise InvalidRequest(f"option {name}: from 1 to {(1 << 63) - 1} microseconds are expected, not {text}")
        return found_us
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"option {name}: a time such as 2025-06-01T12:00:00Z, or microseconds since 1970, is expected, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    found_us = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
    if found_us <= 0:
        # 0 means that no time was given.
        raise InvalidRequest(f"option {name}: a time after 1970-01-01T00:00:00Z is expected, not {text!r}")
    return found_us


def checked_peer(peer: str | Sequence[str]) -> str:
    """Addresses of members, separated by commas."""
    from trimtab.client.consistency import addresses_of

    return ",".join(addresses_of(peer))


def _unknown(name: str, known: Sequence[str], purpose: str) -> str:
    close = difflib.get_close_matches(name.lower(), [each.lower() for each in known], n=1)
    hint = next((f"did you mean {each}? " for each in known if close and each.lower() == close[0]), "")
    names = ", ".join(each for each in known if each != "path")
    return f"there is no option {name} for {purpose}; {hint}known are {names}"
