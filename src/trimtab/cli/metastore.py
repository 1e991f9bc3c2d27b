"""`trimtab metastore …`: look into the cluster's state, and change it by hand, through any member.

Keys and values are text on the command line; `--hex` takes and shows other bytes. Streams print one JSON object a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from trimtab.cli.contact import Contact, JsonOption, contact_addresses, with_contact
from trimtab.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from trimtab.client.metastore import MetastoreClient
    from trimtab.metastore.layout import Entry

T = TypeVar("T")

KeyArgument = Annotated[str, typer.Argument(metavar="KEY")]
HexOption = Annotated[bool, typer.Option("--hex", help="Keys and values are written as hexadecimal digits.")]
LocalOption = Annotated[bool, typer.Option("--local", help="Answer from the asked member's own copy, maybe stale.")]
RevisionOption = Annotated[int, typer.Option("--revision", min=0, help="As of this revision; 0 is now.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(help="Look into the cluster's metastore, and change it by hand.", no_args_is_help=True)
    commands: tuple[Callable[..., object], ...] = (get, put, delete, range_, invoke, watch, compact, status)
    for command in commands:
        group.command(command.__name__.rstrip("_"))(with_contact(command))
    app.add_typer(group, name="metastore")


def _run(contact: Contact, work: Callable[[MetastoreClient], Awaitable[T]], *, local: bool = False) -> T:
    import uvloop

    from trimtab.client.errors import Error
    from trimtab.client.metastore import MetastoreClient
    from trimtab.net.errors import NetError

    addresses = contact_addresses(contact.peers)

    async def connected() -> T:
        tls = contact.tls_context()
        client = await MetastoreClient.connect(addresses, tls=tls, timeout_s=contact.timeout_s, follow_leader=not local)
        try:
            return await work(client)
        finally:
            await client.close()

    try:
        return uvloop.run(connected())
    except (Error, NetError, OSError) as error:
        raise CommandFailed(f"{str(error).rstrip('.')}.") from error


def _bytes(text: str, as_hex: bool) -> bytes:
    if not as_hex:
        return text.encode(errors="surrogateescape")
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise WrongUsage(f"'{text}' is not hexadecimal: {error}.") from error


def _text(data: bytes, as_hex: bool) -> str:
    return data.hex() if as_hex else data.decode(errors="backslashreplace")


def _as_dict(entry: Entry | None, as_hex: bool) -> dict[str, Any] | None:
    if entry is None:
        return None
    return {
        "key": _text(entry.key, as_hex),
        "value": _text(entry.value, as_hex),
        "create_revision": entry.create_revision,
        "mod_revision": entry.mod_revision,
        "version": entry.version,
    }


def get(
    contact: Contact,
    key: KeyArgument,
    revision: RevisionOption = 0,
    local: LocalOption = False,
    as_hex: HexOption = False,
    as_json: JsonOption = False,
) -> int:
    """Show a key's value; exit code 1 if there is none."""
    wanted = _bytes(key, as_hex)
    entry = _run(contact, lambda client: client.get(wanted, revision=revision, linearizable=not local), local=local)
    if as_json:
        print(json.dumps(_as_dict(entry, as_hex)))
    elif entry is not None:
        print(_text(entry.value, as_hex))
    if entry is None:
        raise CommandFailed(f"there is no key '{key}'.")
    return 0


def put(
    contact: Contact,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="- reads standard input.")],
    as_hex: HexOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set a key."""
    wanted, new = _bytes(key, as_hex), sys.stdin.buffer.read() if value == "-" else _bytes(value, as_hex)
    _print_revision(_run(contact, lambda client: client.put(wanted, new)), as_json)


def delete(
    contact: Contact,
    key: KeyArgument,
    as_hex: HexOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a key."""
    wanted = _bytes(key, as_hex)
    _print_revision(_run(contact, lambda client: client.delete(wanted)), as_json)


