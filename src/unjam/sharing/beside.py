"""The classes and functions that the items of a file need, in the file."""

from __future__ import annotations

import pickle
from typing import Any

from unjam.sharing.buffer import Buffer, Writer
from unjam.sharing.careful import untrusted


def write_beside(writer: Writer, beside: list[Any]) -> dict[str, Any]:
    """Keep the classes that a file's items need in the file too: by value, since another program may open it."""
    if not beside:
        return {}
    import cloudpickle  # noqa: PLC0415 - rarely needed

    data = cloudpickle.dumps(beside)
    return {"beside": [writer.write(data), len(data)]}


def read_beside(buffer: Buffer, head: dict[str, Any], *, trusted: bool) -> list[Any]:
    """What `write_beside` wrote: pickled, so that only trusted files are read."""
    if "beside" not in head:
        return []
    if not trusted:
        raise untrusted(buffer.path)
    at, length = head["beside"]
    found: list[Any] = pickle.loads(buffer.bytes[at : at + length])  # noqa: S301 - its user trusts the file
    return found
