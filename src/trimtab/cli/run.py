"""`trimtab run`: one instance in the foreground, until it is told to stop.

What is wrong with the command line is said here, with exit code 2, before anything is started. The rest runs under the
supervisor, with what a node needs loaded before it is forked; FastAPI, which takes long, is loaded while a new instance
looks for others, else by the node.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli.errors import WrongUsage
from trimtab.net.addresses import format_address
from trimtab.node import failpoints
from trimtab.node.logs import FORMATS, LEVELS, LogSettings, PlainLog
from trimtab.node.settings import (
    Limits,
    Settings,
    SettingsError,
    Timing,
    TlsFiles,
    read_failure_domain,
    split_address,
)

if TYPE_CHECKING:
    from trimtab.node.children import Say
    from trimtab.node.instance import Instance
    from trimtab.node.process import Closer, Door, OpenDoor
    from trimtab.node.supervision import Phase

OFF = "off"
_HTTP_PORT_STEP = 2
_BULK_PORT_STEP = 3
_BULK_TOKEN_BYTES = 32
_DOORS = {"http": "HTTP", "bulk": "bulk transfers"}
_LIMITS = Limits()
_TIMING = Timing()
# A lease has to survive a few heartbeats that were lost.
_HEARTBEATS_PER_LEASE = 6


def add_to(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    instance_id: Annotated[str, typer.Option("--instance-id", help="The name of this instance.")],
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Where this instance keeps its data.")],
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:3301",
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="HOST:PORT",
            help="Whom to ask for the cluster; repeatable. Any two instances must share one. Default: nobody else.",
        ),
    ] = None,
    advertise: Annotated[
        str,
        typer.Option(
            "--advertise", metavar="HOST:PORT", help="Where others reach this instance, if not where it listens."
        ),
    ] = "",
    cluster_id: Annotated[str, typer.Option("--cluster-id", help="The name of the cluster.")] = "trimtab",
    failure_domain: Annotated[
        list[str] | None,
        typer.Option(
            "--failure-domain",
            metavar="KEY=VALUE",
            help="What this instance fails together with; repeatable. `host` is the name of the host if not given.",
        ),
    ] = None,
    replace: Annotated[
        str, typer.Option("--replace", metavar="ID", help="Take the place of this instance, which is dead.")
    ] = "",
    http: Annotated[
        str,
        typer.Option("--http", metavar="HOST:PORT|off", help="Where to serve HTTP. Default: two ports above --listen."),
    ] = "",
    bulk: Annotated[
        str,
        typer.Option(
            "--bulk",
            metavar="HOST:PORT|off",
            help="Where files of loads and scans go in and out. Default: three ports above --listen.",
        ),
    ] = "",
    pipeline: Annotated[
        bool,
        typer.Option(
            "--pipeline/--no-pipeline",
            help="While this instance leads: start a driver, on all cores, where jobs wait and nobody runs them.",
        ),
    ] = True,
    pipeline_idle_s: Annotated[
        float, typer.Option("--pipeline-idle-s", min=1, help="Such a driver ends when it was idle for so long.")
    ] = 60.0,
    log_level: Annotated[str, typer.Option("--log-level", help=f"One of {', '.join(LEVELS)}.")] = "info",
    log_format: Annotated[str, typer.Option("--log-format", help=f"One of {', '.join(FORMATS)}.")] = "text",
    tls_authority: Annotated[
        Path | None, typer.Option("--tls-authority", help="PEM of the authority that signed all members.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="PEM of this member.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM of this member's key.")] = None,
    capacity_mb: Annotated[
        int,
        typer.Option(
            "--capacity-mb",
            min=0,
            help="What it should hold at most; it gets tablets in proportion. 0: what is free on its disk as it joins.",
        ),
    ] = 0,
    disk_reserve_mb: Annotated[
        int, typer.Option("--disk-reserve-mb", min=0, help="Refuse writes when less than this is free on the disk.")
    ] = _LIMITS.disk_reserve_bytes >> 20,
    message_limit_kb: Annotated[
        int, typer.Option("--message-limit-kb", min=1024, help="The largest message between members.")
    ] = _LIMITS.frame_bytes >> 10,
    hint_limit_kb: Annotated[
        int,
        typer.Option(
            "--hint-limit-kb",
            min=1,
            help="Writes kept for each instance that is away; if it misses more, it is repaired when it returns.",
        ),
    ] = _LIMITS.hint_bytes >> 10,
    tick_ms: Annotated[
        int, typer.Option("--tick-ms", min=10, help="Raft's heartbeat; an election waits 10 to 20 of them.")
    ] = _TIMING.tick_ms,
    lease_ms: Annotated[
        int, typer.Option("--lease-ms", min=100, help="How long an instance may serve without a word of the leader.")
    ] = _TIMING.lease_ms,
    offline_after_ms: Annotated[
        int, typer.Option("--offline-after-ms", min=200, help="Silence after which an instance is marked Offline.")
    ] = _TIMING.offline_after_ms,
) -> int:
    """Run one instance of the cluster in the foreground."""
    try:
        log_settings = LogSettings(log_level, log_format)
        failpoints.parse(os.environ.get(failpoints.VARIABLE, ""))
        settings = Settings(
            instance_id=instance_id,
            listen=listen,
            peers=tuple(peer or (advertise or listen,)),
            cluster_id=cluster_id,
            advertise=advertise,
            tls=_tls_files(tls_authority, tls_certificate, tls_key),
            timing=Timing(
                tick_ms=tick_ms,
                lease_ms=lease_ms,
                lease_heartbeat_ms=lease_ms // _HEARTBEATS_PER_LEASE,
                offline_after_ms=offline_after_ms,
            ),
            limits=Limits(
                disk_reserve_bytes=disk_reserve_mb << 20,
                frame_bytes=message_limit_kb << 10,
                hint_bytes=hint_limit_kb << 10,
            ),
            failure_domain=_failure_domain(failure_domain or ()),
            replace=replace,
            http=_door_address("http", http, listen, _HTTP_PORT_STEP),
            bulk=_door_address("bulk", bulk, listen, _BULK_PORT_STEP),
            bulk_token=os.urandom(_BULK_TOKEN_BYTES),
            capacity_bytes=capacity_mb << 20,
        )
    except ValueError as error:
        # Of settings, log settings and failpoints alike: the texts are sentences without a full stop.
        raise WrongUsage(f"{error}.") from error
    return _supervise(settings, data_dir, log_settings, pipeline_idle_s if pipeline else None)


def _supervise(settings: Settings, data_dir: Path, log_settings: LogSettings, driver_idle_s: float | None) -> int:
    # Loaded before the first child is forked: all of them share this memory, and the next one begins at once.
    import structlog  # noqa: F401

    from trimtab.bulk.child import run_bulk
    from trimtab.node.process import run_child
    from trimtab.node.supervisor import supervise

    doors = _doors(settings)

    def node(phase: Phase, say: Say) -> int:
        """What the child does."""
        return run_child(settings, data_dir, phase, say, doors=doors, log_settings=log_settings)

    log = PlainLog(settings.instance_id, log_settings)

    def bulk(_say: Say) -> int:
        """What the child beside it does."""
        return run_bulk(settings, data_dir, log)

    # The rows of a table are for those who may ask for them, not for every user of the machine.
    os.umask(os.umask(0o077) | 0o077)
    return supervise(
        data_dir,
        node,
        instance_id=settings.instance_id,
        log=log,
        bulk=bulk if settings.bulk else None,
        driver=None if driver_idle_s is None else _driver(settings, log_settings, driver_idle_s),
        load_ahead=partial(_load_door, settings),
    )


def _driver(settings: Settings, log_settings: LogSettings, idle_s: float) -> Callable[[Say], int]:
    """What a driver of jobs does that is started on demand."""

    def driver(_say: Say) -> int:
        from trimtab.net.tls import client_context
        from trimtab.pipeline.driver import DriverSettings
        from trimtab.pipeline.process import run_driver

        files = settings.tls
        driver_settings = DriverSettings(
            peers=tuple(dict.fromkeys((settings.address, *settings.peers))),
            idle_exit_s=idle_s,
            address=socket.gethostname(),
            tls_files=(str(files.authority), str(files.certificate), str(files.key)) if files else None,
        )
        log = PlainLog(f"{settings.instance_id}/driver", log_settings)
        tls = client_context(files.authority, files.certificate, files.key) if files else None
        return run_driver(driver_settings, story=log.info, tls=tls, forked=True)

    return driver


def _tls_files(authority: Path | None, certificate: Path | None, key: Path | None) -> TlsFiles | None:
    if authority and certificate and key:
        return TlsFiles(authority, certificate, key)
    if authority or certificate or key:
        raise SettingsError("TLS needs all three of --tls-authority, --tls-certificate and --tls-key")
    return None


def _failure_domain(pairs: list[str] | tuple[str, ...]) -> dict[str, str]:
    domain = read_failure_domain(pairs)
    if not any(key.lower() == "host" for key in domain):
        domain = {"host": socket.gethostname(), **domain}
    return domain


def _door_address(option: str, given: str, listen: str, step: int) -> str:
    """Where another door listens; empty: nowhere."""
    if given:
        return "" if given.lower() == OFF else given
    host, port = split_address(listen)
    if port + step > 65_535:
        raise SettingsError(
            f"--listen {listen} leaves no port for {_DOORS[option]} above it; give --{option} HOST:PORT or "
            f"--{option} off"
        )
    return format_address((host, port + step))


def _load_door(settings: Settings) -> None:
    """What the HTTP door needs, which takes half a second to load."""
    if settings.http:
        import trimtab.http.door  # noqa: F401


def _doors(settings: Settings) -> list[Door]:
    """The doors of a node besides its own: HTTP, unless it is off."""
    if not settings.http:
        return []

    from trimtab.http.instance_port import InstancePort
    from trimtab.http.server import bind, open_door  # not yet what FastAPI needs
    from trimtab.net.tls import server_context

    def http() -> OpenDoor:
        bound = bind(settings.http)

        async def open_http(instance: Instance) -> Closer:
            files = settings.tls
            return await open_door(
                InstancePort(instance),
                bound,
                tls=server_context(files.authority, files.certificate, files.key) if files else None,
                known_as=(settings.address, settings.http_address),
                story=instance.story,
            )

        return open_http

    return [http]
