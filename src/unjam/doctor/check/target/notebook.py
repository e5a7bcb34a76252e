"""Runs the code cells of a notebook in one namespace: `main([path])`."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

from unjam.doctor.facts.notebook_cells import remember


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
    try:
        cells = remember(path)
    except OSError as error:
        sys.exit(f"{path} cannot be read: {error.strerror}")
    except ValueError as error:
        sys.exit(f"{path} cannot be read: {error}")
    sys.argv = [path]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    space = vars(main_module(__spec__=None))
    for name, source in cells:
        exec(compile(source, name, "exec"), space)  # noqa: S102 - a notebook's cells are there to be run
