"""`device=`: batches on an accelerator. A stand-in copies as late as a device may, so that memory reused too early shows.

`make device` runs the same on a machine with an accelerator (tests/stress_device.py).
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import gc
import os
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import unjam
from support import python
from unjam import DataLoader, DeviceError
from unjam.loader.device import mover, pinning
from unjam.loader.pool.batch_result import BatchReport, FailedBatch

ROW = 20_000  # bytes of a sample: batches lie in slots


class Rows(Dataset):
    def __init__(self, length=40):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((ROW,), index, dtype=torch.uint8), index


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(40):
            yield torch.full((ROW,), index, dtype=torch.uint8), index


class FakePoint:
    def __init__(self, device, copies):
        self.device, self.copies, self.asked = device, copies, 0

    def done(self):
        self.asked += 1
        if self.asked > 20 and self in self.device.points:  # the device goes on by itself, slowly
            self.device._run(self)
        return not self.copies

    def times(self):
        now = time.monotonic_ns()
        return now - 1_000_000, now, 0


class FakeDevice:
    """Copies nothing until somebody waits for it, or until `late` points are pending."""

    device = torch.device("cpu")
    pins = True

    def __init__(self, *, registers=True, late=3):
        self.registers, self.late = registers, late
        self.pending, self.points = [], []
        self.copies = self.opened = 0
        self.registered, self.ever = {}, 0
        self.room = None
        self.refuses = False

    def ours(self):
        return contextlib.nullcontext()

    def staging(self, size):
        return torch.empty(size, dtype=torch.uint8)

    def staged(self, tensor):
        return tensor.clone()

    def like(self, tensor):
        if self.room is not None and self.room() < 0:
            raise mover.OutOfMemory("no room")
        return torch.zeros_like(tensor)

    def copy(self, target, source):
        self.copies += 1
        if self.late:
            self.pending.append((target, source))
        else:
            target.copy_(source)

    def begin(self, *, after_consumer):
        assert not after_consumer

    def point(self, begun):
        point = FakePoint(self, self.pending)
        self.pending = []
        self.points.append(point)
        while len(self.points) > self.late:
            self._run(self.points[0])
        return point

    def _run(self, last):
        while True:
            point = self.points.pop(0)
            for target, source in point.copies:
                target.copy_(source)
            point.copies.clear()
            if point is last:
                return

    def hand_over(self, point, tensors):
        if point in self.points:
            self._run(point)

    def register(self, address, size):
        if self.refuses:
            return False
        assert address not in self.registered, "registered twice"
        self.registered[address] = size
        self.ever += 1
        return True

    def undo(self, address):
        home = os.getpid()

        def unregister():
            if os.getpid() == home:
                del self.registered[address]

        return unregister


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    monkeypatch.setenv("UNJAM_POISON", "1")  # memory that is given back is overwritten at once


@pytest.fixture
def device(monkeypatch):
    fake = FakeDevice()

    def opened(_):
        fake.opened += 1
        return fake

    monkeypatch.setattr(mover, "open_accelerator", opened)
    monkeypatch.setattr("unjam.loader.iterator.check", lambda _: None)
    yield fake
    gc.collect()
    assert not fake.registered, "memory is still registered"


def loader_of(dataset=None, workers=2, **options):
    context = "fork" if workers else None
    options = {"device": "cuda", "batch_size": 4, "multiprocessing_context": context, **options}
    return DataLoader(Rows() if dataset is None else dataset, num_workers=workers, **options)


def check_rows(batches, length=40):
    rows = [(int(index), row) for data, indices in batches for row, index in zip(data, indices, strict=True)]
    assert sorted(index for index, _ in rows) == list(range(length))
    for index, row in rows:
        assert row.unique().tolist() == [index]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("late", [0, 1, 5])
@pytest.mark.parametrize("keeps", [True, False])
def test_every_byte_arrives(device, workers, late, keeps):
    device.late = late
    loader = loader_of(workers=workers, shuffle=True)
    for _ in range(2):
        kept = []
        for data, indices in loader:
            kept.append((data if keeps else data.clone(), indices.clone()))
            del data
        check_rows(kept)
    assert device.opened == 2  # once for each epoch's workers
    copies = loader.statistics().copies
    assert copies.batches == 20
    assert copies.bytes >= 2 * 40 * ROW
    assert (copies.direct > 0.9) == (workers > 0)
    assert "GB/s" in str(loader.statistics())


def test_streams_and_persistent_workers(device):
    check_rows(list(loader_of(Stream(), workers=1)))
    loader = loader_of(persistent_workers=True)
    for _ in range(3):
        check_rows(list(loader))
    assert device.ever <= 20, "slots are registered once"
    del loader


def test_out_of_order_and_auto_loaders_work(device):
    check_rows(list(loader_of(workers=3, in_order=False)))
    check_rows(list(loader_of(workers="auto", multiprocessing_context=None)))


@pytest.mark.parametrize("pins", [True, False])
def test_batches_are_copied_when_the_driver_cannot_register_memory(device, caplog, monkeypatch, pins):
    monkeypatch.setattr("unjam.loader.device.pinning.pin_memory", lambda data, _: [one.clone() for one in data])
    device.refuses, device.pins = True, pins
    loader = loader_of()
    check_rows(list(loader))
    assert loader.statistics().copies.direct == 0
    assert sum("does not register" in record.message for record in caplog.records) == 1


Pair = collections.namedtuple("Pair", "row index")


@dataclasses.dataclass(frozen=True)
class Batch:
    row: torch.Tensor
    names: list


class Own:
    def __init__(self, row):
        self.row, self.moved = row, ()

    def to(self, device, **options):
        made = Own(self.row.to(device, copy=True))
        made.moved = (device, options)
        return made


class Moment:
    """No tensors in it: its `.to()` means something else."""

    def to(self, zone):
        raise ValueError(f"there is no zone {zone}")


class Table(dict):
    title = "mine"


class Encoding(collections.UserDict):
    """As a tokenizer's batch: `.to()` changes the object itself. As with a device, the bytes are read later."""

    device = None

    def to(self, where, **options):
        old, self.data = self.data, {name: torch.zeros_like(value) for name, value in self.data.items()}
        for name, value in old.items():
            self.device.copy(self.data[name], value)
        return self


