"""CQL's types by their text: `parse("map<text, frozen<list<int>>>")`.

The canonical text is CQL's own: lower case, `, ` between parameters, `text` for `varchar`, and everything frozen says
so, also where CQL lets it be left out: tuples, user types, and whatever is inside something frozen. Parsing a canonical
text gives it back. A user type is always stored as one cell here, so it is frozen whether or not it is written so.

Collections inside collections have to be frozen, as in CQL: their elements are stored one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from trimtab.catalog import names, nested
from trimtab.catalog.cql_type import COLLECTIONS, NESTED, Kind, Type
from trimtab.catalog.limits import MAX_FIELDS, MAX_TYPE_CHARACTERS, MAX_TYPE_DEPTH
from trimtab.catalog.natives import NATIVES
from trimtab.catalog.schema import UserType
from trimtab.catalog.values import UUID, Duration

__all__ = ["COLLECTIONS", "NESTED", "UUID", "Duration", "Kind", "Type", "parse", "without_user_types"]

_TOKEN = re.compile(r'\s*(?:([A-Za-z_][A-Za-z0-9_]*)|"((?:[^"]|"")+)"|([<>,.]))')
_BY_WORD = {kind.value: made for kind, made in NATIVES.items()} | {"varchar": NATIVES[Kind.TEXT]}
_PARAMETERS = {"list": 1, "set": 1, "map": 2, "frozen": 1}
_NONE: Mapping[str, UserType] = {}


def parse(text: str, udts: Mapping[str, UserType] = _NONE) -> Type:
    """The type that a text names; `udts` are the user types of the keyspace by name. ValueError if there is none."""
    found = _BY_WORD.get(text)
    if found is not None:
        return found
    if not udts:
        return _parse_plain(text)
    return _Parser(text, udts, {}, MAX_TYPE_DEPTH).whole()


@lru_cache(maxsize=1024)
def _parse_plain(text: str) -> Type:
    return _Parser(text, _NONE, {}, MAX_TYPE_DEPTH).whole()


def without_user_types(given: Type) -> str:
    """The text of a type whose cells look the same, with tuples for user types; so it outlives them."""
    return _expanded(given, {})


def _expanded(given: Type, done: dict[str, str]) -> str:
    if not given.user_types:
        return given.name
    if given.name not in done:
        inner = ", ".join(_expanded(element, done) for element in given.elements)
        word = "tuple" if given.kind is Kind.USER else given.kind.value
        text = f"{word}<{inner}>" if given.multicell else f"frozen<{word}<{inner}>>"
        # Types of types of types may be large when written out; nobody looks into those of a column that is gone.
        done[given.name] = text if len(text) <= MAX_TYPE_CHARACTERS else Kind.BLOB.value
    return done[given.name]


class _Parser:
    """Recursive descent over the words of one text. `made` holds the user types that were met, made once."""

    def __init__(self, text: str, udts: Mapping[str, UserType], made: dict[str, Type], depth: int) -> None:
        if not isinstance(text, str) or not text.strip():
            raise ValueError("a type is missing; write one such as bigint, text or list<text>")
        if len(text) > MAX_TYPE_CHARACTERS:
            raise ValueError(f"a type has at most {MAX_TYPE_CHARACTERS} characters, not {len(text)}")
        self.text = text
        self.udts = udts
        self.made = made
        self.depth = depth
        self.tokens: list[tuple[str, bool]] = []  # the word, and whether it was quoted
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.wrong(f"can't read {text[position : position + 20].strip()!r}")
            word, quoted, mark = match.groups()
            self.tokens.append((quoted.replace('""', '"'), True) if quoted else (word or mark, False))
            position = match.end()
        self.at = 0

    def wrong(self, why: str) -> ValueError:
        return ValueError(f"'{self.text[:200]}' is not a type: {why}")

    def whole(self, frozen: bool = False) -> Type:
        found = self.type(self.depth, frozen)
        if self.at < len(self.tokens):
            raise self.wrong(f"nothing can follow {found.name}, but '{self.tokens[self.at][0]}' does")
        if found.depth > MAX_TYPE_DEPTH:
            raise self.too_deep()
        return found

    def too_deep(self) -> ValueError:
        return self.wrong(f"it is nested more than {MAX_TYPE_DEPTH} deep")

    def next(self) -> tuple[str, bool]:
        if self.at == len(self.tokens):
            raise self.wrong("it ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def follows(self, mark: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at] == (mark, False):
            self.at += 1
            return True
        return False

    def expect(self, mark: str, after: str) -> None:
        if not self.follows(mark):
            got = f"'{self.tokens[self.at][0]}'" if self.at < len(self.tokens) else "the end"
            raise self.wrong(f"after {after} comes '{mark}', not {got}")

    def type(self, depth: int, frozen: bool) -> Type:
        if depth <= 0:
            raise self.too_deep()
        word, quoted = self.next()
        if not quoted:
            if word in "<>,.":
                raise self.wrong(f"a type's name is missing before '{word}'")
            lower = word.lower()
            if self.at < len(self.tokens) and self.tokens[self.at] == ("<", False):
                return self.made_of(lower, depth, frozen)
            if lower in _BY_WORD:
                return _BY_WORD[lower]
            if lower in _PARAMETERS or lower == "tuple":
                raise self.wrong(f"{lower} is of something: write {lower}<...>")
        return self.user_type(word, quoted, depth)

    def made_of(self, word: str, depth: int, frozen: bool) -> Type:
        if word not in _PARAMETERS and word != "tuple":
            raise self.wrong(f"{word} takes no parameters; list, set, map, tuple and frozen do")
        self.expect("<", word)
        if word == "frozen" and self.at < len(self.tokens) and self.tokens[self.at][0].lower() == "frozen":
            raise self.wrong("frozen once is enough")
        inside_frozen = frozen or word in ("frozen", "tuple")
        elements = [self.type(depth - (word != "frozen"), inside_frozen)]
        while self.follows(","):
            elements.append(self.type(depth - 1, inside_frozen))
            if len(elements) > MAX_FIELDS:
                raise self.wrong(f"a tuple has at most {MAX_FIELDS} components")
        self.expect(">", elements[-1].name)
        wanted = _PARAMETERS.get(word, len(elements))
        if len(elements) != wanted:
            raise self.wrong(f"{word} has {wanted} parameter{'s' if wanted > 1 else ''}, not {len(elements)}")
        if word == "frozen":
            if elements[0].kind not in NESTED:
                raise self.wrong(f"{elements[0].name} can't be frozen; collections, tuples and user types can")
            return elements[0]
        self.check_inside(word, elements)
        if word == "list":
            return nested.list_of(elements[0], not frozen)
        if word == "set":
            return nested.set_of(elements[0], not frozen)
        if word == "map":
            return nested.map_of(elements[0], elements[1], not frozen)
        return nested.tuple_of(tuple(elements))

    def check_inside(self, word: str, elements: list[Type]) -> None:
        for element in elements:
            if element.kind is Kind.COUNTER:
                raise self.wrong(f"a counter can't be inside a {word}")
            if element.multicell:
                raise self.wrong(f"a collection inside a collection has to be frozen: write frozen<{element.name}>")
        if word in ("set", "map") and Kind.DURATION in elements[0].kinds:
            raise self.wrong(
                f"durations have no order (a month has 28 to 31 days), so they can't be "
                f"{'in a set' if word == 'set' else 'keys of a map'}"
            )

    def user_type(self, word: str, quoted: bool, depth: int) -> Type:
        keyspace = None
        if self.follows("."):
            keyspace = word
            word, quoted = self.next()
        udt = self.udts.get(word) or (None if quoted else self.udts.get(word.lower()))
        if udt is None or (keyspace is not None and udt.keyspace not in (keyspace, keyspace.lower())):
            known = f"; its user types: {', '.join(sorted(self.udts)[:20])}" if self.udts else ""
            raise self.wrong(f"there is no type '{word[:100]}' here{known}")
        if udt.name not in self.made:
            self.made[udt.name] = self.make(udt, depth)
        return self.made[udt.name]

    def make(self, udt: UserType, depth: int) -> Type:
        try:
            elements = tuple(
                _Parser(text, self.udts, self.made, depth - 1).whole(frozen=True) for _, text in udt.fields
            )
        except ValueError as error:
            raise ValueError(f"the type {udt.name}: {error}") from None
        return nested.user_type(names.quoted(udt.name), tuple(name for name, _ in udt.fields), elements)
