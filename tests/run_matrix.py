"""The whole suite under every pair of Python and torch that is promised, each in an environment of its own.

    python tests/run_matrix.py [--only 3.12] [--envs FOLDER] [-- arguments for pytest]

An environment is made once and used again. A Python that is not on this machine is named and counts as a failure.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
# the oldest torch, the newest, and one between; every Python once at least
PAIRS = (("3.10", "2.4.1"), ("3.11", "2.13.0"), ("3.12", "2.4.1"), ("3.13", "2.6.0"), ("3.13", "2.15.0"))
EXTRAS = "demo,bench,test,frameworks"
OLDER = {"2.4.1": "transformers<5\n"}  # libraries whose newest version wants a newer torch


def interpreter(version: str) -> str | None:
    """A Python of this version: on the path, or one of pyenv's."""
    for found in (shutil.which(f"python{version}"), *_of_pyenv(version)):
        if found is not None and _answers(found, version):
            return found
    return None


def _of_pyenv(version: str) -> list[str]:
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    return sorted(glob.glob(f"{root}/versions/{version}.*/bin/python"), reverse=True)


def _answers(python: str, version: str) -> bool:
    """Whether it is one, and not a stand-in that only says which versions there are."""
    ask = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(ask, capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def environment(folder: Path, python: str, torch: str) -> Path:
    """The Python of an environment with this torch and everything that the suite needs."""
    inside = folder / "bin" / "python"
    if not (folder / ".installed").exists():
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        pin = folder / "constraints.txt"
        pin.write_text(f"torch=={torch}\n" + OLDER.get(torch, ""))
        install = [str(inside), "-m", "pip", "install", "--quiet", "--constraint", str(pin)]
        subprocess.run([*install, "--upgrade", "pip"], check=True)
        subprocess.run([*install, f"torch=={torch}", "numpy"], check=True)
        (folder / ".installed").touch()
    install = [str(inside), "-m", "pip", "install", "--quiet", "--constraint", str(folder / "constraints.txt")]
    subprocess.run([*install, "--editable", f"{ROOT}[{EXTRAS}]"], check=True)
    subprocess.run([*install, "--editable", f"{ROOT}[ray]"], check=False)  # there is no wheel of Ray for some machines
    return inside


def suite(python: Path, more: list[str]) -> tuple[int, str]:
    """Run the suite as `make test` does; its exit code and what the two runs counted."""
    worst, counted = 0, []
    for words in (["-n", "4", "--dist", "worksteal", "-m", "not alone"], ["-m", "alone"]):
        command = [str(python), "-m", "pytest", "-q", *words, *more]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        last = ""
        for line in process.stdout or ():
            sys.stdout.write(line)
            last = line.strip() or last
        process.wait()
        nothing_chosen = process.returncode == 5 and more
        worst = worst or (0 if nothing_chosen else process.returncode)
        counted.append(re.sub(r" in [\d.]+s.*", "", last).strip("= "))
    return worst, " + ".join(counted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a Python, or a Python and a torch: 3.12 or 3.12-2.4.1")
    parser.add_argument("--envs", type=Path, default=ROOT / ".matrix", help="where the environments are kept")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    asked = parser.parse_args()
    rows, worst = [], 0
    for version, torch in PAIRS:
        if not f"{version}-{torch}".startswith(asked.only):
            continue
        begun = time.monotonic()
        python = interpreter(version)
        if python is None:
            code, words = 1, "there is no such Python here"
        else:
            code, words = suite(environment(asked.envs / f"py{version}-torch{torch}", python, torch), asked.pytest)
        rows.append(
            f"Python {version}, torch {torch:7} {'ok  ' if code == 0 else 'FAIL'} {words} ({time.monotonic() - begun:.0f} s)"
        )
        worst = worst or code
    print("\n" + "\n".join(rows))
    return int(worst != 0)


if __name__ == "__main__":
    sys.exit(main())
