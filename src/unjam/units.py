"""Formats durations for people; the same in every message, report and page."""

from __future__ import annotations


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
