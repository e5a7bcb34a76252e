"""Runs a program for some batches, then stops it, and returns what `unjam run --json` would say."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from unjam.deadlines import DOCTOR_ALIVE
from unjam.doctor.run.launch import CannotRun, words
from unjam.doctor.run.settings import Settings, remove_folder, with_folder
from unjam.system import exits

# seconds after which a program that has not finished its batches is killed
MOST = 600.0


def short_run(
    target: str, arguments: list[str], settings: Settings, tick: Callable[[], None], most: float = MOST, *, module: bool
) -> dict[str, Any]:
    """Return the summary of a process of the program that used a loader: the first rank's, if there are several."""
    command = [sys.executable, *(words(arguments, target) if module else words([target, *arguments], ""))]
    settings = with_folder(dataclasses.replace(settings, quiet=True, leader=os.getpid(), began=time.time()))
    settings = dataclasses.replace(settings, json=os.path.join(settings.folder, "run.json"))
    output = os.path.join(settings.folder, "output")
    try:
        with open(output, "wb") as file:
            process = subprocess.Popen(
                command,
                env={**os.environ, **settings.environment()},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _wait_for_exit(process, tick, most)
        return _read(settings.json, output, process.returncode)
    finally:
        remove_folder(settings)


def _wait_for_exit(process: subprocess.Popen[bytes], tick: Callable[[], None], most: float) -> None:
    until = time.monotonic() + most
    try:
        while time.monotonic() < until:
            tick()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DOCTOR_ALIVE.seconds / 4)
                return
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # and all processes that it left behind
        process.wait(DOCTOR_ALIVE.seconds)


def _read(path: str, output: str, code: int | None) -> dict[str, Any]:
    folder, name = os.path.split(path)
    # each rank writes its own file; we use the first
    found = sorted(
        one for one in os.listdir(folder) if one.startswith(name.partition(".")[0]) and one.endswith(".json")
    )
    with open(output, encoding="utf-8", errors="replace") as file:
        said = file.read()[-4000:]
    if not found:
        raise CannotRun(f"the program ended ({exits.short(code)}) before it requested a batch\n{said}")
    with open(os.path.join(folder, found[0]), encoding="utf-8") as file:
        known: dict[str, Any] = json.load(file)
    return {**known, "output": said}
