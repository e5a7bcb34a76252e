"""Reads source code without running it.

Finds where an attribute is set, which exceptions are swallowed, and how a program uses its loader.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any, TypeVar, overload

from unjam.doctor.facts.trial import Place

_BROAD = {"Exception", "BaseException"}
# usually caught for control flow, not to hide a bad sample
_NARROW = {
    "KeyError", "IndexError", "LookupError", "AttributeError", "StopIteration", "ImportError", "ModuleNotFoundError",
    "NotImplementedError", "KeyboardInterrupt", "EOFError", "Empty", "Full", "TimeoutExpired",
}  # fmt: skip


@functools.cache
def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file, or None if it cannot be read or parsed."""
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        # the parser can run out of memory or stack on extreme source
        return None


_Node = TypeVar("_Node", bound=ast.AST)
_Other = TypeVar("_Other", bound=ast.AST)


@overload
def nodes(file: str, kind: type[_Node], /) -> Iterator[_Node]: ...


@overload
def nodes(file: str, kind: type[_Node], other: type[_Other], /) -> Iterator[_Node | _Other]: ...


def nodes(file: str, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of these kinds in a file; none if it cannot be read or parsed."""
    tree = tree_of(file) if file else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, kinds):
            yield node


def variables(node: ast.AST) -> set[str]:
    """Return the names of the variables in an expression or statement."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def line_of(place: Place | None) -> str:
    """Return the text of a line."""
    return linecache.getline(place.file, place.line).strip() if place else ""


def quoted(place: Place | None) -> str:
    """Format a place with the text of its line."""
    text = line_of(place)
    return f"{place}: {text}" if place and text else str(place) if place else ""


def per_worker_change(line: str) -> str:
    """Return a diff that makes every worker open its own handle.

    It is empty unless the line is one assignment from a call.
    """
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return ""
    call = statement.value
    target = ast.unparse(statement.targets[0])
    given = [ast.unparse(call.func), *map(ast.unparse, call.args)]
    given += [f"{k.arg}={ast.unparse(k.value)}" if k.arg else f"**{ast.unparse(k.value)}" for k in call.keywords]
    return f"-    {line}\n+    {target} = unjam.per_worker({', '.join(given)})"


# -- where a name is set ---------------------------------------------------------------------------


def where_set(owner: Any, name: Any) -> Place | None:
    """Return the line that set a name: `self.x = …` in a class, `x = …` in a module."""
    try:
        if isinstance(owner, dict) and "__name__" in owner and "__builtins__" in owner:
            return _in_module(owner.get("__file__") or _any_file(owner), str(name))
        if isinstance(owner, types.FunctionType):  # a variable of the enclosing function
            return _in_module(owner.__code__.co_filename, str(name))
        if isinstance(owner, (dict, list, tuple)) or owner is None:
            return None
        kind = owner if isinstance(owner, type) else type(owner)
        return attribute_set(kind, str(name))
    except Exception:  # noqa: BLE001 - the source is optional
        return None


def _any_file(space: dict[str, Any]) -> str:
    for value in space.values():
        if isinstance(value, types.FunctionType) and value.__globals__ is space:
            return value.__code__.co_filename
    return ""


def attribute_set(kind: type, name: str) -> Place | None:
    """Return the line in a class or a base class that sets an attribute."""
    for base in kind.__mro__:
        for file, node in _class_nodes(base):
            best: tuple[bool, int] | None = None
            for inner in ast.walk(node):
                if not isinstance(inner, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                    continue
                for target in inner.targets if isinstance(inner, ast.Assign) else [inner.target]:
                    for part in ast.walk(target):
                        named = (isinstance(part, ast.Attribute) and part.attr == name) or (
                            isinstance(part, ast.Name) and part.id == name and inner in node.body
                        )
                        here = (_is_none(inner.value), inner.lineno)
                        if named and (best is None or here < best):
                            best = here
            if best is not None:
                return Place(file, best[1])
    return None


def _is_none(value: ast.expr | None) -> bool:
    """Whether a value is None: an attribute set to None is often given its real value later."""
    return isinstance(value, ast.Constant) and value.value is None


def class_place(kind: type) -> Place | None:
    """Return the line where a class begins."""
    return next((Place(file, node.lineno) for file, node in _class_nodes(kind)), None)


def _class_nodes(kind: type) -> Iterator[tuple[str, ast.ClassDef]]:
    file = file_of(kind)
    yield from ((file, node) for node in nodes(file, ast.ClassDef) if node.name == kind.__name__)


def file_of(kind: type) -> str:
    """Return the file of a class, from its methods: a notebook's class has no source file."""
    for value in vars(kind).values():
        function = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            return function.__code__.co_filename
    try:
        return inspect.getsourcefile(kind) or ""
    except (TypeError, OSError):
        module = sys.modules.get(kind.__module__)
        return getattr(module, "__file__", "") or ""


def _in_module(file: str, name: str) -> Place | None:
    for node in nodes(file, ast.Assign, ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(name in variables(target) for target in targets):
            return Place(file, node.lineno)
    return None


# -- swallowed exceptions --------------------------------------------------------------------------


def swallowing(function: types.FunctionType) -> Iterator[tuple[Place, tuple[int, int], str, str]]:
    """Yield (place, lines of the try, what it catches, what it does) for handlers that hide failures."""
    file = function.__code__.co_filename
    node = _function_node(file, function.__code__)
    if node is None:
        return
    given = {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Try):
            continue
        lines = (inner.body[0].lineno, inner.body[-1].end_lineno or inner.body[-1].lineno)
        for handler in inner.handlers:
            caught = caught_names(handler)
            if caught and set(caught) <= _NARROW:
                continue
            done = _what_it_does(handler, function.__name__, given, broad=not caught or bool(set(caught) & _BROAD))
            if done:
                yield Place(file, handler.lineno), lines, " or ".join(caught) or "everything", done


def _function_node(file: str, code: types.CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for node in nodes(file, ast.FunctionDef, ast.AsyncFunctionDef):
        if node.name == code.co_name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= code.co_firstlineno <= node.lineno:
                return node
    return None


def caught_names(handler: ast.ExceptHandler) -> list[str]:
    """Return the names of the exceptions that a handler catches; none for a bare `except:`."""
    if handler.type is None:
        return []
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [ast.unparse(kind).rpartition(".")[2] for kind in kinds]


def keeps_record(place: Place) -> bool:
    """Whether the handler at a line passes the exception on to something: a list, a log, a counter by kind."""
    for node in nodes(place.file, ast.ExceptHandler):
        if node.lineno == place.line and node.name:
            return any(node.name in variables(line) for line in node.body)
    return False


def _what_it_does(handler: ast.ExceptHandler, function: str, given: set[str], *, broad: bool) -> str:
    if any(isinstance(node, ast.Raise) for node in ast.walk(handler)):
        return ""
    for node in ast.walk(handler):
        if isinstance(node, ast.Return):
            if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
                return "returns None"
            text = ast.unparse(node.value)
            if "self[" in text or f"{function}(" in text:
                return "returns another sample"
            if not _depends(node.value, given):
                return "returns a default"
            return ""
    last = handler.body[-1]
    if isinstance(last, ast.Continue):
        return "continues with the next"
    if isinstance(last, ast.Assign) and not _depends(last.value, given):
        return "uses a default instead"
    only_says = all(isinstance(node, (ast.Pass, ast.Expr)) for node in handler.body)
    return "continues as if nothing had happened" if only_says and broad else ""


def _depends(value: ast.expr, given: set[str]) -> bool:
    """Whether an expression uses an argument of the function other than self."""
    return bool(variables(value) & (given - {"self"}))


# -- how a program uses its loader -----------------------------------------------------------------


def enclosing(file: str, line: int) -> list[ast.stmt]:
    """Return the statements around a line, outermost first."""
    found = [node for node in nodes(file, ast.stmt) if node.lineno <= line <= (node.end_lineno or node.lineno)]
    return sorted(found, key=lambda node: (node.lineno, -(node.end_lineno or 0)))


def is_guarded(file: str, line: int) -> bool:
    """Whether a line is inside `if __name__ == "__main__":`."""
    return any(
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) and "__main__" in ast.unparse(node.test)
        for node in enclosing(file, line)
    )


def is_in_loop(file: str, line: int) -> bool:
    """Whether a line is in the body of a loop of its own function."""
    for node in reversed(enclosing(file, line)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if isinstance(node, ast.While) or (isinstance(node, ast.For) and line > (node.iter.end_lineno or node.lineno)):
            return True
    return False


def rounds(file: str, line: int) -> ast.expr | None:
    """Return the number of iterations of the loop around a line, such as n in `range(n)`; None if unknown."""
    for node in reversed(enclosing(file, line)):
        if isinstance(node, ast.For) and line > (node.iter.end_lineno or node.lineno):
            call = node.iter
            names = ("range", "trange", "tqdm.trange")
            if isinstance(call, ast.Call) and ast.unparse(call.func) in names and call.args:
                return _length(call.args)
    return None


def _length(arguments: list[ast.expr]) -> ast.expr | None:
    """The length of a range: its end, minus its start if both are constants."""
    if len(arguments) == 1:
        return arguments[0]
    ends = [one.value for one in arguments if isinstance(one, ast.Constant) and isinstance(one.value, int)]
    if len(arguments) == len(ends) == 2:
        return ast.Constant(max(0, ends[1] - ends[0]))
    return None


def remade(place: Place) -> bool:
    """Whether a line creates an iterator for one batch only: next(iter(loader))."""
    for node in enclosing(place.file, place.line)[-1:]:
        # of a loop, only its header is at this line
        for inner in ast.walk(node.iter if isinstance(node, ast.For) else node):
            if isinstance(inner, ast.Call) and ast.unparse(inner.func) == "next" and inner.args:
                first = inner.args[0]
                if isinstance(first, ast.Call) and ast.unparse(first.func) == "iter":
                    return True
    return False


def kept(place: Place) -> tuple[Place, str] | None:
    """Return the line that stores whole batches, and the name of the variable that holds them."""
    around = enclosing(place.file, place.line)
    loops = [one for one in around if isinstance(one, ast.For)]
    loops = [one for one in loops if one.iter.lineno <= place.line <= (one.iter.end_lineno or 0)]
    if not loops:
        return _kept_at_once(around[-1], place) if around else None
    names = _batch_variables(loops[-1])
    for node in [inner for statement in loops[-1].body for inner in ast.walk(statement)]:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("append", "extend", "add")
        ):
            if node.args and _is_batch(node.args[0], names):
                return Place(place.file, node.lineno), ast.unparse(node.func.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, (ast.List, ast.Tuple)):
            if any(_is_batch(one, names) for one in node.value.elts):
                return Place(place.file, node.lineno), ast.unparse(node.target)
        elif (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript) and _is_batch(node.value, names)
        ):
            return Place(place.file, node.lineno), ast.unparse(node.targets[0].value)
    return None


def _batch_variables(loop: ast.For) -> set[str]:
    """The variables that a loop over a loader sets, without the number that enumerate() counts."""
    names = variables(loop.target)
    counted = isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "enumerate"
    return names - variables(loop.target.elts[0]) if counted and isinstance(loop.target, ast.Tuple) else names


def _kept_at_once(statement: ast.AST, place: Place) -> tuple[Place, str] | None:
    if not isinstance(statement, ast.Assign):
        return None
    value, name = statement.value, ast.unparse(statement.targets[0])
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("list", "tuple", "sorted"):
        return Place(place.file, statement.lineno), name
    if isinstance(value, ast.ListComp):
        names = {name for generator in value.generators for name in variables(generator.target)}
        if _is_batch(value.elt, names):
            return Place(place.file, statement.lineno), name
    return None


def _is_batch(value: ast.expr, names: set[str]) -> bool:
    """Whether an expression is the batch or a part of it, not a value computed from it."""
    if isinstance(value, ast.Name):
        return value.id in names
    if isinstance(value, ast.Subscript):
        return _is_batch(value.value, names)
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_is_batch(one, names) for one in value.elts)
    return False


def calls(file: str, method: str) -> bool:
    """Whether a file calls a method of this name on anything."""
    return any(isinstance(node.func, ast.Attribute) and node.func.attr == method for node in nodes(file, ast.Call))


def uses_of(file: str, names: set[str]) -> tuple[dict[str, Place], dict[str, Place]]:
    """Return which attributes of the objects `names` a file reads, and which it sets in a loop."""
    reads: dict[str, Place] = {}
    writes: dict[str, Place] = {}
    inside = {id(inner) for loop in nodes(file, ast.For, ast.While) for inner in ast.walk(loop)}
    for node in nodes(file, ast.Attribute):
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Attribute) and id(node) in inside:
            inner = node.value  # dataset.cursor.value = 0 changes dataset.cursor
            if ast.unparse(inner.value) in names:
                writes.setdefault(inner.attr, Place(file, node.lineno))
        if ast.unparse(node.value) not in names:
            continue
        if isinstance(node.ctx, ast.Load):
            reads.setdefault(node.attr, Place(file, node.lineno))
        elif id(node) in inside:
            writes.setdefault(node.attr, Place(file, node.lineno))
    return reads, writes


