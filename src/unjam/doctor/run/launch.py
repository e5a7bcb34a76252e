"""Replaces this process by the program, in an interpreter that loads unjam first."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import Any

from unjam.doctor.run.settings import Settings, remove_folder, with_folder
from unjam.loader.options import DEFAULTS, LoaderOptions, parse_option
from unjam.system.masking import masked_words


class CannotRun(Exception):
    """The program was not started; the message says why."""


def launch(
    program: list[str],
    module: str,
    options: dict[str, Any],
    *,
    observe: bool,
    quiet: bool,
    auto: bool,
    files: dict[str, str],
) -> None:
    """Replace this process by `python program`. Does not return."""
    if sys.flags.ignore_environment:
        raise CannotRun("Python was started with -E or -I, which ignore the environment variables that unjam needs")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001 - as multiprocessing does
    command = [sys.executable, *flags, *words(program, module)]
    given = _checked(options)
    if observe and given:
        named = ", ".join("--" + name.replace("_", "-") for name in given)
        raise CannotRun(f"--observe keeps torch's loader, which does not support {named}")
    if observe and auto:
        raise CannotRun("--observe keeps torch's loader, which cannot change its number of workers")
    settings = Settings(
        given,
        observe=observe,
        quiet=quiet,
        leader=os.getpid(),  # exec keeps the pid
        began=time.time(),
        command=" ".join(masked_words([*(["-m", module] if module else []), *program])),
        auto=auto,
        launcher=not module and not os.path.exists(program[0]),
        html=files.get("html", ""),
        trace=files.get("trace", ""),
        json=files.get("json", ""),
    )
    settings = with_folder(settings)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        os.execve(command[0], command, {**os.environ, **settings.environment()})  # noqa: S606 - needs no shell
    except OSError as error:
        remove_folder(settings)
        raise CannotRun(f"{command[0]} cannot be run: {error.strerror}") from error


def words(program: list[str], module: str) -> list[str]:
    """Return the arguments for the interpreter."""
    if module:
        return ["-m", module, *program]
    if not program:
        raise CannotRun("give a script, or -m and a module")
    script = program[0]
    if os.path.exists(script):
        return program
    found = shutil.which(script)
    if found is not None and _is_python(found):
        return [found, *program[1:]]  # torchrun, accelerate: Python scripts
    raise CannotRun(
        f"there is no file {script}" + (f"; for a module: unjam run -m {script}" if "/" not in script else "")
    )


def _is_python(path: str) -> bool:
    with open(path, "rb") as file:
        return b"python" in file.readline(200)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Parse and validate the options; return those that differ from the defaults."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if value not in (None, ""):
            try:
                given[name] = parse_option(name, str(value))
            except ValueError as error:
                raise CannotRun(f"--{name.replace('_', '-')}: {str(value)!r} is not a valid number") from error
    try:
        LoaderOptions.from_keywords(given)
    except (ValueError, OSError) as error:
        raise CannotRun(str(error)) from error
    return {name: value for name, value in given.items() if value != DEFAULTS[name]}
