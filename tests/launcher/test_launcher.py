"""The launcher in a checkout of its own, with a lock of one tiny package that comes from a directory: no network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ENTRY = """
import json, os, sys

def main():
    import ballast
    print(json.dumps({"arguments": sys.argv[1:], "ballast": ballast.VALUE, "cwd": os.getcwd()}))
    return int(os.environ.get("EXIT_WITH", "0"))
"""


def write_wheel(folder: Path, version: str, value: int) -> str:
    """A wheel of the package `ballast`; its line in a lock."""
    files = {
        "ballast/__init__.py": f"from ballast.value import VALUE as VALUE\n__version__ = {version!r}\n",
        "ballast/value.py": f"VALUE = {value}\n",
        "ballast/cacert.pem": "the world's certificates\n",
        f"ballast-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: ballast\nVersion: {version}\n",
        f"ballast-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text.encode())}\n"
    files[f"ballast-{version}.dist-info/RECORD"] = record + f"ballast-{version}.dist-info/RECORD,,\n"
    path = folder / f"ballast-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return f"ballast=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@dataclass
class Checkout:
    root: Path
    wheels: Path
    output: list[str] = field(default_factory=list)

    @property
    def site(self) -> Path:
        (found,) = self.root.glob(".venv/lib/python3.*/site-packages")
        return found

    def environment(self, **extra: str) -> dict[str, str]:
        """Almost empty, and without a network: an index that is off and a proxy that leads nowhere."""
        return {
            "HOME": str(self.root.parent),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "https_proxy": "http://127.0.0.1:9",
            "http_proxy": "http://127.0.0.1:9",
            "TRIMTAB_PYTHON": os.path.realpath(sys.executable),
            **extra,
        }

    def run(self, *arguments: str, cwd: Path | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.root / "trimtab", *arguments],
            env=self.environment(**extra),
            cwd=cwd,
            capture_output=True,
            text=True,
        )


def make_checkout(project_root: Path, root: Path, wheels: Path) -> Checkout:
    (root / "launcher").mkdir(parents=True)
    (root / "src/trimtab").mkdir(parents=True)
    wheels.mkdir(exist_ok=True)
    shutil.copy2(project_root / "trimtab", root / "trimtab")
    shutil.copy2(project_root / "launcher/environment.py", root / "launcher/environment.py")
    (root / "src/trimtab/__init__.py").touch()
    (root / "src/trimtab/__main__.py").write_text(ENTRY)
    (root / "requirements.lock").write_text(write_wheel(wheels, "1.0", 1))
    return Checkout(root, wheels)


@pytest.fixture(scope="module")
def made(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """One environment for the tests that repair it; a space in its path, because people have those."""
    base = tmp_path_factory.mktemp("launcher")
    checkout = make_checkout(project_root, base / "a checkout", base / "wheels")
    first = checkout.run("first")
    assert first.returncode == 0, first.stderr
    assert "setting up .venv" in first.stderr
    return checkout


@pytest.fixture
def checkout(made: Checkout) -> Iterator[Checkout]:
    """The environment, complete; whatever a test did to it is repaired before the next one."""
    lock = (made.root / "requirements.lock").read_text()
    assert made.run().returncode == 0
    yield made
    (made.root / "requirements.lock").write_text(lock)


def test_arguments_working_directory_and_exit_code_pass_through_and_nothing_is_said(
    checkout: Checkout, tmp_path: Path
) -> None:
    done = checkout.run("a b", "--flag=*", "", "--", "-x", cwd=tmp_path, EXIT_WITH="3")
    assert done.returncode == 3
    answer = json.loads(done.stdout)
    assert answer == {"arguments": ["a b", "--flag=*", "", "--", "-x"], "ballast": 1, "cwd": str(tmp_path)}
    assert done.stderr == ""


def test_it_runs_through_a_link_from_elsewhere(checkout: Checkout, tmp_path: Path) -> None:
    link = tmp_path / "tt"
    link.symlink_to(checkout.root / "trimtab")
    done = subprocess.run([link, "x"], env=checkout.environment(), capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["arguments"] == ["x"]


def test_an_empty_environment_is_enough(checkout: Checkout) -> None:
    done = subprocess.run([checkout.root / "trimtab"], env={}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_stamp_is_written_again_without_fetching_anything(checkout: Checkout) -> None:
    (checkout.root / ".venv/trimtab.stamp").unlink()
    done = checkout.run(PIP_FIND_LINKS="")
    assert done.returncode == 0, done.stderr
    assert "updating .venv" in done.stderr
    assert checkout.run().stderr == ""


@pytest.mark.parametrize("harm", ["deleted file", "emptied file", "deleted package", "interrupted installation"])
def test_a_damaged_package_is_installed_again(checkout: Checkout, harm: str) -> None:
    match harm:
        case "deleted file":
            (checkout.site / "ballast/value.py").unlink()
        case "emptied file":
            (checkout.site / "ballast/value.py").write_text("")
        case "deleted package":
            shutil.rmtree(checkout.site / "ballast")
        case "interrupted installation":
            (checkout.root / ".venv/trimtab.stamp").unlink()
            (checkout.site / "ballast-1.0.dist-info/RECORD").unlink()
            (checkout.site / "ballast/value.py").unlink()
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert "ballast-1.0 is incomplete; installing it again" in done.stderr
    assert json.loads(done.stdout)["ballast"] == 1


def test_certificates_that_were_added_to_a_package_are_left_alone(checkout: Checkout) -> None:
    added = "the world's certificates\nours\n"
    (checkout.site / "ballast/cacert.pem").write_text(added)
    done = checkout.run(PIP_FIND_LINKS="")
    assert (done.returncode, done.stderr) == (0, "")
    assert (checkout.site / "ballast/cacert.pem").read_text() == added


def test_what_can_not_be_fetched_is_a_sentence_and_the_next_run_mends_it(checkout: Checkout) -> None:
    (checkout.site / "ballast/value.py").unlink()
    done = checkout.run(PIP_FIND_LINKS="")
    assert done.returncode == 1 and done.stdout == ""
    assert "trimtab: pip could not install the packages of requirements.lock" in done.stderr
    assert "Traceback" not in done.stderr
    assert checkout.run().returncode == 0


def test_a_changed_lock_is_installed_once(checkout: Checkout) -> None:
    (checkout.root / "requirements.lock").write_text(write_wheel(checkout.wheels, "2.0", 2))
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ballast"] == 2
    assert checkout.run().stderr == ""


def test_a_package_that_is_not_what_the_lock_says_is_refused(checkout: Checkout) -> None:
    lock = write_wheel(checkout.wheels, "3.0", 3)
    write_wheel(checkout.wheels, "3.0", 4)
    (checkout.root / "requirements.lock").write_text(lock)
    done = checkout.run()
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize("name", ["bin/trimtab", "bin/python", "pyvenv.cfg"])
def test_a_deleted_part_of_the_environment_itself_comes_back(checkout: Checkout, name: str) -> None:
    (checkout.root / ".venv" / name).unlink()
    if name == "bin/python":
        (checkout.root / ".venv" / name).symlink_to("/nonexistent/python3.11")  # as after an upgrade of the system
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ballast"] == 1
    assert checkout.run().stderr == ""


def test_a_moved_checkout_gets_an_environment_of_its_own_and_concurrent_runs_take_turns_making_it(
    checkout: Checkout,
) -> None:
    home, elsewhere = checkout.root, checkout.root.with_name("elsewhere")
    home.rename(elsewhere)
    try:
        environment = Checkout(elsewhere, checkout.wheels).environment()
        command = [elsewhere / "trimtab"]
        pipe = subprocess.PIPE
        runs = [subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
        outputs = [run.communicate() for run in runs]
        assert [run.returncode for run in runs] == [0, 0, 0], outputs
        assert sum("updating .venv" in errors for _, errors in outputs) == 1
        assert str(home) not in (elsewhere / ".venv/bin/trimtab").read_text()
    finally:
        elsewhere.rename(home)


def test_without_a_recent_python_it_says_what_to_install(checkout: Checkout, tmp_path: Path) -> None:
    (checkout.root / ".venv/trimtab.stamp").unlink()
    for tool in ("sh", "readlink", "sha256sum", "xargs", "stat", "cmp"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    (checkout.root / ".venv/bin/python").unlink()
    done = checkout.run(PATH=str(tmp_path), TRIMTAB_PYTHON="")
    assert done.returncode == 1
    assert done.stderr.startswith("trimtab: no Python 3.11 or newer found on PATH; install one")
    done = checkout.run(TRIMTAB_PYTHON="/nonexistent/python")
    assert done.returncode == 1
    assert "TRIMTAB_PYTHON=/nonexistent/python is not a Python 3.11 or newer that runs" in done.stderr


def test_it_costs_well_under_a_fifth_of_a_second(checkout: Checkout) -> None:
    def processor_s() -> float:
        """Of all processes that were waited for: what others use of the machine does not count."""
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def median_s(command: Path) -> float:
        seconds = []
        for _ in range(10):
            before = processor_s()
            subprocess.run([command], env=checkout.environment(), check=True, capture_output=True)
            seconds.append(processor_s() - before)
        return statistics.median(seconds)

    assert median_s(checkout.root / "trimtab") - median_s(checkout.root / ".venv/bin/trimtab") < 0.2
