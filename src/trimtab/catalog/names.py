"""What keyspaces, tables, types and columns may be called, and how CQL writes their names.

Names keep their case. CQL writes those with capitals, odd characters or a meaning of their own in quotes. Names of
keyspaces, tables and types become parts of directories, keys and addresses, so they are narrow; columns only have to
be readable.
"""

from __future__ import annotations

import re

from trimtab.catalog.limits import MAX_COLUMN_CHARACTERS, MAX_NAME_CHARACTERS

_NAME = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_UNQUOTED = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
# Words that CQL does not take for a name without quotes.
_RESERVED_WORDS = """
    add allow alter and apply asc authorize batch begin by columnfamily create default delete desc describe drop
    entries execute from full grant if in index infinity insert into is keyspace limit materialized mbean mbeans modify
    nan norecursive not null of on or order primary rename replace revoke schema select set table to token truncate
    unlogged unset update use using view where with"""
_TYPE_WORDS = """
    ascii bigint blob boolean counter date decimal double duration empty float frozen inet int list map set smallint
    text time timestamp timeuuid tinyint tuple uuid varchar varint vector byte complex enum interval macaddr
    bitstring"""
RESERVED = frozenset(_RESERVED_WORDS.split())
_TYPES = frozenset(_TYPE_WORDS.split())
SYSTEM_PREFIXES = ("system", "trimtab")


def wrong_name(text: str, what: str) -> str | None:
    """Why a keyspace, table or type (`what`) can't be called so; None if it can."""
    if 0 < len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text):
        return None
    return (
        f"'{text[:80]}' can't be the name of a {what}; it needs 1 to {MAX_NAME_CHARACTERS} letters, digits "
        "or underscores"
    )


def wrong_type_name(text: str) -> str | None:
    if wrong := wrong_name(text, "type"):
        return wrong
    if text.lower() in _TYPES:
        return f"'{text}' can't be the name of a type: CQL uses the word itself"
    return None


def wrong_column(text: str, what: str = "column") -> str | None:
    if 0 < len(text) <= MAX_COLUMN_CHARACTERS and text.isprintable() and text == text.strip():
        return None
    return (
        f"{text[:80]!r} can't be the name of a {what}; it needs 1 to {MAX_COLUMN_CHARACTERS} printable characters, "
        "without spaces around them"
    )


def is_system(keyspace: str) -> bool:
    """Whether a keyspace's name is kept for the system itself."""
    lower = keyspace.lower()
    return any(lower == prefix or lower.startswith(prefix + "_") for prefix in SYSTEM_PREFIXES)


def split_table(full_name: str) -> tuple[str, str]:
    """Keyspace and table of `shop.users`; ValueError, saying what to write, on anything else."""
    keyspace, dot, table = full_name.partition(".")
    if not dot or wrong_name(keyspace, "keyspace") or wrong_name(table, "table"):
        raise ValueError(f"'{full_name[:120]}' is not the name of a table; write KEYSPACE.TABLE, such as shop.users")
    return keyspace, table


def quoted(name: str) -> str:
    """A name as CQL writes it."""
    if _UNQUOTED.fullmatch(name) and name not in RESERVED:
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
