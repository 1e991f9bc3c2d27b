"""An instance's part in loads and moves, put together: files are sealed, taken over, and swept with their session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trimtab.node.answering import Method
from trimtab.node.figures import Sample
from trimtab.node.replicas.adopting import Adopting
from trimtab.node.replicas.arrivals import Arrivals
from trimtab.node.replicas.sealing import Sealing
from trimtab.node.replicas.staging import Sweeping
from trimtab.topology.records import CATALOG, EPOCHS, INSTANCES, SESSIONS, TRANSITIONS

if TYPE_CHECKING:
    from trimtab.node.control import ClusterControl
    from trimtab.node.instance import Instance


class Takeovers:
    """Of one instance."""

    def __init__(self, instance: Instance, control: ClusterControl) -> None:
        watching, name = instance.watching, instance.settings.instance_id
        self._watching = watching
        self._missed = control.missed
        self._shelf = instance.holdings.shelf
        self.sealing = Sealing(
            instance.raft_id, instance.disk, watching.tables, watching.loads, control.waits, name=name
        )
        self.adopting = Adopting(
            instance.raft_id,
            instance.disk,
            instance.cluster,
            watching.tables,
            watching.loads,
            instance.holdings.shelf,
            control.waits,
            mend=control.missed.mend_load,
            merging=instance.holdings.merging,
            name=name,
            story=instance.story,
        )
        self.arrivals = Arrivals(
            instance.raft_id,
            instance.disk,
            instance.cluster,
            watching.tables,
            watching.loads,
            instance.holdings.shelf,
            control.waits,
            mend=control.missed.mend_arrived,
            settled=instance.holdings.settled,
            name=name,
            story=instance.story,
            complain=instance.complaints.add,
        )
        self.sweeping = Sweeping(
            instance.disk,
            watching.loads,
            current=instance.holdings.settled,
            busy=lambda session: any(each.busy(session) for each in (self.adopting, self.sealing, self.arrivals)),
            on_gone=self.sealing.forget,
            name=name,
            complain=instance.complaints.add,
            defect=instance.fail,
        )
        instance.samplers.append(self.figures)

    def methods(self) -> dict[str, Method]:
        return {**self.sealing.methods(), **self.adopting.methods(), **self.arrivals.methods()}

    def start(self) -> None:
        self._watching.on_change.append(self._changed)
        self._shelf.on_open = lambda _replica: self.arrivals.look()
        self.sweeping.start()

    def stop(self) -> None:
        self.sealing.stop()
        self.adopting.stop()
        self.arrivals.stop()
        self.sweeping.stop()

    def _changed(self, keys: frozenset[bytes]) -> None:
        if not keys or any(key.startswith(SESSIONS) for key in keys):
            self.sweeping.wake()
        # Whether it is settled depends on its own grade, and on tables that are not known yet.
        if not keys or any(key.startswith((CATALOG, INSTANCES, TRANSITIONS)) for key in keys):
            self.arrivals.look()
        if not keys or any(key.startswith((EPOCHS, INSTANCES)) for key in keys):
            self._missed.look_at_loads()

    def figures(self) -> Iterator[Sample]:
        adopting = self.adopting
        yield Sample("loads_sealed", "Loads whose files were found whole here.", self.sealing.sealed, counter=True)
        yield Sample("loads_adopted", "Loads that were taken over here.", adopting.adopted_loads, counter=True)
        yield Sample("load_files_adopted", "Their files.", adopting.adopted_files, counter=True)
        yield Sample("load_bytes_adopted", "Their bytes.", adopting.adopted_bytes, counter=True)
        yield Sample("staging_swept", "Sessions whose files were removed.", self.sweeping.swept, counter=True)
        yield from self.arrivals.figures()
