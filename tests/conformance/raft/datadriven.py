"""Reads "data-driven" files: directives, their input, and the output they are expected to give.

`#` starts a comment line. A directive is `command argument key=value key=(a,b)`, then optional input lines, then
`----`, then the output up to a blank line; after a doubled `----` the output goes on to the next doubled one.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SEPARATOR = "----"
_ARGUMENT = re.compile(r"\s*([^\s=]+)(?:=(\([^)]*\)|[^\s]*))?")
_LOG_LINE = re.compile(r"^\s*(DEBUG|INFO|WARN|ERROR)\b")


@dataclass
class Argument:
    key: str
    values: list[str] = field(default_factory=list)


@dataclass
class Case:
    where: str
    command: str
    arguments: list[Argument]
    input: str
    expected: str

    def argument(self, key: str) -> Argument | None:
        return next((argument for argument in self.arguments if argument.key == key), None)


def parse_directive(line: str) -> tuple[str, list[Argument]]:
    arguments = []
    position = 0
    line = line.strip()
    while position < len(line):
        match = _ARGUMENT.match(line, position)
        assert match is not None, f"can't read {line!r} from {position}"
        position = match.end()
        value = match.group(2)
        if value is None:
            values = []
        elif value.startswith("("):
            values = [part.strip() for part in value[1:-1].split(",")]
        else:
            values = [value]
        arguments.append(Argument(match.group(1), values))
    return arguments[0].key, arguments[1:]


def read_cases(path: Path) -> Iterator[Case]:
    lines = path.read_text(encoding="utf-8").split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        if not line.strip() or line.startswith("#"):
            number += 1
            continue
        where = f"{path.name}:{number + 1}"
        while line.endswith("\\"):
            number += 1
            line = line[:-1] + " " + lines[number]
        number += 1
        directive = line
        given = []
        while lines[number] != SEPARATOR:
            given.append(lines[number])
            number += 1
        number += 1
        expected = []
        if number < len(lines) and lines[number] == SEPARATOR:
            number += 1
            while lines[number : number + 2] != [SEPARATOR, SEPARATOR]:
                expected.append(lines[number])
                number += 1
            number += 2
        else:
            while number < len(lines) and lines[number].strip():
                expected.append(lines[number])
                number += 1
        command, arguments = parse_directive(directive)
        yield Case(where, command, arguments, "\n".join(given), "".join(text + "\n" for text in expected))


def mask_log(text: str) -> str:
    """Without log lines. What says nothing then is the `ok` of a directive that has nothing to say."""
    kept = "".join(line + "\n" for line in text.splitlines() if not _LOG_LINE.match(line))
    return kept or "ok\n"


def vector_files(kind: str) -> list[Path]:
    """The files of a kind, for parametrizing; none where there are none, and then the `vectors` fixture has its say."""
    named = os.environ.get("TRIMTAB_VECTORS")
    base = Path(named) if named else Path(__file__).resolve().parents[3].parent / "shared" / "vectors"
    found = (base / kind).glob("**/*")
    return sorted(path for path in found if path.is_file() and path.suffix in ("", ".txt") and path.stem != "README")
