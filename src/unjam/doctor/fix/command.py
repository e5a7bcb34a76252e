"""`unjam check --fix` and `--diff`: tries edits for what was found, shows them, and writes the proven ones."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from unjam.doctor.check.command.check import CheckOptions, check_program
from unjam.doctor.fix.repair import Repair, repair
from unjam.doctor.fix.write_back import CannotWrite
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.report.terminal import console, diff_line, escape


class CannotFix(Exception):
    """No edit can be tried here. The text says why."""


def fix_and_show(
    diagnosis: Diagnosis, arguments: list[str], options: CheckOptions, *, module: bool, write: bool, quiet: bool
) -> None:
    """Try edits for each finding, print the result, and write the files if wanted."""
    if diagnosis.watched is None or diagnosis.watched.files_kept:
        raise CannotFix("an edit can only be tried where the program's file writes are isolated")

    def check(edits: dict[str, str]) -> Diagnosis:
        return check_program(diagnosis.target, arguments, replace(options, edits=edits, profile=False), module=module)

    result = repair(diagnosis, check, options.say)
    patch = result.diff()
    try:
        backups = result.write() if write else []
    except CannotWrite as error:
        raise CannotFix(str(error)) from error
    if not quiet:
        _show(result, patch, console(with_markup=True), written=write, backups=backups)


def _show(result: Repair, patch: str, out: Console, *, written: bool, backups: list[str]) -> None:
    """Print the edit of each finding, or why there is none."""
    out.print()
    for one in result.repairs:
        if one.words:
            out.print(
                f"[bold green]{one.code}[/bold green]: {escape(one.words)} (proven: the finding disappears with the edit)"
            )
        else:
            out.print(f"[bold]{one.code}[/bold]: not edited")
            for reason in one.refused[:3]:
                out.print(f"  {escape(reason)}")
    for line in patch.splitlines():
        out.print(diff_line(line), soft_wrap=True)
    if patch:
        out.print("[bold]written[/bold]" if written else "[bold]not written; --fix writes it[/bold]")
        for path in backups:
            out.print(f"the original text is in {escape(path)}", soft_wrap=True)
    else:
        out.print("[bold]nothing to edit[/bold]")
