"""The terminal. All text for it passes through here, which escapes control characters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich import markup
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.text import Text

from unjam.system.printable import printable, printable_line


def escape(text: str) -> str:
    """Escape a text for use inside rich markup: its brackets and control characters."""
    return markup.escape(printable(text))


def diff_line(line: str) -> str:
    """Return a line of a patch as rich markup."""
    colour = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
    return f"[{colour}]{escape(line)}[/{colour}]"


class _SafeText(RenderHook):
    """The last step before the terminal: catches text that was not escaped earlier."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Wrap the output. A `Text` is made safe here, before it is broken into lines."""
        return [
            _Safe(one) if not isinstance(one, Text) or printable(one.plain) == one.plain else Text(printable(one.plain))
            for one in renderables
        ]


class _Safe:
    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self._inner, options):
            yield Segment(text if control else printable(text), style, control)


def console(*, with_markup: bool = False, stderr: bool = False) -> Console:
    """Return a console that makes all text safe to show."""
    # a pipe has no width
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 160
    made = Console(width=width, soft_wrap=False, highlight=False, emoji=False, markup=with_markup, stderr=stderr)
    made.push_render_hook(_SafeText())
    return made


@contextlib.contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Show progress: a bar on a terminal, one line for each step in a pipe."""
    said = console(stderr=True)
    if not said.is_terminal:
        yield lambda words, _: None if quiet or not words else said.print(words, soft_wrap=True)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - only here

    columns = (BarColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=said, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def say(words: str, done: float) -> None:
            bar.update(task, completed=done, description=printable_line(words) or None)

        yield say
