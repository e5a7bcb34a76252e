"""The settings of a run. Environment variables pass them to every process of the program."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

VARIABLE = "UNJAM_RUN"
PLAIN_VARIABLE = "UNJAM"
OPTIONS_VARIABLE = "UNJAM_OPTIONS"
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")


@dataclass(frozen=True, slots=True)
class Settings:
    """One run. options: keywords of unjam's DataLoader. leader: pid of the program's first process."""

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
    stop_after: int = 0  # end the program after this many batches; 0: never

    def environment(self) -> dict[str, str]:
        """Return the variables that make every interpreter of the program use these settings."""
        path = os.environ.get("PYTHONPATH", "")
        return {VARIABLE: json.dumps(asdict(self)), "PYTHONPATH": SITE + (os.pathsep + path if path else "")}


def from_environment() -> Settings | None:
    """Return the settings of this process; None: it is not part of a run."""
    text = os.environ.get(VARIABLE)
    if text:
        return Settings(**json.loads(text))
    if os.environ.get(PLAIN_VARIABLE, "0") in ("", "0"):
        return None
    settings = Settings(
        **parse(shlex.split(os.environ.get(OPTIONS_VARIABLE, ""))), leader=os.getpid(), began=time.time()
    )
    settings = with_folder(settings)
    os.environ[VARIABLE] = json.dumps(asdict(settings))
    return settings


def with_folder(settings: Settings) -> Settings:
    """Add a folder for the workers' files, which the leader removes; remove those of dead leaders."""
    from unjam.system.leftovers import prefix, sweep  # noqa: PLC0415 - only the first process needs it

    sweep()
    return replace(settings, folder=tempfile.mkdtemp(prefix=prefix("run", settings.leader)))


def remove_folder(settings: Settings) -> None:
    """Remove the folder that `with_folder` made. The settings may come from the environment, so it is checked."""
    from unjam.system.leftovers import remove_folder  # noqa: PLC0415 - as above

    remove_folder(settings.folder, "run", settings.leader)


def parse(words: list[str]) -> dict[str, Any]:
    """Parse options such as `--on-error skip --trace out.json` from an environment variable."""
    from unjam.loader.options import COMMAND_LINE_OPTIONS, parse_option  # noqa: PLC0415 - as above

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
            found[name] = value if value == "-" else os.path.abspath(value)
        elif name in COMMAND_LINE_OPTIONS:
            found["options"][name] = parse_option(name, value)
        else:
            raise ValueError(f"{OPTIONS_VARIABLE}: there is no option --{name.replace('_', '-')}")
    return found
