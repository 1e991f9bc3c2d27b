"""`trimtab rebalance`: whether and when the cluster evens out what its instances hold, and how long it waits to heal.

Off, or outside its window, balancing begins nothing new. What is under way goes on, and so does what must not wait:
healing, draining, a changed replication, and moves that an operator asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from trimtab.cli.asking import ask
from trimtab.cli.contact import Contact, JsonOption, with_contact
from trimtab.cli.errors import WrongUsage

_MOST_TABLETS = 1_000_000
_MOST_MB = 1 << 40
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|sec|min|m|h|d)?", re.ASCII | re.IGNORECASE)
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def add_to(app: typer.Typer) -> None:
    help_text = "See and set whether and when tablets are balanced, and after how long lost replicas are made anew."
    group = typer.Typer(help=help_text, no_args_is_help=True)
    commands: tuple[tuple[str, Callable[..., object]], ...] = (
        ("status", status),
        ("on", on),
        ("off", off),
        ("window", window),
        ("heal-after", heal_after),
        ("at-once", at_once),
    )
    for name, command in commands:
        group.command(name)(with_contact(command))
    app.add_typer(group, name="rebalance")


def status(contact: Contact, as_json: JsonOption = False) -> None:
    """Show how balancing is set, whether it may begin anything now, and what keeps tablets where they are."""
    _tell(contact, as_json)


def on(contact: Contact, as_json: JsonOption = False) -> None:
    """Let the cluster move tablets to even out what its instances hold."""
    _tell(contact, as_json, enabled=True)


def off(contact: Contact, as_json: JsonOption = False) -> None:
    """Begin no moves for balance. Healing and draining go on, and so does what is under way."""
    _tell(contact, as_json, enabled=False)


def window(
    contact: Contact,
    times: Annotated[str, typer.Argument(metavar="HH:MM-HH:MM|always", help="UTC; it may cross midnight.")],
    as_json: JsonOption = False,
) -> None:
    """Set the time of the day within which balancing may begin moves."""
    from trimtab.client.errors import InvalidRequest
    from trimtab.client.moves import read_window

    try:
        read_window(times)
    except InvalidRequest as error:
        raise WrongUsage(f"{error}.") from error
    _tell(contact, as_json, window=times)


def heal_after(
    contact: Contact,
    duration: Annotated[str, typer.Argument(metavar="DURATION", help="Such as 30s, 10min, 2h; 1 s to 30 days.")],
    as_json: JsonOption = False,
) -> None:
    """Set for how long an instance that is down is waited for before its replicas are made anew elsewhere."""
    _tell(contact, as_json, heal_after_s=seconds_of(duration))


def at_once(
    contact: Contact,
    tablets: Annotated[
        int | None, typer.Argument(min=1, max=_MOST_TABLETS, metavar="TABLETS", help="Of the whole cluster.")
    ] = None,
    instance_mb: Annotated[
        int | None, typer.Option("--instance-mb", min=1, max=_MOST_MB, help="To or from one instance.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Set how many tablets move at the same time, and how much of that concerns one instance."""
    if tablets is None and instance_mb is None:
        raise WrongUsage("say how many tablets may move at once, or how much with --instance-mb.")
    _tell(contact, as_json, moving=tablets, moving_bytes=None if instance_mb is None else instance_mb << 20)


def seconds_of(text: str) -> float:
    """`30s`, `10min`, `2h`, `1d`; a bare number is seconds."""
    from trimtab.tablets.rebalance_settings import RebalanceSettings, wrong_settings

    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise WrongUsage(f"'{text[:40]}' is no duration: write it as 30s, 10min, 2h or 1d.")
    found = float(match[1]) * _SECONDS[(match[2] or "").lower()]
    if wrong := wrong_settings(RebalanceSettings(heal_after_ms=round(min(found, 1e12) * 1000))):
        raise WrongUsage(f"{wrong}.")
    return found


def _tell(contact: Contact, as_json: bool, **changes: Any) -> None:
    found = ask(contact, lambda client: client.moves.rebalance(**changes))
    if as_json:
        print(json.dumps(found))
        return
    for line in lines_of(found):
        print(line)


def lines_of(found: dict[str, Any]) -> list[str]:
    """How balancing is set, in sentences."""
    from trimtab.tablets.moving_words import duration, in_bytes

    when = f"from {found['window'].replace('-', ' to ')} UTC" if found["window"] else "at any time"
    if not found["enabled"]:
        lines = ["Balancing is off: nothing is moved for balance. `trimtab rebalance on` lets it go on."]
    elif found["active"]:
        lines = [f"Balancing is on, {when}."]
    else:
        lines = [f"Balancing is on, {when}, and waits for that."]
    lines.append(
        f"An instance that is down for {duration(found['heal_after_s'])} is not waited for: its replicas are made anew "
        "elsewhere."
    )
    size = in_bytes(found["moving_bytes"])
    lines.append(f"At most {found['moving']} tablets move at a time, and {size} to or from one instance.")
    return lines + [f"Problem: {text}" for text in found["problems"]]
