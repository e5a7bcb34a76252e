"""How the command line is read: words of another program, and a flag for each option of the loader."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand


class ProgramCommand(TyperCommand):
    """A command followed by another program.

    Our options come before the program's name; all words after it belong to the program.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Mark where the program's words begin."""
        ours, words = split_words(self.params, args)
        args = [*ours, *words]
        ctx.meta["own_flags"] = {name for one in self.params for name in one.opts if name.startswith("--")}
        return super().parse_args(ctx, args)


def split_words(parameters: Sequence[Any], args: list[str]) -> tuple[list[str], list[str]]:
    """Return our options with their values, and the program's words: from its name on, or after `-m module`."""
    takes_value = {name for one in parameters if not getattr(one, "is_flag", True) for name in one.opts}
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] not in ("--", "-"):
        option = args[at].partition("=")[0]
        names_module = option == "--module" or (option.startswith("-m") and not option.startswith("--"))
        at += 2 if args[at] in takes_value else 1
        if names_module:
            return args[:at], ["--", *args[at:]]
    return args[:at], args[at:]


def with_loader_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace `**options` by a flag for each of the loader's own options."""
    from unjam.loader.options import COMMAND_LINE_OPTIONS, option_help  # noqa: PLC0415 - a command imports what it needs

    plain = inspect.signature(command, eval_str=True)
    flags = []
    for name, default in COMMAND_LINE_OPTIONS.items():
        wanted = typer.Option(
            "--" + name.replace("_", "-"), help=option_help(name), rich_help_panel="The loader's options"
        )
        is_flag = isinstance(default, bool)
        kind: Any = Annotated[bool, wanted] if is_flag else Annotated[str | None, wanted]
        unset = False if is_flag else None
        flags.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=unset, annotation=kind))
    named = [one for one in plain.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = plain.replace(parameters=[*named, *flags])  # type: ignore[attr-defined] # functions may have one
    return command
