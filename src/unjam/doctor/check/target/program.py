"""Runs the program under examination, in a new interpreter.

Arguments of `main`: two descriptors of connections to the doctor, the folder of the program's files,
kind, target, program arguments.
The first entry of `sys.path` is the same as without unjam: the folder of the script, or the current
folder for `-m`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from unjam.doctor.check.target.capture_agent import CaptureAgent
from unjam.doctor.check.target.notebook import main_module, run_notebook
from unjam.system.isolation.program_files import ProgramFiles


def main(arguments: list[str]) -> None:
    """Run the target that the arguments name."""
    control, twins, folder, kind, target, *rest = arguments
    for fd in (control, twins):
        os.set_inheritable(int(fd), False)  # noqa: FBT003 - its signature
    agent = CaptureAgent(Connection(int(control)), Connection(int(twins)), ProgramFiles.load(folder))
    if kind == "script":
        agent.run(lambda: run_script(target, rest))
    elif kind == "notebook":
        agent.run(lambda: run_notebook(target))
    elif kind == "module":
        agent.run(lambda: run_module(target, rest))
    else:
        agent.run(lambda: examine_object(agent, target))


def run_script(path: str, arguments: list[str]) -> None:
    """Run a script like `python path arguments`."""
    sys.argv = [path, *arguments]
    full = os.path.abspath(path)
    sys.path.insert(0, os.path.dirname(full))
    with open(full, "rb") as file:
        code = compile(file.read(), full, "exec")
    exec(code, vars(main_module(__file__=full, __spec__=None)))  # noqa: S102 - the user's program


def run_module(name: str, arguments: list[str]) -> None:
    """Run a module like `python -m name arguments`."""
    sys.path.insert(0, os.getcwd())
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None or spec.loader is None:
        raise SystemExit(f"there is no module {name}")
    sys.argv = [spec.origin, *arguments]
    code = spec.loader.get_code(spec.name)  # type: ignore[attr-defined]  # source loaders have it
    exec(code, vars(main_module(__file__=spec.origin, __spec__=spec, __package__=spec.parent)))  # noqa: S102


def examine_object(agent: CaptureAgent, target: str) -> None:
    """Examine `package.module:thing`.

    It is a DataLoader, a Dataset, or a function that returns one or several of them.
    """
    found = find_object(target)
    loaders = [_as_loader(one) for one in _loaders_in(found)]
    if not loaders:
        raise SystemExit(f"{target} is a {type(found).__name__}: neither a DataLoader nor a Dataset")
    agent.examine(loaders)


def find_object(target: str) -> Any:
    """Return what `package.module:thing` or `file.py:thing` names; of a function, what it returns."""
    module_name, _, name = target.partition(":")
    import_folder = os.path.dirname(os.path.abspath(module_name)) if module_name.endswith(".py") else os.getcwd()
    sys.path.insert(0, import_folder)
    if module_name.endswith(".py"):
        module_name = os.path.basename(module_name).removesuffix(".py")
    found: Any = importlib.import_module(module_name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise SystemExit(f"{module_name} has no {name}")
        found = getattr(found, part)
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415 - takes seconds

    if not isinstance(found, (DataLoader, Dataset)) and callable(found):
        needed = [
            p.name
            for p in inspect.signature(found).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        if needed:
            raise SystemExit(
                f"{target} needs arguments ({', '.join(needed)}); give a function without any that calls it"
            )
        found = found()
    return found


def _loaders_in(found: Any) -> list[Any]:
    from torch.utils.data import DataLoader, Dataset  # noqa: PLC0415 - as above

    if isinstance(found, (DataLoader, Dataset)):
        return [found]
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        return [one for one in found if isinstance(one, (DataLoader, Dataset))]
    return [found] if hasattr(found, "__getitem__") and hasattr(found, "__len__") else []


def _as_loader(found: Any) -> Any:
    from torch.utils.data import DataLoader  # noqa: PLC0415 - as above

    return found if isinstance(found, DataLoader) else DataLoader(found, batch_size=8, num_workers=2)
