"""`trimtab run`: one instance in the foreground, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.errors import WrongUsage


def add_to(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    instance_id: Annotated[str, typer.Option("--instance-id", help="The name of this instance.")],
    peer: Annotated[
        list[str],
        typer.Option(
            "--peer", metavar="HOST:PORT", help="A founding member; once for each, the same order everywhere."
        ),
    ],
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Where this instance keeps its data.")],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:3301",
    advertise: Annotated[
        str,
        typer.Option(
            "--advertise", metavar="HOST:PORT", help="Where others reach this instance, if not where it listens."
        ),
    ] = "",
    cluster_id: Annotated[str, typer.Option("--cluster-id", help="The name of the cluster.")] = "trimtab",
    raft_id: Annotated[
        int, typer.Option("--raft-id", help="Only for an instance that is no founder: a number never used before.")
    ] = 0,
    tls_authority: Annotated[
        Path | None, typer.Option("--tls-authority", help="PEM of the authority that signed all members.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="PEM of this member.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM of this member's key.")] = None,
    disk_reserve_mb: Annotated[
        int, typer.Option("--disk-reserve-mb", min=0, help="Refuse writes when less than this is free on the disk.")
    ] = 64,
    message_limit_kb: Annotated[
        int, typer.Option("--message-limit-kb", min=1024, help="The largest message between members.")
    ] = 1024,
) -> int:
    """Run one instance of the cluster in the foreground."""
    from trimtab.node.process import run as run_process
    from trimtab.node.settings import Limits, Settings, SettingsError, TlsFiles

    tls = None
    if tls_authority or tls_certificate or tls_key:
        if not (tls_authority and tls_certificate and tls_key):
            raise WrongUsage("TLS needs all three of --tls-authority, --tls-certificate and --tls-key.")
        tls = TlsFiles(tls_authority, tls_certificate, tls_key)
    try:
        settings = Settings(
            instance_id=instance_id,
            listen=listen,
            advertise=advertise,
            peers=tuple(peer),
            cluster_id=cluster_id,
            raft_id=raft_id,
            tls=tls,
            limits=Limits(disk_reserve_bytes=disk_reserve_mb << 20, frame_bytes=message_limit_kb << 10),
        )
    except SettingsError as error:
        raise WrongUsage(f"{error}.") from error
    return run_process(settings, data_dir)
