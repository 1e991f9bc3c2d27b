"""Finds the command, gives it its settings, and turns what it raises into a sentence and an exit code.

A command is named in COMMANDS and lives in a module of this package (of its name, but for those in MODULES) with
`add_to(app)`, which registers it. Only the module of the command that was asked for is imported; help imports all of
them. So a module may import what it likes at its top as long as help stays quick; engines and clients belong inside
the command's function.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.main import get_command

from trimtab.cli import settings
from trimtab.cli.errors import CommandFailed

# In the order in which help lists them.
COMMANDS = (
    *("demo", "doctor", "run", "local"),
    *("status", "topology", "tablets", "events", "tasks", "probe", "metastore"),
    *("keyspaces", "tables", "get", "put", "scan", "loads"),
    *("load", "export", "verify", "repair", "count", "analyze"),
    *("pipeline", "limit", "plan", "rebalance"),
    *("move", "expel", "decommission", "remove", "rebuild", "recover"),
    *("sim", "test", "bench"),
)
MODULES = {
    **dict.fromkeys(("expel", "decommission", "remove", "rebuild"), "changes"),
    **dict.fromkeys(("get", "put", "scan"), "rows"),
    **dict.fromkeys(("load", "export", "verify", "repair", "count", "analyze"), "bulk_work"),
}
# Commands whose arguments belong to another tool, so that --config is not ours to take.
PASSES_ARGUMENTS_ON = frozenset({"test"})
# `run` lists a cluster's members; it does not contact one.
CONTACTS_NO_CLUSTER = frozenset({"run", "local"})
INTERRUPTED = 130  # 128 and SIGINT, as shells count

HELP = "An elastic table store for Python and Spark."
EPILOG = (
    "Options may also be set as TRIMTAB_<OPTION> variables or, in snake_case, in a TOML file named by --config "
    "(flags win over variables, variables over the file). Exit codes: 0 done, 1 failed, 2 wrong usage."
)


def build(names: Sequence[str]) -> Any:
    """The command tree of the named modules, as the framework runs it."""
    app = typer.Typer(
        name="trimtab",
        help=HELP,
        epilog=EPILOG,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def top(version: bool = typer.Option(False, "--version", "-V", help="Show the version.")) -> None:
        if version:
            from trimtab import __version__

            print(f"trimtab {__version__}")
            raise typer.Exit

    for module in dict.fromkeys(MODULES.get(name, name) for name in names):
        importlib.import_module(f"trimtab.cli.{module}").add_to(app)
    return get_command(app)


def options_of(command: Any) -> list[settings.Option]:
    """The options of one command, as settings see them."""
    found = []
    for parameter in command.params:
        flags = [flag for flag in getattr(parameter, "opts", []) if flag.startswith("--")]
        if parameter.param_type_name == "option" and flags and flags[0] != "--help":
            found.append(settings.Option(settings.key_of(flags[0]), parameter.name, bool(parameter.multiple)))
    return found


def walk(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from walk(child)


def defaults_of(command: Any, config: dict[str, object], contacts_cluster: bool) -> dict[str, object]:
    """The framework's map of defaults: a command's own options, and a map for each subcommand."""
    defaults = settings.gather(options_of(command), config, os.environ, contacts_cluster=contacts_cluster)
    for name, child in getattr(command, "commands", {}).items():
        defaults[name] = defaults_of(child, config, contacts_cluster and name not in CONTACTS_NO_CLUSTER)
    return defaults


def invoke(arguments: Sequence[str]) -> int:
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    rest, path = list(arguments), None
    if wanted not in PASSES_ARGUMENTS_ON:
        rest, path = settings.take_config_path(arguments, os.environ)
    # The value of an option before the command can look like a command; then everything is imported, and it is slower.
    wanted = rest[0] if rest and rest[0] in COMMANDS else None
    command = build([wanted] if wanted else COMMANDS)
    config = settings.read_config(path) if path else {}
    if path and config:
        everything = build(COMMANDS)
        known = {option.key for each in walk(everything) for option in options_of(each)}
        settings.refuse_unknown_keys(config, known, path)
    result = command.main(
        rest, prog_name="trimtab", standalone_mode=False, default_map=defaults_of(command, config, True)
    )
    return result if isinstance(result, int) else 0


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _help_for(failure: typer.TyperException) -> str:
    """How to get the help of the very command that was used wrongly."""
    context = getattr(failure, "ctx", None)
    return f"{context.command_path if context is not None else 'trimtab'} --help"


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. What went wrong is on standard error, in one sentence."""
    try:
        code = invoke(arguments)
        sys.stdout.flush()
        if code == INTERRUPTED:
            # The framework turns the interrupt into this code by itself.
            print("trimtab: interrupted.", file=sys.stderr)
        return code
    except CommandFailed as failure:
        print(f"trimtab: {failure}", file=sys.stderr)
        return failure.exit_code
    except typer.TyperException as failure:
        text = failure.format_message()
        # A command group without a command shows its help, which is sentence enough.
        asked_nothing = text.startswith("Usage:")
        print(text if asked_nothing else f"trimtab: {_sentence(text)} See `{_help_for(failure)}`.", file=sys.stderr)
        return failure.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("trimtab: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more while it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
