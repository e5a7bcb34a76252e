"""The cost of observation: an unmodified program plain, under `unjam run --observe`, with a trace, watched by `unjam check`, and on
unjam's loader.

The program times its own epochs, in separate processes, interleaved. A ratio of 1.00 is torch without unjam; the goal is at most 1.02
for `--observe` and at most 1.05 for `check`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import table, verdict
from unjam.doctor.check.command.watched_program import WatchedProgram
from unjam.doctor.run.settings import SITE

PROGRAM = """
import sys, time, json, torch
from torch.utils.data import DataLoader, Dataset

class Made(Dataset):
    def __init__(self, size, work):
        self.size, self.work = size, work
        self.row = torch.arange(float(size))
    def __len__(self):
        return LENGTH
    def __getitem__(self, i):
        if self.work:
            until = time.perf_counter() + self.work
            while time.perf_counter() < until:
                pass
        return self.row + i, i

if __name__ == "__main__":
    torch.set_num_threads(1)
    data = Made(SIZE, SECONDS)
    loader = DataLoader(data, batch_size=BATCH, num_workers=WORKERS, persistent_workers=WORKERS > 0)
    for batch in loader:
        pass
    times = []
    for _ in range(EPOCHS):
        begun = time.perf_counter()
        for batch in loader:
            pass
        times.append(time.perf_counter() - begun)
    times.sort()
    print(json.dumps(times[len(times) // 2]))
"""
SETTINGS = {
    "samples of 1 ms, 2 workers": dict(LENGTH=600, SIZE=1000, SECONDS=0.001, BATCH=16, WORKERS=2, EPOCHS=3),
    "samples of 0.1 ms, 2 workers": dict(LENGTH=5000, SIZE=1000, SECONDS=0.0001, BATCH=32, WORKERS=2, EPOCHS=3),
    "samples of 5 µs, 2 workers": dict(LENGTH=30_000, SIZE=100, SECONDS=0, BATCH=64, WORKERS=2, EPOCHS=3),
    "samples of 0.1 ms, no workers": dict(LENGTH=3000, SIZE=1000, SECONDS=0.0001, BATCH=32, WORKERS=0, EPOCHS=3),
}
# the options of `unjam run`; None runs the plain program
CONTENDERS = {
    "torch": None,
    "--observe": "--quiet --observe",
    "--observe --trace": "--quiet --observe --trace {folder}/trace.json",
    "check": None,
    "unjam run": "--quiet",
}
LONGEST = 600.0
ROUNDS = 5


def main():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "train.py"
        for title, values in SETTINGS.items():
            code = PROGRAM
            for name, value in values.items():
                code = code.replace(name, repr(value))
            program.write_text(code)
            seen: dict[str, list[float]] = {name: [] for name in CONTENDERS}
            for _ in range(ROUNDS):
                for name in CONTENDERS:
                    seen[name].append(json.loads(_run(program, name, folder).splitlines()[-1]))
            plain = statistics.median(seen["torch"])
            ratios = {name: statistics.median(its) / plain for name, its in seen.items()}
            rows.append(
                [
                    title,
                    f"{plain:.2f} s",
                    verdict(ratios["--observe"], 1.02, at_least=False),
                    f"{ratios['--observe --trace']:.2f}",
                    verdict(ratios["check"], 1.05, at_least=False),
                    f"{ratios['unjam run']:.2f}",
                ]
            )
        rows.append(_start(folder))
    table(
        f"Time of an epoch against torch's (median of {ROUNDS} rounds; less is better)",
        ["", "torch", "--observe", "--observe --trace", "check", "unjam run"],
        rows,
    )


def _run(program: Path, contender: str, folder: str) -> str:
    if contender == "check":
        return _watched(program)
    options = CONTENDERS[contender]
    known = dict(os.environ)
    if options is not None:
        known.update(UNJAM="1", UNJAM_OPTIONS=options.format(folder=folder))
        known["PYTHONPATH"] = SITE + os.pathsep + known.get("PYTHONPATH", "")
    return subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, env=known).stdout


def _watched(program: Path) -> str:
    """Run a program watched as by `unjam check`, without the replay."""
    watched = WatchedProgram([sys.executable, str(program)], view=False)
    try:
        return watched.watch(LONGEST, lambda: None).output
    finally:
        watched.end()


def _start(folder: str) -> list[str]:
    """Start and exit time of a program without a loader."""
    program = Path(folder) / "empty.py"
    program.write_text("import torch.utils.data\n")
    seen: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name in CONTENDERS:
            begun = time.perf_counter()
            _run(program, name, folder)
            seen[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(its) for name, its in seen.items()}
    more = [f"+{medians[name] - medians['torch']:.2f} s" for name in list(CONTENDERS)[1:]]
    return ["start of a program (import torch)", f"{medians['torch']:.2f} s", *more]


if __name__ == "__main__":
    main()
