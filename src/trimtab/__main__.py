"""The process entry: answers `--version` at once and hands everything else to the command line.

Scripts ask for the version often; answering before the command-line framework loads keeps that in tens of milliseconds.
"""

from __future__ import annotations

import sys


def main() -> int:
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        from trimtab import __version__

        print(f"trimtab {__version__}")
        return 0
    from trimtab.cli.main import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
