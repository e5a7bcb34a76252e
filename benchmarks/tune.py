"""The choices of `unjam tune` and `num_workers="auto"`, compared with an exhaustive sweep and with common defaults.

For each of six workloads: every setting briefly; the recommendation of `tune` and its duration; `auto` until it settles and the time
this takes. Then the best of the sweep, tune's choice, auto and the defaults are measured again, interleaved. The goals are 0.95 of the
best of the sweep for tune and for auto.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

import unjam
from harness import table, verdict
from workloads import WORKLOADS

STEPS = (0, 1, 2, 4, 8, 16)
SHORT, LONG, ROUNDS = 0.6, 1.2, 3
HERE = Path(__file__).parent


class Contender:
    """A loader that is iterated repeatedly for a given time."""

    def __init__(self, name: str, driver: str, workers: int | str, prefetch: int = 2) -> None:
        self.name = name
        dataset = WORKLOADS[name]()
        kind = unjam.DataLoader if driver == "unjam" else torch.utils.data.DataLoader
        options = {"prefetch_factor": prefetch} if workers not in (0, "auto") else {}
        if name == "locked" and workers:
            options["multiprocessing_context"] = "fork"  # such a lock can only be inherited by fork
        self.loader = kind(dataset, batch_size=dataset.batch, num_workers=workers, **options)
        self.ahead = prefetch * workers if isinstance(workers, int) else 0
        self._iterator = None

    def rate(self, seconds: float) -> float:
        """Samples per second, not counting prefetched ones."""
        size, count, began = self.loader.dataset.batch, 0, 0.0
        seen = 0
        while True:
            if self._iterator is None:
                self._iterator = iter(self.loader)
            for _ in self._iterator:
                seen += 1
                now = time.perf_counter()
                if seen <= self.ahead + 2:
                    began = now
                    continue
                count += size
                if now - began > seconds and count >= 6 * size:
                    return count / (now - began)
            self._iterator = None

    def close(self) -> None:
        """Stop its workers."""
        self._iterator = self.loader = None


def measured(name: str, driver: str, workers: int | str, seconds: float, prefetch: int = 2) -> float:
    one = Contender(name, driver, workers, prefetch)
    try:
        return one.rate(seconds)
    finally:
        one.close()


def sweep(name: str) -> dict[tuple[str, int, int], float]:
    """Measure every setting briefly."""
    found = {(driver, n, 2): measured(name, driver, n, SHORT) for n in STEPS for driver in ("unjam", "torch")}
    best = max(found, key=lambda setting: found[setting])
    for prefetch in (4, 8):
        if best[1]:
            found[best[0], best[1], prefetch] = measured(name, best[0], best[1], SHORT, prefetch)
    return found


def tuned(name: str, budget: float) -> tuple[tuple[str, int, int], float]:
    """The recommendation of `unjam tune`, and its duration."""
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "unjam",
        "tune",
        "--budget",
        str(budget),
        "--json",
        "-",
        f"{HERE / 'workloads.py'}:{name}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    choice = json.loads(done.stdout)["choice"]
    return (choice["driver"], choice["workers"], choice["prefetch"]), time.perf_counter() - began


def settle(contender: Contender) -> tuple[float, int]:
    """Run `auto` until it settles; return seconds and batches."""
    began = time.perf_counter()
    while time.perf_counter() - began < 60:
        contender.rate(0.5)
        auto = contender.loader.statistics().auto
        if auto is not None and auto.settled:
            break
    return time.perf_counter() - began, contender.loader.statistics().batches


def main() -> None:
    """Run all workloads, or those named on the command line."""
    names = sys.argv[1:] or list(WORKLOADS)
    cores = os.cpu_count() or 1
    rows, goals = [], []
    for name in names:
        swept = sweep(name)
        best = max(swept, key=lambda setting: swept[setting])
        choice, took = tuned(name, 40)
        auto = Contender(name, "unjam", "auto")
        settled, batches = settle(auto)
        said = auto.loader.statistics().auto
        settings = {
            "best": best,
            "tune": choice,
            "0": ("torch", 0, 2),
            "cores": ("torch", cores, 2),
            "4 x cores": ("torch", 4 * cores, 2),
        }
        rates: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            rates.setdefault("auto", []).append(auto.rate(LONG))
            for label, (driver, workers, prefetch) in settings.items():
                rates.setdefault(label, []).append(measured(name, driver, workers, LONG, prefetch))
        auto.close()
        middle = {label: statistics.median(found) for label, found in rates.items()}
        against = {label: middle[label] / middle["best"] for label in middle}
        goals += [(name, "tune", against["tune"]), (name, "auto", against["auto"])]
        rows.append([
            name, f"{best[0]} {best[1]}/{best[2]}", f"{middle['best']:,.0f}",
            f"{choice[0]} {choice[1]}/{choice[2]}", f"{against['tune']:.2f}", f"{took:.0f} s",
            f"{said.workers}/{said.prefetch}" if said else "?", f"{against['auto']:.2f}", f"{settled:.0f} s, {batches}",
            f"{against['0']:.2f}", f"{against['cores']:.2f}", f"{against['4 x cores']:.2f}",
        ])  # fmt: skip
        print(" | ".join(rows[-1]), flush=True)
    head = ["workload", "best of sweep", "samples/s", "tune", "of best", "took", "auto", "of best", "settled after",
            "0 workers", "cores", "4 x cores"]  # fmt: skip
    table("settings as workers/prefetch; ratios of the best of the sweep", head, rows)
    for name, who, share in goals:
        print(f"{who} on {name}: {verdict(share, 0.95)}")


if __name__ == "__main__":
    main()
