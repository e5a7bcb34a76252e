"""Makes foreign text safe to show: it cannot move the cursor, open a link or reorder text."""

from __future__ import annotations

import json
import re
from typing import Any

# control characters (all but newline and tab), line separators, marks that reorder or hide text,
# tags, lone surrogates
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """The text with every unsafe character escaped. Newlines and tabs stay."""
    return text if text.isascii() and text.isprintable() else _UNSAFE.sub(_escape, text)


def printable_line(text: str) -> str:
    """`printable`, with newlines and tabs escaped too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode("ascii")


def json_text(value: Any, **options: Any) -> str:
    """JSON that is safe to show: unsafe characters become JSON escapes; the value is the same."""
    text = json.dumps(value, ensure_ascii=False, **options)
    return _UNSAFE.sub(lambda found: json.dumps(found[0])[1:-1], text)
