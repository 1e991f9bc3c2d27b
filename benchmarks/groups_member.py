"""A process that is a member of thousands of Raft groups and of nothing else; `benchmarks.groups` starts three.

It uses the node's own host, log and links; only the state machines are empty. It answers two questions over RPC: how
many of its groups have no leader, and how many are quiescent.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from trimtab.net.hello import Hello
from trimtab.net.limits import Limits as NetLimits
from trimtab.net.server import Request, Server
from trimtab.node.host import Host
from trimtab.node.links import decode_parcel
from trimtab.node.machine import NullMachine
from trimtab.node.members import Members
from trimtab.node.settings import Limits, Timing, split_address
from trimtab.raft.messages import ConfState
from trimtab.storage.node_log import NodeLog
from trimtab.storage.rocks import RocksDisk

_decode_quiesce = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode


def stop_with(error: BaseException) -> None:
    """Nothing here may be survived; the benchmark sees the process end."""
    print(f"stopped: {error}", file=sys.stderr, flush=True)
    raise SystemExit(1)


async def serve(member: int, addresses: list[str], groups: int, folder: Path) -> None:
    rng = random.Random(member)
    timing, limits = Timing(), Limits()
    log = NodeLog.open(RocksDisk(folder), "log", report=lambda line: print(line, file=sys.stderr))
    host = Host(member, log, rng, timing, limits, fatal=stop_with, story=lambda line: print(line, file=sys.stderr))
    founders = ConfState(voters=tuple(range(1, len(addresses) + 1)))
    new = [group for group in range(1, groups + 1) if not log.group(group).exists]
    for group in new:
        log.group(group).bootstrap(founders, index=1, term=1)
    log.write()
    synced = asyncio.get_running_loop().create_future()
    log.sync(lambda error: synced.set_result(None) if error is None else synced.set_exception(error))
    await synced
    for group in range(1, groups + 1):
        machine = NullMachine()
        machine.applied_index, machine.applied_term, machine.conf_state = 1, 1, founders
        host.add_group(group, machine, quiesces=True)

    def status(request: Request) -> None:
        leaderless = sum(1 for each in host.groups.values() if each.raw.raft.lead == 0)
        leading = sum(1 for each in host.groups.values() if each.raw.raft.lead == member)
        quiescent = sum(1 for each in host.groups.values() if each.raw.quiescent)
        led_by_others = {
            str(other): sum(1 for each in host.groups.values() if each.raw.raft.lead == other)
            for other in range(1, len(addresses) + 1)
        }
        request.reply(
            msgspec.json.encode(
                {"leaderless": leaderless, "leading": leading, "quiescent": quiescent, "led": led_by_others}
            )
        )

    hello = Hello(cluster_id="groups", instance_id=f"i{member}", raft_id=member, incarnation=rng.getrandbits(63))
    net_limits = NetLimits(max_frame_bytes=limits.frame_bytes)
    server = Server(
        {
            "raft": lambda request: host.receive(request.peer.raft_id, decode_parcel(request.body)),
            "quiesce": lambda request: host.receive_quiesce(request.peer.raft_id, _decode_quiesce(request.body)),
            "groups.status": status,
        },
        hello,
        net_limits,
    )
    await server.start(*split_address(addresses[member - 1]))
    members = Members(
        member,
        hello,
        rng,
        net_limits,
        tls=None,
        links=host.links,
        check=lambda _peer, _hello: None,
        on_down=lambda peer, _reason, refused: host.peer_down(peer, gone=refused),
        on_up=host.peer_up,
        parcel_bytes=limits.frame_bytes * 3 // 4,
    )
    members.update((place + 1, address) for place, address in enumerate(addresses))
    host.start()
    gc.collect()
    gc.freeze()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), Path(sys.argv[4])))
