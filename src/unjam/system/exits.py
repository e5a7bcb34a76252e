"""How a process ended, as text."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exit:
    """An exit status. `signal`: the name of the signal that ended the process, or None."""

    signal: str | None
    words: str


def decode(code: int | None) -> Exit:
    """Decode an exit status of `multiprocessing`: negative: a signal; None: it does not end."""
    if code is None:
        return Exit(None, "cannot be killed: it is blocked in the kernel")
    if code >= 0:
        return Exit(None, f"exited with status {code} before its work was done")
    try:
        name = signal.Signals(-code).name
        text = f"{signal.strsignal(-code)} ({name})"
    except ValueError:
        name = text = f"signal {-code}"
    return Exit(name, f"is killed by signal: {text}")


def short(code: int | None) -> str:
    """How a process ended, for parentheses: "SIGKILL", "exit code 3"."""
    return "it still runs" if code is None else decode(code).signal or f"exit code {code}"
