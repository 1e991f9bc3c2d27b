"""What time it is in the cluster, for jobs that read at one moment. The driver's own clock has no part in it.

Members stamp writes, each by a hybrid clock of its own, and these differ a little. Whoever takes a write moves its
clock past the stamp. So somebody who is asked knows of any write that a quorum has acknowledged, though the one who
stamped it be gone: while fewer are missing than a quorum can spare, the latest answer is no earlier than such a stamp.
"""

from __future__ import annotations

from contextlib import suppress

from trimtab.loads import protocol
from trimtab.net.errors import NetError
from trimtab.pipeline.scans import Scan
from trimtab.spark.instances import Instances, tls_context

_ASK_S = 5.0


def latest_us(scan: Scan) -> int:
    """No write that has been acknowledged by now is stamped later, if those who answer meet the quorum that took it.

    Members that do not answer are done without: that they are Online was so a moment ago.
    """
    plan, known = scan.plan, scan.known
    found = [known.now_us]
    with Instances(tls_context(plan.connection)) as instances:
        for raft_id in sorted(known.online):
            with suppress(NetError, TimeoutError):
                answer = instances.call(known.holders[raft_id].address, protocol.TIME, b"", _ASK_S)
                found.append(protocol.decode_time_reply(answer).now_us)
    return max(found)
