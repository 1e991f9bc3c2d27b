"""What the supervisor does next: pure decisions about its children, from what they say and how they end.

    event                               decisions
    Begin                               Start(discover, now)
    Said(Ready | Online)                -
    Said(Rebootstrap(phase, drop))      KillAfter(limit); when it has ended: DropDatabase if asked for, Start(phase)
    Said(Fatal(text, code))             KillAfter(limit); when it has ended: Exit(code, text), and no restart
    Exited without such a word          Start(the same phase, after a backoff)
    Told(signal), a child runs          ForwardSignal, KillAfter(limit); when it has ended: Exit(0)
    Told(signal), none runs             Exit(0)

The bulk child is another matter (`Attendance`): it is started when the node is ready for the first time, and again
whenever it ends, with a backoff of its own. A driver of jobs is started when the node, leading, says that jobs wait and
nobody runs them (`Errand`); it ends by itself when it has nothing to do. What becomes of these two is never a reason to
end, or to touch the node.

A phase is only where to begin: a child that finds in its data directory that it has come further goes on from there.
So a crash never costs more than the restart. The backoff doubles with each short life and is forgotten after a long
one; children that ask for a rebootstrap again and again, without ever becoming ready, are slowed down likewise.

Nothing here forks, waits or reads a clock, and the imports are light: the simulator runs the same.
"""

from __future__ import annotations

import enum
import json
import signal
from dataclasses import asdict, dataclass

# A word is one line of JSON and must fit what a pipe takes in one piece.
WORD_LIMIT_BYTES = 4096
_TEXT_LIMIT = 2000
# A driver takes seconds to start, so its backoff is that much longer than a node's.
_DRIVER_PATIENCE = 6


class Phase(enum.Enum):
    """Where a node child begins."""

    DISCOVER = "discover"
    BOOT = "boot"
    JOIN = "join"
    POSTJOIN = "postjoin"


# Words: what a child says to its supervisor.


@dataclass(frozen=True)
class Ready:
    """It listens as a member."""


@dataclass(frozen=True)
class Online:
    """The cluster has brought it to grade Online."""


@dataclass(frozen=True)
class Rebootstrap:
    """It ends, and wants to be started again in another phase; `drop`: with an empty database."""

    phase: Phase
    drop: bool = True


@dataclass(frozen=True)
class Fatal:
    """It ends for a reason that another start would not mend; `code` is the supervisor's exit code."""

    text: str
    code: int = 1


@dataclass(frozen=True)
class WantDriver:
    """It leads, jobs are queued, and nobody runs them."""


Word = Ready | Online | Rebootstrap | Fatal | WantDriver
_NAMES: dict[type[Word], str] = {
    Ready: "ready",
    Online: "online",
    Rebootstrap: "rebootstrap",
    Fatal: "fatal",
    WantDriver: "want_driver",
}


class BadWord(ValueError):
    """A line from a child that is no word; the text says what it was. It is logged and ignored."""


