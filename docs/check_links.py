"""Checks that every relative link in the documentation leads to a file that exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Print what is broken; the exit code says whether anything is."""
    broken = []
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        broken += [
            f"{page.relative_to(ROOT)}: {target}"
            for target in targets
            if "://" not in target and not (page.parent / target).exists()
        ]
    for line in broken:
        print(line)  # noqa: T201 - a program
    print(f"{len(pages)} pages, {len(broken)} broken links")  # noqa: T201 - as above
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