def range_(
    contact: Contact,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX")] = "",
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many keys.")] = 1_000,
    revision: RevisionOption = 0,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Leave the values out.")] = False,
    local: LocalOption = False,
    as_hex: HexOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show all keys that begin with a prefix."""
    from trimtab.metastore.layout import prefix_end
    from trimtab.metastore.limits import MAX_RANGE_LIMIT

    begin = _bytes(prefix, as_hex)

    async def show(client: MetastoreClient) -> None:
        low: bytes | None = begin
        at, left = revision, limit
        # A page ends where a message is full; only the end of the range or the limit ends the list.
        while low is not None and left:
            page = await client.range(
                low,
                prefix_end(begin),
                revision=at,
                limit=min(left, MAX_RANGE_LIMIT),
                keys_only=keys_only,
                linearizable=not local,
            )
            for entry in page.entries:
                if as_json:
                    print(json.dumps(_as_dict(entry, as_hex)))
                else:
                    print(_text(entry.key, as_hex) + ("" if keys_only else f" = {_text(entry.value, as_hex)}"))
            low, at, left = page.next_key, page.revision, left - len(page.entries)
        if low is not None:
            there = f"there are more keys, from '{_text(low, as_hex)}' on; raise --limit"
            print(f"trimtab: {there} (this was revision {at}).", file=sys.stderr)

    _run(contact, show, local=local)


def invoke(
    contact: Contact,
    source: Annotated[str, typer.Argument(metavar="JSON", help="The invoke; - reads standard input, @FILE a file.")],
    as_hex: HexOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a conditional change: {"if": {"exists": "a"}, "then": [{"put": ["b", "1"]}], "else": []}."""
    from trimtab.cli.invoke_json import InvalidInvoke, parse_invoke

    try:
        if source == "-":
            source = sys.stdin.read()
        elif source.startswith("@"):
            source = Path(source[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"can't read the invoke: {error}.") from error
    try:
        command = parse_invoke(source)
    except InvalidInvoke as error:
        raise WrongUsage(f"{error}.") from error
    result = _run(contact, lambda client: client.invoke(command))
    yields = result.yields if isinstance(result.yields, bool) else _text(result.yields, as_hex)
    if as_json:
        print(json.dumps({"revision": result.revision, "yields": yields, "changes": result.changes}))
    else:
        print(f"{yields} (revision {result.revision}, {result.changes} changes)")


def watch(
    contact: Contact,
    key: KeyArgument,
    exact: Annotated[
        bool, typer.Option("--exact", help="Only this key; default: every key that begins with it.")
    ] = False,
    until: Annotated[
        str | None, typer.Option("--until", metavar="KEY", help="Every key from KEY up to this one.")
    ] = None,
    from_revision: Annotated[int, typer.Option("--from-revision", min=0, help="Begin here; 0 is the next change.")] = 0,
    count: Annotated[int, typer.Option("--count", min=0, help="End after this many revisions; 0 is never.")] = 0,
    as_hex: HexOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show changes as they happen, revision by revision, until interrupted."""
    from trimtab.metastore.requests import WatchKind

    low, high = _bytes(key, as_hex), None if until is None else _bytes(until, as_hex)
    kind = WatchKind.EXACT if exact else WatchKind.PREFIX if high is None else WatchKind.RANGE

    async def follow(client: MetastoreClient) -> None:
        seen = 0
        async for item in client.watch(low, kind=kind, high=high, from_revision=from_revision):
            for change in item.changes:
                old, new = _as_dict(change.old, as_hex), _as_dict(change.new, as_hex)
                name = _text(change.key, as_hex)
                if as_json:
                    line = json.dumps({"revision": item.revision, "key": name, "old": old, "new": new})
                else:
                    line = f"{item.revision}  {name} " + ("deleted" if new is None else f"= {new['value']}")
                print(line, flush=True)
            seen += 1
            if seen == count:
                return

    _run(contact, follow)


def compact(
    contact: Contact,
    revision: Annotated[int, typer.Argument(metavar="REVISION", min=0)],
    as_json: JsonOption = False,
) -> None:
    """Forget the history below a revision."""
    compacted = _run(contact, lambda client: client.compact(revision))
    print(json.dumps({"compacted_revision": compacted}) if as_json else f"compacted up to revision {compacted}")


def status(
    contact: Contact,
    as_json: JsonOption = False,
) -> None:
    """Show how the asked member stands, who leads, and who else is there."""
    import msgspec

    reply = _run(contact, lambda client: client.status(), local=True)
    if as_json:
        known = msgspec.structs.asdict(reply)
        known["checksum"] = reply.checksum.hex()
        known["members"] = [msgspec.structs.asdict(member) for member in reply.members]
        print(json.dumps(known))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"[bold]{reply.instance_id}[/] (member {reply.raft_id} of {reply.cluster_id}): revision {reply.revision}, "
        f"applied {reply.applied} of {reply.committed} committed, term {reply.term}"
    )
    if reply.disk_full:
        console.print(f"[bold red]{reply.disk_full}[/]")
    if reply.removed:
        console.print(f"[bold red]{reply.removed}[/]")
    table = Table("member", "address", "role", "matched")
    for member in reply.members:
        role = "leader" if member.raft_id == reply.leader else "voter" if member.voter else "learner"
        table.add_row(
            str(member.raft_id), member.address or "?", role, "" if member.match is None else str(member.match)
        )
    console.print(table)


def _print_revision(revision: int, as_json: bool) -> None:
    print(json.dumps({"revision": revision}) if as_json else f"revision {revision}")
