"""Who may talk to a member: certificates, peer lists, data directories. What does not fit is refused, saying why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.members import Members
from tests.cluster.watching import run, status_of, until
from tests.unit.net.certificates import Authority, Files
from trimtab.client.errors import Unavailable
from trimtab.client.metastore import MetastoreClient
from trimtab.net.tls import client_context


def tls_options(files: Files) -> list[str]:
    return ["--tls-authority", str(files.ca), "--tls-certificate", str(files.cert), "--tls-key", str(files.key)]


@pytest.mark.cluster
def test_three_members_over_tls_serve_and_refuse_a_member_of_another_authority(
    members: Members, tmp_path: Path
) -> None:
    ours, others = Authority("ours"), Authority("others")
    for member in (1, 2):
        members.start(member, options=tls_options(ours.issue(tmp_path, f"i{member}")))
    # It trusts our authority, so that it is the members that refuse it, and not the other way round.
    members.start(3, options=tls_options(others.issue(tmp_path, "stranger", trust=ours)))
    files = ours.issue(tmp_path, "client")
    tls = client_context(files.ca, files.cert, files.key)

    async def put_and_get(key: bytes) -> None:
        client = await MetastoreClient.connect(members.addresses[:2], tls=tls)
        await client.put(key, b"1")
        entry = await client.get(key)
        assert entry is not None and entry.value == b"1"
        await client.close()

    async def applied_by(address: str) -> int:
        client = await MetastoreClient.connect([address], tls=tls, follow_leader=False)
        try:
            return (await client.status()).applied
        finally:
            await client.close()

    run(put_and_get(b"without the stranger"))
    refusals = members.output(1) + members.output(2)
    assert "certificate is not acceptable" in refusals, refusals
    members.kill(3)
    members.start(3, options=tls_options(ours.issue(tmp_path, "i3")))
    run(put_and_get(b"with the third member"))

    async def third_caught_up() -> bool:
        return await applied_by(members.addresses[2]) >= await applied_by(members.addresses[0])

    run(until(third_caught_up, "the third member to catch up over TLS"))


@pytest.mark.cluster
def test_a_client_without_a_certificate_is_turned_away(members: Members, tmp_path: Path) -> None:
    ours = Authority("ours")
    members.start(1, options=tls_options(ours.issue(tmp_path, "i1")))

    async def plain() -> None:
        await MetastoreClient.connect([members.addresses[0]], timeout_s=2)

    with pytest.raises(Unavailable):
        run(plain())


@pytest.mark.cluster
def test_a_member_with_another_peer_list_is_refused_and_told_why(members: Members, tmp_path: Path) -> None:
    members.start(1, 2)
    members.addresses[0], members.addresses[2] = members.addresses[2], members.addresses[0]
    members.start(3, listen=members.addresses[0])
    members.wait(3, lambda: "peer lists differ" in members.output(3), "be told that its peer list differs")
    members.addresses[0], members.addresses[2] = members.addresses[2], members.addresses[0]

    async def still_two() -> bool:
        return (await status_of(members.addresses[0])).leader in (1, 2)

    run(until(still_two, "the two that agree to elect a leader"))


@pytest.mark.cluster
def test_a_data_directory_of_another_instance_is_refused(members: Members) -> None:
    members.start(1)
    members.stop(1)
    with pytest.raises(AssertionError, match="belongs to another instance"):
        members.start(2, data_dir=members.data_dir(1))
    assert members.ended(2) == 1
