"""`python -m unjam`, and the command `unjam`: runs a command, and chooses the exit code."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import traceback
from typing import Any, NoReturn

from unjam.cli import app
from unjam.cli_parsing import split_words

import typer  # isort: skip - after the module that reports a missing package

# Typer uses click, or has a copy of it: this finds the class either way
_CommandError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main() -> NoReturn:
    """Exit codes: 0 nothing found, 1 something found, 2 it could not be done, and nothing else."""
    try:
        code = app(prog_name="unjam", standalone_mode=False)
    except typer.Exit as end:
        code = end.exit_code
    except _CommandError as error:
        error.show()
        _write_document(sys.argv[1:], error.format_message())
        code = 2
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("interrupted", err=True)
        code = 2
    except BrokenPipeError:  # the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 2
    except Exception:  # noqa: BLE001 - the traceback is shown
        traceback.print_exc()
        typer.echo("error: internal error in unjam; please report the traceback above", err=True)
        code = 2
    sys.exit(code if code in (0, 1) else 0 if code is None else 2)


def _write_document(words: list[str], problem: str) -> None:
    """Write the JSON document that `unjam check` was asked for, although its command line is invalid."""
    if not words or words[0] != "check":
        return
    command: Any = typer.main.get_command(app)
    ours, _ = split_words(command.commands["check"].params, words[1:])
    places = [word.partition("=")[2] for word in ours if word.startswith("--json=")]
    places += [after for word, after in itertools.pairwise(ours) if word == "--json"]
    if not places:
        return
    from unjam.doctor.report import machine  # noqa: PLC0415 - only then
    from unjam.system.masking import masked  # noqa: PLC0415 - as above
    from unjam.system.private_files import write_report  # noqa: PLC0415 - as above
    from unjam.version import __version__  # noqa: PLC0415 - as above

    text = machine.not_examined("", masked(problem), __version__) + "\n"
    if places[0] == "-":
        sys.stdout.write(text)
        return
    with contextlib.suppress(OSError):  # the first error is already shown
        write_report(places[0], text)


if __name__ == "__main__":
    main()
