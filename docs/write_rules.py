"""Writes docs/rules/*.md and the lists of rules in docs/tasks/*.md from the rules' own files.

With `--check` it writes nothing and reports which pages are out of date.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from generated import settle
from site_hooks import GROUPS

from unjam.doctor.report import catalogue
from unjam.doctor.rules import RULES, RuleFile, example

FOLDER = Path(__file__).parent / "rules"
TASKS = Path(__file__).parent / "tasks"
# a task's page has the list of a group between these two lines
_LIST = re.compile(r"(<!-- rules (\d)\d\d -->\n).*?(<!-- end of rules -->\n)", re.DOTALL)


def pages() -> dict[str, str]:
    """All pages about rules, by file name."""
    return {"README.md": index(), **{f"{file.RULE.code}.md": page(file) for file in RULES}}


def page(file: RuleFile) -> str:
    """A rule's page."""
    title, found = catalogue.sections(file)
    lines = [
        f"# {file.RULE.code} {file.RULE.name}",
        "",
        f"**{title}**",
        "",
        f"Severity: {file.RULE.severity.value}.",
        "",
    ]
    for heading in catalogue.HEADINGS:
        lines += [f"## {heading}", "", found[heading], ""]
    for heading, which in (("A program that has it", "broken"), ("The same without it", "fixed")):
        program = example(file.RULE.code, which).read_text(encoding="utf-8").rstrip()
        lines += [f"## {heading}", "", "```python", program, "```", ""]
    return "\n".join(lines)


def index() -> str:
    """The page that lists all rules."""
    lines = [
        "# The rules",
        "",
        "Each page is generated from the rule's source file; `unjam explain CODE` prints the same text.",
        "",
    ]
    lines += ["| code | rule | what happened |", "|---|---|---|"]
    for file in RULES:
        title, _ = catalogue.sections(file)
        lines.append(f"| [{file.RULE.code}]({file.RULE.code}.md) | {file.RULE.name} | {title} |")
    return "\n".join([*lines, ""])


def task(text: str) -> str:
    """A task's page with updated lists of rules."""
    return _LIST.sub(lambda found: found[1] + _listed(found[2]) + found[3], text)


def _listed(digit: str) -> str:
    lines = [f"### {GROUPS[digit]}", ""]
    for file in RULES:
        if file.RULE.code[2] == digit:
            title, _ = catalogue.sections(file)
            item = f"- [{file.RULE.code}](../rules/{file.RULE.code}.md): {title[:1].lower() + title[1:]}"
            lines += textwrap.wrap(item, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(["", *lines, "", ""])


def main() -> int:
    """Write all pages, and remove those of deleted rules."""
    wanted = {FOLDER / name: text for name, text in pages().items()}
    gone = tuple(old for old in FOLDER.glob("*.md") if old not in wanted)
    for page in sorted(TASKS.glob("*.md")):
        wanted[page] = task(page.read_text(encoding="utf-8"))
    return settle(wanted, gone)


if __name__ == "__main__":
    sys.exit(main())
