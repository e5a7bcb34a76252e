"""Measures a training step: runs the program for some batches on its own loader, then stops it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from unjam.doctor.run.launch import CannotRun, words
from unjam.doctor.run.settings import Settings, with_folder
from unjam.loader.engine.deadlines import ASK_AGAIN

# seconds after which a program that has not finished its batches is killed
MOST = 600.0


def measure_step(program: list[str], module: str, steps: int, tick: Callable[[], None]) -> tuple[float, int]:
    """Return the median seconds of a step, and the number of batches."""
    command = [sys.executable, *words(program, module)]
    settings = with_folder(
        Settings(observe=True, quiet=True, leader=os.getpid(), began=time.time(), stop_after=steps + 1)
    )
    settings = dataclasses.replace(settings, json=os.path.join(settings.folder, "step.json"))
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
        _wait_for_exit(process, tick)
        return _read(settings.json, output, process.returncode)
    finally:
        shutil.rmtree(settings.folder, ignore_errors=True)


def _wait_for_exit(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> None:
    until = time.monotonic() + MOST
    try:
        while time.monotonic() < until:
            tick()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(ASK_AGAIN.seconds / 4)
                return
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # and all processes that it left behind
        process.wait(ASK_AGAIN.seconds)


def _read(path: str, output: str, code: int | None) -> tuple[float, int]:
    folder, name = os.path.split(path)
    # each rank writes its own file; we use the first
    found = sorted(
        one for one in os.listdir(folder) if one.startswith(name.partition(".")[0]) and one.endswith(".json")
    )
    if not found:
        with open(output, encoding="utf-8", errors="replace") as file:
            said = file.read()[-2000:]
        raise CannotRun(f"the program ended (exit code {code}) before it took a batch\n{said}")
    with open(os.path.join(folder, found[0]), encoding="utf-8") as file:
        loaders = json.load(file)["loaders"]
    known = [(one["step"], one["batches"]) for one in loaders if one.get("step")]
    if not known:
        raise CannotRun("the program took too few batches to tell how long a step takes")
    step, batches = max(known, key=lambda pair: pair[1])
    return float(step), int(batches)
