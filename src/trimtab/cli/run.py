"""`trimtab run`: one instance in the foreground, until it is told to stop.

What is wrong with the command line is said here, with exit code 2, before anything is started. The rest runs under the
supervisor; the node and the HTTP door are loaded in its child only.
"""

from __future__ import annotations

import os
import socket
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

HTTP_OFF = "off"
_HTTP_PORT_STEP = 2
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
    log_level: Annotated[str, typer.Option("--log-level", help=f"One of {', '.join(LEVELS)}.")] = "info",
    log_format: Annotated[str, typer.Option("--log-format", help=f"One of {', '.join(FORMATS)}.")] = "text",
    tls_authority: Annotated[
        Path | None, typer.Option("--tls-authority", help="PEM of the authority that signed all members.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="PEM of this member.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="PEM of this member's key.")] = None,
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
            http=_http_address(http, listen),
        )
    except ValueError as error:
        # Of settings, log settings and failpoints alike: the texts are sentences without a full stop.
        raise WrongUsage(f"{error}.") from error
    return _supervise(settings, data_dir, log_settings)


def _supervise(settings: Settings, data_dir: Path, log_settings: LogSettings) -> int:
    from trimtab.node.supervisor import supervise

    def node(phase: Phase, say: Say) -> int:
        """What the child does."""
        from trimtab.node.process import run_child

        return run_child(settings, data_dir, phase, say, doors=_doors(settings), log_settings=log_settings)

    log = PlainLog(settings.instance_id, log_settings)
    return supervise(data_dir, node, instance_id=settings.instance_id, log=log)


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


def _http_address(http: str, listen: str) -> str:
    """Where the HTTP door listens; empty: nowhere."""
    if http:
        return "" if http.lower() == HTTP_OFF else http
    host, port = split_address(listen)
    if port + _HTTP_PORT_STEP > 65_535:
        raise SettingsError(f"--listen {listen} leaves no port for HTTP above it; give --http HOST:PORT or --http off")
    return format_address((host, port + _HTTP_PORT_STEP))


def _doors(settings: Settings) -> list[Door]:
    """The doors of a node besides its own: HTTP, unless it is off."""
    if not settings.http:
        return []

    def http() -> OpenDoor:
        from trimtab.http.server import bind, open_door

        bound = bind(settings.http)

        async def open_http(instance: Instance) -> Closer:
            from trimtab.http.instance_port import InstancePort
            from trimtab.net.tls import server_context

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
