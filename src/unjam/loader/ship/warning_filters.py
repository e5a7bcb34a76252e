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


# what the message and the module of a filter may be; None: anything matches
_PATTERNS = (str, re.Pattern, type(None))


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter, its category by name. Plain data."""

    action: str
    message: str | re.Pattern[str] | None
    module_of: str
    category: str
    module: str | re.Pattern[str] | None
    line: int

    def entry(self) -> Any:
        """Return an entry for `warnings.filters`; raise if the category does not exist."""
        found: Any = sys.modules[self.module_of]
        for name in self.category.split("."):
            found = getattr(found, name)
        return self.action, self.message, found, self.module, self.line


def collect() -> list[Filter]:
    """Return the filters of this process, in the order of their precedence."""
    found = []
    for action, message, category, module, line in _warnings.filters:
        standard = isinstance(message, _PATTERNS) and isinstance(module, _PATTERNS)
        if standard and isinstance(category, type) and category.__module__ not in MAIN:
            found.append(Filter(action, message, category.__module__, category.__qualname__, module, line))
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
