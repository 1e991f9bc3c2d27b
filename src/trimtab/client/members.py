"""The instances of a cluster as a client sees them: which hold a tablet, which of those to ask.

One channel to each instance that was ever asked, and no more: requests of all threads and tasks share it. Among the
replicas of a tablet the Online ones of the client's own data centre come first, and among those whoever has the fewest
of our requests under way. An instance that has just let us down is asked last for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trimtab.net.client import Channel
from trimtab.tablets.tablet_map import TabletMap

AVOID_S = 1.0  # so long whoever did not answer is asked last
# What it costs to ask a member, in requests under way: any number of those is less than the next reason not to.
_FAR, _AVOIDED, _NOBODY = 1 << 20, 1 << 30, 1 << 40
_MAX_ROUTES = 65_536  # tablets whose members are kept looked up

Learn = Callable[[str], Channel | None]
Packed = Mapping[int, list[bytes]]  # where tablets are, by table
_NONE: Packed = {}


class Member:
    """One instance. `channel` is None until it is first wanted."""

    __slots__ = ("address", "avoid_until", "channel", "dc", "instance_id", "near", "online", "outstanding", "raft_id")

    def __init__(self, raft_id: int, instance_id: str, address: str, dc: str) -> None:
        self.raft_id = raft_id
        self.instance_id = instance_id
        self.address = address
        self.dc = dc
        self.online = True
        self.near = True  # Online, and in the data centre that the client prefers
        self.outstanding = 0
        self.avoid_until = 0.0
        self.channel: Channel | None = None

    @property
    def ready(self) -> bool:
        return self.channel is not None and self.channel.connected


class Members:
    """All that are known. `learn` gives the channel to an address, connecting or connected.

    `contacts`: the addresses that the application gave. They may lead to members under other names than the members'
    own, and are all there is when those can't be reached.
    """

    def __init__(self, learn: Learn, local_dc: str | None, contacts: Sequence[str] = ()) -> None:
        self.by_id: dict[int, Member] = {}
        self._contacts = [Member(0, "", address, "") for address in contacts]
        for contact in self._contacts:
            contact.near = False
        self._everybody: list[Member] = list(self._contacts)
        self._learn = learn
        self._local_dc = local_dc
        self.maps: dict[int, TabletMap] = {}
        # Of tables whose tablets are given other replicas: who has one, or should; and who answers reads.
        self._held: dict[int, TabletMap] = {}
        self._reading: dict[int, TabletMap] = {}
        self._routes: dict[tuple[int, int], tuple[Member, ...]] = {}
        self._whole: dict[int, bool] = {}
        self._turn = 0

    # What the cluster says

    def take_tablets(self, tablets: Packed, held: Packed = _NONE, reading: Packed = _NONE) -> None:
        """News of where the tablets of all tables are; ValueError if it can't be read."""
        self.maps, self._held, self._reading = {}, {}, {}
        self.take_moved(tablets, held, reading)

    def take_moved(self, tablets: Packed, held: Packed = _NONE, reading: Packed = _NONE) -> None:
        """News of where the tablets of some tables are; ValueError if it can't be read."""
        self.maps = self.maps | _unpacked(tablets)
        self._held = {table: known for table, known in self._held.items() if table not in tablets} | _unpacked(held)
        kept = {table: known for table, known in self._reading.items() if table not in tablets}
        self._reading = kept | _unpacked(reading)
        self._routes = {}
        self._whole = {}

    def held(self, table: int) -> TabletMap | None:
        """Everybody who has a replica of each tablet, or should: files are loaded there. None: it is not known."""
        return self._held.get(table) or self.maps.get(table)

    def reading(self, table: int) -> TabletMap | None:
        """Those who answer the reads of each tablet. None: it is not known."""
        return self._reading.get(table) or self.maps.get(table)

    def take_instances(self, instances: Mapping[int, tuple[str, str, str, bool]]) -> None:
        """News of who there is: instance id, address, data centre and whether it is Online, by raft id."""
        known, self.by_id = self.by_id, {}
        self._routes = {}
        for raft_id, (instance_id, address, dc, online) in instances.items():
            member = known.get(raft_id)
            # An instance that came back elsewhere is reached through another channel.
            if member is None or member.address != address:
                member = Member(raft_id, instance_id, address, dc)
            member.online, member.dc = online, dc
            member.near = online and (self._local_dc is None or dc == self._local_dc)
            self.by_id[raft_id] = member
        addresses = {member.address for member in self.by_id.values()}
        self._everybody = [*self.by_id.values(), *(each for each in self._contacts if each.address not in addresses)]

    def datacenters(self) -> list[str]:
        return sorted({member.dc for member in self.by_id.values()})

    # Whom to ask

    def holding(self, table: int, tablet: int) -> tuple[Member, ...]:
        """The members that hold a tablet, those to be preferred first; nobody, if it is not known."""
        found = self._routes.get((table, tablet))
        if found is None:
            found = self._held_by(table, tablet)
            if len(self._routes) >= _MAX_ROUTES:
                self._routes.clear()
            self._routes[table, tablet] = found
        return found

    def hold_all(self, table: int) -> bool:
        """Whether all tablets of a table have the same members: then a row of it can be asked for together with any."""
        found = self._whole.get(table)
        if found is None:
            tablets = self.reading(table) or TabletMap()
            found = self._whole[table] = bool(tablets) and set(tablets.loads().values()) == {tablets.count}
        return found

    def _held_by(self, table: int, tablet: int) -> tuple[Member, ...]:
        tablets = self.reading(table)
        try:
            replicas = tablets.replicas(tablet) if tablets is not None else ()
        except KeyError:
            return ()
        members = [self.by_id[raft_id] for raft_id in replicas if raft_id in self.by_id]
        return tuple(sorted(members, key=lambda member: not member.near))

    def choose(self, members: Sequence[Member], now: float, avoid: Member | None = None) -> Member | None:
        """The connected one that is best to ask; None where none is connected. The others begin to connect."""
        best: Member | None = None
        least = _NOBODY
        count = len(members)
        self._turn = turn = self._turn + 1
        for each in range(count):
            # Where all are alike, each takes its turn.
            member = members[(turn + each) % count]
            channel = member.channel
            if channel is None:
                channel = member.channel = self._learn(member.address)
            if channel is None or not channel.connected:
                continue
            cost = member.outstanding
            if not member.near:
                cost += _FAR
            if member is avoid or member.avoid_until > now:
                cost += _AVOIDED
            if cost < least:
                best, least = member, cost
        return best

    def anyone(self, now: float, avoid: Member | None = None) -> Member | None:
        """Somebody who is connected, whatever it holds: it sends requests on."""
        return self.choose(self._everybody, now, avoid)

    def another(self, member: Member, table: int, tablet: int, *, connected: bool) -> bool:
        """Whether what this member was asked for could be asked of somebody else, who is `connected` or may yet be."""
        holders = self.holding(table, tablet) if tablet >= 0 else ()
        for each in holders if member in holders else self._everybody:
            if each is not member and (each.ready or (each.online and not connected)):
                return True
        return False


def _unpacked(tables: Packed) -> dict[int, TabletMap]:
    return {table: TabletMap.unpacked(chunks) for table, chunks in tables.items()}
