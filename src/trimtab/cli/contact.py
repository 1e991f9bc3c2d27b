"""Options that several commands share, so that they are spelt and checked the same everywhere."""

from __future__ import annotations

import functools
import inspect
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from trimtab.cli.errors import CommandFailed, WrongUsage

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

PeerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peer", metavar="HOST:PORT", help="A member to talk to; may be repeated. Default: the local cluster."
    ),
]


def checked_address(text: str) -> str:
    """The same text, if it is HOST:PORT."""
    from trimtab.net.addresses import parse_address

    try:
        parse_address(text)
    except ValueError as error:
        raise WrongUsage(f"{error}.") from error
    return text


def contact_addresses(peers: list[str] | None) -> list[str]:
    """The members to talk to, checked: those named, else those of the local cluster that run."""
    if peers:
        return [checked_address(peer) for peer in peers]
    addresses = local_addresses()
    if not addresses:
        raise WrongUsage(
            "no member to talk to: no local cluster runs, so give --peer HOST:PORT or set TRIMTAB_CONTACT "
            "(`trimtab local up` starts a local cluster)."
        )
    return addresses


def local_addresses() -> list[str]:
    """Where the running instances of the local cluster listen."""
    import os

    from trimtab.playground.local import LocalCluster
    from trimtab.playground.record import LocalFailed, present_directory

    cluster = LocalCluster(present_directory(os.environ))
    try:
        return list(cluster.addresses().values()) if cluster.exists else []
    except LocalFailed as error:
        raise CommandFailed(f"{error}.") from error


TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", min=0.1, max=3600, metavar="SECONDS", help="How long to wait for an answer."),
]
AuthorityOption = Annotated[Path | None, typer.Option("--tls-authority", help="PEM of the members' authority.")]
CertificateOption = Annotated[Path | None, typer.Option("--tls-certificate", help="PEM to show the members.")]
KeyOption = Annotated[Path | None, typer.Option("--tls-key", help="PEM of the certificate's key.")]


@dataclass(frozen=True)
class Contact:
    """How a command reaches the cluster."""

    peers: list[str] | None
    timeout_s: float
    tls_files: tuple[Path, Path, Path] | None

    def tls_context(self) -> ssl.SSLContext | None:
        """What to connect with, or None for plain connections."""
        from trimtab.net.tls import client_context

        return client_context(*self.tls_files) if self.tls_files else None


def _contact(
    peer: PeerOption = None,
    timeout: TimeoutOption = 10.0,
    tls_authority: AuthorityOption = None,
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
) -> Contact:
    if not (tls_authority or tls_certificate or tls_key):
        return Contact(peer, timeout, None)
    if not (tls_authority and tls_certificate and tls_key):
        raise WrongUsage("TLS needs all three of --tls-authority, --tls-certificate and --tls-key.")
    return Contact(peer, timeout, (tls_authority, tls_certificate, tls_key))


def with_contact(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the options every command has that talks to a cluster, in place of its `contact` parameter."""
    own = {name: each for name, each in inspect.signature(command).parameters.items() if name != "contact"}
    shared = inspect.signature(_contact).parameters
    hints = get_type_hints(command, include_extras=True) | get_type_hints(_contact, include_extras=True)

    @functools.wraps(command)
    def run(**values: Any) -> Any:
        contact = _contact(**{name: values.pop(name) for name in shared})
        return command(contact=contact, **values)

    parameters = [each.replace(annotation=hints[each.name]) for each in (*own.values(), *shared.values())]
    # An attribute that `inspect` looks for, and that the type of a function does not name.
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    del run.__wrapped__
    return run
