"""A small /dev/shm and few descriptors: which loader works at all."""

from __future__ import annotations

import sys
from pathlib import Path

from harness import table

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from runner import run

CASES = [
    ("/dev/shm of 64 MB, batches of 64 MB", "small_shm", {"small_shm": True}),
    ("ulimit -n 128, 1,000 batches kept", "few_descriptors", {}),
]


def main():
    rows = []
    for title, program, options in CASES:
        row = [title]
        for loader in ("torch", "unjam"):
            outcome = run(program, loader, **options)
            row.append(("works: " if outcome.ok else "fails: ") + outcome.text)
        rows.append(row)
    table("Starved", ["", "torch", "unjam"], rows)


if __name__ == "__main__":
    main()
