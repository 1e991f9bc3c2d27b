"""Who founds the cluster: at most one of the instances that start, whichever start, in whatever order.

Theory of operation. A starting instance knows *names* of peers: those its operator listed, those it learned, those it
remembers from before a restart. It calls every name it has not visited, telling its own address and the addresses it
knows. Whoever is called takes these in, *makes them durable*, and answers with its own address (so a name such as
`localhost:3301` becomes an address) and the addresses it knows; or with `leader`, if there is a cluster to join.
Whoever learns a new peer visits everybody again. An instance decides only when it has visited every name it knows: if
its own address is the smallest, it leads: it makes that durable before it says another word, and then founds the
cluster. If not, it goes on asking the smallest until that one, or anybody else, names a leader. Only the winner itself
may claim to have won.

Only addresses are passed on, never names that are not resolved yet: `localhost:3301` means something only where it
was written, and a peer that one operator listed and that is dead must not hold up instances that never listed it.

Why at most one leads, if any two instances share a listed peer (counting each instance among its own peers). Suppose X
and Y both lead, and Z is a peer both listed. Both visited Z before they decided; say X's visit came to Z first. Z made
a(X) durable before it answered X, so its answer to Y, even after a restart of Z, held a(X). So Y knew a(X) when it
decided, and had visited X. When that visit came to X,

- X had decided already: it made that durable before saying anything else, so it answered `leader` and Y followed; or
- X had not decided: it made a(Y) durable before it answered, so it knew a(Y) when it decided, then or in a later life.

In the second case each knew the other's address when it decided, and one of the two addresses is not the smallest.
That X is the one that answers at a(X) is checked: an answer that names another address does not count as a visit.
That Z forgets nothing it acknowledged is essential: were a(X) only in memory, Z could restart between the two visits,
Y would never hear of X, and there would be two clusters.

Somebody leads if all are up and reach each other: whoever does not lead asks one with a smaller address than its own,
and that chain ends. The promise needs addresses that mean one instance each: two data directories behind one address
refuse each other where they meet. An instance whose data directory was deleted after it won is a new instance, and
nothing here can know what it did. But others may whom it told: they name it as the leader, to itself. Then it neither
follows itself nor founds a second time, and tells its operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.topology.names import address_order, unreachable_address, wrong_address
from trimtab.topology.protocol import DiscoverReply, DiscoverRequest

MAX_PEERS = 1_000
SILENT_AFTER_S = 5.0
SILENT_AGAIN_S = 30.0


class DiscoveryRefused(ValueError):
    """What a peer told, or an operator listed, can't be used; the text says what and what to do."""


@dataclass(frozen=True)
class Lead:
    """This instance founds the cluster."""


@dataclass(frozen=True)
class Follow:
    """There is a cluster; `address` is where to ask to be let in."""

    address: str


Decision = Lead | Follow