def encode_word(word: Word) -> bytes:
    """A word as one line."""
    fields = asdict(word)
    if isinstance(word, Rebootstrap):
        fields["phase"] = word.phase.value
    if isinstance(word, Fatal):
        # Words must be short, and a reason in bytes may be six times as long as in characters.
        fields["text"] = word.text[:_TEXT_LIMIT]
        while len(json.dumps(fields)) > WORD_LIMIT_BYTES - 64:
            fields["text"] = fields["text"][: len(fields["text"]) // 2]
    return json.dumps({"word": _NAMES[type(word)], **fields}).encode() + b"\n"


def decode_word(line: bytes) -> Word:
    """The word of a line. BadWord on anything else."""
    try:
        fields = json.loads(line)
        match fields["word"]:
            case "ready":
                return Ready()
            case "online":
                return Online()
            case "rebootstrap":
                return Rebootstrap(Phase(fields["phase"]), bool(fields["drop"]))
            case "want_driver":
                return WantDriver()
            case "fatal":
                return Fatal(str(fields["text"]), int(fields["code"]))
            case other:
                raise BadWord(f"the child said {str(other)[:100]!r}, which is no word")
    except BadWord:
        raise
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise BadWord(f"the child said something that is no word ({error!r}): {line[:100]!r}") from error


# Events


@dataclass(frozen=True)
class Begin:
    """The supervisor has taken the data directory; no child runs yet."""


@dataclass(frozen=True)
class Started:
    """The child that was asked for runs."""


@dataclass(frozen=True)
class Said:
    word: Word


@dataclass(frozen=True)
class Exited:
    """The child has ended, and all it said has been heard. `status` is its exit code, or minus the signal."""

    status: int
    lived_s: float


@dataclass(frozen=True)
class Told:
    """The supervisor got a signal to end (SIGTERM, SIGINT)."""

    signal: int


Event = Begin | Started | Said | Exited | Told


# Decisions


@dataclass(frozen=True)
class Start:
    """Start a child in `phase` after `after_s`, for the reason `why` ("" is no news)."""

    phase: Phase
    after_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class StartBulk:
    """Start the bulk child after `after_s`, for the reason `why` ("" is no news)."""

    after_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class StartDriver:
    """Start a driver of jobs now; `why` is never news: it was asked for."""

    after_s: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class DropDatabase:
    """Remove everything in the data directory that is not identity; comes before the Start that needs it."""


@dataclass(frozen=True)
class ForwardSignal:
    signal: int


@dataclass(frozen=True)
class KillAfter:
    """SIGKILL for the child that runs now, if it still does after `after_s`."""

    after_s: float


@dataclass(frozen=True)
class Exit:
    """End the supervisor. No child runs."""

    code: int
    text: str = ""


Decision = Start | DropDatabase | ForwardSignal | KillAfter | Exit


@dataclass(frozen=True)
class Patience:
    """How long the supervisor waits for things."""

    first_backoff_s: float = 0.2
    longest_backoff_s: float = 10.0
    long_life_s: float = 30.0
    ending_s: float = 20.0  # leaving takes a few seconds where nobody is busy
    quick_rebootstraps: int = 2  # discovery, then one failed attempt: more without becoming ready are no progress

    def backoff_s(self, failures: int) -> float:
        """How long to wait after so many short lives in a row."""
        # Past 30 doublings the limit has long been reached; a larger power would only overflow.
        return min(self.first_backoff_s * (1 << min(failures - 1, 30)), self.longest_backoff_s)


class Supervision:
    """The state of one child. `handle` takes events in the order in which they happened."""

    def __init__(self, patience: Patience | None = None) -> None:
        self.phase = Phase.DISCOVER
        self.running = False
        self._patience = patience or Patience()
        self._told: int | None = None
        self._last_word: Rebootstrap | Fatal | None = None
        self._failures = 0
        self._rebootstraps = 0

    def handle(self, event: Event) -> list[Decision]:
        """What to do now, in this order."""
        match event:
            case Begin():
                return [Start(self.phase)]
            case Started():
                self.running = True
                self._last_word = None
                # Told between the decision to start and the start: the new child has to hear of it.
                return [] if self._told is None else self._end(self._told)
            case Said(word):
                return self._hear(word)
            case Exited():
                self.running = False
                return self._after(event)
            case Told(number):
                first, self._told = self._told is None, number
                if not self.running:
                    return [Exit(0)]
                return self._end(number) if first else []

    def _end(self, number: int) -> list[Decision]:
        return [ForwardSignal(number), KillAfter(self._patience.ending_s)]

    def _hear(self, word: Word) -> list[Decision]:
        if isinstance(word, Ready | Online | WantDriver):
            self._rebootstraps = 0
            return []
        # The first reason to end is the cause of what may follow.
        if self._last_word is not None:
            return []
        self._last_word = word
        return [KillAfter(self._patience.ending_s)]

    def _after(self, end: Exited) -> list[Decision]:
        word = self._last_word
        if isinstance(word, Fatal):
            return [Exit(word.code, word.text)]
        if self._told is not None:
            return [self._told_to_end(end.status)]
        if end.lived_s >= self._patience.long_life_s:
            self._failures = 0
        if isinstance(word, Rebootstrap):
            self.phase = word.phase
            self._rebootstraps += 1
            drop: list[Decision] = [DropDatabase()] if word.drop else []
            if self._rebootstraps <= self._patience.quick_rebootstraps:
                return [*drop, Start(self.phase)]
            why = f"it asked for a fresh start {self._rebootstraps} times without becoming ready"
            return [*drop, Start(self.phase, self._backoff_s(), why)]
        return [Start(self.phase, self._backoff_s(), f"it {describe(end.status)}")]

    def _told_to_end(self, status: int) -> Exit:
        # A child that had no handlers yet is ended by the signal itself, which is just as well.
        if status in (0, -signal.SIGTERM, -signal.SIGINT):
            return Exit(0)
        if status == -signal.SIGKILL:
            return Exit(1, f"it did not end within {self._patience.ending_s:g} s of being told to, and was killed")
        return Exit(1, f"it was told to stop and {describe(status)}")

    def _backoff_s(self) -> float:
        self._failures += 1
        return self._patience.backoff_s(self._failures)


class Attendance:
    """The state of the bulk child, which attends to the node's files: wanted from the node's first Ready on."""

    def __init__(self, patience: Patience | None = None) -> None:
        self.wanted = False
        self._patience = patience or Patience()
        self._failures = 0

    def node_said(self, word: Word) -> list[StartBulk]:
        """The node spoke."""
        if self.wanted or not isinstance(word, Ready):
            return []
        self.wanted = True
        return [StartBulk()]

    def leave_off(self) -> None:
        """It is not wanted until the node is ready again: its database is dropped, or everything ends."""
        self.wanted = False

    def exited(self, end: Exited) -> list[StartBulk]:
        """It has ended, for whatever reason."""
        if not self.wanted:
            return []
        if end.lived_s >= self._patience.long_life_s:
            self._failures = 0
        self._failures += 1
        return [StartBulk(self._patience.backoff_s(self._failures), f"it {describe(end.status)}")]


class Errand:
    """The state of the driver of jobs: started when it is wanted, and left alone.

    One that ends badly is not started again at once, however often it is asked for: Spark may not be usable here.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._running = False
        self._over = False
        self._failures = 0
        self._rests = 0.0

    def node_said(self, word: Word) -> list[StartDriver]:
        """The node spoke."""
        if not isinstance(word, WantDriver) or self._running or self._over:
            return []
        self._running = True
        after_s, self._rests = self._rests, 0.0
        return [StartDriver(after_s)]

    def leave_off(self) -> None:
        """Everything ends."""
        self._over = True

    def exited(self, end: Exited) -> list[StartDriver]:
        """It has ended, for whatever reason; the node asks again if it is still wanted."""
        self._running = False
        well = end.status == 0 or end.lived_s >= self._patience.long_life_s
        self._failures = 0 if well else self._failures + 1
        self._rests = 0.0 if well else self._patience.backoff_s(self._failures) * _DRIVER_PATIENCE
        return []


def describe(status: int) -> str:
    """How a child ended, in words."""
    if status >= 0:
        return f"ended with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was ended by {name}"
