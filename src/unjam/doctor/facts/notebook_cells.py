"""The code cells of a notebook, by the names that its lines have in messages."""

from __future__ import annotations

import json
import linecache
import os


def code_cells(path: str) -> list[tuple[str, str]]:
    """Name and text of each code cell, with what only IPython understands replaced.

    OSError, or ValueError with the reason, if the file is no notebook.
    """
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)["cells"]
        cells = ["".join(cell["source"]) for cell in told if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is no notebook: {type(error).__name__}: {error}") from error
    found = []
    for number, text in enumerate(cells, 1):
        lines = ["pass" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines()]
        name = f"{os.path.basename(path)} cell {number}".replace("<", "").replace(">", "")
        found.append((name, "\n".join(lines) + "\n"))
    return found


def remember(path: str) -> list[tuple[str, str]]:
    """Make the cells' lines known to this process, as those of files are; return the cells."""
    cells = code_cells(path)
    for name, text in cells:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return cells
