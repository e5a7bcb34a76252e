"""Time from a fault to the exception or to the affected batch: torch and unjam, interleaved, each run in its own process.

The dataset records the time of the fault, and the consumer the time at which it receives an exception or that batch. A run without
a result within the limit is killed and counts as "for ever".
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness import table

LIMIT = 12.0
ROUNDS = 3

# name: (what happens in sample 37 of 64, options for unjam beyond torch's)
FAULTS = {
    "exception, cannot be pickled": ("unpicklable exception", {}),
    "batch cannot be pickled": ("unpicklable batch", {}),
    "worker killed once": ("kill", {}),
    "worker exits with 0, once": ("exit", {}),
    "worker segfaults once": ("segv", {}),
    "worker segfaults each time": ("segv again", {}),
    "sample is None": ("none", {}),
    "sample hangs": ("hang", {"sample_timeout": 1.0}),
    "sample hangs, GIL held": ("hold", {"sample_timeout": 1.0}),
    "sample hangs, timeout=3 for both": ("hang", {}),
}


def child(fault: str, loader: str, options: dict, out: Path) -> None:
    import torch.utils.data

    import unjam

    class Locked(Exception):
        def __init__(self):
            super().__init__("locked")
            self.lock = threading.Lock()

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            if index != 37:
                return torch.full((100,), float(index))
            again = os.path.exists(f"{out}.fault")
            with open(f"{out}.fault", "a") as file:
                file.write(f"{time.time()}\n")
            if fault in ("kill", "exit", "segv") and again:
                return torch.full((100,), float(index))
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "exit":
                os._exit(0)
            elif fault.startswith("segv"):
                import ctypes

                ctypes.string_at(0)
            elif fault == "none":
                return None
            elif fault == "hang":
                time.sleep(3600)
            elif fault == "hold":
                import re

                re.match(r"(a+)+$", "a" * 60 + "b")  # takes hours in C and never releases the GIL
            elif fault == "unpicklable exception":
                raise Locked
            return threading.Lock()

    collate = list if fault == "unpicklable batch" else None
    made = {"torch": torch.utils.data.DataLoader, "unjam": unjam.DataLoader}[loader]
    extra = options if loader == "unjam" else {}
    if fault == "hang" and not options:
        extra = {"timeout": 3}
    iterator = iter(made(Data(), batch_size=4, num_workers=2, collate_fn=collate, **extra))
    got = 0
    try:
        while got < 10:
            next(iterator)
            got += 1
        outcome = "the batch itself"
    except Exception as error:
        told = "\n".join([str(error), *getattr(error, "__notes__", [])])
        named = "sample 37" if "sample 37" in told else "samples 36" if "samples 36, 37" in told else "no sample named"
        outcome = f"{type(error).__name__}, {named}"
    began = float(Path(f"{out}.fault").read_text().split()[0])
    out.write_text(json.dumps({"seconds": time.time() - began, "outcome": outcome}))
    os._exit(0)


def run(fault: str, loader: str, options: dict, folder: Path) -> tuple[float, str]:
    out = folder / f"{loader}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [sys.executable, __file__, fault, loader, json.dumps(options), str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    started = time.monotonic()
    while process.poll() is None and time.monotonic() - started < 60:
        mark = Path(f"{out}.fault")
        if mark.exists() and mark.read_text() and time.time() - float(mark.read_text().split()[0]) > LIMIT:
            break
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        return float("inf"), "nothing"
    if not out.exists():
        return float("inf"), f"the program ended with {process.returncode}"
    found = json.loads(out.read_text())
    return found["seconds"], found["outcome"]


def main() -> None:
    import tempfile

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (fault, options) in FAULTS.items():
            seen: dict[str, list[tuple[float, str]]] = {"torch": [], "unjam": []}
            for _ in range(ROUNDS):
                for loader, runs in seen.items():
                    if len(runs) == 1 and runs[0][0] == float("inf"):
                        continue  # it hangs: once is enough
                    runs.append(run(fault, loader, options, Path(folder)))
            took = {loader: statistics.median(seconds for seconds, _ in runs) for loader, runs in seen.items()}
            cells = [
                f"for ever (> {LIMIT:g} s)"
                if took[loader] == float("inf")
                else f"{took[loader] * 1000:.0f} ms: {runs[-1][1]}"
                for loader, runs in seen.items()
            ]
            ratio = "" if took["torch"] == float("inf") else f"{took['torch'] / took['unjam']:.1f}"
            rows.append([name, *cells, ratio])
    table("From a fault to the next batch or the exception", ["fault", "torch", "unjam", "torch / unjam"], rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
