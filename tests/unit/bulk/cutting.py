"""A relay between a client and a server that cuts connections after so many bytes, or changes one on its way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence


class CuttingProxy:
    """Each of the first connections is cut after its number of bytes down (to the client) or up (to the server)."""

    def __init__(
        self,
        port: int,
        *,
        down_cuts: Sequence[int] = (),
        up_cuts: Sequence[int] = (),
        flip_down_at: int = -1,
        flip_up_at: int = -1,
    ) -> None:
        self.cuts_made = 0
        self.down_bytes = 0
        self._port = port
        self._cuts = {False: list(down_cuts), True: list(up_cuts)}
        self._flips = {False: flip_down_at, True: flip_up_at}
        self._lock = threading.Lock()
        self._socks: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def point_at(self, port: int) -> None:
        self._port = port

    def __enter__(self) -> CuttingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            self._socks += [client, server]
            with self._lock:
                cuts = {up: self._cuts[up].pop(0) if self._cuts[up] else -1 for up in (False, True)}
            for up, source, target in ((True, client, server), (False, server, client)):
                threading.Thread(target=self._relay, args=(up, source, target, cuts[up]), daemon=True).start()

    def _relay(self, up: bool, source: socket.socket, target: socket.socket, cut: int) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(64 << 10):
                if cut >= 0:
                    data = data[: cut - passed]
                flip = self._flips[up]
                if passed <= flip < passed + len(data):
                    self._flips[up] = -1
                    data = data[: flip - passed] + bytes([data[flip - passed] ^ 0x40]) + data[flip - passed + 1 :]
                target.sendall(data)
                passed += len(data)
                if not up:
                    self.down_bytes += len(data)
                if passed == cut:
                    with self._lock:
                        self.cuts_made += 1
                    break
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        # Else a sender that had filled all there is room for would not be told before it tires of waiting.
        with contextlib.suppress(OSError):
            while source.recv(64 << 10):
                pass
