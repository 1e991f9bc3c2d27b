"""Options that several commands share, so that they are spelt and checked the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from trimtab.cli.errors import WrongUsage

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

PeerOption = Annotated[
    list[str] | None,
    typer.Option("--peer", metavar="HOST:PORT", help="A member to talk to; may be repeated. Default: TRIMTAB_CONTACT."),
]


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT as a pair; an IPv6 host stands in brackets."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise WrongUsage(f"'{text}' is not an address; write HOST:PORT, such as 127.0.0.1:3301 or [::1]:3301.")
    return host, int(port)


def contact_addresses(peers: list[str] | None) -> list[str]:
    """The members to talk to, checked; says what to do when none is known."""
    if not peers:
        raise WrongUsage("no member to talk to; give --peer HOST:PORT or set TRIMTAB_CONTACT.")
    for peer in peers:
        parse_address(peer)
    return peers
