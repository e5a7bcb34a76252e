"""The catalogue of rules as text, for `unjam explain` and for the documentation."""

from __future__ import annotations

import inspect
import re
import textwrap

from unjam.doctor.rules import BY_CODE, RULES, RuleFile

HEADINGS = ("What happened", "Why", "How to confirm", "How to fix", "Limits")


def find(name: str) -> RuleFile | None:
    """Return a rule by its code or name."""
    known = BY_CODE.get(name.upper())
    return known or next((file for file in RULES if file.RULE.name == name.lower()), None)


def sections(file: RuleFile) -> tuple[str, dict[str, str]]:
    """Return the title of a rule, and the text of each section as one line."""
    title, _, rest = inspect.cleandoc(file.__doc__).partition("\n")
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", rest.strip()):
        head, _, text = paragraph.partition(":")
        words = " ".join(text.split())
        found[head.strip()] = words[:1].upper() + words[1:]
    return title, found


def explanation(file: RuleFile) -> str:
    """Return a rule as text for a terminal."""
    title, found = sections(file)
    parts = [f"{file.RULE.code} {file.RULE.name} ({file.RULE.severity.value})", "", title, ""]
    for heading in HEADINGS:
        parts += [heading, textwrap.fill(found[heading], 110, initial_indent="  ", subsequent_indent="  "), ""]
    return "\n".join(parts).rstrip()
