"""One copy of the dataset or one per worker: summed memory (PSS) of the program and its workers, and the cost of sharing.

Each contender runs in its own process: a dataset, a loader with four persistent workers, two shuffled epochs. Memory is read after the
first batch and then continuously; the largest growth is reported. `python benchmarks/memory.py --small` uses a tenth of the size.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import unjam
from harness import table

WORKERS, BATCH = 4, 2048


# -- datasets ------------------------------------------------------------------------------------------------------------


def path_of(number):
    return f"train/{number % 1000:03d}/{number:09d}.jpg"


def annotation_of(number):
    dice = random.Random(number)
    return {
        "id": number, "image_id": dice.randrange(10**6), "category_id": dice.randrange(90),
        "bbox": [dice.uniform(0, 600) for _ in range(4)], "area": dice.uniform(0, 1e5), "iscrowd": 0,
        "segmentation": [[dice.uniform(0, 600) for _ in range(12)]],
    }  # fmt: skip


class Paths(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return len(self.items[index])


class Annotations(Paths):
    def __getitem__(self, index):
        item = self.items[index]
        return torch.tensor(item["bbox"]), item["category_id"]


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.from_numpy(np.array(self.rows[index]))


class PickledInArray:
    """The usual manual workaround: all items pickled into one array, with the positions where they end."""

    def __init__(self, items):
        rows = [np.frombuffer(pickle.dumps(item, protocol=-1), np.uint8) for item in items]
        self.ends = np.cumsum([len(row) for row in rows])
        self.data = np.concatenate(rows)

    def __len__(self):
        return len(self.ends)

    def __getitem__(self, index):
        start = 0 if index == 0 else self.ends[index - 1]
        return pickle.loads(memoryview(self.data[start : self.ends[index]]))


MAKE = {"strings": (path_of, Paths), "dicts": (annotation_of, Annotations)}


def contender(case, how, count):
    """Create the loader to measure."""
    common = {"batch_size": BATCH, "shuffle": True, "num_workers": WORKERS, "persistent_workers": True}
    if case == "array":
        shape = (count, 1024)
        common["batch_size"] = 64
        if how == "unjam, SharedArray":
            rows = unjam.SharedArray.filled(shape, np.float32, lambda piece, first: piece.fill(first))
        else:
            rows = np.ones(shape, np.float32)
        data = Rows(rows)
    else:
        make, kind = MAKE[case]
        items = (make(number) for number in range(count))
        if how == "unjam, SharedList":
            data = kind(unjam.SharedList(items))
        elif how == "torch fork, pickled by hand":
            data = kind(PickledInArray(items))
        else:
            data = kind(list(items))
    gc.collect()
    if how.startswith("torch"):
        return TorchLoader(data, multiprocessing_context=how.split(",")[0].split()[1], **common)
    return unjam.DataLoader(data, **common)


# -- measuring -----------------------------------------------------------------------------------------------------------


def summed_pss():
    """The PSS of this process and all its descendants, including workers of the fork server."""
    me = psutil.Process()
    children = me.children(recursive=True)
    total = 0
    for child in children:  # suspended, because memory mapped between two reads would count twice
        with contextlib.suppress(psutil.Error):
            child.suspend()
    for process in (me, *children):
        with contextlib.suppress(OSError, StopIteration), open(f"/proc/{process.pid}/smaps_rollup") as file:
            total += next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.resume()
    return total


class Watch(threading.Thread):
    """The largest sum so far."""

    def __init__(self):
        super().__init__(daemon=True)
        self.most = 0
        self.over = threading.Event()

    def run(self):
        while not self.over.wait(0.5):
            self.most = max(self.most, summed_pss())


def measure(case, how, count):
    """Measure one contender; runs in its own process."""
    # start the fork server first, as if this were the second loader of a program
    if how.startswith("unjam"):
        list(unjam.DataLoader(range(8), num_workers=1))
    empty = summed_pss()
    loader = contender(case, how, count)
    held = summed_pss()
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first = time.perf_counter() - began
    time.sleep(1.0)  # wait for the first batches of the other workers
    after_first = summed_pss()
    watch = Watch()
    watch.start()
    began, samples = time.perf_counter(), 0
    for batch in iterator:
        samples += len(batch if torch.is_tensor(batch) else batch[0])
    if case != "array":
        for batch in loader:
            samples += len(batch if torch.is_tensor(batch) else batch[0])
    seconds = time.perf_counter() - began
    watch.over.set()
    watch.join()
    most = max(watch.most, summed_pss())
    del iterator
    told = {
        "empty": empty, "held": held - empty, "first": first, "after_first": after_first, "most": most,
        "rate": samples / seconds,
    }  # fmt: skip
    if how.startswith("unjam"):
        told["rebuilt"] = loader.statistics().rebuilt
    print(json.dumps(told), flush=True)
    os._exit(0)  # do not wait until millions of objects are freed


def run(case, how, count):
    """Start a measurement in another process and return its result."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", case, how, str(count)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    if done.returncode or not done.stdout.strip():
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:80]}
    return json.loads(done.stdout.splitlines()[-1])


