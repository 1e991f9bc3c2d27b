"""How large a command may be, and how long its result is remembered.

These numbers are part of the replicated behaviour: a command that one member applies and another refuses splits the
cluster's state. They change only together with the version of the command format, never by configuration of a member.

A command has to fit in one message (1 MB) with room for the envelope around it, and a watch tells old and new value
in one message, so the largest value is a little over a third of that.
"""

from __future__ import annotations

from msgspec import Struct

MAX_KEY_BYTES = 4 * 1024
MAX_VALUE_BYTES = 384 * 1024
MAX_YIELD_BYTES = 64 * 1024
MAX_COMMAND_BYTES = 1_000_000
MAX_OPERATIONS = 1024  # in a whole command, over all of its branches
MAX_CONDITIONS = 1024  # condition nodes in a whole command
MAX_DEPTH = 16  # of branches, and of each condition
MAX_INTEGER = 2**63 - 1  # revisions and times; leaves room to add without leaving 64 bits

# A single command moves the replicated time by at most this much: one wrong clock must not expire every stored result.
MAX_TIME_STEP_MS = 10 * 60 * 1000

MAX_RANGE_LIMIT = 10_000
MAX_RANGE_BYTES = 1_000_000
MAX_RANGE_SCANNED = 20_000  # keys looked at for one page, deleted ones included


class Memory(Struct, frozen=True):
    """How long results of commands are remembered. The same on every member; tests make it small."""

    expiry_ms: int = 60 * 60 * 1000
    max_results: int = 262_144
    evicted_per_command: int = 4


DEFAULT_MEMORY = Memory()
