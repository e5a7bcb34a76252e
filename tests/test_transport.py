"""What a worker returns is what the consumer gets: types, values, and memory that never changes under the user."""

from __future__ import annotations

import collections
import dataclasses
import gc
import os
import resource
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

import unjam
from support import Point, Record, Squares, tear
from unjam.loader.pool.batch_result import ReceivedBatch
from unjam.loader.transport.channel import Channel, pair
from unjam.loader.transport.leases import POISON_VARIABLE, Leases
from unjam.loader.transport.packing import Packer
from unjam.loader.transport.slots import Arena
from unjam.loader.transport.status_page import StatusPage
from unjam.system import memory


class Tagged(torch.Tensor):
    """A subclass in the style of torchvision's tv_tensors."""


class Holder:
    """A user's own class holding tensors and arrays."""

    def __init__(self, tensor, array):
        self.tensor = tensor
        self.array = array

    def __eq__(self, other):
        return tear(self.tensor) == tear(other.tensor) and tear(self.array) == tear(other.array)

    __hash__ = None


_COMPLEX = torch.complex(torch.arange(3000.0), torch.arange(3000.0))


def zoo():
    torch.manual_seed(0)
    np.random.seed(0)
    image = torch.randint(0, 255, (3, 40, 50), dtype=torch.uint8)
    structured = np.zeros(700, dtype=[("id", "i4"), ("box", "f4", (4,))])
    structured["id"] = np.arange(700)
    return {
        "float32": torch.randn(300, 7),
        "bfloat16": torch.randn(900).to(torch.bfloat16),
        "float16": torch.randn(900).half(),
        "float8": torch.randn(900).to(torch.float8_e4m3fn),
        "complex64": torch.randn(300, dtype=torch.complex64),
        "conjugate": torch.randn(300, dtype=torch.complex64).conj(),
        "negative view": torch.randn(300, dtype=torch.complex64).conj().imag,
        "conjugate over 8 KB": torch.randn(3000, dtype=torch.complex64).conj(),
        "expanded conjugate": torch.randn(1, 5, dtype=torch.complex64).conj().expand(4, 5),
        "a tensor and its conjugate": [_COMPLEX, _COMPLEX.conj(), _COMPLEX.conj().imag],
        "bool": torch.randn(1000) > 0,
        "int64": torch.arange(1000),
        "uint16": torch.arange(1000, dtype=torch.int32).to(torch.uint16),
        "0-dim": torch.tensor(3.5),
        "zero-size": torch.empty(0),
        "zero-size 2-d": torch.empty(4, 0, 3, dtype=torch.int16),
        "non-contiguous": torch.randn(60, 50)[:, ::3],
        "transposed": torch.randn(60, 50).t(),
        "channels last": torch.randn(2, 3, 20, 30).to(memory_format=torch.channels_last),
        "expanded": torch.randn(1, 50).expand(40, 50),
        "unfolded": torch.randn(500).unfold(0, 100, 1),
        "small view of a large storage": torch.randn(100_000)[500:600],
        "requires grad": torch.randn(400, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.randn(400)),
        "subclass": torch.randn(400).as_subclass(Tagged),
        "sparse": torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], torch.randn(3), (2, 3)),
        "sparse csr": torch.eye(40).to_sparse_csr(),
        "quantised": torch.quantize_per_tensor(torch.randn(600), 0.1, 2, torch.quint8),
        "nested": torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)]),
        "large": torch.randn(600, 1000),
        "array": np.arange(5000, dtype=np.float64).reshape(50, 100),
        "array fortran": np.asfortranarray(np.random.rand(50, 60)),
        "array strided": np.random.rand(50, 60)[:, ::2],
        "array 0-dim": np.array(4),
        "array empty": np.empty((0, 3)),
        "array structured": structured,
        "array of objects": np.array([{"a": 1}, "b", None], dtype=object),
        "array of strings": np.array(["one", "two", "three"] * 300),
        "array of dates": np.array(["2026-01-01"] * 300, dtype="datetime64[D]"),
        "read-only array": _readonly(np.arange(1000)),
        "numpy scalar": np.float32(2.5),
        "none": None,
        "text": "a short text",
        "long text": "x" * 200_000,
        "bytes": b"\0\1" * 40_000,
        "bytearray": bytearray(b"\0\1" * 4000),
        "numbers": [1, 2.5, 3 + 4j, True, 10**40],
        "namedtuple": Point(torch.randn(300), [np.arange(3), "y"]),
        "dataclass": Record(image, "name", {"deep": [torch.ones(2)]}),
        "class": Holder(torch.randn(400), np.arange(500)),
        "counter": collections.Counter("abca"),
        "ordered": collections.OrderedDict(b=torch.ones(300), a=2),
        "set": {1, 2, 3},
        "same tensor twice": [image, image],
        "shared storage": (image, image[1]),
        "list of many": [torch.full((n % 7 + 1,), float(n)) for n in range(200)],
        "dtype and size": (torch.float16, torch.Size([3, 4]), torch.device("cpu")),
        "exception": [ValueError("as data")],
    }


