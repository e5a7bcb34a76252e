"""The code cells of a notebook, with the names that they have in messages."""

from __future__ import annotations

import json
import linecache
import os


def code_cells(path: str) -> list[tuple[str, str]]:
    """Name and text of each code cell, with lines that only IPython understands replaced.

    Raises OSError, or ValueError if the file is not a notebook.
    """
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)["cells"]
        cells = ["".join(cell["source"]) for cell in stored if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"it is not a notebook: {type(error).__name__}: {error}") from error
    found = []
    for number, text in enumerate(cells, 1):
        lines = ["pass" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines()]
        name = f"{os.path.basename(path)} cell {number}".replace("<", "").replace(">", "")
        found.append((name, "\n".join(lines) + "\n"))
    return found


def remember(path: str) -> list[tuple[str, str]]:
    """Add the cells to linecache, so that messages can quote their lines; return the cells."""
    cells = code_cells(path)
    for name, text in cells:
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    return cells
