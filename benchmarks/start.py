"""Time from `iter(loader)` to the first batch: a 400 MB array (and a lambda, if the loader can send one), 4 workers.

Each run is a separate process: cold is its first epoch, warm its second. Memory is the summed PSS of all processes below the training
process after 200 batches of the second epoch, in copies of the array.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from harness import table, verdict

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from runner import run

WAYS = {"torch spawn (no lambda)": ("torch", "spawn"), "torch fork": ("torch", "fork"), "unjam": ("unjam",)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    seen = {name: [] for name in WAYS}
    for _ in range(arguments.rounds):
        for name, way in WAYS.items():
            outcome = run("large_array", *way)
            assert outcome.ok, outcome.text
            seen[name].append(outcome.facts)
    median = {
        name: {key: statistics.median(facts[key] for facts in runs) for key in ("cold", "warm", "copies")}
        for name, runs in seen.items()
    }
    ours, spawn = median["unjam"], median["torch spawn (no lambda)"]
    goals = {
        "cold": verdict(ours["cold"] / spawn["cold"], 0.25, at_least=False),
        "warm": verdict(ours["warm"], 0.4, at_least=False),
        "copies": verdict(ours["copies"], 1.2, at_least=False),
    }
    rows = [[name, f"{m['cold']:.2f}", f"{m['warm']:.2f}", f"{m['copies']:.2f}"] for name, m in median.items()]
    rows.append(["goal: unjam", f"{goals['cold']} of spawn", f"{goals['warm']} s", goals["copies"]])
    table("Start, 400 MB, 4 workers", ["way", "first batch s", "next epoch s", "copies in workers"], rows)


if __name__ == "__main__":
    main()