def _readonly(array):
    array.setflags(write=False)
    return array


# torch warns that sparse, nested and quantised tensors are not final
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:torch", "ignore:Sparse", "ignore:.*nested", "ignore:.*quant"
)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ZOO = zoo()


class Zoo(Dataset):
    def __len__(self):
        return len(ZOO)

    def __getitem__(self, index):
        return list(ZOO.values())[index]


def identity(batch):
    return batch


def same(got, original, name):
    if name == "class":
        assert type(got) is Holder
        assert got == original
    elif name == "exception":
        assert repr(got) == repr(original)
    elif name == "read-only array":
        assert tear(got) == tear(original.copy()), "writeable, as from torch's workers"
    else:
        assert tear(got) == tear(original), name


@pytest.mark.parametrize("method", [None, "fork"])
def test_every_type_arrives_unchanged(method):
    loader = unjam.DataLoader(
        Zoo(), batch_size=None, collate_fn=identity, num_workers=2, multiprocessing_context=method
    )
    for (name, original), got in zip(ZOO.items(), loader, strict=True):
        same(got, original, name)


def test_every_type_arrives_unchanged_in_one_batch():
    loader = unjam.DataLoader(Zoo(), batch_size=len(ZOO), collate_fn=identity, num_workers=1)
    (batch,) = loader
    for (name, original), got in zip(ZOO.items(), batch, strict=True):
        same(got, original, name)


def test_every_type_arrives_unchanged_without_memfd(monkeypatch):
    monkeypatch.setenv(memory.PORTABLE_VARIABLE, "1")
    loader = unjam.DataLoader(Zoo(), batch_size=None, collate_fn=identity, num_workers=2)
    for (name, original), got in zip(ZOO.items(), loader, strict=True):
        same(got, original, name)


def test_strides_and_storages_are_as_a_user_expects():
    loader = unjam.DataLoader(Zoo(), batch_size=None, collate_fn=identity, num_workers=1)
    got = dict(zip(ZOO, loader, strict=True))
    for name in ("transposed", "channels last", "expanded"):
        assert got[name].stride() == ZOO[name].stride(), name
    assert got["channels last"].is_contiguous(memory_format=torch.channels_last)
    assert got["small view of a large storage"].untyped_storage().nbytes() == 400, "only what is seen travels"
    assert got["float32"].untyped_storage().nbytes() == got["float32"].nbytes
    assert got["same tensor twice"][0] is got["same tensor twice"][1]
    assert not got["float32"]._is_view()
    got["float32"].add_(1)
    got["array"] += 1


def test_pandas_and_pillow_objects_arrive_unchanged():
    pandas = pytest.importorskip("pandas")
    image = pytest.importorskip("PIL.Image")
    frame = pandas.DataFrame({"a": range(500), "b": [f"row {n}" for n in range(500)], "c": np.random.rand(500)})
    picture = image.fromarray(np.random.randint(0, 255, (60, 50, 3), dtype=np.uint8))
    values = [frame, picture]
    loader = unjam.DataLoader(values, batch_size=None, collate_fn=identity, num_workers=1)
    assert [tear(v) for v in loader] == [tear(v) for v in values]


