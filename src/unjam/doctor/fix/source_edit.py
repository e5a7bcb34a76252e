"""Edits of one source file: parts of the text are replaced, everything else is unchanged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# as Python counts them: a form feed ends no line
_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class CannotEdit(Exception):
    """The edit would not be safe. The text says why."""


class SourceEdit:
    """The text of a file, its syntax tree, and the changes so far."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        try:
            self.tree = ast.parse(text)
        except SyntaxError as error:
            raise CannotEdit(f"{path} cannot be parsed") from error
        self._lines: list[str] = _LINES.findall(text)
        self._line_end = "\r\n" if text.count("\r\n") * 2 > text.count("\n") else "\n"
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._changes: list[tuple[int, int, str]] = []
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    # -- finding -----------------------------------------------------------------------------------

    def walk(self) -> Iterator[ast.AST]:
        """Every node of the file."""
        return ast.walk(self.tree)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def statement(self, line: int) -> ast.stmt:
        """The innermost statement at a line."""
        found = [n for n in self.walk() if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)]
        if not found:
            raise CannotEdit(f"{self.path}:{line} has no statement")
        return max(found, key=lambda node: (node.lineno, -(node.end_lineno or 0)))

    def named_class(self, name: str) -> ast.ClassDef:
        """The class of this name."""
        for node in self.walk():
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
        raise CannotEdit(f"{self.path} has no class {name}")

    def source(self, node: ast.AST) -> str:
        """The text of a node."""
        return self.text[slice(*self._span(node))]

    def indent(self, node: ast.stmt) -> str:
        """The white space in front of a statement."""
        line = self._lines[node.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        begin = self._offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return begin, self._offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    # -- changing ----------------------------------------------------------------------------------

    def replace(self, node: ast.AST, text: str) -> None:
        """Put a text in the place of a node."""
        self._changes.append((*self._span(node), self._as_lines(text)))

    def insert_before(self, node: ast.stmt, lines: list[str]) -> None:
        """Put lines before a statement, with its indentation."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        at = self._starts[first - 1]
        self._changes.append((at, at, self._as_lines("".join(f"{self.indent(node)}{line}\n" for line in lines))))

    def insert_after(self, node: ast.stmt, lines: list[str]) -> None:
        """Put lines after a statement, with its indentation."""
        at = self._starts[node.end_lineno or node.lineno]
        gap = "" if self.text[:at].endswith("\n") else "\n"
        new = gap + "".join(f"{self.indent(node)}{line}\n" if line else "\n" for line in lines)
        self._changes.append((at, at, self._as_lines(new)))

    def indent_from(self, node: ast.stmt, header: str) -> None:
        """Put a header before a top-level statement, and indent from there to the end of the file."""
        at = self._starts[node.lineno - 1]
        inside = self._lines_inside_strings()
        shifted = [
            line if not line.strip() or number in inside else f"    {line}"
            for number, line in enumerate(_LINES.findall(self.text[at:]), node.lineno)
        ]
        self._changes.append((at, len(self.text), f"{header}{self._line_end}{''.join(shifted)}"))

    def _as_lines(self, text: str) -> str:
        """A new text with the line endings that most lines of the file have."""
        return re.sub("\r?\n", self._line_end, text)

    def _lines_inside_strings(self) -> set[int]:
        """Lines that begin inside a text of several lines: indenting them would change the text."""
        found: set[int] = set()
        for node in self.walk():
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and (node.end_lineno or node.lineno) > node.lineno:
                found |= set(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
        return found

    def add_import(self, line: str) -> None:
        """Add an import line, unless it is there."""
        wanted = ast.unparse(ast.parse(line).body[0])
        body = self.tree.body
        if any(isinstance(node, (ast.Import, ast.ImportFrom)) and ast.unparse(node) == wanted for node in body):
            return
        imports = [
            n for n in body if isinstance(n, (ast.Import, ast.ImportFrom)) and getattr(n, "module", "") != "__future__"
        ]
        if imports:
            self.insert_before(imports[-1], [line])
            return
        first = next((n for n in body if not _is_docstring(n)), None)
        if first is None:
            raise CannotEdit("the file has no code")
        self.insert_before(first, [line])

    def edited_text(self) -> str:
        """The text with all changes."""
        text, ends = self.text, len(self.text) + 1
        for begin, end, new in sorted(self._changes, key=lambda one: (one[0], one[1]), reverse=True):
            if end > ends:
                raise CannotEdit("two changes overlap")
            text, ends = text[:begin] + new + text[end:], begin
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise CannotEdit("the changed file would not be Python") from error
        if text == self.text:
            raise CannotEdit("there is nothing to change")
        return text


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def call_name(node: ast.Call) -> str:
    """The last name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
