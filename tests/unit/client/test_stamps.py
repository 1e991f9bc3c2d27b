"""What a client has seen, told by many threads."""

from __future__ import annotations

import sys
import threading

from trimtab.client.stamps import Stamps


def test_no_thread_takes_back_what_another_has_seen() -> None:
    stamps, behind = Stamps(), list[int]()

    def see(first: int) -> None:
        for stamp_us in range(first, 20_000, 4):
            stamps.saw(stamp_us)
            if stamps.latest_us < stamp_us:
                behind.append(stamp_us)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=see, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not behind and stamps.latest_us == 19_999
