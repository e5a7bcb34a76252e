"""Writes docs/reference/api.md from the public names of the package: their signatures and docstrings.

With `--check` it writes nothing and reports whether the page is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from generated import settle

import unjam

PAGE = Path(__file__).parent / "reference" / "api.md"
WIDTH = 100
# section heading: the modules whose names it lists
SECTIONS = {
    "The loader": ("unjam.loader",),
    "One copy for all processes": ("unjam.shared",),
    "Unmodified programs": ("unjam.doctor",),
    "What a loader has done": ("unjam.statistics",),
}
RECORDS, EXCEPTIONS, OTHERS = "Records of failures", "Exceptions and warnings", "Others"
HEAD = """# API

The public API of unjam, generated from the source by `docs/write_api.py`. Names that are not listed here may
change.
"""


def text_of(name: str) -> list[str]:
    """The lines for one public name."""
    thing = getattr(unjam, name)
    lines = [f"### {name}", ""]
    if inspect.isclass(thing):
        lines += [*_signature(name, thing), *_doc(thing, _names(thing))]
        for method, value in _methods(thing):
            lines += [f"#### {name}.{method}", "", *_member(f"{name}.{method}", value)]
    elif callable(thing) and inspect.isfunction(thing):
        lines += [*_signature(name, thing), *_doc(thing, _names(thing))]
    else:
        lines += ["```python", _assignment(name), "```", ""]
    return lines


def section_of(name: str) -> str:
    """The section heading of a name."""
    thing = getattr(unjam, name)
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return EXCEPTIONS
    home = getattr(thing, "__module__", "") if inspect.isclass(thing) or inspect.isfunction(thing) else _home(name)
    if name in ("Incident", "SampleError"):
        return RECORDS
    return next((title for title, homes in SECTIONS.items() if home.startswith(homes)), OTHERS)


def tree(names: list[str]) -> list[str]:
    """The tree of exceptions, each with its other base classes."""
    classes = {name: getattr(unjam, name) for name in names}
    below: dict[str, list[str]] = {}
    for name, kind in classes.items():
        below.setdefault(kind.__bases__[0].__name__, []).append(name)
    lines = []

    def show(name: str, depth: int) -> None:
        also = [base.__name__ for base in classes[name].__bases__[1:]] if name in classes else []
        lines.append("    " * depth + name + (f" (also {', '.join(also)})" if also else ""))
        for child in sorted(below.get(name, ())):
            show(child, depth + 1)

    for root in sorted(set(below) - set(classes)):
        show(root, 0)
    return ["```text", *lines, "```", ""]


def page() -> str:
    """The whole page."""
    by_section: dict[str, list[str]] = {}
    for name in unjam.__all__:
        if not name.startswith("_"):
            by_section.setdefault(section_of(name), []).append(name)
    lines = [HEAD]
    for title in (*SECTIONS, RECORDS, EXCEPTIONS, OTHERS):
        names = sorted(by_section.get(title, ()), key=lambda name: (name != "DataLoader", name.lower()))
        if not names:
            continue
        lines += [f"## {title}", "", *(tree(names) if title == EXCEPTIONS else ())]
        for name in names:
            lines += text_of(name)
    return "\n".join(lines).rstrip() + "\n"


# -- signatures --------------------------------------------------------------------------------------------------------


def _signature(called: str, thing: Any, *, bound: bool = False) -> list[str]:
    try:
        signature = inspect.signature(thing)
    except ValueError:  # an exception with its builtin base's constructor
        return []
    parameters = list(signature.parameters.values())[1 if bound else 0 :]
    words, starred = [], False
    for one in parameters:
        starred = starred or one.kind is inspect.Parameter.VAR_POSITIONAL
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        words.append(_parameter(one))
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty or inspect.isclass(thing) else f" -> {_annotation(returned)}"
    line = f"unjam.{called}({', '.join(words)}){arrow}"
    if len(line) > WIDTH:
        line = f"unjam.{called}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"
    return ["```python", line, "```", ""]


def _parameter(one: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = "" if one.annotation is inspect.Parameter.empty else f": {_annotation(one.annotation)}"
    if one.default is inspect.Parameter.empty:
        return stars + one.name + kind
    default = repr(one.default)
    if default.startswith("<"):  # a default without a readable repr
        default = "..."
    return f"{one.name}{kind} = {default}" if kind else f"{one.name}={default}"


def _annotation(found: Any) -> str:
    return found if isinstance(found, str) else inspect.formatannotation(found)


def _names(thing: Any) -> set[str]:
    try:
        return set(inspect.signature(thing).parameters)
    except ValueError:
        return set()


# -- members -----------------------------------------------------------------------------------------------------------


def _methods(kind: type) -> list[tuple[str, Any]]:
    """Public methods and properties of the class and of unjam's base classes, in source order."""
    found: dict[str, Any] = {}
    for one in kind.__mro__:
        if one.__module__.split(".")[0] == "unjam":
            for name, value in vars(one).items():
                plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
                if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
                    found.setdefault(name, value)
    return list(found.items())


def _member(called: str, value: Any) -> list[str]:
    if isinstance(value, property):
        returned = inspect.signature(value.fget).return_annotation if value.fget else inspect.Signature.empty
        kind = "" if returned is inspect.Signature.empty else f": {_annotation(returned)}"
        return ["```python", f"unjam.{called}{kind}", "```", "", *_doc(value, set())]
    bound = not isinstance(value, staticmethod)
    plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    return [*_signature(called, plain, bound=bound), *_doc(plain, _names(plain))]


def _home(name: str) -> str:
    """The module that defines a name that is neither a class nor a function."""
    return next((home for home, names in unjam._HOMES.items() if name in names), "")  # noqa: SLF001 - our own


def _assignment(name: str) -> str:
    """A type alias as written in its source."""
    source = inspect.getsource(sys.modules[_home(name)])
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return f"unjam.{ast.get_source_segment(source, statement)}"
    raise LookupError(f"{name} is not assigned in {_home(name)}")


# -- docstrings --------------------------------------------------------------------------------------------------------


def _doc(thing: Any, names: set[str]) -> list[str]:
    """A docstring as Markdown. Lines such as `path: where it is` become a list."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.getdoc(thing) or ""):
        if re.match(r"[a-z_]\w*(, \w+)*: ", paragraph) and lines:
            for item in re.split(r"\n(?! )", paragraph):
                for part in _parts(" ".join(item.split()), names):
                    lines += textwrap.wrap(
                        _item(part), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
                    )
        else:
            text = _escaped(" ".join(paragraph.split()))
            lines += textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)
        lines.append("")
    return lines


def _parts(item: str, names: set[str]) -> list[str]:
    """Split `path: its place. cure: how to fix it.` where both are parameters."""
    known = "|".join(sorted(names, key=len, reverse=True))
    return re.split(rf"(?<=\.) (?=(?:{known})(?:, \w+)*: )", item) if known else [item]


def _item(part: str) -> str:
    named = re.match(r"([a-z_]\w*(?:, \w+)*): (.*)", part)
    if named is None:
        return "- " + _escaped(part)
    return "- " + ", ".join(f"`{word}`" for word in named[1].split(", ")) + ": " + _escaped(named[2])


def _escaped(text: str) -> str:
    """Escape Markdown characters outside code."""
    pieces = text.split("`")
    return "`".join(re.sub(r"([*<\[\]])", r"\\\1", piece) if at % 2 == 0 else piece for at, piece in enumerate(pieces))


if __name__ == "__main__":
    sys.exit(settle({PAGE: page()}))
