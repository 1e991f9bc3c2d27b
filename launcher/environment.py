"""Makes, updates and repairs the checkout's `.venv`; the slow path of `./trimtab`.

Runs on the machine's own Python (3.11 or newer) with nothing but the standard library, before anything is installed.
What it guarantees:

* The stamp is written last, after everything it describes is on disk. An environment with a valid stamp is complete;
  one without is finished or repaired, whatever interrupted it.
* Concurrent first runs take turns on a file lock; the later ones find the work done.
* A package whose files are missing or of the wrong size is installed again; intact ones are left alone, so a repair
  without a network succeeds whenever nothing has to be fetched.
* pip fetches, under the user's own pip configuration, exactly what the lock names, checked by hash.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LOCK_FILE = "requirements.lock"
THIS_FILE = "launcher/environment.py"  # another version of it may make another environment
# pip and setuptools come with the environment and may be upgraded in place; they are no part of the lock.
NOT_LOCKED = ("pip", "setuptools", "wheel", "pkg_resources", "distribute")


class SetupFailed(Exception):
    """The environment can't be made; the text says what to do."""


def say(text: str) -> None:
    """Tell a person what is going on; standard output belongs to the command that was asked for."""
    print(f"trimtab: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    try:
        handle = (root / ".trimtab-setup.lock").open("w")
    except OSError as error:
        raise SetupFailed(f"{root} must be writable to make .venv there ({error.strerror}).") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another trimtab is preparing .venv; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def site_packages(venv: Path) -> Path | None:
    """Where the environment keeps its packages, or None when it has no such place."""
    found = sorted(venv.glob("lib/python3.*/site-packages"))
    return found[0] if len(found) == 1 else None


def recorded_files(dist_info: Path) -> list[tuple[Path, int | None]] | None:
    """The files a package installed and their sizes; None when its record is missing or cut off.

    Compiled files are left out: Python rewrites them as it likes. Certificates have no size: administrators add theirs.
    """
    try:
        with (dist_info / "RECORD").open(newline="", encoding="utf-8") as record:
            rows = list(csv.reader(record))
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    if not rows or any(len(row) != 3 for row in rows):
        return None
    base = dist_info.parent
    return [
        (Path(os.path.normpath(base / name)), int(size) if size.isdigit() and not may_grow(name) else None)
        for name, _, size in rows
        if not name.endswith(".pyc")
    ]


def may_grow(name: str) -> bool:
    return name.endswith("/cacert.pem")


def is_intact(dist_info: Path) -> bool:
    files = recorded_files(dist_info)
    if files is None:
        return False
    for path, size in files:
        try:
            actual = path.lstat().st_size
        except OSError:
            return False
        if size is not None and size != actual:
            return False
    return True


def locked_packages(site: Path) -> list[Path]:
    return [path for path in sorted(site.glob("*.dist-info")) if not path.name.startswith(NOT_LOCKED)]


def manifest(root: Path, site: Path) -> list[str]:
    """Every file the environment needs, relative to the root; what the launcher looks at on each run."""
    venv = root / ".venv"
    files = {venv / "pyvenv.cfg", venv / "bin/python", venv / "bin/trimtab", site / "trimtab.pth"}
    for dist_info in locked_packages(site):
        files.update(path for path, _ in recorded_files(dist_info) or [] if not may_grow(str(path)))
    return sorted(os.path.relpath(path, root) for path in files)


def describe(root: Path, files: list[str]) -> str:
    """The text of the stamp; `describe` in ./trimtab prints the same about what it finds."""
    lines = [
        os.path.realpath(root),
        os.path.realpath(root / ".venv/bin/python"),
        *(f"{hashlib.sha256((root / name).read_bytes()).hexdigest()}  {name}" for name in (LOCK_FILE, THIS_FILE)),
    ]
    lines += [f"{(root / name).lstat().st_size} {name}" for name in files]
    return "\n".join(lines) + "\n"


def is_complete(root: Path) -> bool:
    venv = root / ".venv"
    try:
        files = (venv / "trimtab.files").read_text().split("\0")[:-1]
        return (venv / "trimtab.stamp").read_text() == describe(root, files)
    except OSError:
        return False


def stamped_root(venv: Path) -> str | None:
    with contextlib.suppress(OSError, IndexError):
        return (venv / "trimtab.stamp").read_text().splitlines()[0]
    return None


def is_usable(root: Path, wanted: str | None) -> bool:
    """Whether the environment's Python and pip run, here and with the wanted interpreter; otherwise it is made anew."""
    venv = root / ".venv"
    python = venv / "bin/python"
    if wanted is not None and os.path.realpath(python) != os.path.realpath(sys.executable):
        return False
    # Scripts in bin/ carry absolute paths: an environment that was moved with its checkout is not worth mending.
    if stamped_root(venv) not in (None, os.path.realpath(root)):
        return False
    check = "import sys, pip; print(sys.prefix); sys.exit(sys.version_info < (3, 11))"
    try:
        done = subprocess.run([python, "-I", "-c", check], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    if done.returncode != 0 or os.path.realpath(done.stdout.strip()) != os.path.realpath(venv):
        return False
    return site_packages(venv) is not None


def provide_venv_module() -> None:
    """Debian ships Python without ensurepip; root may fetch it, others are told how."""
    check = [sys.executable, "-I", "-c", "import ensurepip, venv"]
    if subprocess.run(check, capture_output=True).returncode == 0:
        return
    package = f"python3.{sys.version_info.minor}-venv"
    apt_get = shutil.which("apt-get")
    if apt_get is None or os.geteuid() != 0:
        raise SetupFailed(
            f"{sys.executable} lacks the venv module; install it (Debian: sudo apt-get install {package})."
        )
    say(f"installing {package} with apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [apt_get, "install", "-y", "-q", "--no-install-recommends", package]
    if subprocess.run(install, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        # A fresh machine has no package lists yet.
        subprocess.run([apt_get, "update", "-q"], env=environment, stdout=sys.stderr)
        subprocess.run(install, env=environment, stdout=sys.stderr)
    if subprocess.run(check, capture_output=True).returncode != 0:
        raise SetupFailed(f"apt-get could not install {package} (see above); install it by hand and try again.")


def make_venv(root: Path) -> None:
    provide_venv_module()
    venv = root / ".venv"
    if venv.is_symlink() or venv.is_file():
        venv.unlink()
    shutil.rmtree(venv, ignore_errors=True)
    done = subprocess.run([sys.executable, "-I", "-m", "venv", str(venv)], stdout=sys.stderr)
    if done.returncode != 0:
        raise SetupFailed(f"{sys.executable} could not make {venv} (see above).")


def forget_damaged_packages(site: Path) -> None:
    """Drop the records of packages with missing or cut files, so that pip installs them again."""
    for dist_info in locked_packages(site):
        if not is_intact(dist_info):
            say(f"{dist_info.name.removesuffix('.dist-info')} is incomplete; installing it again")
            shutil.rmtree(dist_info)


def install_lock(root: Path) -> None:
    command = [str(root / ".venv/bin/python"), "-I", "-m", "pip", "install", "--quiet", "--no-input", "--no-deps"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--require-hashes", "-r", str(root / LOCK_FILE)]
    # A user-site or foreign-target installation, however configured, can't be what is meant here.
    environment = {name: value for name, value in os.environ.items() if name not in ("PIP_TARGET", "PIP_PREFIX")}
    environment["PIP_USER"] = "0"
    if subprocess.run(command, env=environment, stdout=sys.stderr).returncode != 0:
        raise SetupFailed(
            f"pip could not install the packages of {LOCK_FILE} (see above). This needs a package index or a directory "
            "of wheels once, as configured for pip (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf); then run it again."
        )


def install_project(root: Path, site: Path) -> None:
    """Put the checkout on the path and write bin/trimtab.

    A path file and a script need no build, hence no build tools and no network; the sources are used where they are.
    """
    (site / "trimtab.pth").write_text(os.path.relpath(root / "src", site) + "\n")
    python = root / ".venv/bin/python"
    # The kernel splits a #! line at spaces and cuts it when it is long; sh takes any path.
    script = f"""#!/bin/sh
'''exec' "{python}" "$0" "$@"
'''
import sys

from trimtab.__main__ import main

# Worker processes import this file again, under another name.
if __name__ == "__main__":
    sys.exit(main())
"""
    if " " not in str(python) and len(str(python)) < 120:
        script = f"#!{python}\n" + script.split("'''\n")[1]
    entry = root / ".venv/bin/trimtab"
    entry.write_text(script)
    entry.chmod(0o755)


def write_stamp(root: Path, site: Path) -> None:
    venv = root / ".venv"
    files = manifest(root, site)
    (venv / "trimtab.files").write_text("".join(f"{name}\0" for name in files))
    text = describe(root, files)
    os.sync()  # a stamp that outlives its files in a power failure would vouch for empty ones
    partial = venv / "trimtab.stamp.partial"
    partial.write_text(text)
    partial.replace(venv / "trimtab.stamp")


def prepare(root: Path, wanted: str | None) -> None:
    venv = root / ".venv"
    with one_at_a_time(root):
        usable = is_usable(root, wanted)
        if usable and is_complete(root):
            return
        first_run = not venv.exists()
        say("setting up .venv (once, a minute or two)" if first_run else "updating .venv")
        if not usable:
            make_venv(root)
        (venv / "trimtab.stamp").unlink(missing_ok=True)
        site = site_packages(venv)
        if site is None:
            raise SetupFailed(f"{venv} has no site-packages; delete it and try again.")
        forget_damaged_packages(site)
        install_lock(root)
        install_project(root, site)
        write_stamp(root, site)
        say(".venv is ready")


def main() -> int:
    try:
        prepare(Path(sys.argv[1]), os.environ.get("TRIMTAB_PYTHON") or None)
    except SetupFailed as error:
        say(str(error))
        return 1
    except OSError as error:
        say(f"can't prepare .venv: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run goes on from here")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
