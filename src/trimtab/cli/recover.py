"""`trimtab recover`: go on from one survivor when the majority of the voters is lost for good.

Without `--confirm` it only looks. With it, it refuses whatever shows that it would do harm: the instance still runs,
a majority of the voters answers, or another survivor (one that answers, or a directory named with `--compare`) has
more in its log.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.contact import JsonOption
from trimtab.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from trimtab.node.recovery import Recovered, Survey

# Long enough for a busy member: whoever does not answer counts as lost.
_ASK_S = 6.0


def add_to(app: typer.Typer) -> None:
    app.command("recover")(recover)


def recover(
    data_dir: Annotated[Path, typer.Option("--data-dir", help="The directory of the survivor, which must be stopped.")],
    confirm: Annotated[
        str, typer.Option("--confirm", metavar="CLUSTER_ID", help="Do it. Without this nothing is changed.")
    ] = "",
    compare: Annotated[
        list[Path] | None,
        typer.Option("--compare", help="The directory of another survivor; may be repeated. The highest log wins."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Recover a cluster that lost its majority for good, from the survivor with the highest log."""
    import asyncio

    from trimtab.node.data_directory import DataDirectory, DirectoryRefused
    from trimtab.node.settings import SettingsError
    from trimtab.storage.port import StorageError

    claimed: list[DataDirectory] = []
    try:
        for path in (data_dir, *(compare or ())):
            if not path.is_dir():
                raise CommandFailed(f"there is no directory {path}; name the data directory of a survivor.")
            claimed.append(DataDirectory.claim(path, "", dying_s=1.0))
        return asyncio.run(_recover(data_dir, list(compare or ()), confirm, as_json))
    except (DirectoryRefused, SettingsError, StorageError) as error:
        raise CommandFailed(f"nothing was changed: {error}.") from error
    finally:
        for directory in claimed:
            directory.release()


async def _recover(data_dir: Path, compare: list[Path], confirm: str, as_json: bool) -> int:
    found = await _survey(data_dir)
    if confirm not in ("", found.identity.cluster_id):
        raise WrongUsage(f"--confirm must name the cluster, which is {found.identity.cluster_id!r}, not {confirm!r}.")
    others = {path: await _survey(path) for path in compare}
    answering = await _who_answers(found)
    _refuse_harm(found, others, answering)
    if not confirm:
        _show(found, others, data_dir, as_json)
        return 0
    done = await _carry_out(data_dir)
    _show_done(found, others, done, as_json)
    return 0


async def _survey(path: Path) -> Survey:
    from trimtab.node.recovery import survey
    from trimtab.storage.rocks import RocksDisk

    disk = RocksDisk(path)
    try:
        return await survey(disk)
    finally:
        disk.close()


