"""Who may talk to this member as a member. Asked in both directions: of who connects, and of whom it connects to.

A hello is refused with a reason that both logs show when it comes from another cluster, from other founders, from a
data directory that is not the one met before, or from a member that was removed. Clients (raft id 0) are nobody here.

*Removed* is only said where it is certain, because a refused member can bring this one nothing, not even the news that
it was added: an id that was seen to leave the configuration, or a founder that is not in it. An id that is merely
unknown may be a newcomer, or lead a cluster that went on while this member was down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from trimtab.net.hello import Hello
from trimtab.node.acquaintances import Acquaintances, was_removed
from trimtab.node.settings import Settings


class Admission:
    """The rules of one instance.

    `configuration` gives the raft ids of all current members: none for a newcomer that has heard nothing yet.
    """

    def __init__(
        self,
        settings: Settings,
        data_id: str,
        acquaintances: Acquaintances,
        configuration: Callable[[], Collection[int]],
    ) -> None:
        self._settings = settings
        self._raft_id = settings.member_id
        self._data_id = data_id
        self._acquaintances = acquaintances
        self._configuration = configuration

    def removed(self, raft_id: int) -> bool:
        """Whether a member was certainly removed. Ids are never used again, so that is for ever."""
        if raft_id in self._acquaintances.removed:
            return True
        members = self._configuration()
        return 0 < raft_id <= len(self._settings.peers) and len(members) > 0 and raft_id not in members

    def refusal(self, hello: Hello) -> str | None:
        """Why this hello is refused, or None. Whoever is in the configuration is remembered before it is accepted."""
        if hello.raft_id == 0:
            return None
        if hello.cluster_id != self._settings.cluster_id:
            return f"this member belongs to cluster {self._settings.cluster_id!r}, not {hello.cluster_id!r}"
        if hello.genesis != self._settings.genesis:
            return (
                "the founding peer lists differ: start every member with the same --peer list in the same order "
                f"(here: {', '.join(self._settings.peers)})"
            )
        if hello.raft_id == self._raft_id and hello.data_id != self._data_id:
            return f"raft id {hello.raft_id} is mine ({self._settings.instance_id}); two instances can't share it"
        if self.removed(hello.raft_id):
            return was_removed(hello.raft_id)
        if hello.raft_id in self._configuration():
            return self._acquaintances.meet(hello.raft_id, hello.data_id)
        return None

    def refusal_at(self, raft_id: int, hello: Hello) -> str | None:
        """The same for the member that answers where `raft_id` is said to be."""
        if hello.raft_id != raft_id:
            found = f"member {hello.raft_id} ({hello.name()})" if hello.raft_id else "no member"
            return f"member {raft_id} should be at this address, but {found} answers"
        return self.refusal(hello)

    def speaks_for(self, hello: Hello) -> bool:
        """Whether messages on this connection count as the member's.

        It may have connected before it was in the configuration, and then it has not been noted yet.
        """
        known = self._acquaintances.data_ids.get(hello.raft_id)
        if known is not None:
            return known == hello.data_id
        if hello.raft_id not in self._configuration():
            return hello.raft_id != 0
        return self._acquaintances.meet(hello.raft_id, hello.data_id) is None
