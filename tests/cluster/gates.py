"""Places in the code of a leader where a test does something before the leader goes on; it stands still meanwhile.

A failpoint `pause:FILE` stops its process until the file is removed. Here that happens within milliseconds, wherever
nothing is to be done. Where something is (`at`), it is done first, once, and is certain to happen at that very place.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from trimtab.node.failpoints import VARIABLE

_POLL_S = 0.005


class Gates:
    """The gates of these names, and whoever opens them; `close` ends that."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        folder.mkdir()
        self._folder = folder
        self._files = {name: folder / name for name in names}
        self._deeds: dict[str, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.passed: list[str] = []
        self.failure: BaseException | None = None
        self._opener = threading.Thread(target=self._open, name="gates", daemon=True)
        self._opener.start()

    @property
    def env(self) -> dict[str, str]:
        return {VARIABLE: ",".join(f"{name}=pause:{file}" for name, file in self._files.items())}

    def at(self, name: str, deed: Callable[[], None]) -> None:
        """Do this when somebody next stands at this gate."""
        with self._lock:
            self._deeds[name] = deed

    def forget(self) -> None:
        with self._lock:
            self._deeds.clear()

    @property
    def waiting(self) -> list[str]:
        """Where something is still to be done."""
        with self._lock:
            return list(self._deeds)

    def close(self) -> None:
        self._over.set()
        self._opener.join(10)

    def _open(self) -> None:
        while not self._over.wait(_POLL_S):
            for file in self._folder.iterdir():
                name = file.name
                self.passed.append(name)
                with self._lock:
                    deed = self._deeds.pop(name, None)
                try:
                    if deed is not None:
                        deed()
                except BaseException as error:
                    self.failure = error
                with contextlib.suppress(FileNotFoundError):
                    file.unlink()
