"""What the catalog refuses, in words for the person who reads them."""

from __future__ import annotations


class SchemaError(ValueError):
    """A change of the schema that can't be; nothing of it has happened. `code` is what programs look at."""

    code = "schema"


class NoSuchThing(SchemaError):
    """The keyspace, table, type or column is not there."""

    code = "not_found"


class AlreadyThere(SchemaError):
    """The name is taken."""

    code = "schema"
