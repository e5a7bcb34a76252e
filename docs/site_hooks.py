"""Adds the rules' pages to the navigation, by group, so that a new rule needs no line in mkdocs.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "rules"
# by the first digit of the code
GROUPS = {
    "1": "Cannot start or send",
    "2": "Hangs",
    "3": "Crashes and errors",
    "4": "Memory and limits",
    "5": "Wrong data",
    "6": "Slow",
    "7": "Environment",
}


def on_config(config: Any) -> Any:
    """Replace the entry of the rules' index by the groups of rules."""
    reference = next(entry["Reference"] for entry in config.nav if "Reference" in entry)
    rules = next(entry for entry in reference if "Rules" in entry)
    pages = sorted(page.name for page in FOLDER.glob("UJ*.md"))
    rules["Rules"] = [
        "rules/README.md",
        *(
            {title: [f"rules/{page}" for page in pages if page[2] == digit]}
            for digit, title in GROUPS.items()
            if any(page[2] == digit for page in pages)
        ),
    ]
    return config
