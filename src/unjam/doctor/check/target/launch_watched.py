"""Isolates file writes, then replaces this process by the watched program: `main([folder, program...])`."""

from __future__ import annotations

import json
import os

from unjam.doctor.check.target.observer import LEADER
from unjam.system.isolation.mounts import CannotIsolate
from unjam.system.isolation.program_files import ProgramFiles

EDITS, REFUSED = "edits", "refused"


def _write_edits(path: str) -> None:
    """Write edited files into the view: the program uses them, and the originals do not change."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            edited: dict[str, str] = json.load(file)
        for name, text in edited.items():
            with open(name, "w", encoding="utf-8", newline="") as file:
                file.write(text)


def main(arguments: list[str]) -> None:
    """Protect the user's files, and replace this process by the program."""
    folder, *command = arguments
    files = ProgramFiles.load(folder)
    try:
        files.enter()
        _write_edits(f"{folder}/{EDITS}")
    except (CannotIsolate, OSError) as error:
        with open(f"{folder}/{REFUSED}", "w", encoding="utf-8") as file:
            file.write(str(error))
        os._exit(3)
    files.save()
    with open(f"{folder}/{LEADER}", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))  # exec keeps it
    os.execv(command[0], command)  # noqa: S606 - the user's program
