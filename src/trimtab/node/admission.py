"""Who may talk to this member as a member. Asked in both directions: of who connects, and of whom it connects to.

A hello is refused with a reason that both logs show when it comes from another cluster, from a data directory that is
not the one this raft id belongs to, or from a member that was removed. Clients (raft id 0) are nobody here.

Which directory a raft id belongs to is in its instance record, since it joined; where there is no record (yet), it is
the one this member has met first.

*Removed* is only said where it is certain, because a refused member can bring this one nothing, not even the news that
it was added: an id that was seen to leave the configuration, one whose record says that it left, or a founder that is
not in it. An id that is merely unknown may be a newcomer, or lead a cluster that went on while this member was down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from trimtab.net.hello import Hello
from trimtab.node.acquaintances import Acquaintances, lost_data, was_removed
from trimtab.node.identity import Identity
from trimtab.topology.view import View

# How a refusal begins that both sides should tell their operators: neither can know which of them is right.
TWO_CLUSTERS = "there are two clusters named"

# How a refusal ends that a newcomer gets from members that call it before it is one.
NO_MEMBER_ANSWERS = "but no member answers"


class Admission:
    """The rules of one instance.

    `configuration` gives the raft ids of all current members: none for a newcomer that has heard nothing yet.
    """

    def __init__(
        self,
        identity: Identity,
        acquaintances: Acquaintances,
        view: View,
        configuration: Callable[[], Collection[int]],
    ) -> None:
        self._identity = identity
        self._acquaintances = acquaintances
        self._view = view
        self._configuration = configuration

    def removed(self, raft_id: int) -> bool:
        """Whether a member was certainly removed. Ids are never used again, so that is for ever."""
        if raft_id in self._acquaintances.removed:
            return True
        members = self._configuration()
        if not members or raft_id in members:
            # Its record may say that it left while it is still in the configuration: its voice counts until then.
            return False
        record = self._view.instances.get(raft_id)
        return raft_id in self._identity.founders or (record is not None and record.left)

    def refusal(self, hello: Hello) -> str | None:
        """Why this hello is refused, or None. Whoever is in the configuration is remembered before it is accepted."""
        if hello.raft_id == 0:
            return None
        own = self._identity
        if hello.cluster_id != own.cluster_id:
            return f"this member belongs to cluster {own.cluster_id!r}, not {hello.cluster_id!r}"
        if hello.genesis != own.genesis:
            return (
                f"{TWO_CLUSTERS} {own.cluster_id!r}: this member is of the one founded as {own.genesis}, "
                f"{hello.name()} of {hello.genesis or 'none'}; if one was recovered (`trimtab recover`), start the "
                "others with empty data directories; if not, give one of them another --cluster-id, and check that "
                "their --peer lists share an address"
            )
        if hello.raft_id == own.raft_id and hello.data_id != own.uuid:
            return f"raft id {hello.raft_id} is mine ({own.instance_id}); two instances can't share it"
        if self.removed(hello.raft_id):
            return was_removed(hello.raft_id)
        if (known := self._recorded(hello.raft_id)) is not None:
            return None if known == hello.data_id else lost_data(hello.raft_id)
        if hello.raft_id in self._configuration():
            return self._acquaintances.meet(hello.raft_id, hello.data_id)
        return None

    def refusal_at(self, raft_id: int, hello: Hello) -> str | None:
        """The same for the member that answers where `raft_id` is said to be."""
        if hello.raft_id != raft_id:
            found = f"but member {hello.raft_id} ({hello.name()}) answers" if hello.raft_id else NO_MEMBER_ANSWERS
            return f"member {raft_id} should be at this address, {found}"
        return self.refusal(hello)

    def speaks_for(self, hello: Hello) -> bool:
        """Whether messages on this connection count as the member's.

        It may have connected before it was in the configuration, and then it has not been noted yet.
        """
        known = self._recorded(hello.raft_id) or self._acquaintances.data_ids.get(hello.raft_id)
        if known is not None:
            return known == hello.data_id
        if hello.raft_id not in self._configuration():
            return hello.raft_id != 0
        return self._acquaintances.meet(hello.raft_id, hello.data_id) is None

    def _recorded(self, raft_id: int) -> str | None:
        """The data directory that the raft id was given to, as far as the metastore says."""
        record = self._view.instances.get(raft_id)
        return record.uuid or None if record is not None else None
