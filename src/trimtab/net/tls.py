"""Mutual TLS: contexts from three files, and TLS as a layer of ours over any transport.

What is checked: both sides present a certificate that the configured authority signed, TLS 1.3 or newer. What is not:
host names. An instance is known by its instance id, which it says in its hello and which cluster state maps to
addresses that may change; a name or address in the certificate would prove nothing the cluster relies on and would make
every move of a host a reissue. So **the authority is the boundary**: use one of your own for a cluster, never a public
one. A certificate is used both to listen and to connect: if it limits its use, it must allow both server and client.

Why not the loop's own TLS: a server's event loop hides a failed handshake (no protocol exists yet to tell), and an
operator who deploys a certificate of the wrong authority must read that on both sides. Here the handshake is ours: its
failures end the connection through the same door as everything else, it counts against the limits on strangers, and
it behaves alike on every loop. With TLS 1.3 a client is through before the server has seen its certificate, so
a refused client learns it as an alert just after.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from typing import TYPE_CHECKING, Any

from trimtab.net.errors import NetError
from trimtab.net.frames import GOODBYE, encode_frame, encode_reason

if TYPE_CHECKING:
    from trimtab.net.connection import Connection

File = str | os.PathLike[str]

_READ_BYTES = 256 * 1024

# OpenSSL's names for what operators meet, in their words.
_REASONS = {
    "TLSV1_ALERT_UNKNOWN_CA": "the peer does not know the authority that signed our certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer says our certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer does not accept our certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer does not accept our certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the peer does not accept our certificate for this use",
    "TLSV1_ALERT_DECRYPT_ERROR": "the peer could not verify our certificate's signature",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a certificate and we presented none",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer presented no certificate",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "HTTP_REQUEST": "the peer does not speak TLS, it sent an HTTP request",
    "RECORD_LAYER_FAILURE": "the peer does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the peer does not speak TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer does not speak TLS 1.3",
}
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"})


class TlsError(NetError):
    """The configured certificate files can't be used."""


def server_context(ca: File, cert: File, key: File) -> ssl.SSLContext:
    """For listening: presents `cert`, and requires of every client one signed by `ca`."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, ca, cert, key)
    context.num_tickets = 0  # connections live long; resumption would only be more state
    return context


def client_context(ca: File, cert: File, key: File) -> ssl.SSLContext:
    """For connecting: presents `cert`, and requires of the server one signed by `ca`."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, ca, cert, key)


def _context(protocol: ssl._SSLMethod, ca: File, cert: File, key: File) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"cannot use the authority in {os.fspath(ca)}: {error}") from error
    try:
        # A password prompt would hang a server that starts unattended.
        context.load_cert_chain(cert, key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise TlsError(f"cannot use certificate {os.fspath(cert)} with key {os.fspath(key)}: {error}") from error
    return context


class TlsProtocol(asyncio.Protocol):
    """Sits between the loop's transport and a Connection: ciphertext on one side, frames on the other."""

    def __init__(self, inner: Connection, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._inner = inner
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._raw: asyncio.Transport | None = None
        self._shaken = False  # the handshake is done
        self._broken = False  # no more TLS records can be made or read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = transport  # type: ignore[assignment]
        self._inner.opened(TlsTransport(self, transport))  # type: ignore[arg-type]
        if not transport.is_closing():
            self._advance()

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        self._incoming.write(data)
        self._advance()

    def _advance(self) -> None:
        chunks: list[bytes] = []
        failure: ssl.SSLError | None = None
        finished = False
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                self._flush()
                self._inner.ready()
            while True:
                chunk = self._tls.read(_READ_BYTES)
                if not chunk:
                    finished = True
                    break
                chunks.append(chunk)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            finished = True
        except ssl.SSLError as error:
            failure = error
            self._broken = True
            if not self._shaken and error.reason in _NOT_TLS and self._raw is not None:
                # OpenSSL has no alert for this. A peer of ours without TLS reads the frame; to others it is noise.
                reason = encode_reason("this port speaks TLS, and your first bytes were not TLS")
                self._raw.write(encode_frame(GOODBYE, 1, "", 0, reason))
        self._flush()
        if chunks:
            self._inner.data_received(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if failure is not None:
            self._inner.refuse_tls(f"TLS with {self._inner.address} failed: {describe_tls_error(failure)}", failure)
        elif finished:
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending and self._raw is not None and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    # What the connection's transport does.

    def write(self, data: bytes) -> None:
        if self._broken or not self._shaken:
            return  # before and after TLS there is nothing to say it with
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            self._broken = True
            self._inner.refuse_tls(f"TLS with {self._inner.address} failed: {describe_tls_error(error)}", error)
        self._flush()

    def close(self) -> None:
        if self._raw is None:
            return
        if self._shaken and not self._broken:
            self._broken = True
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()  # writes our close_notify; we don't wait for the peer's
            self._flush()
        self._raw.close()

    def peer_certificate(self) -> dict[str, Any] | None:
        return self._tls.getpeercert() if self._shaken else None

    # What the loop's transport tells us.

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._broken = True
        self._inner.connection_lost(exc)
        self._raw = None


class TlsTransport:
    """The few methods of a transport that a Connection uses."""

    __slots__ = ("_protocol", "_raw")

    def __init__(self, protocol: TlsProtocol, raw: asyncio.Transport) -> None:
        self._protocol = protocol
        self._raw = raw

    def write(self, data: bytes) -> None:
        self._protocol.write(data)

    def close(self) -> None:
        self._protocol.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peercert":
            return self._protocol.peer_certificate()
        return self._raw.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)


def describe_tls_error(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not acceptable: {error.verify_message}"
    reason = error.reason or ""
    if reason in _REASONS:
        return f"{_REASONS[reason]} ({reason})"
    return reason or str(error)
