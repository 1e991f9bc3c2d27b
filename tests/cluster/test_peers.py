"""Who may talk to a member: certificates, clusters, data directories. What does not fit is refused, saying why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.members import Members
from tests.cluster.watching import run, until
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
    files = ours.issue(tmp_path, "client")
    members.tls = tls = client_context(files.ca, files.cert, files.key)
    for member in (1, 2):
        members.start(member, options=tls_options(ours.issue(tmp_path, f"i{member}")))
    # It trusts our authority, so that it is the members that refuse it, and not the other way round.
    members.launch(3, options=tls_options(others.issue(tmp_path, "stranger", trust=ours)))

    async def put_and_get(key: bytes) -> None:
        client = await MetastoreClient.connect(members.addresses[:2], tls=tls, timeout_s=60)
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
    members.wait(1, lambda: "certificate is not acceptable" in members.output(1), "refuse the stranger")
    members.kill(3)
    members.start(3, options=tls_options(ours.issue(tmp_path, "i3")))
    run(put_and_get(b"with the third member"))

    async def third_caught_up() -> bool:
        return await applied_by(members.addresses[2]) >= await applied_by(members.addresses[0])

    run(until(third_caught_up, "the third member to catch up over TLS"))


@pytest.mark.cluster
def test_a_client_without_a_certificate_is_turned_away(members: Members, tmp_path: Path) -> None:
    ours = Authority("ours")
    files = ours.issue(tmp_path, "client")
    members.tls = client_context(files.ca, files.cert, files.key)
    members.start(1, options=tls_options(ours.issue(tmp_path, "i1")))

    async def plain() -> None:
        await MetastoreClient.connect([members.addresses[0]], timeout_s=2)

    with pytest.raises(Unavailable):
        run(plain())


@pytest.mark.cluster
def test_an_instance_of_another_cluster_is_refused_and_told_why(members: Members) -> None:
    members.start(1)
    members.launch(2, options=["--cluster-id", "other"])
    assert members.ended(2) == 1
    assert "belongs to the cluster 'trimtab', not to 'other'" in members.output(2).splitlines()[-1]


@pytest.mark.cluster
def test_a_data_directory_of_another_instance_is_refused(members: Members) -> None:
    members.start(1)
    members.stop(1)
    with pytest.raises(AssertionError, match="belongs to instance 'i1'"):
        members.start(2, data_dir=members.data_dir(1))
    assert members.ended(2) == 1
