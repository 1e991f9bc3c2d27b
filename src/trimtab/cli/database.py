"""How commands use the client for rows and schemas: one connection for one piece of work, errors as sentences."""

from __future__ import annotations

import enum
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from trimtab.cli.contact import Contact, contact_addresses
from trimtab.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from trimtab.client.consistency import Consistency
    from trimtab.client.database import Database

T = TypeVar("T")


class LevelName(enum.Enum):
    """The consistency levels, as they are written."""

    ANY = "ANY"
    ONE = "ONE"
    TWO = "TWO"
    THREE = "THREE"
    QUORUM = "QUORUM"
    ALL = "ALL"
    LOCAL_ONE = "LOCAL_ONE"
    LOCAL_QUORUM = "LOCAL_QUORUM"
    EACH_QUORUM = "EACH_QUORUM"


TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="KEYSPACE.TABLE, such as shop.users.")]
KeyspaceArgument = Annotated[str, typer.Argument(metavar="KEYSPACE")]
IfNotExistsOption = Annotated[bool, typer.Option("--if-not-exists", help="It is no error if it exists already.")]
IfExistsOption = Annotated[bool, typer.Option("--if-exists", help="It is no error if there is none.")]
ConsistencyOption = Annotated[
    LevelName,
    typer.Option("--consistency", case_sensitive=False, help="How many replicas have to answer."),
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="A,B", help="Only these columns, separated by commas.")
]


def use(contact: Contact, work: Callable[[Database], Awaitable[T]], *, consistency: LevelName = LevelName.QUORUM) -> T:
    """Do some work with a client of the cluster; CommandFailed with the reason when it can't be done."""
    import uvloop

    from trimtab.client.database import connect
    from trimtab.client.errors import Error, Timeout, Unavailable
    from trimtab.net.errors import NetError

    addresses = contact_addresses(contact.peers)
    level: Consistency = consistency.value

    async def connected() -> T:
        connecting = connect(addresses, consistency=level, timeout=contact.timeout_s, tls=contact.tls_context())
        try:
            database = await connecting
        except (Unavailable, Timeout) as error:
            asked = ", ".join(addresses)
            raise CommandFailed(
                f"no member of a cluster answers at {asked} (asked for {contact.timeout_s:g} s): "
                f"{str(error).rstrip('.')}. Is it running, and is the address right?"
            ) from error
        async with database:
            return await work(database)

    try:
        return uvloop.run(connected())
    except (Error, NetError, OSError) as error:
        raise CommandFailed(f"{str(error).rstrip('.')}.") from error


def tell_waiting(waiting: list[str]) -> None:
    """Say, beside the output, who does not know of a change of the schema yet."""
    if waiting:
        names = ", ".join(waiting)
        verb = "has" if len(waiting) == 1 else "have"
        print(
            f"trimtab: done, but {names} {verb} not taken note of it yet; until then it may be refused there.",
            file=sys.stderr,
        )


def replication_of(text: str) -> int | dict[str, int]:
    """`3`, or by data centre `dc1=3,dc2=2`."""
    if text.isascii() and text.isdigit():
        return int(text)
    found: dict[str, int] = {}
    for part in text.split(","):
        dc, equals, count = part.strip().partition("=")
        if not dc or not equals or not (count.isascii() and count.isdigit()) or dc in found:
            raise WrongUsage(f"'{text}' is no replication: write a number such as 3, or dc1=3,dc2=2.")
        found[dc] = int(count)
    return found


def columns_of(text: str | None) -> list[str] | None:
    """`a,b` as a list."""
    if text is None:
        return None
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise WrongUsage(
            f"'{text}' is no list of columns: write their names with commas between them, such as id,name."
        )
    return found


def pairs_of(words: list[str], what: str, example: str) -> dict[str, str]:
    """`a=1 b=2` as a mapping; the value may hold further = signs."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise WrongUsage(f"'{word}' is no {what}: write NAME=VALUE, such as {example}.")
        if name in found:
            raise WrongUsage(f"{name} is given twice.")
        found[name] = value
    return found
