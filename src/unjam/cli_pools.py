"""`--pool` of `unjam check` and `unjam tune`: run the program itself on other pools, and print what happened."""

from __future__ import annotations

from pathlib import Path

import typer

from unjam.doctor.report.terminal import progress
from unjam.system.masking import masked
from unjam.system.printable import printable
from unjam.system.private_files import write_report
from unjam.version import __version__


def try_pools(
    pools: list[str], target: str, arguments: list[str], batches: int, json: Path | None, *, module: bool
) -> int:
    """Run the program on each pool until it has some batches; return the exit code."""
    from unjam.doctor.run import pools as trials  # noqa: PLC0415 - a command imports what it needs

    quiet = str(json) == "-"
    try:
        trials.check(pools, target, module=module)
        with progress(quiet=quiet) as say:
            found = trials.try_pools(pools, target, arguments, batches, say, module=module)
        if json is not None and not quiet:
            write_report(str(json), trials.as_json(found, target, __version__) + "\n")
    except (ValueError, OSError) as error:
        typer.echo(printable(masked(f"error: {error}")), err=True)
        return 2
    typer.echo(
        trials.as_json(found, target, __version__) if quiet else printable(masked("\n".join(trials.lines(found))))
    )
    return 1 if any(one.problem for one in found) else 0
