"""Which locks a thread holds, according to the source of the lines on its stack.

A thread holds a lock if its line is in the body of `with lock:`, or after `lock.acquire()` and
before `lock.release()`. At the line that acquires the lock, the thread may still wait for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from unjam.doctor.facts.source import nodes, tree_of
from unjam.doctor.facts.trial import Place
from unjam.system.file_owner import is_users
from unjam.system.stacks import Frame


def locks_acquired_at(frame: Frame) -> list[str]:
    """Return the locks that a line acquires by `with` or `.acquire()`, as source text."""
    line = frame.line or 0
    found: list[str] = []
    for node in _statements(frame):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            parts = [item.context_expr for item in node.items]
            found += [_lock_text(part) for part in parts if part.lineno <= line <= (part.end_lineno or part.lineno)]
        else:
            calls = [one for one in ast.walk(node) if isinstance(one, ast.Call) and _is_call(one, "acquire")]
            found += [_lock_text(one) for one in calls if one.lineno <= line <= (one.end_lineno or one.lineno)]
    return list(dict.fromkeys(found))


def locks_held(frames: tuple[Frame, ...], values: tuple[Mapping[str, str], ...]) -> Iterator[tuple[str, str, Place]]:
    """Yield (expression, value of its first name, line that acquired it) for each lock held."""
    for n, frame in enumerate(frames):
        if frame.line is None or not is_users(frame.file):
            continue
        known = values[n] if n < len(values) else {}
        for expression, line in _held_in(frame):
            yield expression, known.get(expression.partition(".")[0], frame.file), Place(frame.file, line)


def _held_in(frame: Frame) -> Iterator[tuple[str, int]]:
    line = frame.line or 0
    function = _function(frame)
    if function is None:
        return
    for node in _own_nodes(function):
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line <= (node.end_lineno or line):
            for item in node.items:
                if (item.context_expr.end_lineno or 0) < line:  # on one line, the thread may still wait for it
                    yield _lock_text(item.context_expr), node.lineno
    taken: dict[str, int] = {}
    calls = [node for node in _own_nodes(function) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda one: (one.lineno, one.col_offset)):
        if node.lineno >= line:
            break
        if _is_call(node, "acquire"):
            taken[_lock_text(node)] = node.lineno
        elif _is_call(node, "release"):
            taken.pop(_lock_text(node), None)
    yield from taken.items()


def _function(frame: Frame) -> ast.AST | None:
    """Return the innermost function around a line, or the module."""
    line = frame.line or 0
    functions = nodes(frame.file, ast.FunctionDef, ast.AsyncFunctionDef)
    inside = [node for node in functions if node.lineno <= line <= (node.end_lineno or 0)]
    return max(inside, key=lambda node: node.lineno, default=tree_of(frame.file))


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions defined inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            yield from _own_nodes(node)


def _statements(frame: Frame) -> Iterator[ast.stmt]:
    """Yield the simple and `with` statements, and the `if`/`while` conditions, around a line."""
    function = _function(frame)
    for node in _own_nodes(function) if function else ():
        if isinstance(node, ast.stmt) and node.lineno <= (frame.line or 0) <= (node.end_lineno or node.lineno):
            if isinstance(node, (ast.With, ast.AsyncWith)) or not hasattr(node, "body"):
                yield node
            elif isinstance(node, (ast.If, ast.While)):
                yield ast.Expr(node.test, lineno=node.test.lineno, end_lineno=node.test.end_lineno, col_offset=0)


def _is_call(node: ast.Call, method: str) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == method


def _lock_text(node: ast.expr) -> str:
    """Return the source text; of a method call only its object: `lock.acquire()` gives `lock`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return ast.unparse(node)
