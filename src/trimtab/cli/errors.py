"""How a command fails: with a sentence for the reader and an exit code, never with a traceback.

Exit codes are part of the interface: 0 done, 1 it failed and says why, 2 wrong usage. An exception that is none of
these is a defect of ours and keeps its traceback, because that is what a bug report needs.
"""

from __future__ import annotations


class CommandFailed(Exception):
    """The command could not do what was asked. The text names the thing, what was expected, and what to do."""

    exit_code = 1


class WrongUsage(CommandFailed):
    """The command was asked for wrongly: an option, a setting or an argument makes no sense."""

    exit_code = 2
