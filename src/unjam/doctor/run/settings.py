"""What a run was asked to do, as it travels to every process of the program: two environment variables."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from dataclasses import asdict, dataclass, field
from typing import Any

VARIABLE = "UNJAM_RUN"
PLAIN_VARIABLE = "UNJAM"
OPTIONS_VARIABLE = "UNJAM_OPTIONS"
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. `options` are keywords of unjam's DataLoader; `leader` is the process that was started by the user."""

    options: dict[str, Any] = field(default_factory=dict)
    observe: bool = False
    html: str = ""
    trace: str = ""
    json: str = ""
    quiet: bool = False
    folder: str = ""
    leader: int = 0
    began: float = 0.0
    command: str = ""
    auto: bool = False
    launcher: bool = False  # the program only starts others: torchrun, accelerate
    stop_after: int = 0  # batches, after which the program is ended; 0: it runs to its end

    def environment(self) -> dict[str, str]:
        """The variables that make every interpreter of the program begin with this."""
        path = os.environ.get("PYTHONPATH", "")
        return {VARIABLE: json.dumps(asdict(self)), "PYTHONPATH": SITE + (os.pathsep + path if path else "")}


def from_environment() -> Settings | None:
    """What this process was started with; None: nothing."""
    text = os.environ.get(VARIABLE)
    if text:
        return Settings(**json.loads(text))
    if os.environ.get(PLAIN_VARIABLE, "0") in ("", "0"):
        return None
    import time  # noqa: PLC0415 - only the first process of a program comes here

    settings = Settings(
        **parse(shlex.split(os.environ.get(OPTIONS_VARIABLE, ""))), leader=os.getpid(), began=time.time()
    )
    settings = with_folder(settings)
    os.environ[VARIABLE] = json.dumps(asdict(settings))
    return settings


def with_folder(settings: Settings) -> Settings:
    """With a place for what the workers write down. The leader removes it; those of dead leaders are swept here."""
    import dataclasses  # noqa: PLC0415 - as above

    from unjam.system.leftovers import prefix, sweep  # noqa: PLC0415 - as above

    sweep()
    return dataclasses.replace(settings, folder=tempfile.mkdtemp(prefix=prefix("run", settings.leader)))


OPTION_KINDS: dict[str, Any] = {
    "on_error": str,
    "retries": int,
    "max_errors": lambda text: float(text) if "." in text else int(text),
    "error_log": os.path.abspath,
    "sample_timeout": float,
    "warn_after": float,
    "on_worker_death": str,
    "max_restarts": int,
    "worker_threads": int,
    "memory_budget": int,
    "profile": lambda text: {"True": True, "False": False}[text],
}


def parse(words: list[str]) -> dict[str, Any]:
    """Settings from words such as `--on-error skip --trace out.json`, for programs whose command cannot be changed."""
    found: dict[str, Any] = {"options": {}}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if name in ("observe", "quiet", "auto"):
            found[name] = True
            continue
        if name == "profile":
            found["options"][name] = True
            continue
        if not equals:
            if not rest:
                raise ValueError(f"{OPTIONS_VARIABLE}: --{name} needs a value")
            value = rest.pop(0)
        if name in ("html", "trace", "json"):
            found[name] = os.path.abspath(value)
        elif name in OPTION_KINDS:
            found["options"][name] = OPTION_KINDS[name](value)
        else:
            raise ValueError(f"{OPTIONS_VARIABLE}: there is no option --{name.replace('_', '-')}")
    return found