class Discovery:
    """One instance's side. The caller does the calls and the writing:

    - makes `known()` durable whenever `receive` returns True, before it replies, and gives it back after a restart;
    - calls `to_visit()`, and tells what came of it with `answered` or `failed`;
    - asks for the `decision()` after each of these, and makes a `Lead` durable before it says anything to anybody.
    """

    def __init__(
        self, own_address: str, listed_peers: Iterable[str], remembered: Iterable[str] = (), uuid: str = ""
    ) -> None:
        if wrong := unreachable_address(own_address):
            raise DiscoveryRefused(wrong)
        self.own_address = own_address
        self.uuid = uuid
        self.listed = tuple(dict.fromkeys(listed_peers))
        # Every name it knows -> the address of the instance that answered to it; None until one did.
        self._peers: dict[str, str | None] = {own_address: own_address}
        self._visited = {own_address}
        self._heard: set[str] = set()  # what came over the wire, now or before a restart: always addresses
        self._leader = ""
        self._decided: Decision | None = None
        self._impostor = ""
        self._mistaken: set[str] = set()  # names at which somebody says that this instance leads
        self._strangers: dict[str, tuple[str, ...]] = {}  # askers -> what their operators listed
        self._failing: dict[str, tuple[float, str]] = {}  # names -> since when they don't answer, and the last reason
        self._told_at: float | None = None
        self._waiting_since: float | None = None  # since when all are visited, and another one should found
        self._take(self.listed)
        self._hear(remembered)

    # Asking

    def to_visit(self) -> list[str]:
        """The names to call now. When all are visited and another one must found: that one, until a leader is known."""
        if self._decided or self._leader:
            return []
        missing = [name for name in self._peers if name not in self._visited]
        if missing:
            return missing
        winner = self._smallest()
        return [] if winner == self.own_address else [winner]

    def request(self, cluster_id: str, called: str) -> DiscoverRequest:
        """What to call `called` with."""
        return DiscoverRequest(cluster_id, self.own_address, called, self._addresses(), self._listed(), self.uuid)

    def answered(self, name: str, reply: DiscoverReply) -> bool:
        """A peer answered. True: something new was learned. DiscoveryRefused: the answer can't be used."""
        if wrong := wrong_address(reply.leader or self.own_address) or unreachable_address(reply.address):
            raise DiscoveryRefused(f"{name} gave an answer that can't be used: {wrong}")
        if self._decided:
            return False
        if reply.leader == self.own_address:
            # Also said, for a moment, by members that have not noticed yet that their leader went: it is asked again.
            self._mistaken.add(name)
            raise DiscoveryRefused(f"it says that this instance, {self.own_address}, leads the cluster already")
        self._mistaken.discard(name)
        if reply.leader:
            self._leader = reply.leader
            return True
        if name in self._heard and reply.address != name:
            # An instance said it is at `name`. Taking another one's answer for its own would leave it unvisited.
            raise DiscoveryRefused(
                f"an instance that said it is at {name} can't be found there: {reply.address} answers instead; "
                "correct the --advertise of whichever is wrong"
            )
        if reply.address == self.own_address and reply.uuid != self.uuid:
            raise DiscoveryRefused(self._shared_address(f"{name} answers that it"))
        self._failing.pop(name, None)
        changed = self._hear((reply.address, *reply.peers))
        if name in self._peers:
            self._peers[name] = reply.address
            self._visited.add(name)
        return changed

    def failed(self, name: str, why: str, now_s: float) -> None:
        """A peer did not answer, for this reason."""
        since, _ = self._failing.get(name, (now_s, ""))
        self._failing[name] = (since, why)

    # Being asked

    def receive(self, asked: DiscoverRequest) -> bool:
        """Somebody calls. True: make `known()` durable before replying. DiscoveryRefused: answer with its text."""
        if wrong := unreachable_address(asked.address):
            raise DiscoveryRefused(f"a starting instance gives an address that can't be used: {wrong}")
        if self._decided or self._leader:
            return False
        if asked.address == self.own_address and asked.uuid != self.uuid:
            self._impostor = self._shared_address("another instance called and said that it")
            raise DiscoveryRefused(self._impostor)
        if asked.listed and (asked.address in self._strangers or len(self._strangers) < MAX_PEERS):
            self._strangers[asked.address] = tuple(asked.listed[:MAX_PEERS])
        return self._hear((asked.address, *asked.peers))

    def reply(self) -> DiscoverReply:
        """The answer to whoever called."""
        leader = self.own_address if isinstance(self._decided, Lead) else self._leader
        return DiscoverReply(self.own_address, self._addresses(), leader, self.uuid)

    # Deciding

    def known(self) -> list[str]:
        """What has to survive a restart: whom it heard of. Listed names don't: the operator may correct the list."""
        return sorted(self._heard)

    def decision(self) -> Decision | None:
        """What to do, or None: go on asking. Once made it stays, and nothing that is heard later changes it."""
        if self._decided is None:
            if self._leader:
                self._decided = Follow(self._leader)
            elif len(self._visited) == len(self._peers) and self._smallest() == self.own_address:
                self._decided = Lead()
        return self._decided

    # Telling the operator

    def silent(self, now_s: float, after_s: float = SILENT_AFTER_S) -> list[str]:
        """The peers that have not answered for so long."""
        if self._decided:
            return []
        return sorted(name for name, (since, _) in self._failing.items() if now_s - since >= after_s)

    def report(self, now_s: float, after_s: float = SILENT_AFTER_S, again_s: float = SILENT_AGAIN_S) -> list[str]:
        """What the operator should be told now: nothing most of the time, then again every `again_s`."""
        if self._decided or self._leader or len(self._visited) < len(self._peers):
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now_s
        if self._told_at is not None and now_s - self._told_at < again_s:
            return []
        sentences = []
        waited_for = self.silent(now_s, after_s)
        if mistaken := [name for name in waited_for if name in self._mistaken]:
            sentences.append(self._emptied(", ".join(mistaken[:5])))
        if silent := [name for name in waited_for if name not in self._mistaken]:
            reasons = "; ".join(f"{name} ({self._failing[name][1]})" for name in silent[:5])
            more = f" and {len(silent) - 5} more" if len(silent) > 5 else ""
            sentences.append(
                f"waiting for an answer from {reasons}{more}: no cluster is founded until every known peer has "
                "answered; start them, or, if one is dead for good, take it out of the --peer list of EVERY instance "
                f"(any two must still share a peer){self._forgetting(silent)}"
            )
        elif not mistaken and self._waiting_since is not None and now_s - self._waiting_since >= after_s:
            sentences.append(f"waiting for {self.waiting_for()}; see there what it is waiting for itself")
        if warning := self.disjoint():
            sentences.append(warning)
        if self._impostor:
            sentences.append(self._impostor)
            self._impostor = ""
        if sentences:
            self._told_at = now_s
        return sentences

    def disjoint(self) -> str | None:
        """A warning if somebody's listed peers and ours have nobody in common: then two clusters may be founded."""
        ours = {self.own_address, *self._listed()}
        if not self.listed or len(ours) == 1:
            return None
        for address, listed in sorted(self._strangers.items()):
            if ours.isdisjoint((address, *listed)):
                return (
                    f"the instance at {address} lists the peers {', '.join(listed[:5])}, none of which is among those "
                    f"listed here ({', '.join(self.listed[:5])}): two clusters might be founded; give all instances "
                    "a --peer in common"
                )
        return None

    def waiting_for(self) -> str:
        """One sentence for a log or a status page: what discovery is waiting for."""
        missing = [name for name in self._peers if name not in self._visited]
        if self._decided or self._leader:
            return "nothing: it has decided"
        if missing:
            return f"the first answer of {', '.join(missing[:5])}"
        return f"{self._smallest()} to found the cluster: its address is the smallest"

    # Inside

    def _forgetting(self, silent: Iterable[str]) -> str:
        told = sorted(self._heard.intersection(silent) - set(self.listed))
        if not told:
            return ""
        return f", and restart this one with an empty data directory: it was told of {', '.join(told[:5])} by others"

    def _smallest(self) -> str:
        return min((address for address in self._peers.values() if address), key=address_order)

    def _addresses(self) -> list[str]:
        return sorted(self._heard.union(address for address in self._peers.values() if address))

    def _listed(self) -> list[str]:
        """Addresses of the listed peers, once all of them are known."""
        addresses = [self._peers[name] for name in self.listed]
        return sorted({address for address in addresses if address}) if all(addresses) else []

    def _hear(self, addresses: Iterable[str]) -> bool:
        addresses = list(addresses)
        self._take(addresses)
        before = len(self._heard)
        self._heard.update(address for address in addresses if address != self.own_address)
        return len(self._heard) > before

    def _take(self, names: Iterable[str]) -> None:
        new = []
        for name in dict.fromkeys(names):
            if name in self._peers:
                continue
            if wrong := wrong_address(name):
                raise DiscoveryRefused(wrong)
            new.append(name)
        if len(self._peers) + len(new) > MAX_PEERS:
            raise DiscoveryRefused(
                f"{len(self._peers) + len(new)} peers are known, and discovery takes at most {MAX_PEERS}; start fewer "
                "instances until there is a cluster, and let the others join it"
            )
        if new:
            self._peers.update(dict.fromkeys(new))
            self._visited = {self.own_address}

    def _emptied(self, who: str) -> str:
        return (
            f"this instance has nothing in its data directory, but {who} was told that it ({self.own_address}) leads "
            "the cluster: its directory was emptied, or it is another one; start it with the one that it had. If that "
            f"is lost and no member is left, the cluster is lost: empty the data directories of {who} too"
        )

    def _shared_address(self, who: str) -> str:
        return (
            f"{who} is at {self.own_address}, as this instance is, with another data directory; give each instance an "
            "address of its own (--listen, --advertise)"
        )
