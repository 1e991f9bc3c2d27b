"""Where a peer listens, as people write it: HOST:PORT, with an IPv6 address in brackets.

There is one rule for every door (command line, settings, the metastore's records), so that an address which one of
them takes can be used by all others. What is ambiguous is refused: an IPv6 address without brackets, a port with
leading zeros, a host with spaces.
"""

from __future__ import annotations

import ipaddress
import re

Address = tuple[str, int]

_HOST = re.compile(r"[^\s\[\]:/@,]+")
_PORT = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)


def parse_address(text: str) -> Address:
    """Host and port. ValueError, in a sentence without a full stop, on anything that is no address of a peer."""
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or not 0 < int(port) <= 65_535 or (host := _host(host)) == "":
        raise ValueError(f"'{text}' is not an address; write HOST:PORT, such as 127.0.0.1:3301 or [::1]:3301")
    return host, int(port)


def format_address(address: Address) -> str:
    """The inverse."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host(text: str) -> str:
    """The host without brackets; nothing if it is none."""
    if text.startswith("[") and text.endswith("]"):
        try:
            ipaddress.IPv6Address(text[1:-1])
        except ValueError:
            return ""
        return text[1:-1]
    return text if _HOST.fullmatch(text) else ""
