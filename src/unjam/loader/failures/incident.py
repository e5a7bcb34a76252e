"""What is known about one failure, to and from JSON.

Each line of an error log is one incident. To read logs of other versions, the reader ignores unknown
fields and uses the defaults for missing ones.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from dataclasses import dataclass, field
from typing import Any

from unjam.system.file_owner import is_users
from unjam.system.masking import without_secrets
from unjam.system.printable import json_text
from unjam.version import __version__

SCHEMA = 1
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_LAST_FRAME = re.compile(r'^[ \t]*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Incident:
    """One failure.

    kind: "sample" (user code raised), "death" (a worker ended), "timeout" (a sample took too long),
        "silence" (no progress; no action taken) or "suspended" (something suspended a worker).
    at: seconds since 1970. what: a one-line summary. decision: what was done about it, for example "restart", or
        "shrink" (the OOM killer killed a worker, which was not replaced).
    """

    kind: str
    what: str
    at: float = field(default_factory=time.time)
    decision: str = ""
    sample: Any = None
    key: str | None = None
    batch: int | None = None
    samples: tuple[Any, ...] = ()
    yielded: int | None = None
    worker: int | None = None
    pid: int | None = None
    stage: str = ""
    seconds: float = 0.0
    tries: int = 1
    replacement: Any = None
    exception: str = ""
    message: str = ""
    traceback: str = ""
    exit_code: int | None = None
    signal: str | None = None
    memory: str = ""
    stack: str = ""
    waits_for: str = ""
    note: str = ""
    dataset: str = ""
    # the loader's epoch; with rng="sample", the seed of the samples' random numbers
    epoch: int | None = None
    seed: int | None = None
    rank: str | None = field(default_factory=lambda: os.environ.get("RANK"))
    parent: int = field(default_factory=os.getpid)
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return one line of JSON."""
        kept = {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, "", ())}
        kept["unjam"] = __version__
        return json_text(without_secrets(kept), default=repr)

    @classmethod
    def from_json(cls, line: str) -> Incident:
        """Read what `to_json` of any version wrote; raise ValueError for anything else.

        The file is not trusted: we check the type of every value and truncate long texts and lists.
        """
        try:
            found = json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if (
            not isinstance(found, dict)
            or not isinstance(found.get("kind"), str)
            or not isinstance(found.get("what"), str)
        ):
            raise ValueError("not an incident")  # noqa: TRY004 - as the docstring says
        kept: dict[str, Any] = {"at": 0.0, "rank": None, "parent": 0}
        for part in dataclasses.fields(cls):
            value = found.get(part.name)
            if value is not None:
                kept[part.name] = _valid(part.name, value)
        return cls(**kept)

    @property
    def location(self) -> str:
        """The innermost line of the user's code in the traceback or the stack."""
        if self.traceback:
            frames = [(m["file"], m["line"]) for m in _LAST_FRAME.finditer(self.traceback)]
            own = [frame for frame in frames if is_users(frame[0])]
            file, line = (own or [("", "")])[-1]
            return f"{file}:{line}" if file else ""
        for match in _LAST_FRAME.finditer(self.stack):
            if is_users(match["file"]):
                return f"{match['file']}:{match['line']}"
        return ""

    @property
    def cause(self) -> str:
        """The key that groups failures by cause: error type and message, with numbers masked."""
        if self.exception:
            first = self.message.strip().splitlines()[0] if self.message.strip() else ""
            return f"{self.exception}: {_NUMBERS.sub('#', first)[:160]}" if first else self.exception
        if self.signal or self.exit_code is not None:
            end = self.signal or f"exit status {self.exit_code}"
            return f"worker ended: {end}{' (out of memory)' if self.memory else ''}"
        return self.kind


MAX_TEXT, MAX_SAMPLES = 20_000, 4096
_INTEGERS = {"batch", "epoch", "seed", "yielded", "worker", "pid", "tries", "exit_code", "parent", "schema"}
_INDICES = {"sample", "replacement"}


def _valid(name: str, value: Any) -> Any:
    """Return the checked value of a field, or raise ValueError."""
    if name in _INTEGERS:
        if type(value) is not int or abs(value) >= 1 << 63:
            raise ValueError(f"{name} is not an integer")
    elif name in ("at", "seconds"):
        # up to the year 9999, the limit of datetime
        if type(value) not in (int, float) or not abs(value) < 253e9:
            raise ValueError(f"{name} is not a time")
        value = float(value)
    elif name == "samples":
        if not isinstance(value, list):
            raise ValueError("samples is not a list")
        value = tuple(_plain_index(one) for one in value[:MAX_SAMPLES])
    elif name in _INDICES:
        value = _plain_index(value)
    elif isinstance(value, str):
        value = value[:MAX_TEXT]
    else:
        raise ValueError(f"{name} is not a string")
    return value


def _plain_index(value: Any) -> Any:
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


def plain(value: Any) -> Any:
    """Return an index as JSON data: numbers, strings and short lists unchanged, else the repr."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and len(value) <= 64:
        return [plain(one) for one in value]
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
