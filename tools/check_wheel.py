"""Builds the sdist and, from it, the wheel; then tests the wheel in an environment without the source tree.

    python tools/check_wheel.py --build-with PYTHON

PYTHON is an interpreter that has `build` and setuptools. The test environment contains only the wheel. Its dependencies (torch above
all) are not downloaded again: a .pth file names the package folder of the interpreter that runs this file. Python does not read .pth
files inside such a folder, so an editable unjam installed there is invisible to the test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "unjam"
DIST = ROOT / "build" / "dist"
# files that are not modules, whose absence would be noticed late
DATA = ("py.typed", "doctor/report/page.css", "doctor/report/page.js", "doctor/run/site/sitecustomize.py")
PROGRAM = """\
from torch.utils.data import DataLoader
loader = DataLoader(range(64), batch_size=8, num_workers=2)
print(sum(int(batch.sum()) for batch in loader), type(iter(loader)).__module__)
"""
WHERE = "import os, unjam; print(unjam.DataLoader.__module__, os.path.abspath(unjam.__file__))"


def build(python: str) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it rather than from the source tree."""
    shutil.rmtree(DIST, ignore_errors=True)
    # a fixed date for the files in the wheel makes builds reproducible
    environment = {"SOURCE_DATE_EPOCH": "1704067200", **os.environ}
    command = [python, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """Check that both contain every module, the data files and the license."""
    modules = [file.relative_to(PACKAGE).as_posix() for file in PACKAGE.rglob("*.py")]
    wanted = {f"unjam/{name}" for name in (*modules, *DATA)}
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    missing = [f"{wheel.name}: {name}" for name in sorted(wanted - in_wheel)]
    of_sdist = {f"src/{name}" for name in wanted} | {"LICENSE", "README.md", "pyproject.toml"}
    missing += [f"{sdist.name}: {name}" for name in sorted(of_sdist - in_sdist)]
    missing += [] if any(name.endswith("licenses/LICENSE") for name in in_wheel) else [f"{wheel.name}: LICENSE"]
    if missing:
        sys.exit("missing in " + "\nmissing in ".join(missing))
    for file in (sdist, wheel):
        print(
            f"{file.relative_to(ROOT)}, {file.stat().st_size >> 10} KB: all {len(wanted)} files of the package",
            flush=True,
        )


def install(wheel: Path, folder: Path) -> Path:
    """Create an environment with the wheel and a .pth file for its dependencies; return its bin folder."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def run(command: list[str], folder: Path, *expected: str) -> None:
    """Run a command outside the source tree; it must exit with 0 and print the expected words."""
    begun = time.monotonic()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "UNJAM", "VIRTUAL"))}
    done = subprocess.run(
        command, cwd=folder, env={**clean, "COLUMNS": "200"}, capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    words = " ".join([os.path.basename(command[0]), *command[1:]])
    lost = [word for word in expected if word not in said]
    if done.returncode != 0 or lost:
        sys.exit(f"{said}\n$ {words}\nexit code {done.returncode}; not printed: {lost}")
    print(f"ok {time.monotonic() - begun:4.1f} s  {words}", flush=True)


def main() -> None:
    """Build, check the contents, install and test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-with", required=True, help="an interpreter that has build and setuptools")
    begun = time.monotonic()
    sdist, wheel = build(os.path.abspath(parser.parse_args().build_with))
    check_contents(sdist, wheel)
    with tempfile.TemporaryDirectory() as temporary:
        away = Path(temporary).resolve()
        programs = install(wheel, away / "environment")
        (away / "three_lines.py").write_text(PROGRAM)
        python, unjam = str(programs / "python"), str(programs / "unjam")
        run([python, "-c", WHERE], away, "unjam.loader.dataloader", str(away / "environment" / "lib"))
        run([unjam, "--version"], away, f"unjam {wheel.name.split('-')[1]}")
        run([unjam, "rules"], away, "UJ101", "UJ201", "UJ501")
        run([unjam, "env"], away, "torch", "python")
        run([unjam, "run", "--html", "page.html", "three_lines.py"], away, "2016 unjam.", "-- unjam: ", "2 workers")
        page = (away / "page.html").read_text(encoding="utf-8")
        for name in ("page.css", "page.js"):
            if (PACKAGE / "doctor" / "report" / name).read_text(encoding="utf-8").strip()[:60] not in page:
                sys.exit(f"the page of `unjam run --html` has no {name}")
    print(f"the wheel works without the source tree; {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