def cycles(file: str, names: list[str]) -> Iterator[Place]:
    """Where a file gives one of these names to itertools.cycle."""
    for node in nodes(file, ast.Call) if names else ():
        is_cycle = ast.unparse(node.func).rpartition(".")[2] == "cycle"
        if is_cycle and node.args and ast.unparse(node.args[0]) in names:
            yield Place(file, node.lineno)


def leaves_loop_early(place: Place | None, *, by_batch: bool = False) -> Place | None:
    """Return the first `continue` in the loop that starts at a line; by_batch: only one under a condition on its variables."""
    for node in nodes(place.file, ast.For) if place is not None else ():
        if place is not None and node.lineno <= place.line <= node.body[0].lineno:
            own = _batch_variables(node)
            found = [line for line, names in _continues(node) if not by_batch or names & own]
            if found:
                return Place(place.file, min(found))
    return None


def _continues(loop: ast.For) -> Iterator[tuple[int, set[str]]]:
    """Each `continue` in a loop, and the names in the conditions around it."""
    waiting: list[tuple[ast.AST, set[str]]] = [(one, set()) for one in loop.body]
    while waiting:
        node, names = waiting.pop()
        if isinstance(node, ast.Continue):
            yield node.lineno, names
        if isinstance(node, ast.If):
            names = names | variables(node.test)
        waiting += [(one, names) for one in ast.iter_child_nodes(node)]
