"""Who an instance is: what `instance.json` in its data directory says.

It is written before anything that depends on it is said to anybody, atomically. So whatever a crash interrupts, the
next start finds either that nothing was promised, or what was:

    new     nothing yet: the data directory has a uuid, and the instance looks for the others
    boot    it won the discovery, and founds the cluster (it may have told others that it leads)
    join    a cluster is known; `nonce` names the attempt to get in
    member  it has a raft id, for ever: a start goes straight to taking part

`uuid` stands for the promises (votes, acknowledgements) that are kept in this directory. It is never copied: a
directory that was emptied gets another.
"""

from __future__ import annotations

import enum
import random

import msgspec

from trimtab.node.settings import Settings, SettingsError
from trimtab.storage.port import Corrupt, Disk
from trimtab.topology.protocol import Address

FORMAT = 2
IDENTITY_FILE = "instance.json"
# What is not of the database: it outlives the dropping of everything else.
KEPT_FILES = (IDENTITY_FILE, "discovery.json")
LOG = "log"


class Phase(enum.Enum):
    """How far an instance has come; the values are what `instance.json` holds."""

    NEW = "new"
    BOOT = "boot"
    JOIN = "join"
    MEMBER = "member"


class Identity(msgspec.Struct, frozen=True):
    """What `instance.json` holds.

    `genesis` is the uuid of the cluster, empty until it is known. `founders` are those whom the cluster began with,
    known to them alone. `contacts` is where the members were when this one came in, each as of a commit index.
    `settled` says that it has had its place in the cluster: if it is put out after that, it does not try again.
    `recovering` is the old genesis while an operator's recovery of the cluster from this directory is unfinished.
    """

    format: int
    cluster_id: str
    instance_id: str
    uuid: str
    phase: Phase = Phase.NEW
    nonce: str = ""
    raft_id: int = 0
    genesis: str = ""
    founders: dict[int, str] = {}
    contacts: list[Address] = []
    settled: bool = False
    recovering: str = ""

    @property
    def founder(self) -> bool:
        return self.raft_id in self.founders


class _Format(msgspec.Struct):
    format: int


def fresh_id(rng: random.Random) -> str:
    """A uuid of a data directory, an attempt or a cluster."""
    return f"{rng.getrandbits(128):032x}"


def load(disk: Disk) -> Identity | None:
    """What the data directory says; None where it is empty. SettingsError: it was made by another version."""
    stored = disk.read_file(IDENTITY_FILE)
    if stored is None:
        if disk.exists(LOG):
            raise Corrupt(IDENTITY_FILE, "it is missing, but there is a log: it is unknown whose data this is")
        return None
    try:
        found = msgspec.json.decode(stored, type=_Format).format
        if found < FORMAT:
            raise SettingsError(
                f"the data directory was made by an earlier development version (format {found} of {IDENTITY_FILE}, "
                f"this one reads {FORMAT}), which can't be taken over; use an empty data directory"
            )
        if found > FORMAT:
            raise SettingsError(
                f"the data directory was made by a newer version (format {found} of {IDENTITY_FILE}, this one reads "
                f"{FORMAT}); start it with that version"
            )
        identity = msgspec.json.decode(stored, type=Identity)
    except msgspec.DecodeError as error:
        raise Corrupt(IDENTITY_FILE, f"it is not readable: {error}") from error
    if (identity.phase is Phase.MEMBER) != (identity.raft_id > 0) or not identity.uuid:
        raise Corrupt(IDENTITY_FILE, f"its phase is {identity.phase.value}, its raft id {identity.raft_id}")
    return identity


def store(disk: Disk, identity: Identity) -> Identity:
    """Durable when it returns."""
    disk.write_file(IDENTITY_FILE, msgspec.json.encode(identity))
    return identity


def check(identity: Identity, settings: Settings) -> None:
    """SettingsError: the directory is not that of the instance that is being started, or not fit to be started."""
    if identity.recovering:
        raise SettingsError(
            "a recovery of the cluster from this data directory was interrupted; run `trimtab recover` again first"
        )
    for what, found, told, flag in (
        ("cluster", identity.cluster_id, settings.cluster_id, "--cluster-id"),
        ("instance", identity.instance_id, settings.instance_id, "--instance-id"),
    ):
        if found != told:
            raise SettingsError(
                f"the data directory belongs to {what} {found!r}, but this is {what} {told!r}; give another "
                f"--data-dir, or start with {flag} {found}"
            )


def open_or_begin(disk: Disk, settings: Settings, rng: random.Random) -> Identity:
    """Whose data this is, written down first if it is nobody's yet."""
    identity = load(disk)
    if identity is None:
        return store(disk, Identity(FORMAT, settings.cluster_id, settings.instance_id, fresh_id(rng)))
    check(identity, settings)
    return identity
