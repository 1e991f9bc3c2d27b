"""Trimtab: an elastic table store for Python and Spark.

    import trimtab
    db = trimtab.connect("127.0.0.1:3301")

Importing this package is cheap on purpose: it holds the version and nothing else, so that a node starts quickly and a
tool that only asks for the version loads no dependency. The client is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as the typing module has it, without importing that
if TYPE_CHECKING:
    from typing import Any

    from trimtab import aio as aio
    from trimtab.catalog.values import Duration as Duration
    from trimtab.client.blocking import Batch as Batch
    from trimtab.client.blocking import Database as Database
    from trimtab.client.blocking import Table as Table
    from trimtab.client.blocking import connect as connect
    from trimtab.client.consistency import Consistency as Consistency
    from trimtab.client.elements import Add as Add
    from trimtab.client.elements import Prepend as Prepend
    from trimtab.client.elements import Remove as Remove
    from trimtab.client.errors import Error as Error
    from trimtab.client.errors import InvalidRequest as InvalidRequest
    from trimtab.client.errors import NotFound as NotFound
    from trimtab.client.errors import Overloaded as Overloaded
    from trimtab.client.errors import ReadFailed as ReadFailed
    from trimtab.client.errors import SchemaError as SchemaError
    from trimtab.client.errors import Timeout as Timeout
    from trimtab.client.errors import TooLarge as TooLarge
    from trimtab.client.errors import Unavailable as Unavailable
    from trimtab.client.errors import VersionMismatch as VersionMismatch
    from trimtab.client.errors import WriteFailed as WriteFailed
    from trimtab.client.plans import Row as Row
    from trimtab.client.reads import RowWithMeta as RowWithMeta

__version__ = "0.1.0.dev0"

_ERRORS = (
    *("Error", "InvalidRequest", "NotFound", "Overloaded", "ReadFailed", "SchemaError", "Timeout", "TooLarge"),
    *("Unavailable", "VersionMismatch", "WriteFailed"),
)
_LAZY = {
    **dict.fromkeys(_ERRORS, "trimtab.client.errors"),
    **dict.fromkeys(("Batch", "Database", "Table", "connect"), "trimtab.client.blocking"),
    **dict.fromkeys(("Add", "Prepend", "Remove"), "trimtab.client.elements"),
    "Consistency": "trimtab.client.consistency",
    "Duration": "trimtab.catalog.values",
    "Row": "trimtab.client.plans",
    "RowWithMeta": "trimtab.client.reads",
}

__all__ = ["__version__", "aio", *_LAZY]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "aio":
        return import_module("trimtab.aio")
    if name not in _LAZY:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
