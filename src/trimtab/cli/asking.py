"""How commands ask a cluster: one connection for one piece of work, and what went wrong as a sentence."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from trimtab.cli.contact import Contact, contact_addresses
from trimtab.cli.errors import CommandFailed

if TYPE_CHECKING:
    from trimtab.client.cluster import ClusterClient
    from trimtab.topology.protocol import InstanceView, ViewReply

T = TypeVar("T")
# So long the leader gets to tell what it alone knows, before what a follower said is shown.
LEADER_S = 1.0
# So long a majority gets to confirm a view, before it is shown unconfirmed.
CONFIRM_S = 2.5
SURVEY_S = 1.0

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="An instance, such as i2; `trimtab status` lists them.")]


def ask(contact: Contact, work: Callable[[ClusterClient], Awaitable[T]], *, follow_leader: bool = True) -> T:
    """Do some work with a client of the cluster; CommandFailed with the reason when it can't be done."""
    import uvloop

    from trimtab.client.cluster import ClusterClient
    from trimtab.client.errors import Error
    from trimtab.net.errors import NetError

    addresses = contact_addresses(contact.peers)

    async def connected() -> T:
        client = ClusterClient.unconnected(
            addresses, tls=contact.tls_context(), timeout_s=contact.timeout_s, follow_leader=follow_leader
        )
        try:
            await _reach(client, addresses, contact.timeout_s)
            return await work(client)
        finally:
            await client.close()

    try:
        return uvloop.run(connected())
    except (Error, NetError, OSError) as error:
        raise CommandFailed(f"{str(error).rstrip('.')}.") from error


async def _reach(client: ClusterClient, addresses: list[str], timeout_s: float) -> None:
    """Find out who leads; when nobody answers, say whom we asked and why it did not work."""
    from trimtab.client.errors import Timeout, Unavailable

    try:
        await client.find_leader()
    except (Unavailable, Timeout) as error:
        asked = ", ".join(addresses)
        raise CommandFailed(
            f"no member of a cluster answers at {asked} (asked for {timeout_s:g} s); the last reason: "
            f"{client.last_failure}. Is it running, and is the address right?"
        ) from error


@dataclass(frozen=True)
class Seen:
    """The cluster as it could be seen. `stale`: why it is not confirmed by a majority, and then who answers at all."""

    view: ViewReply
    stale: str = ""
    answering: frozenset[str] = frozenset()


def warn_if_stale(seen: Seen) -> None:
    """Say, beside the output, that what is shown may be old: scripts read standard output, people read both."""
    if seen.stale:
        print(f"trimtab: not confirmed by a majority: {seen.stale.rstrip('.')}.", file=sys.stderr)


async def present_view(client: ClusterClient) -> Seen:
    """The cluster as it is; without a majority, as those who answer last knew it: of several, who has seen most."""
    from trimtab.client.errors import Timeout, Unavailable
    from trimtab.topology.protocol import ViewReply

    try:
        return Seen(await _as_the_leader_sees(client, await client.view(timeout_s=CONFIRM_S)))
    except (Unavailable, Timeout) as error:
        why = client.last_failure or str(error)
    first = await client.survey(client.addresses, timeout_s=SURVEY_S)
    known = {each.record.address for view in first.values() if isinstance(view, ViewReply) for each in view.instances}
    # A second round, to all that the first knew of: who else is up decides what the operator can do.
    found = first | await client.survey(sorted(known - first.keys()), timeout_s=SURVEY_S)
    seen = {address: each for address, each in found.items() if isinstance(each, ViewReply)}
    if not seen:
        raise CommandFailed(f"no member of the cluster answers any more; the last reason: {why}.")
    best = max(seen.values(), key=lambda view: (view.revision, view.term))
    return Seen(best, why, frozenset(seen))


async def _as_the_leader_sees(client: ClusterClient, view: ViewReply) -> ViewReply:
    """The leader's own view where a follower answered: who is silent, and what is waited for, only the leader knows."""
    from trimtab.topology.protocol import ViewReply

    address = next((each.record.address for each in view.instances if each.raft_id == view.leader), "")
    if view.asked == view.leader or not address:
        return view
    told = (await client.survey([address], timeout_s=LEADER_S)).get(address)
    # It was not confirmed by a majority: it counts only if it is no older than what was.
    current = isinstance(told, ViewReply) and told.genesis == view.genesis and told.asked == told.leader
    if isinstance(told, ViewReply) and current and (told.term, told.revision) >= (view.term, view.revision):
        return told
    return view


def instance_named(view: ViewReply, instance_id: str) -> InstanceView:
    """The instance of that name: the one in the cluster, else the last that was. CommandFailed if there never was."""
    found = [each for each in view.instances if each.record.instance_id == instance_id]
    if not found:
        names = ", ".join(each.record.instance_id for each in view.instances if not each.record.left)
        raise CommandFailed(f"there is no instance '{instance_id}' in the cluster '{view.cluster_id}'; it has {names}.")
    return max(found, key=lambda each: (not each.record.left, each.raft_id))
