"""The doctor's side of the process that measures settings: sends it orders, watches it, ends it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from unjam.deadlines import TRIAL_CHECK
from unjam.doctor.check.processes import end_session, session_processes, sweep_shared_memory
from unjam.doctor.facts.tune_measurements import Measurement, TuneSetting
from unjam.system import exits
from unjam.system.children import reap
from unjam.system.memory_limits import available_memory
from unjam.units import duration

# this share of the memory that was free at the start must stay free
RESERVE = 0.1
# most seconds until the first batch, and most time after it, in multiples of the measured seconds
FIRST, MOST_TIMES = 30.0, 5.0
# extra seconds to finish the current batch when the time is over
GRACE = 3.0


class MeasuringProcess:
    """A process that measures one setting after another. gone: it has ended; the next setting needs another process."""

    def __init__(self, leader: int, folder: str) -> None:
        self._leader, self._folder = leader, folder
        self._orders = os.open(f"{folder}/orders", os.O_RDWR | os.O_NONBLOCK)
        self._read = 0
        self._free_at_start = available_memory() or 0
        self.gone = False

    def measure(
        self,
        setting: TuneSetting,
        seconds: float,
        tick: Callable[[], None],
        *,
        profile: bool = False,
        most: float = FIRST,
    ) -> Measurement:
        """Measure one setting, in at most about `most` seconds.

        A KeyboardInterrupt ends the process and is raised again.
        """
        allowed = min(FIRST + seconds * MOST_TIMES, max(most, seconds + 2.0))
        order = {"setting": asdict(setting), "seconds": seconds, "profile": profile, "most": allowed}
        os.write(self._orders, json.dumps(order).encode() + b"\n")
        until = time.monotonic() + allowed + GRACE
        try:
            while True:
                code = reap(self._leader, TRIAL_CHECK.seconds / 2)
                if answers := self._answers():
                    return _measured(answers[0])
                tick()
                if code is not None:
                    return self._ended(setting, "died", f"the process ended ({exits.short(code)})")
                if time.monotonic() > until:
                    return self._ended(setting, "hung", f"did not finish within {duration(allowed + GRACE)}")
                left = available_memory()
                if left is not None and left < self._free_at_start * RESERVE:
                    return self._ended(setting, "memory", f"only {left / 1e9:.1f} GB of memory were left")
        except BaseException:
            self.end()
            raise

    def _ended(self, setting: TuneSetting, outcome: str, note: str) -> Measurement:
        self.end()
        return Measurement(setting, outcome, note)

    def _answers(self) -> list[dict[str, Any]]:
        try:
            with open(f"{self._folder}/answers", "rb") as file:
                file.seek(self._read)
                whole = file.read()
        except OSError:
            return []
        whole = whole[: whole.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def end(self) -> None:
        """Kill the process and remove its files."""
        if self.gone:
            return
        self.gone = True
        os.close(self._orders)
        pids = {one.pid for one in session_processes(self._leader)}
        end_session(self._leader, self._folder)
        sweep_shared_memory(pids)
        shutil.rmtree(self._folder, ignore_errors=True)


def _measured(answer: dict[str, Any]) -> Measurement:
    known = {name: tuple(answer[name]) for name in ("rates", "counted")}
    known |= {name: tuple(map(tuple, answer[name])) for name in ("slowest", "timeline")}
    return Measurement(**{**answer, **known, "setting": TuneSetting(**answer["setting"])})
