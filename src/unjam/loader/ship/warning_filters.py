"""Applies the program's warning filters in a worker that was not forked from it.

A filter names a warning class, which may belong to a package that the dataset never needs.
Lightning, for example, adds such filters and takes seconds to import. Code cannot raise a warning
whose class is not imported, so we add such a filter only when its module is imported.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from unjam.loader.ship.reachable_modules import MAIN
from unjam.system.import_hook import after_import

_warnings: Any = warnings  # type checkers call `filters` a Sequence, but it is a list


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression, or the plain text that Python's own filters use."""

    text: str
    flags: int | None = None

    @classmethod
    def of(cls, found: Any) -> Pattern | None:
        """Return the pattern of a filter field; None: anything matches."""
        if found is None:
            return None
        return cls(found) if isinstance(found, str) else cls(found.pattern, found.flags)

    def value(self) -> Any:
        """Return the value for a filter field."""
        return self.text if self.flags is None else re.compile(self.text, self.flags)


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter, its category by name. Plain data."""

    action: str
    message: Pattern | None
    module_of: str
    category: str
    module: Pattern | None
    line: int

    def entry(self) -> Any:
        """Return an entry for `warnings.filters`; raise if the category does not exist."""
        found: Any = sys.modules[self.module_of]
        for name in self.category.split("."):
            found = getattr(found, name)
        message = None if self.message is None else self.message.value()
        module = None if self.module is None else self.module.value()
        return self.action, message, found, module, self.line


def collect() -> list[Filter]:
    """Return the filters of this process, in the order of their precedence."""
    found = []
    for action, message, category, module, line in warnings.filters:
        with contextlib.suppress(Exception):  # a non-standard filter entry
            if isinstance(category, type) and category.__module__ not in MAIN:
                kind = (category.__module__, category.__qualname__)
                found.append(Filter(action, Pattern.of(message), *kind, Pattern.of(module), line))
    return found


def use(wanted: list[Filter]) -> None:
    """Set the filters of this process, each as soon as its category is imported."""
    entries: dict[int, Any] = {}
    for place, one in enumerate(wanted):
        with contextlib.suppress(KeyError, AttributeError):
            entries[place] = one.entry()
    warnings.resetwarnings()  # it also makes Python forget which warnings it has shown
    _warnings.filters[:] = entries.values()
    for place, one in enumerate(wanted):
        if place not in entries and one.module_of not in sys.modules:
            after_import(one.module_of, functools.partial(_add, wanted, entries, place))


def _add(wanted: list[Filter], entries: dict[int, Any], place: int, _: ModuleType) -> None:
    """Insert a filter before the first filter that follows it in the program."""
    with contextlib.suppress(KeyError, AttributeError):
        entries[place] = wanted[place].entry()
        rules = _warnings.filters
        after = [entries[at] for at in sorted(entries) if at > place]
        next_one = next((at for at, rule in enumerate(rules) if any(rule is one for one in after)), len(rules))
        rules.insert(next_one, entries[place])
        _warnings._filters_mutated()  # noqa: SLF001 - as all functions of `warnings` do
