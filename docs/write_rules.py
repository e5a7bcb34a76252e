"""Writes docs/rules/*.md from the rules' own files. A test says when they are out of date."""

from __future__ import annotations

from pathlib import Path

from unjam.doctor.report import catalogue
from unjam.doctor.rules import RULES

FOLDER = Path(__file__).parent / "rules"


def pages() -> dict[str, str]:
    """Every page by its name."""
    return {"README.md": catalogue.index(), **{f"{file.RULE.code}.md": catalogue.page(file) for file in RULES}}


def main() -> None:
    """Write them all, and remove those of rules that are gone."""
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
