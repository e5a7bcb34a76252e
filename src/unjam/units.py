"""Formats durations, sizes, counts and paths for people; the same in every message, report and page."""

from __future__ import annotations

import os


def duration(seconds: float | None) -> str:
    """Return a duration with three significant digits and its unit: "59.1 ms", "6.29 s", "12 min 5 s"."""
    if seconds is None:
        return "an unknown time"
    if seconds >= 3600:
        minutes = round(seconds / 60)
        return f"{minutes // 60:,} h {minutes % 60} min"
    if seconds >= 120:
        return f"{round(seconds) // 60} min {round(seconds) % 60} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds > 0 else "0 s"


def size(nbytes: float) -> str:
    """Return a number of bytes with three significant digits and its unit: "59.1 MB"."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(nbytes) < 999.5:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


def count(number: float, word: str, several: str = "") -> str:
    """Return a number with its noun, singular or plural: "1 worker", "2,000 workers"."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {several or word + 's'}"


def times(ratio: float) -> str:
    """Return how many times as fast something is: "1.26 times", "361 times"."""
    return f"{ratio:,.0f} times" if ratio >= 100 else f"{ratio:.2f} times"


def every(number: int, noun: str) -> str:
    """Return all things of a kind: "the only worker", "all 4 workers"."""
    return f"the only {noun}" if number == 1 else f"all {number:,} {noun}s"


def all_in_use(processors: int) -> str:
    """Return the reason why more workers would not help."""
    return f"{every(processors, 'processor')} {'is' if processors == 1 else 'are'} in use"


def near(file: str) -> str:
    """Return a path relative to the current folder, if the file is inside it."""
    try:
        relative = os.path.relpath(file)
    except (OSError, ValueError):  # the current folder was removed; no file is known
        return file
    return file if relative.startswith("..") else relative


def with_file(sample: str, file: str) -> str:
    """Return the name of a sample, with its file if that is known."""
    return f"{sample} in {near(file)}" if file else sample
