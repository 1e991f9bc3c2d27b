"""Where an option's value comes from: flags, then TRIMTAB_* variables, then the file named by --config.

The rule is the same for every option of every command. An option `--data-dir` is the variable TRIMTAB_DATA_DIR and the
key `data_dir` of the file. An option that may be repeated takes a list in the file, and commas or spaces in a variable.
`--peer` of commands that talk to a cluster is also TRIMTAB_CONTACT, the variable that `local env` prints.

The module only gathers values; it knows nothing of the command-line framework, which converts and checks them
exactly as it does flags. A key that no command knows is an error, because a misspelt setting that is silently ignored
is found only in an outage.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.cli.errors import WrongUsage

CONTACT_VARIABLE = "TRIMTAB_CONTACT"

# What a file may hold as one value: the scalars of TOML that an option can be given as.
Scalar = str | int | float | bool


@dataclass(frozen=True)
class Option:
    """An option as settings see it: its key, the name its command's parameter has, and whether it may be repeated."""

    key: str
    parameter: str
    repeatable: bool = False


def key_of(flag: str) -> str:
    """The key of a flag: `--data-dir` is `data_dir`."""
    return flag.lstrip("-").replace("-", "_")


def variables_of(key: str, contacts_cluster: bool) -> list[str]:
    """The variables that may set a key, the more specific first."""
    names = [f"TRIMTAB_{key.upper()}"]
    if key == "peer" and contacts_cluster:
        names.append(CONTACT_VARIABLE)
    return names


def take_config_path(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], Path | None]:
    """Split --config off the arguments, wherever it stands before `--`; without it TRIMTAB_CONFIG counts."""
    rest: list[str] = []
    path: str | None = environment.get("TRIMTAB_CONFIG") or None
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest.append(argument)
            rest.extend(waiting)
        elif argument == "--config":
            path = next(waiting, None)
            if path is None:
                raise WrongUsage("--config needs the path of a TOML file.")
        elif argument.startswith("--config="):
            path = argument.partition("=")[2]
        else:
            rest.append(argument)
    return rest, Path(path) if path else None


def read_config(path: Path) -> dict[str, object]:
    """The keys of a TOML file, as they stand there."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise WrongUsage(f"can't read the configuration {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{path} is not valid TOML: {error}.") from error


def refuse_unknown_keys(config: Iterable[str], known: Collection[str], path: Path) -> None:
    for key in config:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else "keys are the options' names in snake_case."
            raise WrongUsage(f"{path} sets '{key}', which no command knows; {hint}")


def gather(
    options: Iterable[Option],
    config: Mapping[str, object],
    environment: Mapping[str, str],
    *,
    contacts_cluster: bool = True,
) -> dict[str, object]:
    """Values for options that no flag gives, by parameter name: variables over the file; an empty variable is unset."""
    values: dict[str, object] = {}
    for option in options:
        if option.key in config:
            values[option.parameter] = _from_file(option, config[option.key])
        for name in variables_of(option.key, contacts_cluster):
            if text := environment.get(name):
                values[option.parameter] = text.replace(",", " ").split() if option.repeatable else text
                break
    return values


def _from_file(option: Option, value: object) -> object:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, Scalar) for item in items):
        raise WrongUsage(f"the setting '{option.key}' must be a value or a list of values, not a table.")
    if option.repeatable:
        return [str(item) for item in items]
    if isinstance(value, list):
        raise WrongUsage(f"the setting '{option.key}' takes one value, not a list.")
    return value
