"""Writes docs/reference/commands.md from the command's help, arguments and options.

With `--check` it writes nothing and reports whether the page is out of date. The result does not depend on the terminal.
"""

from __future__ import annotations

import inspect
import sys
import typing
from pathlib import Path
from typing import Any

import typer
from generated import settle

from unjam import cli

PAGE = Path(__file__).parent / "reference" / "commands.md"
# the page with details about a command
DEEPER = {
    "check": "check.md",
    "why": "why.md",
    "run": "run.md",
    "tune": "tune.md",
    "errors": "failures.md#the-record",
    "explain": "rules/README.md",
    "rules": "rules/README.md",
    "site": "run.md#without-changing-the-command",
}


def page() -> str:
    """The whole page."""
    group = typer.main.get_command(cli.app)
    context = group.make_context("unjam", [], resilient_parsing=True)
    lines = ["# Commands", "", f"{inspect.cleandoc(cli.__doc__ or '')}", ""]
    lines += ["`docs/write_cli.py` writes this page. `unjam COMMAND --help` says the same in a terminal.", ""]
    lines += ["| command | |", "|---|---|"]
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    lines += [f"| [`unjam {name}`](#unjam-{name}) | {_cell(_text(one.help))} |" for name, one in commands.items()]
    lines += ["", "`unjam --version` prints the version.", ""]
    for name, command in commands.items():
        lines += [
            f"## unjam {name}",
            "",
            _text(command.help),
            "",
            "```console",
            f"$ {_usage(name, command)}",
            "```",
            "",
        ]
        lines += _arguments(command)
        lines += _options(command)
        if name in DEEPER:
            lines += [f"[More about it](../{DEEPER[name]})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _usage(name: str, command: Any) -> str:
    words = ["unjam", name]
    words += ["[OPTIONS]"] if any(map(_is_option, command.params)) else []
    for one in command.params:
        if not _is_option(one):
            metavar = _metavar(one, _kinds(command))
            words.append(metavar if one.required or " " in metavar else f"[{metavar}]")
    return " ".join(words)


def _arguments(command: Any) -> list[str]:
    found = [one for one in command.params if not _is_option(one)]
    if not found:
        return []
    rows = [f"| `{_metavar(one, _kinds(command))}` | {_cell(one.help or '')} |" for one in found]
    return ["| argument | |", "|---|---|", *rows, ""]


def _options(command: Any) -> list[str]:
    panels: dict[str, list[str]] = {}
    for one in command.params:
        if _is_option(one) and not one.hidden:
            names = ", ".join(f"`{word}`" for word in sorted(one.opts, key=len))
            value = "" if one.is_flag else f" `{_metavar(one, _kinds(command))}`"
            rows = panels.setdefault(getattr(one, "rich_help_panel", None) or "option", [])
            rows.append(f"| {names}{value} | {_cell(one.help or '')}{_default(one)} |")
    lines = []
    for title, rows in panels.items():
        lines += [f"| {title[:1].lower() + title[1:]} | |", "|---|---|", *rows, ""]
    return lines


def _is_option(one: Any) -> bool:
    return one.param_type_name == "option"


def _metavar(one: Any, kinds: dict[str, str]) -> str:
    """The placeholder for the value."""
    if one.metavar:
        return str(one.metavar)
    if not _is_option(one):
        return str(one.name).upper()
    known = {"Path": "FILE", "float": "NUMBER", "int": "NUMBER"}
    return next((word for part, word in known.items() if part in kinds[one.name]), "TEXT")


def _kinds(command: Any) -> dict[str, str]:
    """The types of a function's parameters, as text. Where the library keeps them differs from version to version."""
    parameters = inspect.signature(command.callback, eval_str=True).parameters
    return {name: str(typing.get_args(one.annotation)[:1] or one.annotation) for name, one in parameters.items()}


def _default(one: Any) -> str:
    default = one.default
    shown = isinstance(default, (int, float, str)) and not isinstance(default, bool) and default not in ("", 0)
    return f" (default: {default})" if shown else ""


def _text(words: str | None) -> str:
    return " ".join((words or "").split())


def _cell(words: str) -> str:
    return _text(words).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(settle({PAGE: page()}))
