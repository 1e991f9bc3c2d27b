"""Watches: who is told of which changes, in what order.

- All matching changes of one revision arrive as one batch with old and new entries. Revisions arrive in order, each
  once.
- No live watch is given revision N + 1 before every live watch was given N.
- A watch may start at any revision above the compacted one. It is then *behind*: history is read for it in slices
  (`pump`), lowest revision first, until it has caught up and goes on live; no revision is missed or repeated on the
  way. Watches that are behind do not hold up live ones.
- A watch that compaction overtakes ends with Compacted. Nothing is skipped silently.

The hub calls `deliver` on the caller's stack, right after the write that it tells of. `deliver` answers False to end
the watch. It must not block; a receiver whose buffer is full calls `pause`, and later `resume` reads what it missed
from history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from trimtab.metastore.errors import Compacted, InvalidRequest
from trimtab.metastore.history import Change, change_of, revision_record
from trimtab.metastore.layout import check_key, entry_of
from trimtab.metastore.store import OrderedStore


class Exact(Struct, frozen=True, tag=True):
    key: bytes

    def matches(self, key: bytes) -> bool:
        return key == self.key


class Prefix(Struct, frozen=True, tag=True):
    """All keys that start with it; the empty prefix: all keys."""

    prefix: bytes

    def matches(self, key: bytes) -> bool:
        return key.startswith(self.prefix)


class Range(Struct, frozen=True, tag=True):
    """low <= key < high; None: to the end."""

    low: bytes
    high: bytes | None

    def matches(self, key: bytes) -> bool:
        return self.low <= key and (self.high is None or key < self.high)


Selector = Exact | Prefix | Range


class Changes(NamedTuple):
    """Everything one revision changed that a watch asked for."""

    revision: int
    changes: tuple[Change, ...]


RawChange = tuple[bytes, bytes | None, bytes]  # key, old record, new record
Deliver = Callable[[Changes], bool]
End = Callable[[Exception], None]
_Watchers = dict[int, "Watcher"]


class Watcher:
    """One watch. Made by `Metastore.watch`."""

    __slots__ = ("_hub", "_live", "_next", "_paused", "active", "deliver", "end", "number", "selector")

    def __init__(self, hub: WatchHub, number: int, selector: Selector, deliver: Deliver, end: End, start: int) -> None:
        self.number = number
        self.selector = selector
        self.deliver = deliver
        self.end = end
        self.active = True
        self._hub = hub
        self._next = start
        self._live = False
        self._paused = False

    @property
    def progress(self) -> int:
        """Everything up to this revision was given, or did not match: resume from the one after it."""
        return max(self._next - 1, self._hub.given_revision) if self._live else self._next - 1

    @property
    def behind(self) -> bool:
        """Whether it still needs `pump` (and, when paused, `resume`)."""
        return self.active and not self._live

    def cancel(self) -> None:
        """No more deliveries, from this moment on. `end` is not called."""
        self._hub._remove(self)

    def pause(self) -> None:
        """Deliver nothing until `resume`; what is missed meanwhile is read from history."""
        self._paused = True
        self._hub._fall_behind(self)

    def resume(self) -> None:
        self._paused = False
        self._hub._place(self)


class WatchHub:
    """All watches of one machine."""

    def __init__(self, store: OrderedStore, revision: int, compacted: int) -> None:
        self._store = store
        self._compacted = compacted
        self.given_revision = revision  # every live watch was given everything up to it
        self._giving = revision  # the revision being given now, else the same
        self._next_number = 1
        self._exact: dict[bytes, _Watchers] = {}
        self._prefixes: dict[int, dict[bytes, _Watchers]] = {}  # by length, then by prefix
        self._ranges: _Watchers = {}
        self._behind: _Watchers = {}
        self._live_count = 0

    def __len__(self) -> int:
        return self._live_count + len(self._behind)

    def add(self, selector: Selector, deliver: Deliver, end: End, start_revision: int | None) -> Watcher:
        if isinstance(selector, Exact) and (problem := check_key(selector.key)):
            raise InvalidRequest(f"can't watch: {problem}")
        start = self._giving + 1 if start_revision is None else start_revision
        if start <= self._compacted:
            raise Compacted(start, self._compacted, for_watch=True)
        watcher = Watcher(self, self._next_number, selector, deliver, end, start)
        self._next_number += 1
        self._place(watcher)
        return watcher

    def advance(self, revisions: Iterable[tuple[int, list[RawChange]]], revision: int, compacted: int) -> None:
        """The machine has written these revisions and is at `revision` now."""
        for number, raw in revisions:
            self._giving = number
            if self._live_count:
                self._give_live(number, raw)
            self.given_revision = number
        self.given_revision = self._giving = revision
        if compacted != self._compacted:
            self._compacted = compacted
            for watcher in list(self._behind.values()):
                self._end_if_compacted(watcher)

    def pump(self, max_revisions: int) -> bool:
        """Read up to `max_revisions` revisions of history for those behind. True while there is more to do."""
        waiting = [watcher for watcher in self._behind.values() if not watcher._paused]
        if not waiting or self._giving != self.given_revision:  # a callback of a live delivery may not pump
            return bool(waiting)
        first = min(watcher._next for watcher in waiting)
        last = min(self.given_revision, first + max(1, max_revisions) - 1)
        for revision in range(first, last + 1):
            takers = [w for w in waiting if w._next <= revision and w.active and not w._paused]
            if takers:
                self._give_history(revision, takers)
        for watcher in waiting:
            if watcher.active and not watcher._paused:
                self._place(watcher)
        return any(not watcher._paused for watcher in self._behind.values())

    def take_from(self, other: WatchHub) -> None:
        """Go on with the watches of a hub whose machine was replaced."""
        for watcher in list(other._all()):
            watcher._next = watcher.progress + 1
            other._remove(watcher)
            watcher.active = True
            watcher._hub = self
            watcher.number = self._next_number
            self._next_number += 1
            if not self._end_if_compacted(watcher):
                self._place(watcher)

    def _give_live(self, revision: int, raw: list[RawChange]) -> None:
        hits: dict[Watcher, list[Change]] = {}
        for key, old, new in raw:
            change: Change | None = None
            for watcher in self._matching(key):
                if change is None:
                    change = Change(key, entry_of(key, old), entry_of(key, new))
                hits.setdefault(watcher, []).append(change)
        for watcher in sorted(hits, key=_number):
            # One of the callbacks before may have cancelled or paused it; then it is not told, or told later.
            if watcher._live and watcher._next <= revision:
                self._give(watcher, Changes(revision, tuple(hits[watcher])))

    def _give_history(self, revision: int, takers: list[Watcher]) -> None:
        known: dict[bytes, Change] = {}
        changed = revision_record(self._store, revision)[1]
        for watcher in takers:
            if not watcher.active or watcher._paused:
                continue
            changes: list[Change] = []
            for key, previous in changed:
                if watcher.selector.matches(key):
                    if key not in known:
                        known[key] = change_of(self._store, key, revision, previous)
                    changes.append(known[key])
            if changes:
                self._give(watcher, Changes(revision, tuple(changes)))
            else:
                watcher._next = revision + 1

    def _give(self, watcher: Watcher, changes: Changes) -> None:
        watcher._next = changes.revision + 1
        try:
            go_on = watcher.deliver(changes)
        except Exception as error:
            # One receiver's fault must not keep the change from the others, nor undo a write that is done.
            self._remove(watcher)
            watcher.end(error)
            return
        if not go_on:
            self._remove(watcher)

    def _matching(self, key: bytes) -> Iterator[Watcher]:
        if found := self._exact.get(key):
            yield from found.values()
        for length, prefixes in self._prefixes.items():
            if length <= len(key) and (found := prefixes.get(key[:length])):
                yield from found.values()
        for watcher in self._ranges.values():
            if watcher.selector.matches(key):
                yield watcher

    def _all(self) -> Iterator[Watcher]:
        for found in self._exact.values():
            yield from found.values()
        for prefixes in self._prefixes.values():
            for found in prefixes.values():
                yield from found.values()
        yield from self._ranges.values()
        yield from self._behind.values()

    def _place(self, watcher: Watcher) -> None:
        """Put a watch where it belongs: live if it has nothing to catch up with, else behind."""
        if not watcher.active or watcher._live:
            return
        if watcher._paused or watcher._next <= self._giving:
            self._behind[watcher.number] = watcher
            return
        self._behind.pop(watcher.number, None)
        self._shelf(watcher)[watcher.number] = watcher
        watcher._live = True
        self._live_count += 1

    def _fall_behind(self, watcher: Watcher) -> None:
        if watcher.active and watcher._live:
            watcher._next = watcher.progress + 1
            self._unshelve(watcher)
            self._behind[watcher.number] = watcher

    def _remove(self, watcher: Watcher) -> None:
        watcher.active = False
        self._behind.pop(watcher.number, None)
        if watcher._live:
            watcher._next = watcher.progress + 1
            self._unshelve(watcher)

    def _end_if_compacted(self, watcher: Watcher) -> bool:
        if watcher._next > self._compacted:
            return False
        self._remove(watcher)
        watcher.end(Compacted(watcher._next, self._compacted, for_watch=True))
        return True

    def _shelf(self, watcher: Watcher) -> _Watchers:
        """Where a live watch of this selector is found by the keys it matches."""
        match watcher.selector:
            case Exact(key=key):
                return self._exact.setdefault(key, {})
            case Prefix(prefix=prefix):
                return self._prefixes.setdefault(len(prefix), {}).setdefault(prefix, {})
            case Range():
                return self._ranges

    def _unshelve(self, watcher: Watcher) -> None:
        watcher._live = False
        self._live_count -= 1
        shelf = self._shelf(watcher)
        del shelf[watcher.number]
        if shelf:
            return
        match watcher.selector:
            case Exact(key=key):
                del self._exact[key]
            case Prefix(prefix=prefix):
                by_length = self._prefixes[len(prefix)]
                del by_length[prefix]
                if not by_length:
                    del self._prefixes[len(prefix)]
            case Range():
                pass


def _number(watcher: Watcher) -> int:
    return watcher.number
