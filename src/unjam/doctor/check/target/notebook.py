"""Runs the code cells of a notebook in one namespace: `main([path])`."""

from __future__ import annotations

import json
import linecache
import os
import sys
import types
from typing import Any


def main(arguments: list[str]) -> None:
    """Run the notebook."""
    run_notebook(arguments[0])


def main_module(**values: Any) -> types.ModuleType:
    """A new `__main__` with these names."""
    module = types.ModuleType("__main__")
    vars(module).update(values, __builtins__=__builtins__)
    sys.modules["__main__"] = module
    return module


def run_notebook(path: str) -> None:
    """Run a notebook's code cells in one namespace, which no other process can import."""
    cells = _code_cells(path)
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    space = vars(main_module(__spec__=None))
    for number, text in enumerate(cells, 1):
        lines = ["pass" if line.lstrip().startswith(("%", "!")) else line for line in text.splitlines()]
        name = f"<{os.path.basename(path)} cell {number}>".replace("<", "").replace(">", "")
        source = "\n".join(lines) + "\n"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), space)  # noqa: S102 - as above


def _code_cells(path: str) -> list[str]:
    """The texts of the code cells; ends the program, in words, if the file is no notebook."""
    try:
        with open(path, encoding="utf-8") as file:
            cells = json.load(file)["cells"]
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except OSError as error:
        problem = error.strerror
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"it is no notebook: {type(error).__name__}: {error}"
    sys.exit(f"{path} cannot be read: {problem}")
