"""The edits of `unjam check --fix` on a terminal."""

from __future__ import annotations

from rich.console import Console

from unjam.doctor.report.terminal import escape


def show_repair(
    repairs: list[tuple[str, str, bool, list[str]]], patch: str, console: Console, *, written: bool, backups: list[str]
) -> None:
    """Print what each finding got: (code, what the edit does, whether it is proven, what was refused)."""
    console.print()
    for code, words, proven, refused in repairs:
        if proven:
            console.print(
                f"[bold green]{code}[/bold green]: {escape(words)}: proven: the finding disappears with the edit"
            )
        else:
            console.print(f"[bold]{code}[/bold]: not edited")
            for one in refused[:3]:
                console.print(f"  {escape(one)}")
    for line in patch.splitlines():
        colour = "green" if line.startswith("+") else "red" if line.startswith("-") else "dim"
        console.print(f"[{colour}]{escape(line)}[/{colour}]", soft_wrap=True)
    if patch:
        console.print("[bold]written[/bold]" if written else "[bold]not written; --fix writes it[/bold]")
        for path in backups:
            console.print(f"the original text is in {escape(path)}", soft_wrap=True)
    else:
        console.print("[bold]nothing to edit[/bold]")
