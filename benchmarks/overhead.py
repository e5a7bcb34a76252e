"""What watching costs: the same unmodified program plain, under `unjam run --observe`, with a trace, and on unjam's loader.

The program times its own epochs, in processes of their own, interleaved. A ratio of 1.00 is torch without unjam; the goal for
`--observe` is at most 1.02.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import table, verdict

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
    data = Made(SIZE, WORK)
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
    "samples of 1 ms, 2 workers": dict(LENGTH=1200, SIZE=1000, WORK=0.001, BATCH=16, WORKERS=2, EPOCHS=3),
    "samples of 0.1 ms, 2 workers": dict(LENGTH=8000, SIZE=1000, WORK=0.0001, BATCH=32, WORKERS=2, EPOCHS=3),
    "samples of 5 µs, 2 workers": dict(LENGTH=40_000, SIZE=100, WORK=0, BATCH=64, WORKERS=2, EPOCHS=3),
    "samples of 0.1 ms, no workers": dict(LENGTH=6000, SIZE=1000, WORK=0.0001, BATCH=32, WORKERS=0, EPOCHS=3),
}
CONTENDERS = {
    "torch": [],
    "--observe": ["-m", "unjam", "run", "--quiet", "--observe"],
    "--observe --trace": ["-m", "unjam", "run", "--quiet", "--observe", "--trace", "{folder}/trace.json"],
    "unjam run": ["-m", "unjam", "run", "--quiet"],
}
ROUNDS = 7


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
                for name, before in CONTENDERS.items():
                    words = [word.format(folder=folder) for word in before]
                    done = subprocess.run([sys.executable, *words, program], capture_output=True, text=True, check=True)
                    seen[name].append(json.loads(done.stdout.splitlines()[-1]))
            plain = statistics.median(seen["torch"])
            ratios = {name: statistics.median(its) / plain for name, its in seen.items()}
            rows.append(
                [
                    title,
                    f"{plain:.2f} s",
                    verdict(ratios["--observe"], 1.02, at_least=False),
                    f"{ratios['--observe --trace']:.2f}",
                    f"{ratios['unjam run']:.2f}",
                ]
            )
        rows.append(_start(folder))
    table(
        f"Time of an epoch against torch's (median of {ROUNDS} rounds; less is better)",
        ["", "torch", "--observe", "--observe --trace", "unjam run"],
        rows,
    )


def _start(folder: str) -> list[str]:
    """What the beginning and the end of a program cost, without a loader."""
    program = Path(folder) / "empty.py"
    program.write_text("import torch.utils.data\n")
    seen: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(ROUNDS):
        for name, before in CONTENDERS.items():
            words = [word.format(folder=folder) for word in before]
            begun = time.perf_counter()
            subprocess.run([sys.executable, *words, program], capture_output=True, check=True)
            seen[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(its) for name, its in seen.items()}
    more = [f"+{medians[name] - medians['torch']:.2f} s" for name in list(CONTENDERS)[1:]]
    return ["start of a program (import torch)", f"{medians['torch']:.2f} s", *more]


if __name__ == "__main__":
    main()
