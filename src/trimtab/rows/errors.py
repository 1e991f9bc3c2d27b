"""What is wrong with rows: with those that lie on disk, and with those that somebody asks for."""

from __future__ import annotations


class BadRow(ValueError):
    """Stored bytes that can't be what was written. Nothing of them is used; the replica must be repaired."""


class UnknownLayout(BadRow):
    """A value whose layout this catalog does not know: written by somebody who is ahead, or damaged."""


class BadRequest(ValueError):
    """A write or a bound that the table can't take. The text names table, column, what is wrong and what is allowed."""


class DoesNotFit(ValueError):
    """A stored value that the type it is read as can't hold. Reading it again gives the same."""
