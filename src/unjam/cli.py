"""The `unjam` command. Exit code 0: nothing found, 1: something found, 2: the tool could not do its work."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError as missing:
    raise SystemExit(f"the command needs {missing.name}: pip install 'unjam[cli]'") from missing

from unjam import __version__

if TYPE_CHECKING:
    from unjam.evidence.incident import Incident

app = typer.Typer(add_completion=False, no_args_is_help=True, help="A DataLoader that cannot freeze silently.")


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer's callback
    if wanted:
        typer.echo(f"unjam {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,  # noqa: FBT002
) -> None:
    """A DataLoader that cannot freeze silently."""


@app.command()
def errors(
    log: Annotated[Path, typer.Argument(help="The file given as error_log=.")],
    by: Annotated[str, typer.Option(help="One table only: cause, sample or worker.")] = "",
    json: Annotated[
        Path | None, typer.Option(help="Write the groups as JSON to this file; - for the terminal.")
    ] = None,
) -> None:
    """Group the failures in an error log: by cause, by sample, by worker."""
    from unjam.report import errors as report  # noqa: PLC0415 - a command imports what it needs

    kinds = ("cause", "sample", "worker")
    if by and by not in kinds:
        _stop(f"--by takes cause, sample or worker, not {by!r}")
    try:
        incidents, strange = report.read(str(log))
    except OSError as error:
        _stop(f"{log} cannot be read: {error.strerror}")
    if strange and not incidents:
        _stop(f"{log} is no error log: none of its {strange} lines is an incident")
    if json is not None:
        text = report.dumps(incidents)
        if str(json) == "-":
            typer.echo(text)
        else:
            json.write_text(text + "\n", encoding="utf-8")
    if json is None or str(json) != "-":
        _show(incidents, strange, [by] if by else list(kinds))
    raise typer.Exit(1 if incidents else 0)


def _show(incidents: list[Incident], strange: int, kinds: list[str]) -> None:
    from unjam.report import errors as tables  # noqa: PLC0415 - as above

    # a pipe has no width; lines there are as long as they need to be
    console = Console(
        width=None if sys.stdout.isatty() else 160, soft_wrap=False, highlight=False, emoji=False, markup=False
    )
    if not incidents:
        console.print("no failures")
    for kind in kinds if incidents else ():
        table = Table(title=f"by {kind}", title_justify="left", box=None, pad_edge=False, expand=False)
        table.add_column("failures", justify="right", no_wrap=True)
        table.add_column(kind, overflow="fold", ratio=3)
        if kind == "cause":
            table.add_column("line", overflow="fold", ratio=2)
        if kind != "sample":
            table.add_column("samples", overflow="fold", ratio=2)
        table.add_column("done", no_wrap=True)
        table.add_column("last", no_wrap=True)
        for group in tables.by(incidents, kind)[:20]:
            row = [str(group.count), group.name]
            if kind == "cause":
                row.append(tables.short(group.where.most_common(1)[0][0]) if group.where else "")
            if kind != "sample":
                row.append(group.shown_samples)
            row.append(", ".join(f"{decision} {count}" for decision, count in group.decisions.most_common()))
            row.append(time.strftime("%m-%d %H:%M:%S", time.localtime(group.last)))
            table.add_row(*row)
        console.print(table)
        console.print()
    if strange:
        console.print(f"{strange} lines could not be read")


def _stop(text: str) -> NoReturn:
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
