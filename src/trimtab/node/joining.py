"""Getting into a cluster: the joiner's side of the handshake.

It asks a member (JOIN_NODE_REQUEST) and is told to wait; the coordinator decides and sends its decision
(JOIN_NODE_RESPONSE). The joiner asks again every second, another member if one does not answer, and a member that knows
the decision already just tells it: so a lost message costs a second.

A decision counts only if it is about this very attempt (its uuid and nonce), and only after this instance has been told
that its request arrived: one that was sent to an earlier attempt may still be under way. An accepted joiner writes down
its raft id, the cluster's uuid and where the members are before it acknowledges anything. From then on it is a member;
a crash before that resumes the same attempt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

import msgspec

from trimtab import __version__
from trimtab.net.errors import NetError, RpcError
from trimtab.net.server import Request
from trimtab.node import identity as identities
from trimtab.node.complaints import Complaints
from trimtab.node.discovering import WRONG_CLUSTER, answer_on_the_way, remembered
from trimtab.node.entrance import Entrance, in_short
from trimtab.node.errors import JoinExpired, JoinRejected
from trimtab.node.failpoints import hit
from trimtab.node.identity import Identity, Phase
from trimtab.node.settings import Settings
from trimtab.storage.port import Disk, StorageError
from trimtab.topology import protocol
from trimtab.topology.protocol import JoinRequest, JoinResponse
from trimtab.topology.records import JoinTicket

NOT_ASKED = "not_asked"


def _complain(text: str, complaints: Complaints) -> None:
    # Members that were told of this one before it was itself look for it already.
    if not text.endswith("but no member answers"):
        complaints.add(text)


class Joining:
    """One attempt, from `run` to its end."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        *,
        disk: Disk,
        rng: random.Random,
        story: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._disk = disk
        self._story = story
        self._loop = asyncio.get_running_loop()
        complaints = Complaints(story, self._loop.time)
        self._entrance = Entrance(settings, identity, rng, lambda text: _complain(text, complaints))
        self._decided: asyncio.Future[Identity] = self._loop.create_future()
        self._taken_down = False  # a member has acknowledged the request
        self._term = 0
        memory = remembered(disk)
        self._leader = memory.leader
        known = (memory.leader, *(contact.address for contact in identity.contacts), *settings.peers, *memory.peers)
        # Whom to ask, in this order, over and over.
        self._candidates = [each for each in dict.fromkeys(known) if each and each != settings.address]
        self._since = self._loop.time()
        self._told_at: float | None = None
        self._answers: dict[str, str] = {}  # what each of them said last

    async def run(self) -> Identity:
        """The identity of a member, durable. JoinRejected: the cluster says no. JoinExpired: it may be tried anew."""
        await self._entrance.open(
            {
                protocol.DISCOVER: partial(answer_on_the_way, self._settings, self._identity, self._leader),
                protocol.JOIN_RESPONSE: self._response,
            }
        )
        try:
            while not self._decided.done():
                await self._ask_around()
                await asyncio.wait([self._decided], timeout=self._settings.timing.join_every_ms / 1000)
                self._report()
            return self._decided.result()
        finally:
            await self._entrance.close()

    # Asking

    def _ticket(self) -> JoinTicket:
        settings, identity = self._settings, self._identity
        return JoinTicket(
            settings.instance_id,
            identity.uuid,
            identity.nonce,
            settings.address,
            settings.failure_domain,
            __version__,
            settings.http_address,
            settings.replace,
            settings.capacity_bytes or self._disk.free_bytes(),
            settings.bulk_address,
        )

    async def _ask_around(self) -> None:
        """Ask one after the other until somebody takes the request, or knows what became of it."""
        body = protocol.encode(JoinRequest(self._settings.cluster_id, self._ticket()))
        timeout_s = self._settings.timing.handshake_timeout_ms / 1000
        for address in list(self._candidates):
            if self._decided.done():
                return
            try:
                reply = protocol.decode_join_reply(
                    await self._entrance.ask(address, protocol.JOIN_REQUEST, body, timeout_s)
                )
            except RpcError as error:
                if error.code == WRONG_CLUSTER:
                    self._end(JoinRejected(error.text))
                    return
                self._answers[address] = error.text
            except (NetError, msgspec.DecodeError) as error:
                self._answers[address] = in_short(str(error), address)
            else:
                self._prefer(address)
                self._answers[address] = reply.waiting_for
                self._acknowledged()
                if reply.decided is not None and self._take(reply.decided):
                    self._agreed(reply.decided)
                return

    def _prefer(self, address: str) -> None:
        """Whoever answered is asked first the next time."""
        self._candidates.remove(address)
        self._candidates.insert(0, address)

    def _acknowledged(self) -> None:
        if not self._taken_down:
            self._taken_down = True
            hit("join.requested", self._settings.instance_id)

    # The decision

    def _response(self, request: Request) -> None:
        """The coordinator tells its decision."""
        try:
            response = protocol.decode_join_response(request.body)
        except msgspec.DecodeError as error:
            request.fail("invalid", f"the body of {request.method} can't be read: {error}")
            return
        if response.term < self._term:
            request.fail("stale_term", f"term {response.term} is over; this instance has heard of {self._term}")
            return
        if not self._taken_down:
            request.fail(NOT_ASKED, "this instance has not been told yet that its request arrived; it asks again")
            return
        self._term = response.term
        if self._decided.done() and self._decided.exception() is not None:
            request.fail("failed", f"this instance is stopping: {self._decided.exception()}")
            return
        try:
            concerned = self._take(response)
        except StorageError as error:
            request.fail("failed", str(error))
            self._end(error)
            return
        if not concerned:
            request.fail(NOT_ASKED, "this instance has not asked for that: it is another attempt, or another instance")
            return
        request.reply()
        self._agreed(response)

    def _take(self, response: JoinResponse) -> bool:
        """Act on a decision; False if it is not about this attempt."""
        identity = self._identity
        if response.uuid != identity.uuid or response.nonce != identity.nonce:
            return False
        if self._decided.done():
            return True
        if not response.accepted:
            refusal = JoinExpired if response.again else JoinRejected
            self._end(refusal(response.reason))
            return True
        member = msgspec.structs.replace(
            identity,
            phase=Phase.MEMBER,
            raft_id=response.raft_id,
            genesis=response.genesis,
            contacts=response.members,
        )
        identities.store(self._disk, member)
        hit("join.persisted", self._settings.instance_id)
        self._story(f"accepted with raft id {response.raft_id}")
        self._decided.set_result(member)
        return True

    def _agreed(self, response: JoinResponse) -> None:
        """Both sides know the decision, pushed or found by asking again; what was accepted is on disk."""
        if response.accepted:
            hit("join.acknowledged", self._settings.instance_id)

    def _end(self, error: Exception) -> None:
        if not self._decided.done():
            self._decided.set_exception(error)

    # Telling the operator

    def _report(self) -> None:
        timing, now = self._settings.timing, self._loop.time()
        due = self._since if self._told_at is None else self._told_at
        after_ms = timing.silent_peer_ms if self._told_at is None else timing.silent_peer_again_ms
        if self._decided.done() or now - due < after_ms / 1000:
            return
        self._told_at = now
        said = "; ".join(f"{address} ({text or 'not asked yet'})" for address, text in list(self._answers.items())[:5])
        if self._taken_down:
            self._story(f"waiting for the cluster to decide about this instance: {said}")
        else:
            self._story(
                f"no member of {self._settings.cluster_id} takes the request to join: "
                f"{said or 'no other instance is known'}; start a member, or restart this instance with the address of "
                "one as --peer"
            )
