"""What a client is told. Every error names what was asked, what is known about the outcome, and what to do."""

from __future__ import annotations


class Error(Exception):
    """Base of everything a client raises."""


class Unavailable(Error):
    """No member could take the request, so it was not carried out."""


class Timeout(Error):
    """The time is up. A write may or may not have been carried out; with the same command id it can be tried again."""


class Overloaded(Error):
    """A limit on waiting work was reached; nothing was done."""


class InvalidRequest(Error):
    """The request itself is wrong, and was not carried out: trying again changes nothing."""


class Expired(Error):
    """The command's id is too old for anybody to know whether it was carried out before; it was not carried out now.

    Read the state and decide; a new attempt needs a new id.
    """
