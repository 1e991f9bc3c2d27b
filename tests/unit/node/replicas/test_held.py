"""What repair and rebuilding do to a replica of this instance, and what it may answer afterwards."""

from __future__ import annotations

import asyncio

from tests.unit.node.replicas.shelves import Life, model_disk
from tests.unit.rows.cells import bigint, int_
from tests.unit.rows.tables import table

from trimtab.node.replicas.held import HeldReplica
from trimtab.node.replicas.replica import Replica, ReplicaState
from trimtab.rows.layout import RowLayout
from trimtab.rows.merge import canonical
from trimtab.rows.mutations import pairs_of_put
from trimtab.rows.protocol import PutRequest

ONE = {(7, 0): 1}
LAYOUT = RowLayout(table(["bigint"], ["int"], ["text", "int"], ["int", "set<int>"]))


def held(replica: Replica) -> HeldReplica:
    return HeldReplica(replica, lambda _table: LAYOUT, 1, "shop.things")


def merged(*stamps: int) -> list[bytes]:
    """A row that was written at the first of these and changed at the others, as a repair brings it."""
    pairs: list[bytes] = []
    for at, stamp in enumerate(stamps):
        cells = [bigint(1), int_(1), int_(stamp)] if at else [bigint(1), int_(1), b"text"]
        request = PutRequest(7, 1, [1, 2, 6 if at else 5], [cells], update=bool(at))
        (made,) = pairs_of_put(LAYOUT, request, stamp, 1_000).values()
        pairs += made
    return canonical(LAYOUT, pairs)


def test_a_replica_that_was_rebuilt_knows_up_to_when_it_has_no_older_versions_also_after_a_crash_on_the_way() -> None:
    async def story() -> None:
        disk = model_disk()
        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica(7, 0)
        assert replica.change_meta(state=ReplicaState.REBUILDING)
        done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        replica.flush(done.set_result)
        assert await done is None
        # The cell is newer than the row's own stamp, which is the key's.
        await held(replica).put(merged(20, 45))
        disk.abandon()

        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica(7, 0)
        assert (replica.state, replica.forgot_us) == (ReplicaState.REBUILDING, 0)
        await held(replica).finish()
        assert (replica.state, replica.forgot_us) == (ReplicaState.OPEN, 45)
        disk.abandon()

        life = await (await Life(disk, ONE).start()).ready()
        replica = await life.replica(7, 0)
        assert (replica.state, replica.forgot_us) == (ReplicaState.OPEN, 45)

    asyncio.run(story())


def test_a_replica_that_is_repaired_with_its_data_intact_answers_as_of_any_time() -> None:
    async def story() -> None:
        life = await (await Life(model_disk(), ONE).start()).ready()
        replica = await life.replica(7, 0)
        await held(replica).put(merged(20, 45))
        await held(replica).mended()
        assert replica.forgot_us == 0

    asyncio.run(story())
