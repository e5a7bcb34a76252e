"""An exception in one line, without torch's wrapping.

torch raises a worker's exception again in the main process. Its message is then the worker's whole
traceback, with "Caught ... in DataLoader worker process 0." before it.
"""

from __future__ import annotations


def exception_line(type_name: str, message: str) -> str:
    """Return "TypeError: its message", of several lines the first one."""
    first = first_line(message)
    return f"{type_name}: {first}" if first else type_name


def first_line(message: str) -> str:
    """Return the first line of a message; of a worker's exception, the first line of the worker's own message."""
    lines = message.strip().splitlines() or [""]
    if not lines[0].startswith("Caught "):
        return lines[0].strip()
    traces = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    own = lines[traces[-1] + 1 :] if traces else lines[1:]
    # the lines of a traceback are indented; the first that is not has the type and the message
    said = next((line.strip() for line in own if line.strip() and not line[0].isspace()), "")
    return said.partition(": ")[2] or said or lines[0].strip()
