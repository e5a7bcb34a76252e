"""Finds lines in source files: of a class, a function, a call, or an assignment."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator

from unjam.doctor.facts.source import caught_names, enclosing, is_in_loop, nodes
from unjam.doctor.facts.trial import Place


def class_line(file: str, name: str) -> Place | None:
    """The line of a file where a class of this name begins."""
    return next((Place(file, node.lineno) for node in nodes(file, ast.ClassDef) if node.name == name), None)


def method_line(file: str, name: str, method: str) -> Place | None:
    """The line of a method of the class of this name in a file."""
    for node in nodes(file, ast.ClassDef):
        if node.name == name:
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == method:
                    return Place(file, inner.lineno)
    return None


def function_line(file: str, name: str) -> Place | None:
    """The line of a function of this name, in a file or a module of the same folder."""
    for node in nodes(file, ast.FunctionDef):
        if node.name == name:
            return Place(file, node.lineno)
    for statement in nodes(file, ast.ImportFrom):
        imported = next((one.name for one in statement.names if (one.asname or one.name) == name), None)
        other = os.path.join(os.path.dirname(file), *(statement.module or "").split(".")[-1:]) + ".py"
        if imported is not None and other != file and os.path.isfile(other):
            return function_line(other, imported)
    return None


def function_at(place: Place | None) -> str:
    """The name of the function around a line; "" at the top of a file."""
    around = enclosing(place.file, place.line) if place is not None else []
    return next(
        (node.name for node in reversed(around) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))), ""
    )


def handlers_of(file: str, name: str) -> Iterator[Place]:
    """Where a file catches an exception by this name."""
    yield from (Place(file, node.lineno) for node in nodes(file, ast.ExceptHandler) if name in caught_names(node))


def attribute_line(home: Place | None, name: str) -> Place | None:
    """The first line of a class's file that sets an attribute of this name."""
    return min(stored(home.file, name), key=lambda place: place.line, default=None) if home is not None else None


def attribute_calls(file: str, names: tuple[str, ...]) -> Iterator[Place]:
    """The lines of a file that call a function or method with one of these names, loops first."""
    found = [
        Place(file, node.lineno)
        for node in nodes(file, ast.Call)
        if (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in names
    ]
    yield from sorted(found, key=lambda place: not is_in_loop(place.file, place.line))


def stored(file: str, name: str) -> Iterator[Place]:
    """The lines of a file that set a variable, attribute or item of this name, those in loops first."""
    found = []
    for node in nodes(file, ast.Assign, ast.AugAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            last = target.slice if isinstance(target, ast.Subscript) else target
            said = getattr(last, "attr", None) or getattr(last, "id", None) or getattr(last, "value", None)
            if said == name.strip("[]'\""):
                found.append(Place(file, target.lineno))
    yield from sorted(found, key=lambda place: (not is_in_loop(place.file, place.line), -place.line))


def sets_through(file: str, link: str) -> Iterator[tuple[Place, str, str]]:
    """Assignments such as `part.dataset.scale = 1`: (place, text of the target, last name)."""
    for node in nodes(file, ast.Assign):
        for target in node.targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Attribute)
                and target.value.attr == link
            ):
                yield Place(file, target.lineno), ast.unparse(target), target.attr


def share_taken_at(home: Place | None, name: str) -> Place | None:
    """The line at which a class of this name, or code near it, selects every n-th item."""
    if home is None:
        return None
    found = []
    for node in nodes(home.file, ast.AST):
        tests = [node.test] if isinstance(node, (ast.If, ast.IfExp)) else getattr(node, "ifs", [])
        if any(isinstance(part, ast.Mod) for one in tests for part in ast.walk(one)):
            found.append(tests[0].lineno)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "islice":
            found.append(node.lineno)
        elif isinstance(node, ast.Slice) and not isinstance(node.step, (ast.Constant, ast.UnaryOp, type(None))):
            found.append(node.lineno)  # items[worker::workers]
    after = sorted(found, key=lambda line: (line < home.line, line))
    return Place(home.file, after[0]) if after else method_line(home.file, name, "__iter__")


def called_on_attribute(files: Iterable[str], name: str, methods: tuple[str, ...]) -> Place | None:
    """The first line that calls one of these methods on a variable or attribute of this name, or enters it by `with`."""
    for file in files:
        found = []
        for node in nodes(file, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in methods:
                owner = node.func.value
                if name in (getattr(owner, "attr", None), getattr(owner, "id", None)):
                    found.append(node.lineno)
        if found:
            return Place(file, min(found))
    return None


def filled_at(files: Iterable[str], name: str) -> Place | None:
    """The first line that puts something into a container of this name, or sets it."""
    for file in files:
        found = next(_fills(file, name), None)
        if found is not None:
            return found
    return None


_FILLS = ("append", "add", "setdefault", "update", "extend", "insert")


def _fills(file: str, name: str) -> Iterator[Place]:
    for node in nodes(file, ast.Assign, ast.Call):
        owner: ast.expr | None = None
        if isinstance(node, ast.Assign):
            owner = next((one.value for one in node.targets if isinstance(one, ast.Subscript)), None)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
            owner = node.func.value
        if owner is not None and name in (getattr(owner, "attr", None), getattr(owner, "id", None)):
            yield Place(file, node.lineno)
    yield from stored(file, name)
