"""A profile as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unjam.units import duration, near


def profile_lines(profile: Mapping[str, Any] | None) -> list[str]:
    """Return where the time inside a sample goes; nothing without a profile."""
    if not profile:
        return []
    lines = []
    transforms = profile["transforms"]
    whole = sum(each["own"] for each in transforms)
    if whole:
        lines.append("transforms, by the time spent in each itself:")
        lines += [
            f"  {each['own'] / whole:>4.0%} {duration(each['own'] / each['count']):>8} each  {each['name']}  {each['path']}"
            for each in transforms[:8]
        ]
    if profile["lines"]:
        lines.append(f"lines, from {profile['looks']} stack samples of busy workers:")
        for each in profile["lines"][:6]:
            inside = f"  in {each['inside']}" if each["inside"] else ""
            stage = "" if each["stage"] == "getitem" else f"  ({each['stage']})"
            lines.append(f"  {each['share']:>4.0%} {near(each['file'])}:{each['line']} {each['text']}{inside}{stage}")
    return lines
