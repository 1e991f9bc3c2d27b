"""`trimtab pipeline`: the driver of jobs, in the foreground, until it is told to stop.

A cluster needs none: where none runs and jobs are queued, the leader's supervisor starts one. This is for a driver on a
machine of its own, or on a Spark cluster. Several may run: one drives, the others stand by and take over when it dies.
"""

from __future__ import annotations

import socket
from typing import Annotated

import typer

from trimtab.cli.contact import Contact, contact_addresses, with_contact
from trimtab.cli.errors import WrongUsage


def add_to(app: typer.Typer) -> None:
    app.command("pipeline")(with_contact(pipeline))


def pipeline(
    contact: Contact,
    spark_master: Annotated[
        str,
        typer.Option("--spark-master", metavar="URL", help="Where Spark runs. Default: all cores of this machine."),
    ] = "",
    at_once: Annotated[int, typer.Option("--at-once", min=1, max=16, help="How many jobs run at the same time.")] = 4,
    idle_exit: Annotated[
        float,
        typer.Option(
            "--idle-exit",
            min=0,
            metavar="SECONDS",
            help="End when there was nothing to do for so long, or another driver runs the jobs; 0 is never.",
        ),
    ] = 0.0,
    driver_lease_ms: Annotated[
        int,
        typer.Option(
            "--driver-lease-ms", min=3_000, max=300_000, help="After so long without a word another driver takes over."
        ),
    ] = 10_000,
) -> int:
    """Run the jobs of a cluster with Spark, in the foreground."""
    from trimtab.node.logs import LogSettings, PlainLog
    from trimtab.pipeline.driver import DriverSettings
    from trimtab.pipeline.process import run_driver

    log, files = PlainLog("pipeline", LogSettings()), contact.tls_files
    try:
        settings = DriverSettings(
            peers=tuple(contact_addresses(contact.peers)),
            master=spark_master,
            lease_ms=driver_lease_ms,
            jobs_at_once=at_once,
            idle_exit_s=idle_exit or None,
            address=socket.gethostname(),
            tls_files=(str(files[0]), str(files[1]), str(files[2])) if files else None,
        )
        return run_driver(settings, story=log.info, tls=contact.tls_context())
    except ValueError as error:
        raise WrongUsage(f"{error}.") from error
