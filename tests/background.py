"""The rules' programs, run beside the other tests at the lowest priority: they are mostly waited for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from unjam.rules import RULES

PROGRAM = Path(__file__).parent / "rule_programs.py"
# measured with all processors: they run alone, when their turn comes
TIMED = {"UJ601", "UJ605"}
AT_ONCE = 3
LONGEST = 500  # seconds


class Background:
    """Processes that are no children of this one, so that tests that count children do not see them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="unjam-rules-"))
        quick = [file.RULE.code for file in RULES if file.RULE.code not in TIMED]
        for number in range(AT_ONCE):
            self._start(str(number), quick[number::AT_ONCE])

    def _start(self, name: str, codes: list[str]) -> None:
        command = [sys.executable, "-W", "ignore", str(PROGRAM), str(self.folder / name), str(os.getpid()), *codes]
        with (self.folder / f"{name}.err").open("wb") as err:
            subprocess.run(
                ["setsid", "--fork", "nice", "-n", "19", *command], stdout=err, stderr=err, check=True, timeout=20
            )

    def results(self) -> dict[tuple[str, str], dict]:
        """What was said of every program, once all have been."""
        self._await([str(number) for number in range(AT_ONCE)])
        self._start("timed", sorted(TIMED))
        self._await(["timed"])
        lines = [line for path in self.folder.glob("*") if not path.suffix for line in path.read_text().splitlines()]
        found = [json.loads(line) for line in lines if line != "end"]
        shutil.rmtree(self.folder)
        return {(one["code"], one["kind"]): one for one in found}

    def _await(self, names: list[str]) -> None:
        until = time.monotonic() + LONGEST
        while not all(self._ended(name) for name in names):
            errors = "".join((self.folder / f"{name}.err").read_text() for name in names)
            assert "Traceback" not in errors, errors[-3000:]
            assert time.monotonic() < until, "the rules' programs take too long"
            time.sleep(0.3)

    def _ended(self, name: str) -> bool:
        path = self.folder / name
        return path.exists() and path.read_text().endswith("end\n")
