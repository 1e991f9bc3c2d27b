from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.net.certificates import Authority, Files
from tests.unit.net.loopback import WAIT_S, Caller, Play, Served, calling, limits, raw_peer, serving, until

from trimtab.net.tls import TlsError, client_context, server_context


def contexts(files: Files) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return server_context(files.ca, files.cert, files.key), client_context(files.ca, files.cert, files.key)


@contextlib.asynccontextmanager
async def tls_pair(server: Files, client: Files, *, wait: bool) -> AsyncIterator[tuple[Served, Caller]]:
    async with (
        serving(ssl=contexts(server)[0]) as served,
        calling(served.port, wait=wait, ssl=contexts(client)[1]) as caller,
    ):
        yield served, caller


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def test_members_of_one_authority_talk_over_tls_1_3(play: Play, authority: Authority, tmp_path: Path) -> None:
    async def story() -> None:
        async with tls_pair(authority.issue(tmp_path, "i1"), authority.issue(tmp_path, "i2"), wait=True) as (_, caller):
            for body in (b"", b"small", b"x" * 3_000_000):
                assert await caller.channel.call("echo", body, WAIT_S) == body
            calls = [caller.channel.call("echo", str(n).encode(), WAIT_S) for n in range(300)]
            assert await asyncio.gather(*calls) == [str(n).encode() for n in range(300)]

    play(story)


def test_a_member_of_another_authority_is_refused_and_both_sides_read_why(
    play: Play, authority: Authority, tmp_path: Path
) -> None:
    async def story() -> None:
        other = Authority()
        foreign = other.issue(tmp_path, "intruder", trust=authority)
        async with tls_pair(authority.issue(tmp_path, "i1"), foreign, wait=False) as (served, caller):
            text = await served.error()
            assert "certificate is not acceptable" in text
            reason, refused = await caller.down()
            assert "does not know the authority that signed our certificate" in reason and not refused
            assert served.server.counters.accepted == 0 and caller.ups.empty()

    play(story)


def test_a_server_of_another_authority_is_not_trusted_and_both_sides_read_why(
    play: Play, authority: Authority, tmp_path: Path
) -> None:
    async def story() -> None:
        imposter = Authority().issue(tmp_path, "imposter", trust=authority)
        async with tls_pair(imposter, authority.issue(tmp_path, "i2"), wait=False) as (served, caller):
            assert "the peer's certificate is not acceptable" in (await caller.down())[0]
            assert "does not know the authority that signed our certificate" in await served.error()
            assert caller.ups.empty()

    play(story)


def test_an_expired_certificate_is_refused_and_both_sides_read_why(
    play: Play, authority: Authority, tmp_path: Path
) -> None:
    async def story() -> None:
        late = authority.issue(tmp_path, "late", expired=True)
        good = authority.issue(tmp_path, "i1")
        async with tls_pair(good, late, wait=False) as (served, caller):
            assert "certificate has expired" in await served.error()
            assert "our certificate has expired" in (await caller.down())[0]
        async with tls_pair(late, good, wait=False) as (served, caller):
            assert "certificate has expired" in (await caller.down())[0]
            assert "our certificate has expired" in await served.error()

    play(story)


def test_a_client_without_a_certificate_is_refused(play: Play, authority: Authority, tmp_path: Path) -> None:
    async def story() -> None:
        files = authority.issue(tmp_path, "i1")
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname = False
        bare.load_verify_locations(cafile=files.ca)
        async with (
            serving(ssl=contexts(files)[0]) as served,
            calling(served.port, wait=False, ssl=bare) as caller,
        ):
            assert "presented no certificate" in await served.error()
            assert "requires a certificate" in (await caller.down())[0]

    play(story)


def test_a_client_of_tls_1_2_is_refused(play: Play, authority: Authority, tmp_path: Path) -> None:
    async def story() -> None:
        files = authority.issue(tmp_path, "i1")
        old = client_context(files.ca, files.cert, files.key)
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        async with serving(ssl=contexts(files)[0]) as served, calling(served.port, wait=False, ssl=old) as caller:
            assert "does not speak TLS 1.3" in await served.error()
            assert "does not speak TLS 1.3" in (await caller.down())[0]

    play(story)


def test_plaintext_to_a_tls_server_and_tls_to_a_plaintext_server_are_explained(
    play: Play, authority: Authority, tmp_path: Path
) -> None:
    async def story() -> None:
        server, client = contexts(authority.issue(tmp_path, "i1"))
        async with serving(ssl=server) as served, calling(served.port, wait=False) as caller:
            assert "does not speak TLS" in await served.error()
            assert "this port speaks TLS" in (await caller.down())[0]
        async with serving() as served, calling(served.port, wait=False, ssl=client) as caller:
            assert "uses TLS, this side does not" in await served.error()
            assert "does not speak TLS" in (await caller.down())[0]

    play(story)


def test_a_handshake_that_never_ends_is_cut_and_counts_as_a_stranger(
    play: Play, authority: Authority, tmp_path: Path
) -> None:
    async def story() -> None:
        server, client = contexts(authority.issue(tmp_path, "i1"))
        strict = limits(hello_timeout_s=5.0, max_unauthenticated=1)
        async with serving(ssl=server, limits=strict) as served, raw_peer(served.port) as silent:
            await until(lambda: served.server.connections == 1)
            async with raw_peer(served.port) as second:
                assert await second.reader.read() == b""
            assert "without a hello, the limit is 1" in await served.error()
            assert await silent.reader.read() == b""
            assert "no hello within 5 s" in await served.error()
            async with calling(served.port, ssl=client) as caller:
                assert await caller.channel.call("echo", b"fine", WAIT_S) == b"fine"

    play(story)


def test_a_tls_peer_that_does_not_read_is_paused_and_resumed(play: Play, authority: Authority, tmp_path: Path) -> None:
    async def story() -> None:
        server, client = contexts(authority.issue(tmp_path, "i1"))
        small = limits(write_high_bytes=64 * 1024, write_low_bytes=1024, max_server_in_flight=4)
        async with (
            serving(ssl=server, limits=small) as served,
            calling(served.port, ssl=client, limits=small) as caller,
        ):
            body = b"x" * 200_000
            calls = [caller.channel.call("echo", body, WAIT_S) for _ in range(50)]
            for call in calls:
                assert await call == body

    play(story)


def test_a_channel_over_tls_comes_back_after_the_server_restarts(
    play: Play, authority: Authority, tmp_path: Path
) -> None:
    async def story() -> None:
        server, client = contexts(authority.issue(tmp_path, "i1"))
        async with serving(ssl=server) as first:
            caller = Caller(first.port, client)
            await caller.up()
        assert "said goodbye: the server is shutting down" in (await caller.down())[0]
        async with serving(ssl=server, port=first.port):
            await caller.up()
            assert await caller.channel.call("echo", b"back", WAIT_S) == b"back"
            caller.channel.close()

    play(story)


def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    files = authority.issue(tmp_path, "i1")
    other = authority.issue(tmp_path, "i2")
    with pytest.raises(TlsError, match=r"cannot use the authority in .*missing\.pem"):
        server_context(tmp_path / "missing.pem", files.cert, files.key)
    with pytest.raises(TlsError, match=r"cannot use certificate .*i1\.pem with key .*i2\.key"):
        client_context(files.ca, files.cert, other.key)
    with pytest.raises(TlsError, match=r"cannot use the authority in .*i1\.key"):
        client_context(files.key, files.cert, files.key)
