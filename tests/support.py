"""Datasets in the styles of real users, and how two batches are compared."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from unjam.system.isolation.program_files import VIEW, ProgramFiles
from warm_start import WarmPopen, can_be_warm, warm_interpreter

Point = namedtuple("Point", ["x", "y"])


class Squares(Dataset):
    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.full((3,), float(index * index)), index


class Noisy(Dataset):
    """Draws from every generator that torch seeds in a worker."""

    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        info = get_worker_info()
        return {
            "index": index,
            "worker": -1 if info is None else info.id,
            "seed": -1 if info is None else info.seed,
            "random": random.random(),
            "numpy": np.random.rand(3),
            "torch": torch.randn(2, 2),
        }


class Rows(Dataset):
    """Rows that are large enough for shared memory, beside what a worker draws."""

    def __init__(self, length=96, width=300):
        self.data = torch.arange(length * width, dtype=torch.float32).view(length, width)
        self.array = np.arange(length)

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], index, torch.rand(2), float(self.array[index])


class Stream(IterableDataset):
    """The same as a stream, dealt out over the workers."""

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 60, info.num_workers):
            yield torch.full((300,), number), number


class Bulk(Squares):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Counting(IterableDataset):
    def __init__(self, length=23, noisy=False):
        self.length = length
        self.noisy = noisy

    def __len__(self):
        return self.length

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield (number, torch.rand(2)) if self.noisy else number


class Uneven(IterableDataset):
    """Worker n has n * 5 samples."""

    def __iter__(self):
        info = get_worker_info()
        yield from range(5 * (0 if info is None else info.id))


class Strings(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, key):
        return {"name": f"sample {key}", "raw": bytes([int(key)] * 5), "flag": int(key) % 2 == 0, "size": float(key)}


class Nested(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return OrderedDict(
            a=[torch.ones(2) * i, (np.float32(i), np.arange(3) + i)],
            b=Point(x=torch.tensor(i), y={"z": np.full((2, 2), i, dtype=np.int16)}),
        )


@dataclasses.dataclass
class Record:
    image: torch.Tensor
    name: str
    extra: dict


def tear(value):
    """A batch as plain comparable data, types, dtypes, shapes and strides included."""
    if isinstance(value, torch.Tensor):
        if value.is_sparse:
            value = value.coalesce()
            return (type(value), "sparse", tear(value.indices()), tear(value.values()), tuple(value.shape))
        if value.layout is not torch.strided:
            return (type(value), str(value.layout), tuple(value.shape), value.to_dense().tolist())
        if value.is_nested:
            return (type(value), "nested", [tear(v) for v in value.unbind()])
        if value.is_quantized:
            return (type(value), str(value.dtype), value.q_scale(), value.q_zero_point(), value.int_repr().tolist())
        raw = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        raw = raw.view(torch.uint8).tolist() if raw.numel() else []
        return (type(value), str(value.dtype), tuple(value.shape), value.requires_grad, raw)
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return (type(value), str(value.dtype), value.shape, repr(value.tolist()))
        return (type(value), str(value.dtype), value.shape, value.flags.writeable, value.tobytes())
    if isinstance(value, dict):
        return (type(value), [(key, tear(part)) for key, part in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [tear(part) for part in value])
    if dataclasses.is_dataclass(value):
        return (type(value), [tear(getattr(value, f.name)) for f in dataclasses.fields(value)])
    if type(value).__module__.startswith("pandas"):
        return (type(value), value.to_json())
    if type(value).__module__.startswith("PIL"):
        return (type(value), value.mode, value.size, value.tobytes())
    return (type(value), value)


def seed_all(seed):
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def epochs(loader_class, make_dataset, *, count=1, seed=7, options=None):
    """Everything that `count` epochs yield, torn."""
    seed_all(seed)
    loader = loader_class(make_dataset(), **(options or {}))
    return [[tear(batch) for batch in loader] for _ in range(count)]


def wait_until(condition, timeout=60, *, every=0.02):
    """Wait until `condition()` is true, and return its value; a test that waits in vain fails."""
    until = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < until, f"waited {timeout} s in vain for {getattr(condition, '__name__', condition)}"
        time.sleep(every)
    return found


@functools.cache
def can_isolate() -> bool:
    """Whether `unjam check` can give a program an isolated view of the files."""
    with tempfile.TemporaryDirectory() as folder:
        return ProgramFiles.choose(folder).isolation == VIEW


def start_python(arguments, *, warm=True, **options):
    """Start `python ARGUMENTS` as a child; see NOTE [ Warm programs ] for what `warm` spares."""
    command = [sys.executable, *map(str, arguments)]
    if warm and can_be_warm(command, options.get("env")):
        return WarmPopen(warm_interpreter(), command, **options)
    return subprocess.Popen(command, **options)


def python(arguments, *, timeout=90, check=False, warm=True, typed=None, **options):
    """Run `python ARGUMENTS` to its end; what it printed and its exit status. `typed`: its standard input."""
    pipe = subprocess.PIPE
    options = {"stdin": subprocess.DEVNULL if typed is None else pipe, "stdout": pipe, "stderr": pipe, **options}
    with start_python(arguments, warm=warm, text=True, **options) as process:
        try:
            out, err = process.communicate(typed, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    assert not check or done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done


def script(tmp_path: Path, text: str, *, name="program.py", arguments=(), timeout=90, env=None, check=True, warm=True):
    """Run a program of its own, as a user would; its result."""
    path = tmp_path / name
    path.write_text(textwrap.dedent(text))
    known = {**os.environ, **(env or {})}
    return python([path, *arguments], timeout=timeout, check=check, warm=warm, cwd=tmp_path, env=known)


def empty_case(**changes):
    """What the doctor knows of a loader of which nothing remarkable is known."""
    from unjam.doctor.facts.case import Case, LoaderFacts, ProcessFacts

    loader = LoaderFacts(
        kind="DataLoader", dataset="D", dataset_place=None, iterable=False, length=8, batch_size=4, num_workers=2,
        start_method="fork", prefetch_factor=2, timeout=0, pins_without_accelerator=False, persistent_workers=False,
        drop_last=False, sampler="S", collate="c", default_collate=True, worker_init="",
    )  # fmt: skip
    world = ProcessFacts(
        cpus=2, python="3.11", torch="2", threads=(), native_threads=0, pools=(), accelerator=None, shm_free=1 << 30,
        descriptors=1024, descriptors_used=10, memory=1 << 34, temporary="/tmp", interactive=False,
    )  # fmt: skip
    return Case(dataclasses.replace(loader, **changes), world)