def test_a_tensor_that_requires_grad_is_a_clear_error():
    class Graph(Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return torch.ones(2, requires_grad=True) * 2

    with pytest.raises(RuntimeError, match=r"detach\(\)"):
        list(unjam.DataLoader(Graph(), batch_size=None, num_workers=1))


def test_unpicklable_samples_raise_instead_of_hanging():
    class Generators(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return (n for n in range(3))

    for method in (None, "fork"):
        loader = unjam.DataLoader(
            Generators(), batch_size=None, collate_fn=identity, num_workers=1, multiprocessing_context=method
        )
        with pytest.raises(TypeError, match="generator"):
            list(loader)


def test_classes_sent_by_value_come_back_as_the_same_class():
    class Local:
        def __init__(self, n):
            self.n = n

    class Makes(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return Local(index)

    got = list(unjam.DataLoader(Makes(), batch_size=None, collate_fn=identity, num_workers=1))
    assert [type(g) is Local for g in got] == [True] * 3
    assert [g.n for g in got] == [0, 1, 2]


# -- memory that never changes under the user --------------------------------------------------------------------------


class Filled(Dataset):
    """Sample i is 64 KB of the number i, so that any mix-up shows."""

    def __init__(self, length, size=1 << 14):
        self.length = length
        self.size = size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((self.size,), float(index)), np.full(self.size, index, dtype=np.int32)


@pytest.mark.parametrize("keep", ["all", "every third", "views", "numpy", "inner"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_held_batch_never_changes(keep, workers, monkeypatch):
    monkeypatch.setenv(POISON_VARIABLE, "1")
    held = []
    loader = unjam.DataLoader(Filled(120), batch_size=2, num_workers=workers)
    for number, (floats, ints) in enumerate(loader):
        if keep == "all":
            held.append((number, floats, ints))
        elif keep == "every third" and number % 3 == 0:
            held.append((number, floats, ints))
        elif keep == "views":
            held.append((number, floats[:, 5:9].view(2, 4), ints[1:]))
        elif keep == "numpy":
            held.append((number, floats.numpy()[:, ::7], ints.numpy().T))
        elif keep == "inner":
            held.append((number, floats.untyped_storage(), None))
        del floats, ints
        for was, kept, other in held:
            expect = {2.0 * was, 2.0 * was + 1}
            if keep == "inner":
                values = torch.tensor([], dtype=torch.float32).set_(kept)
                assert {float(values[0]), float(values[-1])} == expect
            else:
                assert set(np.unique(np.asarray(kept)).tolist()) == expect
                assert set(np.unique(np.asarray(other)).tolist()) <= expect
    assert len(held) >= 20
    gc.collect()
    for was, kept, _ in held:
        if keep != "inner":
            assert set(np.unique(np.asarray(kept)).tolist()) == {2.0 * was, 2.0 * was + 1}, "after the workers are gone"


def test_freed_slots_are_poisoned_in_debug_mode(monkeypatch):
    """The debug mode itself works: memory that is really freed does change."""
    monkeypatch.setenv(POISON_VARIABLE, "1")
    iterator = iter(unjam.DataLoader(Filled(40), batch_size=2, num_workers=1))
    floats, _ = next(iterator)
    address, length = floats.data_ptr(), floats.nbytes
    del floats, _
    import ctypes

    stale = (ctypes.c_ubyte * length).from_address(address)
    assert set(bytes(stale)) == {0xDB}


class Hoarder(Dataset):
    """Keeps what it made, in the worker, and shows whether it changed."""

    def __init__(self):
        self.kept = []

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.full((1 << 13,), float(index))

    def collate(self, samples):
        batch = default_collate(samples)
        number = float(batch[0, 0])
        ok = all(float(old.min()) == float(old.max()) == was for was, old in self.kept)
        self.kept.append((number, batch))
        return batch, ok


def test_a_collate_function_may_keep_its_batches():
    dataset = Hoarder()
    for batch, ok in unjam.DataLoader(dataset, batch_size=1, num_workers=1, collate_fn=dataset.collate):
        assert ok


def test_slots_are_reused():
    loader = unjam.DataLoader(Filled(400), batch_size=2, num_workers=2)
    iterator = iter(loader)
    spans = []
    for floats, ints in iterator:
        spans.append(sum(handle.leases.mapped_bytes for handle in iterator._pool._handles.values()))
        del floats, ints
    # per worker: two prefetched, one being filled, one with the consumer, one to spare; 200 batches went through
    assert 0 < max(spans) <= 2 * 5 * (1 << 20)


def test_descriptors_do_not_grow_with_batches_held():
    import os

    loader = unjam.DataLoader(Filled(300, 1 << 12), batch_size=1, num_workers=2)
    held, counts = [], []
    for batch in loader:
        held.append(batch)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[10]
    assert len(held) == 300


def test_memory_is_freed_when_batches_are_gone():
    iterator = iter(unjam.DataLoader(Filled(40), batch_size=2, num_workers=1))
    kept = [next(iterator) for _ in range(3)]
    assert iterator._pool.held() == 3
    del kept
    gc.collect()
    assert iterator._pool.held() == 0


def test_batches_may_grow_and_shrink():
    sizes = [10, 1 << 20, 5, 3 << 20, 1 << 10, 6 << 20, 1, 0, 2 << 20] * 3

    class Sized(Dataset):
        def __len__(self):
            return len(sizes)

        def __getitem__(self, index):
            return {"a": torch.full((sizes[index],), index % 251, dtype=torch.uint8), "b": torch.tensor(index)}

    for collate in (None, identity):
        loader = unjam.DataLoader(Sized(), batch_size=1, num_workers=2, collate_fn=collate)
        for index, batch in enumerate(loader):
            a = batch["a"] if collate is None else batch[0]["a"]
            assert a.numel() == sizes[index]
            assert (a == index % 251).all()


class Starved(Dataset):
    """Uses up the worker's descriptors."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        import os
        import resource

        if index == 0:
            resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
            self.files = []
            try:
                while True:
                    self.files.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
        return torch.full((1 << 20,), index, dtype=torch.uint8)


def test_a_worker_without_descriptors_sends_through_the_channel():
    for index, batch in enumerate(unjam.DataLoader(Starved(), batch_size=1, num_workers=1)):
        assert (batch == index).all()


def test_a_parent_without_descriptors_gets_the_bytes_through_the_channel():
    import os
    import resource

    iterator = iter(unjam.DataLoader(Filled(12, 1 << 18), batch_size=1, num_workers=1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    files = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, hard))
        try:
            while True:
                files.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for index, (floats, ints) in enumerate(iterator):
            assert float(floats.min()) == float(floats.max()) == index
            assert ints.unique().tolist() == [index]
    finally:
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert index == 11


# -- the parts ---------------------------------------------------------------------------------------------------------


def parts():
    """An arena with both of its sides in this process."""
    fd = memory.create(4096, "page")
    page = StatusPage(fd)
    os.close(fd)
    leases = Leases(page)
    return Arena(page, lambda slot, size, fd: leases.add(slot, size, fd)), page, leases


def fill(arena, value, count=2000):
    arena.open()
    tensor = arena.tensor((count,), torch.float32)
    tensor.fill_(value)
    return arena.finish()


def test_a_leased_slot_is_not_reused():
    arena, _, leases = parts()
    first = fill(arena, 1)
    owner = leases.borrow(first.slot, first.generation)
    second = fill(arena, 2)
    assert second.slot != first.slot
    del owner
    assert fill(arena, 3).slot == first.slot


def test_a_late_release_frees_only_its_own_generation():
    arena, page, leases = parts()
    first = fill(arena, 1)
    leases.refuse(first.slot, first.generation)
    second = fill(arena, 2)
    assert (second.slot, second.generation) == (first.slot, first.generation + 1)
    assert not page.free(first.slot, first.generation), "the slot has moved on"
    assert not page.is_free(second.slot)


def test_releases_may_happen_at_any_time():
    arena, page, leases = parts()
    import random

    held = []
    for step in range(500):
        filling = fill(arena, step)
        owner = leases.borrow(filling.slot, filling.generation)
        held.append(owner)
        del owner
        random.shuffle(held)
        del held[3:]
    assert leases.held == 3
    held.clear()
    assert leases.held == 0
    assert all(page.is_free(slot) for slot in range(8))
    assert len(leases._mappings) <= 5


def test_the_owner_of_a_slot_is_referenced_weakly():
    arena, _, leases = parts()
    filling = fill(arena, 1)
    owner = leases.borrow(filling.slot, filling.generation)
    tensor = torch.frombuffer(owner, dtype=torch.float32, count=10)
    probe = weakref.ref(owner)
    del owner
    assert probe() is not None
    del tensor
    assert probe() is None


def test_an_interrupted_copy_is_not_made_again(monkeypatch):
    """A signal handler may raise after the slot is free: the worker may have filled it again."""
    arena, _, leases = parts()
    arena.open()
    batch = ReceivedBatch(Packer(arena, by_value=False).pack(torch.full((20_000,), 1.0)), leases)
    free = StatusPage.free

    def interrupted(page, slot, generation):
        free(page, slot, generation)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(StatusPage, "free", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch.open(copy=True)
    fill(arena, 2)
    assert batch.open(copy=True).unique().tolist() == [1]


@dataclasses.dataclass
class Hello:
    text: str = ""


def channels():
    return [Channel(end, (Hello,)) for end in pair()]


def test_programs_do_not_inherit_received_descriptors():
    first, second = channels()
    with open(os.devnull) as file:
        first.post(Hello(), fds=[file.fileno()])
    second.receive()
    (fd,) = second.arrived[0].fds
    assert not os.get_inheritable(fd)
    first.close()
    second.close()


def test_a_frame_may_carry_many_descriptors():
    first, second = channels()
    with open(os.devnull) as file, open(__file__) as last:
        first.post(Hello("many"), b"data", fds=[file.fileno()] * 450 + [last.fileno()])
        first.post(Hello("one"), fds=[last.fileno()])
        wanted = os.fstat(last.fileno()).st_ino
    while len(second.arrived) < 2:
        first.flush()
        second.receive()
    many, one = second.arrived
    assert (many.message.text, many.data, len(many.fds), many.fds_lost) == ("many", b"data", 451, False)
    assert os.fstat(many.fds[450]).st_ino == os.fstat(one.fds[0]).st_ino == wanted
    first.close()
    second.close()


def test_a_frame_with_a_lost_group_of_descriptors_gets_none():
    first, second = channels()
    with open(os.devnull) as file:
        first.post(Hello("many"), fds=[file.fileno()] * 450)
        first.post(Hello("one"), fds=[file.fileno()])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = set(os.listdir("/proc/self/fd"))
    room_for_250 = [number for number in range(2000) if str(number) not in before][250]
    resource.setrlimit(resource.RLIMIT_NOFILE, (room_for_250, hard))
    try:
        while len(second.arrived) < 2:
            second.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    many, one = second.arrived
    assert many.fds_lost
    assert not many.fds
    assert not one.fds_lost
    first.close()
    second.close()
    assert set(os.listdir("/proc/self/fd")) < before


def test_an_interrupted_send_closes_each_descriptor_once(monkeypatch):
    first, second = channels()
    closed, close = [], os.close

    def interrupted(fd):
        close(fd)
        closed.append(fd)
        if len(closed) == 1:
            raise KeyboardInterrupt

    with open(os.devnull) as file:
        monkeypatch.setattr(os, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.post(Hello(), fds=[file.fileno()] * 3)
        first.close()
        monkeypatch.undo()
    assert len(set(closed)) == len(closed) == 3
    second.close()


def test_memory_budget_limits_prefetching():
    loader = unjam.DataLoader(Filled(60), batch_size=2, num_workers=2, prefetch_factor=8, memory_budget=600_000)
    iterator = iter(loader)
    for _ in range(12):
        next(iterator)
    assert len(iterator._driver._machine.ledger.entries) <= 16
    for _ in range(10):
        next(iterator)
        assert len(iterator._driver._machine.ledger.entries) <= 3
    assert sum(1 for _ in iterator) == 8


def test_plain_lists_can_be_datasets():
    assert [b.tolist() for b in unjam.DataLoader([1, 2, 3], batch_size=2, num_workers=1)] == [[1, 2], [3]]
    assert len(list(unjam.DataLoader(Squares(5), num_workers=2))) == 5
