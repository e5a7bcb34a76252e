"""Every respect in which a replacement could be worse than torch's loader: torch and unjam interleaved, ratios of medians.

    python benchmarks/never_worse.py [--rounds 3] [--only WORD] [--scale 1.0]

A ratio above 1 is in unjam's favour, whatever the row measures. Each measurement runs in its own process. `--scale 0.1` makes the large
datasets ten times smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from torch.utils.data import Dataset, IterableDataset

from harness import table


class Tiny(Dataset):
    def __init__(self, nbytes=8, length=4096):
        self.nbytes, self.length = nbytes, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.zeros(self.nbytes, dtype=torch.uint8)


class Images(Tiny):
    def __getitem__(self, index):
        return torch.ones(3, 128, 98), index


class Dicts(Tiny):
    def __getitem__(self, index):
        return {"x": torch.ones(64), "label": index, "name": f"sample {index}", "weight": 0.5}


class Strings(Tiny):
    def __getitem__(self, index):
        return f"the text of sample {index}"


class Arrays(Tiny):
    def __getitem__(self, index):
        return np.ones((64, 64), np.float32)


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for index in range(info.id if info else 0, self.length, info.num_workers if info else 1):
            yield torch.full((32,), index)


class Large(Dataset):
    """One large object, and samples that read a little of it."""

    def __init__(self, kind, scale):
        self.kind = kind
        if kind == "array":
            self.items = np.ones((int(100_000 * scale), 1024), np.float32)
        elif kind == "dicts":
            self.items = [
                {
                    "id": n,
                    "file": f"images/{n:012d}.jpg",
                    "box": [n, n + 1.5, n + 2.5, n + 3.5],
                    "label": n % 80,
                    "area": n / 7,
                    "crowd": False,
                }
                for n in range(int(1_000_000 * scale))
            ]
        else:
            self.items = [f"images/train/{n:012d}.jpg" for n in range(int(5_000_000 * scale))]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        if self.kind == "array":
            return float(item[0])
        return len(item["file"]) + item["label"] if self.kind == "dicts" else len(item)


def as_list(batch):
    return batch


def loader_class(which):
    if which == "torch":
        return torch.utils.data.DataLoader
    import unjam

    return unjam.DataLoader


def tree():
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def summed_pss():
    total = 0
    for process in tree():
        try:
            with open(f"/proc/{process.pid}/smaps_rollup") as maps:
                total += sum(int(line.split()[1]) for line in maps if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 1024


# -- measurements: each takes a loader class and returns numbers; smaller is better --------------------------------------


def start(which, dataset, workers, *, between=0.0, epochs=3, persistent=False):
    """Seconds to the first batch of the first epoch, and the median for later epochs."""
    loader = loader_class(which)(dataset, batch_size=64, num_workers=workers, persistent_workers=persistent)
    time.sleep(between)
    seen = []
    for _ in range(epochs):
        began = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        seen.append(time.perf_counter() - began)
        for _ in range(2):
            next(iterator)
        if persistent:
            for _ in iterator:
                pass
        del iterator
    return {"first": seen[0], "next": statistics.median(seen[1:] or seen)}


def epoch(which, dataset, **options):
    """Seconds per epoch after a warm-up epoch; processor seconds per batch, in the parent and in all processes."""
    loader = loader_class(which)(dataset, persistent_workers=bool(options.get("num_workers")), **options)
    for _ in loader:
        pass
    began, mine, all_ = time.perf_counter(), own_time(), all_time()
    batches = 0
    for _ in loader:
        batches += 1
    seconds = time.perf_counter() - began
    return {"epoch": seconds, "parent": (own_time() - mine) / batches, "processor": (all_time() - all_) / batches}


def own_time():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def all_time():
    total = 0.0
    for process in tree():
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total


def memory(which, dataset, workers=4):
    """Megabytes of all processes at the first batch and after two shuffled epochs."""
    if which == "unjam":
        list(
            loader_class(which)(range(8), num_workers=1)
        )  # start the fork server first, as if this were the second loader of a program
    loader = loader_class(which)(dataset, batch_size=256, num_workers=workers, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    time.sleep(1.0)
    first = summed_pss()
    most = first
    began, samples = time.perf_counter(), 0
    for number in range(2):
        for at, batch in enumerate(iterator):
            samples += len(batch)
            if at % 500 == 0:
                most = max(most, summed_pss())
        if number == 0:
            iterator = iter(loader)
    seconds = time.perf_counter() - began
    return {
        "memory first": first,
        "memory most": max(most, summed_pss()),
        "growth": max(most, summed_pss()) / first,
        "sample": seconds / samples,
    }


def rows(scale):
    tiny = Tiny
    small = 20_000
    found = {
        "first batch, cold": (lambda w: start(w, tiny(), 2, epochs=1), ("first",)),
        "first batch, 3 s after it was made": (lambda w: start(w, tiny(), 2, between=3.0, epochs=1), ("first",)),
    }
    for workers in (2, 4, 8):
        found[f"new workers, tiny, {workers}"] = (lambda w, n=workers: start(w, tiny(), n, epochs=6), ("next",))
        found[f"persistent workers, tiny, {workers}"] = (
            lambda w, n=workers: start(w, tiny(), n, epochs=6, persistent=True),
            ("next",),
        )
    for kind in ("array", "dicts", "strings"):
        found[f"new workers, {kind}, 4"] = (lambda w, k=kind: start(w, Large(k, scale), 4, epochs=5), ("next",))
    for batch, nbytes, workers in ((8, 4, 1), (64, 4, 1), (64, 32, 1), (8, 32, 2), (64, 32, 2)):
        found[f"batches of {batch} x {nbytes} B, {workers}"] = (
            lambda w, b=batch, n=nbytes, k=workers: epoch(w, tiny(nbytes=n, length=small), batch_size=b, num_workers=k), ("epoch", "parent", "processor"),
        )  # fmt: skip
    found |= {
        "tensors of 150 KB, 2": (
            lambda w: epoch(w, Images(length=3000), batch_size=32, num_workers=2),
            ("epoch", "parent", "processor"),
        ),
        "dicts, 2": (lambda w: epoch(w, Dicts(length=small), batch_size=32, num_workers=2), ("epoch", "parent")),
        "strings, 2": (lambda w: epoch(w, Strings(length=small), batch_size=32, num_workers=2), ("epoch", "parent")),
        "numpy, 2": (lambda w: epoch(w, Arrays(length=small), batch_size=32, num_workers=2), ("epoch", "parent")),
        "own collate, 2": (
            lambda w: epoch(w, Dicts(length=small), batch_size=32, num_workers=2, collate_fn=as_list),
            ("epoch", "parent"),
        ),
        "iterable, 2": (lambda w: epoch(w, Stream(small), batch_size=32, num_workers=2), ("epoch", "parent")),
        "batch_size=None, 2": (
            lambda w: epoch(w, Tiny(length=4000), batch_size=None, num_workers=2),
            ("epoch", "parent"),
        ),
        "no workers": (lambda w: epoch(w, Tiny(length=small), batch_size=32, num_workers=0), ("epoch",)),
        "memory, dicts, 4": (
            lambda w: memory(w, Large("dicts", scale)),
            ("memory first", "memory most", "growth", "sample"),
        ),
        "memory, strings, 4": (
            lambda w: memory(w, Large("strings", scale)),
            ("memory first", "memory most", "growth", "sample"),
        ),
    }
    if torch.cuda.is_available():
        found["pinned, 2"] = (
            lambda w: epoch(w, Images(length=3000), batch_size=32, num_workers=2, pin_memory=True),
            ("epoch",),
        )
    return found


def one(name, which, scale):
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, which, "--scale", str(scale)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    if done.returncode or not done.stdout.strip():
        raise SystemExit(f"{name}, {which}: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--one", nargs=2)
    asked = parser.parse_args()
    if asked.one:
        name, which = asked.one
        print(json.dumps(rows(asked.scale)[name][0](which)), flush=True)
        os._exit(0)
    lines = []
    for name, (_, measures) in rows(asked.scale).items():
        if asked.only not in name:
            continue
        seen = {"torch": [], "unjam": []}
        for _ in range(asked.rounds):
            for which, found in seen.items():
                found.append(one(name, which, asked.scale))
        for measure in measures:
            theirs, ours = (statistics.median(run[measure] for run in seen[which]) for which in ("torch", "unjam"))
            ratio = theirs / ours if ours else float("inf")
            lines.append(
                [f"{name}: {measure}", f"{theirs:.4g}", f"{ours:.4g}", f"{ratio:.2f}{'' if ratio >= 0.97 else ' ✗'}"]
            )
            print(*lines[-1], sep=" | ", file=sys.stderr, flush=True)
    table(
        "Never worse than torch",
        ["row", "torch", "unjam", "ratio (above 1: unjam is better)"],
        lines,
        "seconds, megabytes; medians",
    )


if __name__ == "__main__":
    main()
