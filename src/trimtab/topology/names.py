"""What instances, addresses and failure domains may be called: one rule for whatever comes over the wire.

Every check returns the sentence that refuses, or None. They are about what the cluster stores for ever and shows in
every table, so they are narrow: short, printable, without separators that a command line or a URL would need quoted.

Failure-domain keys are the same whatever their case (`Rack` is `rack`); they are stored in lower case, values as given.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

MAX_ID_CHARACTERS = 64
MAX_ADDRESS_CHARACTERS = 280  # a host name has at most 253
MAX_DOMAIN_KEYS = 16
MAX_DOMAIN_CHARACTERS = 128
MAX_TEXT_CHARACTERS = 1_000

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)
_HOST = re.compile(r"[^\s\[\]:/@,]+")
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_RELEASE = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})([.a-z0-9+-]{0,40})", re.ASCII)
_WILDCARDS = ("0.0.0.0", "[::]", "*")


def wrong_instance_id(text: str) -> str | None:
    if len(text) <= MAX_ID_CHARACTERS and _ID.fullmatch(text):
        return None
    return (
        f"'{text[:80]}' can't be an instance id; it needs 1 to {MAX_ID_CHARACTERS} letters, digits, dots, dashes "
        "or underscores, and begins with a letter or digit"
    )


def wrong_uuid(text: str) -> str | None:
    """Ids that programs give (uuids, nonces) are only bounded and printable."""
    if 0 < len(text) <= MAX_ID_CHARACTERS and text.isprintable() and not text.isspace():
        return None
    return f"{text[:80]!r} is no uuid; an instance makes one with its data directory"


def split_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, an IPv6 address in brackets. ValueError, saying what to write, on anything else."""
    host, _, port = text[: MAX_ADDRESS_CHARACTERS + 1].rpartition(":")
    fine = len(text) <= MAX_ADDRESS_CHARACTERS and _PORT.fullmatch(port) and int(port) <= 65_535
    if not fine or not _is_host(host):
        raise ValueError(f"'{text[:80]}' is not an address; write HOST:PORT, such as 127.0.0.1:3301 or [::1]:3301")
    return host, int(port)


def wrong_address(text: str) -> str | None:
    try:
        split_address(text)
    except ValueError as error:
        return str(error)
    return None


def unreachable_address(text: str) -> str | None:
    """Why others can't reach an instance there, though one may listen on it; also when it is no address at all."""
    if wrong := wrong_address(text):
        return wrong
    if split_address(text)[0] in _WILDCARDS:
        return f"others can't reach an instance at {text}; say at which address they can: --advertise HOST:PORT"
    return None


def address_order(text: str) -> tuple[str, int]:
    """A total order of addresses that is the same everywhere; ports compare as numbers."""
    return split_address(text)


def wrong_failure_domain(domain: Mapping[str, str]) -> str | None:
    if len(domain) > MAX_DOMAIN_KEYS:
        return f"a failure domain has at most {MAX_DOMAIN_KEYS} keys, not {len(domain)}"
    seen: dict[str, str] = {}
    for key, value in domain.items():
        if len(key) > MAX_ID_CHARACTERS or not _KEY.fullmatch(key):
            return (
                f"'{key[:80]}' can't be a failure-domain key; it needs 1 to {MAX_ID_CHARACTERS} letters, digits, "
                "dashes or underscores, and begins with a letter, such as rack=r1"
            )
        if not 0 < len(value) <= MAX_DOMAIN_CHARACTERS or not value.isprintable() or value != value.strip():
            return (
                f"the failure domain '{key}' can't have the value {value[:80]!r}; it needs 1 to "
                f"{MAX_DOMAIN_CHARACTERS} printable characters"
            )
        if (twin := seen.setdefault(key.lower(), key)) != key:
            return f"the failure domain has the key '{key}' twice: '{twin}' is the same, case does not matter"
    return None


def plain_failure_domain(domain: Mapping[str, str]) -> dict[str, str]:
    """As it is stored: keys in lower case, in their order."""
    return {key.lower(): domain[key] for key in sorted(domain, key=str.lower)}


def minor_release(text: str) -> tuple[int, int] | None:
    """Major and minor version of a release such as 1.4.2 or 0.1.0.dev0; None where it is none."""
    found = _RELEASE.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


def apart(one: str, other: str) -> str | None:
    """Why two releases can't run side by side; None if they can: only adjacent minor versions may."""
    first, second = minor_release(one), minor_release(other)
    if first is None or second is None:
        unread = one if first is None else other
        return f"'{unread[:80]}' is not a release such as 1.4.2"
    if first[0] == second[0] and abs(first[1] - second[1]) <= 1:
        return None
    return f"releases {one} and {other} can't run side by side: only two adjacent minor versions may"


def _is_host(text: str) -> bool:
    if text.startswith("[") and text.endswith("]"):
        try:
            ipaddress.IPv6Address(text[1:-1])
        except ValueError:
            return False
        return True
    return _HOST.fullmatch(text) is not None and text.isprintable()