# -- cost of one access -------------------------------------------------------------------------------------------------


def per_item(read, places):
    began = time.perf_counter()
    for place in places:
        read(place)
    return (time.perf_counter() - began) / len(places)


def access(count):
    """Shuffled reads of one item, and the time to create the shared container; medians of five, interleaved."""
    places = list(range(count))
    random.Random(0).shuffle(places)
    places = places[: min(count, 500_000)]
    rows = []
    strings = [path_of(number) for number in range(count)]
    dicts = [annotation_of(number) for number in range(min(count, 200_000))]
    few = [place % len(dicts) for place in places[:100_000]]
    texts = sum(map(len, strings)) / 1e6
    began = time.perf_counter()
    shared = unjam.SharedList(strings)
    strings_share = time.perf_counter() - began
    longer = [f"imagenet/train/n{number % 1000:08d}/n{number % 1000:08d}_{number}.JPEG" for number in range(count // 5)]
    began = time.perf_counter()
    unjam.SharedList(longer)
    longer_share = sum(map(len, longer)) / 1e6 / (time.perf_counter() - began)
    began = time.perf_counter()
    records = unjam.SharedList(dicts)
    dicts_share = time.perf_counter() - began
    contenders = {
        "strings: list": (strings.__getitem__, places, None),
        "strings: SharedList": (
            shared.__getitem__,
            places,
            f"{texts / strings_share:,.0f} MB/s of text; {longer_share:,.0f} of paths",
        ),
        "strings: pickled by hand": (PickledInArray(strings[: len(dicts)]).__getitem__, few, None),
        "dicts: list, all values read": (lambda place: list(dicts[place].values()), few, None),
        "dicts: SharedList": (records.__getitem__, few, f"{records.nbytes / 1e6 / dicts_share:,.0f} MB/s"),
        "dicts: pickled by hand": (PickledInArray(dicts).__getitem__, few, None),
    }
    try:
        import pyarrow as pa
    except ImportError:
        pass
    else:
        column = pa.array(strings)
        contenders["strings: pyarrow"] = (lambda place: column[place].as_py(), few, None)
        table_ = pa.Table.from_pylist(dicts)
        contenders["dicts: pyarrow"] = (lambda place: table_.slice(place, 1).to_pylist()[0], few[:5000], None)
    times = {name: [] for name in contenders}
    for _ in range(5):
        for name, (read, where, _) in contenders.items():
            times[name].append(per_item(read, where))
    medians = {name: sorted(found)[2] for name, found in times.items()}
    for name, (_, _, speed) in contenders.items():
        base = medians["strings: list" if name.startswith("strings") else "dicts: list, all values read"]
        rows.append([name, f"{medians[name] * 1e9:,.0f} ns", f"{medians[name] / base:.1f}x", speed or ""])
    table("One item, shuffled", ["", "time", "to a list's", "time to share"], rows)


# -- an array in memory and in a mapped file ------------------------------------------------------------------------------


class InMemory(Dataset):
    """As in many tutorials: everything is read when the dataset is created."""

    def __init__(self, path):
        self.data = np.load(path)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return torch.from_numpy(self.data[index])


LAZY = {
    "in memory, torch fork": (InMemory, TorchLoader, "fork"),
    "in memory, torch spawn": (InMemory, TorchLoader, "spawn"),
    "mapped, torch fork": (unjam.MappedDataset, TorchLoader, "fork"),
    "mapped, torch spawn": (unjam.MappedDataset, TorchLoader, "spawn"),
    "mapped, unjam": (unjam.MappedDataset, unjam.DataLoader, None),
}


def measure_lazy(how, path):
    """In a process of its own."""
    make, loader, method = LAZY[how]
    if method is None:
        list(unjam.DataLoader(range(8), num_workers=1))
    empty, began = summed_pss(), time.perf_counter()
    data = make(path)
    made = time.perf_counter() - began
    iterator = iter(
        loader(data, batch_size=4, num_workers=WORKERS, multiprocessing_context=method, persistent_workers=True)
    )
    next(iterator)
    first = time.perf_counter() - began - made
    for _ in iterator:
        pass
    own = sum(_anonymous(process.pid) for process in (psutil.Process(), *psutil.Process().children(recursive=True)))
    print(json.dumps({"made": made, "first": first, "pss": summed_pss() - empty, "own": own}), flush=True)
    os._exit(0)


def _anonymous(pid):
    """Private memory of a process: what the system cannot reclaim by dropping file pages."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def lazy(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/x.npy"
        np.save(path, np.ones((rows, 1024, 1024), np.float32))
        found = []
        for how in LAZY:
            done = subprocess.run(
                [sys.executable, __file__, "--one", "lazy", how, path],
                capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
            )  # fmt: skip
            told = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else None
            if told is None:
                found.append([how, (done.stderr.strip().splitlines() or ["no output"])[-1][:80]])
                continue
            found.append([
                how, f"{told['made']:.2f} s", f"{told['first']:.2f} s", f"{told['own'] / 1e6:,.0f} MB", f"{told['pss'] / 1e6:,.0f} MB",
            ])  # fmt: skip
    head = ["", "made in", "first batch", "memory of its own", "with mapped pages"]
    table(f"An array of {rows * 4} MB, {WORKERS} workers, one epoch", head, found)


# -- the tables ------------------------------------------------------------------------------------------------------------

CASES = {
    "strings": (5_000_000, ["torch fork", "torch spawn", "torch fork, pickled by hand", "unjam, as it is", "unjam, SharedList"]),
    "dicts": (1_000_000, ["torch fork", "torch spawn", "torch fork, pickled by hand", "unjam, as it is", "unjam, SharedList"]),
    "array": (1_000_000, ["torch fork", "unjam, as it is", "unjam, SharedArray"]),
}  # fmt: skip
TITLES = {
    "strings": "{:,} short strings, {} workers, two shuffled epochs",
    "dicts": "{:,} dicts like COCO's annotations, {} workers, two shuffled epochs",
    "array": "{:,} rows of 1,024 float32, {} workers, one shuffled epoch",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", choices=[*CASES, "access", "lazy"])
    asked = parser.parse_args()
    if asked.one and asked.one[0] == "lazy":
        measure_lazy(*asked.one[1:])
    if asked.one:
        measure(asked.one[0], asked.one[1], int(asked.one[2]))
    part = 10 if asked.small else 1
    if asked.only in (None, "access"):
        access(5_000_000 // part)
    if asked.only in (None, "lazy"):
        lazy(100 // part)
    for case, (count, hows) in CASES.items():
        if asked.only not in (None, case):
            continue
        size = count // part
        rows, rates = [], {}
        for how in hows:
            told = run(case, how, size)
            if "failed" in told:
                rows.append([how, told["failed"]])
                continue
            rates[how] = told["rate"]
            base = told["after_first"]
            copies = f"{(told['most'] - told['empty']) / (size * 4096):.2f}" if case == "array" else ""
            rows.append([
                how, f"{told['held'] / 1e6:,.0f} MB", f"{base / 1e6:,.0f} MB", f"{told['most'] / 1e6:,.0f} MB",
                f"{(told['most'] - base) / base:+.1%}", f"{told['first']:.2f} s", f"{told['rate']:,.0f}/s",
                f"{told['rate'] / rates['torch fork']:.2f}" if "torch fork" in rates else "", copies,
            ])  # fmt: skip
            print(" ", how, told.get("rebuilt", ""), flush=True)
        head = ["", "dataset", "after the first batch", "at most", "growth", "first batch", "samples", "to torch fork"]
        table(TITLES[case].format(size, WORKERS), [*head, "copies" if case == "array" else ""], rows)
    if asked.only in (None, "array"):
        print("torch spawn pickles the array into each worker: five copies; not run.")


if __name__ == "__main__":
    main()
