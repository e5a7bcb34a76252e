"""Python stacks as faulthandler writes them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from unjam.system.file_owner import HERE, is_ours

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) (?P<ident>0x[0-9a-f]+)(?: \[(?P<name>.*)\])? \(most recent call first\)"
)
MOST_FRAMES = 12


@dataclass(frozen=True, slots=True)
class Frame:
    """One call."""

    file: str
    line: int | None
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line or "?"}, in {self.function}'


@dataclass(frozen=True, slots=True)
class Stack:
    """One thread's calls, innermost first. `current`: whether the signal reached this thread."""

    frames: tuple[Frame, ...]
    current: bool = True

    def lines(self) -> list[str]:
        """As text: the innermost calls, and how many more there are."""
        shown = [str(frame) for frame in self.frames[:MOST_FRAMES]]
        if len(self.frames) > MOST_FRAMES:
            shown.append(f"… {len(self.frames) - MOST_FRAMES} more")
        return shown


def parse(text: str) -> list[Stack]:
    """The stacks of all threads in faulthandler's output."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        thread = _THREAD.match(line)
        if thread:
            threads.append((thread["current"] == "Current thread", []))
            continue
        frame = _FRAME.match(line)
        if frame and threads:
            number = None if frame["line"] == "???" else int(frame["line"])
            threads[-1][1].append(Frame(_readable(frame["file"]), number, frame["function"]))
    return [Stack(tuple(frames), current) for current, frames in threads]


def main_stack(text: str) -> Stack | None:
    """The stack of the thread that got the signal, else of the main thread, which comes last."""
    stacks = parse(text)
    return next((stack for stack in stacks if stack.current), stacks[-1] if stacks else None)


def user_part(stack: Stack) -> Stack:
    """The stack without unjam's own calls at the outer end."""
    frames = list(stack.frames)
    while frames and is_ours(frames[-1].file):
        frames.pop()
    fetching = os.path.join(HERE, "loader", "worker", "fetching.py")
    cut = next((at for at, frame in enumerate(frames) if frame.file == fetching), len(frames))
    return Stack(tuple(frames[:cut]) or stack.frames, stack.current)


def _readable(path: str) -> str:
    """The path of a file; faulthandler escapes non-ASCII characters."""
    decoded = path.encode("ascii", "backslashreplace").decode("unicode_escape", "replace")
    return decoded if decoded != path and "\0" not in decoded and os.path.exists(decoded) else path
