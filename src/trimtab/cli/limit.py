"""`trimtab limit`: how many bytes a second all bulk transfers of the cluster together may move."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from trimtab.cli.asking import ask
from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.errors import WrongUsage


def add_to(app: typer.Typer) -> None:
    app.command("limit")(with_contact(limit))


def limit(
    contact: Contact,
    rate: Annotated[
        str, typer.Argument(metavar="[BYTES/s|off]", help="Such as 10MB/s, 500kB/s, 1.5GiB/s, or off.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Show or set how fast loads, scans and copies may go in the whole cluster; it holds within a second."""
    from trimtab.loads.bulk_settings import read_rate, show_rate

    try:
        wanted = read_rate(rate) if rate else None
    except ValueError as error:
        raise WrongUsage(f"{error}.") from error
    found = ask(contact, lambda client: client.limit(wanted))
    if as_json:
        from trimtab.loads import shapes

        print(json.dumps(shapes.limit(found)))
    elif found.rate_bytes_s == 0:
        print("Bulk transfers are not limited.")
    else:
        each = f"{show_rate(found.share_bytes_s)} for each of {found.instances} instances that are Online"
        print(f"Bulk transfers are limited to {show_rate(found.rate_bytes_s)}: {each}.")