def encode(samples):
    rows, indices = zip(*samples, strict=True)
    return Encoding({"row": torch.stack(rows), "index": torch.tensor(indices)})


class Lazy(collections.abc.Sequence):
    """Makes a new tensor whenever one is asked for."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if index >= len(self.rows):
            raise IndexError
        return self.rows[index].clone()


def odd_collate(samples):
    rows, indices = zip(*samples, strict=True)
    row, index = torch.stack(rows), torch.tensor(indices)
    return {
        "pair": Pair(row, index),
        "batch": Batch(row, ["a", "b"]),
        "own": Own(row),
        "table": Table(x=index, y="words"),
        "tuple": (index, None, 3),
        "array": np.arange(3),
        "again": row,
        "empty": torch.empty(0, 3),
        "number": torch.tensor(1.5),
        "turned": row.view(len(samples), 100, -1).transpose(1, 2),
        "leaf": torch.ones(3, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
        "range": range(3),
        "moment": Moment(),
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_any_batch_structure_is_moved(device, workers):
    for number, batch in enumerate(loader_of(workers=workers, collate_fn=odd_collate)):
        first = number * 4
        assert type(batch["pair"]) is Pair
        assert batch["pair"].row[:, 0].tolist() == list(range(first, first + 4))
        assert batch["pair"].row is batch["again"] is batch["batch"].row
        assert type(batch["batch"]) is Batch
        assert batch["batch"].names == ["a", "b"]
        assert batch["own"].moved == (device.device, {"non_blocking": True})
        assert (type(batch["table"]), batch["table"].title, batch["table"]["y"]) == (Table, "mine", "words")
        assert batch["tuple"][0].tolist() == list(range(first, first + 4))
        assert batch["tuple"][1:] == (None, 3)
        assert isinstance(batch["array"], np.ndarray)
        assert batch["empty"].shape == (0, 3)
        assert batch["number"].item() == 1.5
        assert batch["turned"].shape == (4, 200, 100)
        assert batch["turned"][2].unique().tolist() == [first + 2]
        assert batch["leaf"].requires_grad
        assert batch["leaf"].is_leaf
        assert batch["sparse"].to_dense().sum() == 3
        assert batch["range"] == range(3)
        assert isinstance(batch["moment"], Moment)


def test_batches_with_a_mutating_to_method_are_moved_once(device):
    Encoding.device = device
    device.late = 5
    got = list(loader_of(collate_fn=encode, workers=2))
    check_rows([(one["row"], one["index"]) for one in got])


def test_lazy_containers_are_moved(device):
    def collate(samples):
        return Lazy(torch.stack([row for row, _ in samples]))

    for number, batch in enumerate(loader_of(collate_fn=collate, workers=1)):
        assert [int(row[0]) for row in batch] == list(range(4 * number, 4 * number + 4))


def test_small_tensors_are_not_views_of_each_other(device):
    device.late = 0

    def collate(samples):
        return torch.ones(4), torch.tensor([index for _, index in samples])

    weights, labels = next(iter(loader_of(collate_fn=collate)))
    model = torch.ones(4, requires_grad=True)
    loss = (model * weights).sum()
    labels[labels < 2] = 0  # would count as a change of the weights
    loss.backward()
    weights += model.detach()
    assert not weights._is_view()


def test_ctrl_c_loses_no_batch(device):
    class Interrupting(FakeDevice):
        stops = 0

        def like(self, tensor):
            self.stops += 1
            if self.stops in (3, 7):
                raise KeyboardInterrupt
            return super().like(tensor)

    device.__class__ = Interrupting
    for workers in (0, 2):
        device.stops = 0
        iterator, got, stopped = iter(loader_of(workers=workers)), [], 0
        while True:
            try:
                got.append(next(iterator))
            except KeyboardInterrupt:
                stopped += 1
            except StopIteration:
                break
        assert stopped == 2
        check_rows(got)


def test_an_error_in_a_prefetched_batch_does_not_keep_workers_alive(device):
    def on_device(batch):
        if 5 in batch[1]:
            raise ValueError("no")
        return batch

    device.late = 0
    iterator = iter(loader_of(on_device=on_device))
    next(iterator)
    pool = iterator._pool
    del iterator
    gc.collect()
    assert all(not process.is_alive() for process in pool.processes)


def test_batches_ignore_the_grad_mode_of_the_consumer(device):
    def on_device(batch):
        assert not torch.is_grad_enabled()
        return batch[0].float() * 2, batch[1]

    device.late = 0
    iterator = iter(loader_of(on_device=on_device))
    with torch.inference_mode():
        next(iterator)
    data, _ = next(iterator)  # was begun above
    assert not data.is_inference()
    assert not data.requires_grad


def test_small_tensors_are_copied_together(device):
    def collate(samples):
        return {str(n): torch.full((n + 1,), float(n), dtype=[torch.float64, torch.int8][n % 2]) for n in range(30)}

    for batch in loader_of(collate_fn=collate):
        assert all(batch[str(n)].tolist() == [n] * (n + 1) for n in range(30))
    assert device.copies == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_on_device_runs_on_the_device(device, workers):
    calls = []

    def on_device(batch):
        calls.append(batch)
        return batch[0].clone(), batch[1] + 100

    device.late = 0  # the function reads what was copied
    got = list(loader_of(workers=workers, on_device=on_device))
    assert [index for _, indices in got for index in indices.tolist()] == list(range(100, 140))
    assert len(calls) == 10


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_on_device_function_names_the_batch(device, workers):
    device.late = 0

    def on_device(batch):
        if 9 in batch[1]:
            raise ZeroDivisionError("no")
        return batch

    iterator, got = iter(loader_of(workers=workers, on_device=on_device)), []
    with pytest.raises(DeviceError, match=r"batch 2 \(samples 8, 9, 10, 11\).*ZeroDivisionError: no"):
        for batch in iterator:
            got.append(batch)
    assert len(got) == 2
    assert len(list(iterator)) == 7, "the others still come"


def test_a_temporary_lack_of_device_memory_is_survived(device):
    refusals = iter([-1])
    device.room = lambda: next(refusals, 1)
    check_rows(list(loader_of()))


def test_a_permanent_lack_of_device_memory_names_the_batch(device):
    device.room = lambda: -1
    with pytest.raises(mover.OutOfMemory, match=r"batch 0 \(samples 0, 1, 2, 3\), 80,\d+ bytes, does not fit"):
        next(iter(loader_of()))


@pytest.mark.parametrize("how", ["break", "close"])
def test_nothing_is_left_on_the_device(device, how):
    device.late = 100
    loader = loader_of(workers=2, prefetch_factor=4)
    iterator = iter(loader)
    kept = next(iterator)
    if how == "close":
        iterator._shutdown_workers()
    del iterator, loader
    assert kept[0].unique().tolist() == [0, 1, 2, 3]


def test_worker_death_is_recovered(device):
    loader = loader_of(workers=2)
    iterator = iter(loader)
    got = [next(iterator), next(iterator)]
    os.kill(iterator._pool.pid(0), signal.SIGKILL)
    check_rows([*got, *iterator])
    assert loader.statistics().restarts == 1


@pytest.mark.parametrize("at", [2, 5])
def test_an_interrupted_function_for_the_device_gets_the_same_batch_again(at):
    interrupts = []

    def on_device(batch):
        if int(batch[0, 0]) == 4 * at and not interrupts:
            interrupts.append(at)
            raise KeyboardInterrupt
        return batch

    data = torch.arange(40).repeat_interleave(20_000).view(40, 20_000)
    batches = iter(unjam.DataLoader(data, 4, num_workers=1, device="cpu", on_device=on_device, prefetch_factor=4))
    got = []
    while len(got) < 10:
        try:
            got.append(next(batches)[:, 0].tolist())
        except KeyboardInterrupt:
            pass
        else:
            continue
        time.sleep(0.5)  # the worker fills the free slots
    assert got == [list(range(n, n + 4)) for n in range(0, 40, 4)]


def test_a_forked_child_does_not_touch_the_device(device):
    loader = loader_of()
    iterator = iter(loader)
    next(iterator)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            iterator._shutdown_workers()
            del iterator, loader
            gc.collect()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(list(iterator)) == 9


def test_the_device_is_first_used_for_the_first_batch(device):
    loader = loader_of()
    iterator = iter(loader)
    assert not device.opened
    next(iterator)
    assert device.opened == 1


def test_devices_are_validated():
    for none in (None, "cpu", torch.device("cpu")):
        check_rows(list(DataLoader(Rows(), 4, num_workers=1, device=none, multiprocessing_context="fork")))
    with pytest.raises(ValueError, match="is not a torch device"):
        DataLoader(Rows(), device="gpu")
    with pytest.raises(TypeError, match="device should be"):
        DataLoader(Rows(), device=1.5)
    with pytest.raises(ValueError, match="on_device needs device"):
        DataLoader(Rows(), on_device=lambda batch: batch)
    with pytest.raises(TypeError, match="on_device should be a function"):
        DataLoader(Rows(), device="cuda", on_device=3)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_on_device_also_runs_on_the_cpu(workers, device):
    loader = DataLoader(Rows(), 4, num_workers=workers, device=device, on_device=lambda batch: (-batch[0], batch[1]))
    plain = list(DataLoader(Rows(), 4))
    for (data, index), (expected, places) in zip(loader, plain, strict=True):
        assert torch.equal(data, -expected)
        assert torch.equal(index, places)
    failing = DataLoader(Rows(), 4, num_workers=workers, device="cpu", on_device=lambda batch: batch["image"])
    with pytest.raises(TypeError, match=r"(list|tuple) indices"):
        next(iter(failing))


@pytest.mark.skipif("torch.cuda.is_available()", reason="there is a device here")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_missing_device_is_an_error(workers):
    with pytest.raises(DeviceError, match="has no cuda device"):
        next(iter(DataLoader(Rows(), device="cuda", num_workers=workers)))


@pytest.mark.parametrize("workers", [0, 1])
def test_devices_without_streams_work(workers):
    data, index = next(iter(DataLoader(Rows(), 4, device="meta", num_workers=workers)))
    assert data.device.type == index.device.type == "meta"
    assert data.shape == (4, ROW)


def test_copying_a_loader_keeps_the_device_option(device):
    import copy

    loader = copy.copy(loader_of())
    assert loader.device == "cuda"
    check_rows(list(loader))


def test_unjam_run_has_a_device_flag(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "for (x,) in DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=4):\n    print(x.device)\n"
    )
    done = python(["-m", "unjam", "run", "--device", "meta", program])
    assert done.stdout == "meta\nmeta\n", done.stderr
    assert "device: 2 batches" in done.stderr
    assert unjam.DeviceError is DeviceError


def test_every_copy_is_recorded(device):
    from unjam.loader.state import recorder_of

    loader, told = loader_of(workers=2), []
    recorder_of(loader).copies.on_copied = lambda *times: told.append(times)
    check_rows([(data.clone(), indices.clone()) for data, indices in loader])
    assert len(told) == 10
    assert sum(nbytes for _, _, nbytes, _ in told) == loader.statistics().copies.bytes
    assert all(begun < done for begun, done, _, _ in told)


class LateFuture(concurrent.futures.Future):
    """The batch is pinned at the very moment at which the wait for it ends."""

    def result(self, timeout=None):
        if self.done():
            return super().result(timeout)
        self.set_result("batch")
        raise concurrent.futures.TimeoutError


@pytest.mark.static
def test_a_batch_that_is_pinned_when_the_wait_ends_is_delivered():
    batch = pinning.PinnedBatch(FailedBatch(BatchReport(), raises=True), None, 0, {})
    batch._begun = future = LateFuture()
    timer = threading.Timer(0.1, lambda: future.done() or future.set_result("batch"))
    timer.start()
    assert batch.open(copy=False) == "batch"
    timer.join()


def test_timeout_counts_only_the_wait_for_workers(device, monkeypatch):
    plain = mover.open_accelerator

    def slow(which):
        time.sleep(4.5)
        return plain(which)

    monkeypatch.setattr(mover, "open_accelerator", slow)
    check_rows([(data.clone(), indices.clone()) for data, indices in loader_of(workers=2, timeout=4)])


@pytest.mark.static
def test_a_batch_whose_pinning_was_cancelled_ends_the_wait():
    """The loader was closed by a signal handler or another thread while the batch was queued for pinning."""
    batch = pinning.PinnedBatch(FailedBatch(BatchReport(), raises=True), None, 0, {})
    batch._begun = concurrent.futures.Future()
    batch._begun.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        batch.open(copy=False)
