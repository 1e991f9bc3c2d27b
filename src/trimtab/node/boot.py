"""How an instance comes to be a member: discover, then found the cluster or join it. See `identity` for the phases.

Every step is durable before the next depends on it, so a start finds where the last one ended and goes on from there:

    new ──▶ boot ──▶ member       the one that won the discovery: log, then identity
     └────▶ join ──▶ member       everybody else: decision of the coordinator, then identity

Between discovery and what follows the instance asks its supervisor for a start with an empty database (`Rebootstrap`):
whatever a former life left there must not be taken for what the cluster gave it.

Only ports are used (the running loop, the disk, randomness, the wall clock): the simulator runs the same code.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from trimtab import __version__
from trimtab.metastore import commands
from trimtab.node import founding, supervision
from trimtab.node import identity as identities
from trimtab.node.discovering import Discovering
from trimtab.node.errors import JoinExpired, JoinRejected
from trimtab.node.failpoints import hit
from trimtab.node.identity import Identity, Phase, fresh_id
from trimtab.node.joining import Joining
from trimtab.node.settings import Settings
from trimtab.node.supervision import Rebootstrap
from trimtab.storage.port import Disk
from trimtab.topology.founding import FIRST_RAFT_ID, founder_record, founding_records


async def become_member(
    settings: Settings,
    *,
    disk: Disk,
    rng: random.Random,
    wall_ms: Callable[[], int],
    story: Callable[[str], None],
) -> Identity | Rebootstrap:
    """The identity of a member, or how to be started again.

    SettingsError, JoinRejected: it can't be done; starting again as it is would not help. OSError: the address can't
    be listened on. StorageError: the disk or what is on it.
    """
    identity = identities.open_or_begin(disk, settings, rng)
    if identity.phase is Phase.NEW:
        identity = await Discovering(settings, identity, disk=disk, rng=rng, story=story).run()
        return Rebootstrap(supervision.Phase.BOOT if identity.phase is Phase.BOOT else supervision.Phase.JOIN)
    if identity.phase is Phase.BOOT:
        return await found(settings, identity, disk=disk, wall_ms=wall_ms, story=story)
    if identity.phase is Phase.JOIN:
        if disk.exists(identities.LOG):
            # A crash came between giving up on an attempt and the dropping of what it had brought.
            return Rebootstrap(supervision.Phase.JOIN)
        try:
            return await Joining(settings, identity, disk=disk, rng=rng, story=story).run()
        except JoinExpired as expired:
            story(f"trying to join anew: {expired}")
            return begin_again(identity, disk=disk, rng=rng)
        except JoinRejected:
            # The answer to this attempt stays what it is. Once the operator has mended what was wrong, it is another.
            identities.store(disk, msgspec.structs.replace(identity, nonce=fresh_id(rng)))
            raise
    return identity


async def found(
    settings: Settings, identity: Identity, *, disk: Disk, wall_ms: Callable[[], int], story: Callable[[str], None]
) -> Identity:
    """Begin the log of a new cluster. A crash before the last step begins anew: nobody has seen anything of it."""
    founding.drop_database(disk)
    now_ms = wall_ms()
    row = founder_record(
        settings.instance_id,
        settings.address,
        uuid=identity.uuid,
        failure_domain=settings.failure_domain,
        release=__version__,
        http_address=settings.http_address,
        capacity_bytes=settings.capacity_bytes or disk.free_bytes(),
        now_ms=now_ms,
        bulk_address=settings.bulk_address,
    )
    first = commands.put_all(founding_records(row, settings.cluster_id, identity.genesis, now_ms))
    command = commands.encode(msgspec.structs.replace(first, now_ms=now_ms))
    await founding.write_log(disk, [FIRST_RAFT_ID], command, report=story)
    hit("boot.logged", settings.instance_id)
    member = msgspec.structs.replace(
        identity,
        phase=Phase.MEMBER,
        raft_id=FIRST_RAFT_ID,
        founders={FIRST_RAFT_ID: settings.address},
        settled=True,
    )
    identities.store(disk, member)
    hit("boot.member", settings.instance_id)
    story(f"founded the cluster {settings.cluster_id} ({identity.genesis})")
    return member


def begin_again(identity: Identity, *, disk: Disk, rng: random.Random) -> Rebootstrap:
    """The cluster gave up on this attempt to join. The next one is somebody else's: another uuid, another nonce.

    Not for an instance that has had its place: what it promised there must not come back under another name.
    """
    if identity.settled:
        raise ValueError(f"{identity.instance_id} has been a member of its cluster, and does not join anew by itself")
    identities.store(
        disk,
        msgspec.structs.replace(
            identity, uuid=fresh_id(rng), nonce=fresh_id(rng), phase=Phase.JOIN, raft_id=0, genesis=""
        ),
    )
    return Rebootstrap(supervision.Phase.JOIN)
