"""Python stacks of any process, by py-spy, which reads its memory and does not stop it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unjam.deadlines import PY_SPY
from unjam.system.stacks import Frame

MOST_BYTES = 64 << 20


class CannotReadStacks(Exception):
    """Python stacks of a process cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class PythonThread:
    """A thread's Python calls, innermost first, with the variables of each call as text."""

    tid: int
    name: str
    frames: tuple[Frame, ...]
    values: tuple[Mapping[str, str], ...] = field(default=())
    arguments: tuple[Mapping[str, str], ...] = field(default=())


def py_spy() -> str | None:
    """The path of py-spy: beside this interpreter, or on the search path."""
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


def stacks(pid: int, *, values: bool = True) -> list[PythonThread]:
    """Every Python thread of a process."""
    found = py_spy()
    if found is None:
        raise CannotReadStacks("py-spy is not installed: pip install py-spy")
    command = [found, "dump", "--nonblocking", "--json", "--pid", str(pid), *(["--locals"] if values else [])]
    problem = ""
    for _ in range(2):  # the process keeps running, so its state can be inconsistent for a moment
        try:
            # into a file: a malicious program can have endless stacks
            with tempfile.TemporaryFile() as output:
                done = subprocess.run(
                    command,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    timeout=PY_SPY.seconds,
                    check=False,
                    stdin=subprocess.DEVNULL,
                )
                output.seek(0)
                answer = output.read(MOST_BYTES + 1)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotReadStacks(str(error)) from error
        if done.returncode == 0:
            try:
                return parse(answer)
            except (ValueError, RecursionError) as error:
                problem = f"py-spy's answer cannot be read: {error}"
                continue
        problem = done.stderr.decode("utf-8", "replace").strip()
        if "ermission" in problem:
            break
    raise CannotReadStacks(problem.splitlines()[0] if problem else f"py-spy ended with {done.returncode}")


def parse(answer: bytes) -> list[PythonThread]:
    """Threads from py-spy's JSON; ValueError for anything else."""
    if len(answer) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        return [_thread(entry) for entry in json.loads(answer)]
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _thread(entry: dict[str, Any]) -> PythonThread:
    frames, values, arguments = [], [], []
    for one in entry.get("frames") or []:
        name = str(one["name"]).rpartition(".")[2]
        frames.append(Frame(str(one["filename"]), int(one["line"]) or None, name))
        known = [local for local in one.get("locals") or [] if local.get("repr")]
        arguments.append({str(local["name"]): str(local["repr"]) for local in known if local.get("arg")})
        values.append({str(local["name"]): str(local["repr"]) for local in known})
    return PythonThread(
        int(entry.get("os_thread_id") or 0),
        str(entry.get("thread_name") or ""),
        tuple(frames),
        tuple(values),
        tuple(arguments),
    )
