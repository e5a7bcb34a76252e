"""Checks that every relative link in the documentation leads to an existing file and heading.

Pages of docs/ become a site without the files outside docs/, so they may link only to each other.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
_FENCE = re.compile(r"^( *)(```+).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    titles = re.findall(r"^#+ +(.+?)\s*$", prose(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\]\(.*?\)", "", title)).strip().lower().replace(" ", "-") for title in titles
    }


def trouble(page: Path, target: str, anchor: str) -> str:
    """What is wrong with a link, or an empty string."""
    if "://" in target or target.startswith("mailto:"):
        return ""
    file = (page.parent / target).resolve() if target else page
    if not file.exists():
        return "does not exist"
    if page.is_relative_to(DOCS) and not file.is_relative_to(DOCS):
        return "is not part of the site; write it as `code`"
    if page.is_relative_to(DOCS) and file.suffix != ".md":
        return "is no page of the site; write it as `code`"
    if anchor and file.suffix == ".md" and anchor not in anchors(file):
        return f"has no heading #{anchor}"
    return ""


def main() -> int:
    """Print broken links; the exit code is 1 if there are any."""
    broken = []
    pages = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
    for page in pages:
        for target, anchor in _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
            if wrong := trouble(page, target, anchor):
                broken.append(f"{page.relative_to(ROOT)}: {target or '#' + anchor} {wrong}")
    for line in broken:
        print(line)
    print(f"{len(pages)} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
