"""A recorded profile as text."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from unjam.statistics import LineTime, Profile, TransformTime


def profile_lines(profile: Mapping[str, Any] | None) -> list[str]:
    """Return where the time inside a sample goes; nothing without a profile."""
    if not profile or not (profile["lines"] or profile["transforms"]):
        return []
    lines = tuple(LineTime(**one) for one in profile["lines"])
    transforms = tuple(TransformTime(**one) for one in profile["transforms"])
    return textwrap.dedent(str(Profile(profile["looks"], lines, transforms))).splitlines()
