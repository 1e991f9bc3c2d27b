"""Tables as Spark DataFrames: the data source "trimtab", and sessions that know it.

    from trimtab.spark import session
    spark = session(peer="127.0.0.1:3301")
    spark.read.format("trimtab").option("table", "shop.users").load()

Importing this package imports nothing of Spark: that happens when a session is made.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as the typing module has it, without importing that
if TYPE_CHECKING:
    from typing import Any

    from trimtab.spark.analysis import analyze as analyze
    from trimtab.spark.placing import tablet_of as tablet_of
    from trimtab.spark.sessions import register as register
    from trimtab.spark.sessions import session as session
    from trimtab.spark.sessions import stop as stop

__all__ = ["analyze", "register", "session", "stop", "tablet_of"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trimtab.spark' has no attribute {name!r}")
    from importlib import import_module

    if name == "analyze":
        return import_module("trimtab.spark.analysis").analyze
    if name == "tablet_of":
        return import_module("trimtab.spark.placing").tablet_of
    return getattr(import_module("trimtab.spark.sessions"), name)


def __dir__() -> list[str]:
    return __all__
