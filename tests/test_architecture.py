"""The architecture: which modules may import which, which code is pure, and that every wait is bounded."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from support import python

pytestmark = pytest.mark.static
SOURCE = Path(__file__).parents[1] / "src" / "unjam"
FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.parent.name != "programs"
)  # users' programs are none of ours


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


# lower number: lower floor; imports go to a lower floor or stay within one folder
FLOORS = {
    "units": -1,
    "deadlines": 0,
    "errors": 0,
    "statistics": 0,
    "stored": 0,
    "version": 0,
    "loader.engine": 0,
    "system": 1,
    "shared": 2,
    "loader.pool_spec": 1,
    "loader.options": 2,
    "loader.failures": 2,
    "loader.frameworks": 3,
    "loader.transport": 3,
    "loader.ship": 4,
    "loader.worker": 5,
    "loader.pool": 6,
    "loader.device": 6.5,
    "loader.cluster": 6.5,
    "loader.driver": 7,
    "loader.state": 7.5,
    "loader.checkpoint": 7.7,
    "loader.iterator": 8,
    "loader.dataloader": 9,
    "loader": 10,
    "doctor": 1,
    "doctor.facts": 4,
    "doctor.proof": 5,
    "doctor.explanation": 5.2,
    "doctor.queries": 5.3,
    "doctor.mechanisms": 5.5,
    "doctor.rules": 6,
    "doctor.ranking": 6.2,
    "doctor.judge": 6.5,
    "doctor.report": 7,
    "doctor.check": 1,
    "doctor.check.randomness": 7,
    "doctor.check.resource_usage": 8.5,
    "doctor.check.inventory": 8,
    "doctor.check.event_log": 8,
    "doctor.check.processes": 8,
    "doctor.check.recorded_dataset": 9,
    "doctor.check.cleanup_process": 9,
    "doctor.check.trial": 10,
    "doctor.check.target": 11,
    "doctor.check.command": 12,
    "doctor.replay": 12,
    "doctor.why": 11,
    "doctor.run": 13,
    "doctor.fix": 13,
    "doctor.tune": 14,
    "__init__": 15,
    "cli_parsing": 15,
    "cli": 16,
    "__main__": 17,
}
PURE = {"__future__", "dataclasses", "enum", "typing", "typing_extensions", "collections", "math", "unjam"}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def room(name: str) -> str:
    """The folder, or the file, that has a floor: the longest name that begins this one."""
    name = name.removesuffix(".__init__")
    parts = name.split(".")
    return next(".".join(parts[:n]) for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in FLOORS)


def imports(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from unjam.loader.failures import outlier` imports unjam.loader.failures.outlier
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (SOURCE.parent / (inner.replace(".", "/") + ".py")).exists() or (
                    SOURCE.parent / inner.replace(".", "/")
                ).is_dir()
                found.append(inner if node.module.startswith("unjam") and is_module else node.module)
    return found


def test_every_module_has_a_layer():
    assert {room(dotted(path)) for path in FILES} == set(FLOORS)


def test_imports_point_downward():
    wrong = []
    for path in FILES:
        here = room(dotted(path))
        for name in imports(tree_of(path)):
            there = room(name.removeprefix("unjam.")) if name.startswith("unjam.") else here
            # nothing imports its equal either: engine and errors know nothing of each other
            if there != here and FLOORS[there] >= FLOORS[here] and path.name != "__init__.py":
                wrong.append(f"{dotted(path)} imports {name}")
    assert not wrong


def test_the_engine_is_pure():
    files = sorted((SOURCE / "loader" / "engine").glob("*.py"))
    assert files
    for path in files:
        for name in imports(tree_of(path)):
            assert name.split(".")[0] in PURE, f"{path.name} imports {name}"
            if name.startswith("unjam."):  # `units` only formats numbers
                assert name.startswith(("unjam.loader.engine", "unjam.units")), f"{path.name} imports {name}"


def run(code: str) -> str:
    return python(["-c", code], warm=False, check=True).stdout


def test_importing_starts_nothing():
    out = run(
        "import os, sys, threading\n"
        "import unjam\n"
        "assert 'torch' not in sys.modules, 'import unjam imports torch'\n"
        "import torch.utils.data, torch.multiprocessing\n"
        "before = set(os.listdir('/proc/self/fd'))\n"
        "from unjam import DataLoader\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "children = open(f'/proc/self/task/{os.getpid()}/children').read()\n"
        "assert not children, children\n"
        "assert len(set(os.listdir('/proc/self/fd'))) <= len(before), os.listdir('/proc/self/fd')\n"
        "print('quiet')"
    )
    assert out == "quiet\n"


def test_a_healthy_loader_never_imports_the_doctor():
    out = run(
        "import sys\n"
        "from unjam import DataLoader\n"
        "list(DataLoader(range(8), num_workers=1))\n"
        "print([m for m in sys.modules if m.startswith('unjam.doctor')])"
    )
    assert out == "[]\n"


# -- no unbounded wait -------------------------------------------------------------------------------------------------

# method: the keyword or the position (from 0) that bounds it
BOUNDED = {
    "join": ("timeout", 0),
    "wait": ("timeout", 0),
    "acquire": ("timeout", 1),
    "result": ("timeout", 0),
    "communicate": ("timeout", 1),
    "poll": (None, 0),
    "get": (None, None),
    "select": ("timeout", 0),
    "waitpid": (None, 1),
}
FORBIDDEN = {"sleep": "waits for no reason", "input": "waits for a person", "recv": "may block", "accept": "may block"}


def unbounded_waits(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in FORBIDDEN:
            found.append(f"line {node.lineno}: {name} {FORBIDDEN[name]}")
        if name not in BOUNDED or not isinstance(node.func, ast.Attribute):
            continue
        keyword, position = BOUNDED[name]
        if name == "join" and (isinstance(node.func.value, ast.Constant | ast.JoinedStr) or _is_path(node)):
            continue  # str.join, os.path.join
        if name == "poll" and isinstance(node.func.value, ast.Name) and node.func.value.id == "select":
            continue  # makes a poll object
        if name == "poll" and "process" in ast.unparse(node.func.value):
            continue  # subprocess's poll does not wait
        if name == "get":
            if "queue" in ast.unparse(node.func.value).lower() and not node.keywords:
                found.append(f"line {node.lineno}: get of a queue without a timeout")
            continue
        if name == "waitpid":
            if "WNOHANG" not in ast.unparse(node):
                found.append(f"line {node.lineno}: waitpid without WNOHANG")
            continue
        if name == "acquire" and any(k.arg == "blocking" for k in node.keywords):
            continue
        bounded = any(k.arg == keyword for k in node.keywords) or len(node.args) > position
        if not bounded:
            found.append(f"line {node.lineno}: {name} without a bound")
    return found


def _is_path(node: ast.Call) -> bool:
    return "path" in ast.unparse(node.func)


def test_every_wait_is_bounded():
    found = {dotted(path): unbounded_waits(tree_of(path)) for path in FILES}
    assert {name: waits for name, waits in found.items() if waits} == {}


@pytest.mark.parametrize(
    "bad",
    [
        "thread.join()",
        "event.wait()",
        "lock.acquire()",
        "future.result()",
        "process.communicate()",
        "poller.poll()",
        "queue.get()",
        "selector.select()",
        "os.waitpid(pid, 0)",
        "time.sleep(1)",
        "sock.recv(1)",
    ],
)
def test_the_bounded_wait_check_detects_unbounded_waits(bad):
    assert unbounded_waits(ast.parse(bad))


def test_every_deadline_has_a_reason():
    from unjam import deadlines

    named = [v for v in vars(deadlines).values() if isinstance(v, deadlines.Deadline)]
    assert all(d.seconds > 0 and len(d.reason) > 20 for d in named)
    stopping = deadlines.FINISH_SAMPLE, deadlines.SIGTERM_GRACE, deadlines.SIGKILL_GRACE
    assert sum(d.seconds for d in stopping) < 2, "stopping may take two seconds"
