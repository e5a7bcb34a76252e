"""`unjam check --fix` and `--diff`: tries edits for what was found, shows them, and writes the proven ones."""

from __future__ import annotations

from dataclasses import replace

from unjam.doctor.check.command.check import CheckOptions, check_program
from unjam.doctor.fix.repair import repair
from unjam.doctor.fix.write_back import CannotWrite
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.report.repair import show_repair
from unjam.doctor.report.terminal import console


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
        rows = [(one.code, one.words, one.proven, one.refused) for one in result.repairs]
        show_repair(rows, patch, console(with_markup=True), written=write, backups=backups)