async def _carry_out(path: Path) -> Recovered:
    import random
    import time

    from trimtab.node.recovery import recover as recover_directory
    from trimtab.storage.rocks import RocksDisk

    disk = RocksDisk(path)
    try:
        rng = random.Random(random.SystemRandom().getrandbits(64))
        return await recover_directory(disk, rng, time.time_ns() // 1_000_000)
    finally:
        disk.close()


async def _who_answers(found: Survey) -> dict[int, Any]:
    """The status of every other member of this very cluster that answers, by raft id."""
    import asyncio

    others = [
        (raft_id, address)
        for raft_id, addresses in found.addresses.items()
        for address in sorted(addresses)
        if raft_id != found.identity.raft_id
    ]
    answers = await asyncio.gather(*(_status(address) for _, address in others))
    return {
        raft_id: status
        for (raft_id, _), status in zip(others, answers, strict=True)
        if status is not None and status.raft_id == raft_id and status.genesis == found.genesis and not status.removed
    }


async def _status(address: str) -> Any:
    from trimtab.client.errors import Error
    from trimtab.client.metastore import MetastoreClient

    try:
        client = await MetastoreClient.connect([address], timeout_s=_ASK_S, follow_leader=False)
    except Error:
        return None
    try:
        return await client.status()
    except Error:
        return None
    finally:
        await client.close()


def _refuse_harm(found: Survey, others: dict[Path, Survey], answering: dict[int, Any]) -> None:
    name = found.identity.instance_id
    alive = {found.identity.raft_id, *answering}.intersection(found.voters)
    if found.sole_voter:
        raise CommandFailed(f"nothing to recover: {name} is the only voter, so it needs nobody else; just start it.")
    if len(alive) > len(found.voters) // 2:
        raise CommandFailed(
            f"nothing to recover: with {name}, {len(alive)} of {len(found.voters)} voters are there, which is a "
            f"majority; just start {name}."
        )
    for raft_id, status in answering.items():
        if (status.last_term, status.last_index) > found.position:
            name, _ = found.instances.get(raft_id, (f"member {raft_id}", ""))
            raise CommandFailed(
                f"{name} has more in its log (it ends at {status.last_index} of term "
                f"{status.last_term}, here at {found.last_index} of term {found.last_term}); stop it, and recover from "
                "its directory."
            )
    for path, other in others.items():
        if other.genesis != found.genesis:
            raise CommandFailed(f"{path} is of another cluster ({other.identity.cluster_id!r}); it can't be compared.")
        if other.position > found.position:
            raise CommandFailed(
                f"{other.identity.instance_id} has more in its log (it ends at {other.last_index} of term "
                f"{other.last_term}, here at {found.last_index} of term {found.last_term}); recover from {path}."
            )


def _show(found: Survey, others: dict[Path, Survey], data_dir: Path, as_json: bool) -> None:
    identity = found.identity
    if as_json:
        print(
            json.dumps(
                {
                    "recovered": False,
                    "cluster_id": identity.cluster_id,
                    "instance_id": identity.instance_id,
                    "raft_id": identity.raft_id,
                    "last_term": found.last_term,
                    "last_index": found.last_index,
                    "committed": found.committed,
                    "voters": [found.instances.get(voter, ("", ""))[0] for voter in found.voters],
                    "compared": [
                        {
                            "data_dir": str(path),
                            "instance_id": other.identity.instance_id,
                            "last_term": other.last_term,
                            "last_index": other.last_index,
                        }
                        for path, other in others.items()
                    ],
                }
            )
        )
        return
    names = [found.instances.get(voter, (f"member {voter}", ""))[0] for voter in found.voters]
    leaving = [name for raft_id, (name, _) in found.instances.items() if raft_id != identity.raft_id]
    print(f"Survivor   {identity.instance_id} (raft id {identity.raft_id}) of cluster {identity.cluster_id!r}")
    print(f"Log        ends at entry {found.last_index} of term {found.last_term}; committed up to {found.committed}")
    print(f"Voters     {', '.join(names)}: more than half of them are not there")
    _show_compared(found, others)
    print()
    print("Look at every survivor's directory this way and choose the one whose log ends last: first by term, then by")
    print("entry. What only the lost members had acknowledged is lost. The others leave the cluster for good:")
    print(f"  {', '.join(leaving) or 'nobody'}")
    print("they, or others, join again with empty data directories. Make a copy of this directory first. Then:")
    print(f"  trimtab recover --data-dir {data_dir} --confirm {identity.cluster_id}")


def _show_compared(found: Survey, others: dict[Path, Survey]) -> None:
    for path, other in others.items():
        standing = "as far as here" if other.position == found.position else "not as far as here"
        print(
            f"Compared   {other.identity.instance_id} in {path}: ends at entry {other.last_index} of term "
            f"{other.last_term}, {standing}"
        )


def _show_done(found: Survey, others: dict[Path, Survey], done: Recovered, as_json: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {
                    "recovered": True,
                    "cluster_id": found.identity.cluster_id,
                    "instance_id": found.identity.instance_id,
                    "raft_id": done.raft_id,
                    "left": done.left,
                    "uncommitted_entries": done.uncommitted_entries,
                    "cancelled_requests": done.cancelled_requests,
                }
            )
        )
        return
    _show_compared(found, others)
    print(f"Recovered. {found.identity.instance_id} is the only member of {found.identity.cluster_id!r} now; start it.")
    print(f"Left for good: {', '.join(done.left) or 'nobody'}. Entries that were not known as committed and are kept: ")
    print(f"{done.uncommitted_entries}. Requests cancelled: {done.cancelled_requests}.")
