"""Trimtab: an elastic table store for Python and Spark.

Importing this package is cheap on purpose: it holds the version and nothing else, so that a node starts quickly and a
tool that only asks for the version loads no dependency.
"""

from __future__ import annotations

__version__ = "0.1.0.dev0"
