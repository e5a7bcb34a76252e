"""Writes generated pages, or reports which of them are out of date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def settle(wanted: dict[Path, str], gone: tuple[Path, ...] = ()) -> int:
    """Write pages that differ and remove obsolete ones; with `--check`, only name them. Return the exit code."""
    if sys.argv[1:] not in ([], ["--check"]):
        print(f"usage: {Path(sys.argv[0]).name} [--check]", file=sys.stderr)
        return 2
    differs = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if sys.argv[1:]:
        for path in (*differs, *gone):
            print(f"{path.relative_to(ROOT)} is out of date: make docs")
        return 1 if differs or gone else 0
    for path in gone:
        path.unlink()
    for path in differs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    return 0
