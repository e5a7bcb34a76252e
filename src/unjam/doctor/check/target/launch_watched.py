"""Becomes the program to be watched: `main([folder, "view" or "", program...])`.

With "view", what the program writes does not last. The interpreter of the program is a new one.
"""

from __future__ import annotations

import json
import os

from unjam.doctor.check.target.observer import LEADER, VIEW
from unjam.system import copy_on_write

EDITS = "edits"


def _write_edits(path: str) -> None:
    """Write edited files into the view: the program runs with them, the originals stay."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            edited: dict[str, str] = json.load(file)
        for name, text in edited.items():
            with open(name, "w", encoding="utf-8", newline="") as file:
                file.write(text)


def main(arguments: list[str]) -> None:
    """Enter the view if one is wanted, and replace this process by the program."""
    folder, wanted, *command = arguments
    if wanted == VIEW:
        try:
            copy_on_write.enter(folder, "program")
        except (copy_on_write.CannotIsolate, OSError) as error:
            with open(f"{folder}/refused", "w", encoding="utf-8") as file:
                file.write(str(error))
            os._exit(3)
        with open(f"{folder}/{VIEW}", "w", encoding="ascii"):
            pass
        _write_edits(f"{folder}/{EDITS}")
    with open(f"{folder}/{LEADER}", "w", encoding="ascii") as file:
        file.write(str(os.getpid()))  # exec keeps it
    os.execv(command[0], command)  # noqa: S606 - the user's program
