"""`profile=True`, and what statistics tell of slow samples."""

from __future__ import annotations

import functools
import threading
import time

import pytest
import torch

import unjam
from support import wait_until
from unjam.loader.worker.transforms import Transforms


class Slow:
    def __call__(self, x):
        time.sleep(0.004)
        return x


class Quick:
    def __call__(self, x):
        time.sleep(0.001)
        return x + 1


class Keyword:
    """Called as albumentations does."""

    def __call__(self, *, image):
        time.sleep(0.001)
        return {"image": image}


class Chain:
    def __init__(self, *steps):
        self.anything = list(steps)

    def __call__(self, x):
        for step in self.anything:
            x = step(x)
        return x


class Module(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.001)
        return x


def double(x):
    return x * 2


class Made(torch.utils.data.Dataset):
    def __init__(self, transform, size=40, slow=()):
        self.transform, self.size, self.slow = transform, size, slow
        self.names = [f"file {n}" for n in range(100_000)]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.slow:
            time.sleep(1)
        return self.transform(index)


class Wrapped(torch.utils.data.Dataset):
    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]


WORKERS = pytest.mark.parametrize("workers", [0, 2, "auto"])


@WORKERS
def test_each_transform_is_timed(workers):
    pipeline = Chain(Slow(), Chain(Quick(), Quick()), Module(), torch.nn.Sequential(Module()))
    loader = unjam.DataLoader(
        torch.utils.data.Subset(Wrapped(Made(pipeline)), range(40)), batch_size=4, num_workers=workers, profile=True
    )
    got = torch.cat(list(loader))
    assert got.tolist() == [index + 2 for index in range(40)]
    known = {one.path: one for one in loader.statistics().profile.transforms}
    base = "dataset.dataset.inner.transform"
    assert known[f"{base}.anything[0]"].name == "Slow"
    assert [known[f"{base}.anything[1].anything[{n}]"].count for n in (0, 1)] == [40, 40]
    outer = known[base]
    assert outer.total > 40 * 0.008
    assert outer.own < outer.total / 3, "what is inside of it is not its own"
    assert known[f"{base}.anything[4]" if f"{base}.anything[4]" in known else f"{base}.anything[3]['0']"].count == 40
    slowest = loader.statistics().profile.transforms[0]
    assert slowest.name == "Slow"


class Knows:
    """It looks at what it holds; see NOTE [ Which parts are transforms ]: nothing of it is replaced."""

    def __init__(self):
        self.first, self.steps = double, [double, functools.partial(pow, exp=1)]

    def __call__(self, x):
        assert self.first is double or self.first.__code__ is double.__code__
        assert self.first.__code__.co_argcount == 1
        assert self.steps[1].keywords == {"exp": 1}
        return self.steps[1](self.steps[0](x))


@WORKERS
def test_profiling_replaces_no_user_object(workers):
    loader = unjam.DataLoader(Made(Knows()), batch_size=4, num_workers=workers, profile=True)
    assert torch.cat(list(loader)).tolist() == [index * 2 for index in range(40)]


class Base:
    def __call__(self, x, call=0, clock=0, *, self_=0):
        return x + call + clock + self_


class Derived(Base):
    def __call__(self, x, **options):
        return super().__call__(x, call=1, clock=1, **options) - 2


class Static:
    @staticmethod
    def __call__(x):
        return x


@pytest.mark.parametrize("kind", [Derived, Static])
def test_inherited_calls_are_timed_once(kind):
    pipeline = Chain(Base(), kind(), kind())
    loader = unjam.DataLoader(Made(pipeline, 16), batch_size=4, profile=True)
    assert torch.cat(list(loader)).tolist() == list(range(16))
    counts = {one.path: one.count for one in loader.statistics().profile.transforms}
    assert set(counts.values()) == {16}, "once for each call, also where a class calls the one above it"


def test_two_iterators_can_be_profiled_at_once():
    own = vars(Quick)["__call__"]
    loader = unjam.DataLoader(Made(Chain(Quick()), 8), batch_size=4, profile=True)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    del first
    next(second)
    assert loader.statistics().profile.transforms[0].count == 12
    del second
    assert vars(Quick)["__call__"] is own


class Hostile:
    """Whoever looks at it gets an exception; who only calls it does not."""

    def __call__(self, x):
        return x

    def __getattribute__(self, name):
        if name.startswith("__") and name not in ("__class__", "__dict__", "__reduce_ex__", "__getstate__"):
            raise RuntimeError(name)
        return object.__getattribute__(self, name)


class HostileList(list):
    def __iter__(self):
        raise RuntimeError("do not")

    def __getitem__(self, at):
        raise RuntimeError("do not")


@pytest.mark.parametrize("workers", [0, 1])
def test_objects_that_resist_inspection_are_skipped(workers):
    dataset = Made(Hostile(), 8)
    dataset.others = [Hostile(), {object(): Quick()}]
    if not workers:
        dataset.list = HostileList([1, 2])
    loader = unjam.DataLoader(dataset, batch_size=4, num_workers=workers, profile=True)
    assert torch.cat(list(loader)).tolist() == list(range(8))


def test_large_datasets_are_inspected_quickly():
    dataset = Made(Quick(), 4)
    dataset.table = {n: {m: {} for m in range(10)} for n in range(100_000)}
    clock = Transforms({"dataset": dataset})
    assert len(clock._seen) < 20_000, "not each of a million objects"
    clock.remove()


def test_user_classes_are_restored():
    before = vars(Slow)["__call__"], "__call__" in vars(Module)
    loader = unjam.DataLoader(Made(Chain(Slow(), Module())), batch_size=4, profile=True)
    iterator = iter(loader)
    next(iterator)
    assert vars(Slow)["__call__"] is not before[0]
    del iterator
    assert (vars(Slow)["__call__"], "__call__" in vars(Module)) == before


def test_slow_lines_are_found_in_workers():
    loader = unjam.DataLoader(Made(Chain(Slow(), Quick()), 300), batch_size=4, num_workers=2, profile=True)
    for _ in loader:
        pass
    profile = loader.statistics().profile
    assert profile.looks > 10
    top = profile.lines[0]
    assert top.file == __file__
    assert top.text == "time.sleep(0.004)"
    assert top.share > 0.5
    assert "time.sleep(0.004)" in str(loader.statistics())


def test_no_profiler_thread_is_left():
    loader = unjam.DataLoader(Made(Quick()), batch_size=4, num_workers=1, profile=True)
    iterator = iter(loader)
    next(iterator)
    assert any(thread.name == "unjam-profiler" for thread in threading.enumerate())
    del iterator
    wait_until(lambda: not any(thread.name == "unjam-profiler" for thread in threading.enumerate()))


class Refusing:
    """An object that wants to be left alone."""

    __slots__ = ("inside",)

    def __call__(self, x):
        return x

    def __setattr__(self, name, value):
        raise AttributeError(name)

    def __eq__(self, other):
        raise RuntimeError("do not compare")

    __hash__ = None


class Circular:
    def __init__(self):
        self.me = self

    def __call__(self, x):
        return x


class Meta(type):
    def __setattr__(cls, name, value):
        raise TypeError("frozen class")


class Frozen(metaclass=Meta):
    def __call__(self, x):
        return x


@WORKERS
@pytest.mark.parametrize(
    "transform",
    [
        Refusing,
        Circular,
        Frozen,
        lambda: functools.lru_cache(double),
        Module,
    ],
    ids=["slots", "circular", "frozen", "cached", "module"],
)
def test_unusual_transforms_still_work(transform, workers):
    made = transform()
    plain = [made(index) for index in range(8)]
    loader = unjam.DataLoader(Made(made, 8), batch_size=4, num_workers=workers, profile=True)
    assert torch.cat(list(loader)).tolist() == plain


def test_keyword_transforms_are_timed():
    keyword = Keyword()
    clock = Transforms({"dataset": Wrapped(Made(keyword))})
    try:
        assert keyword(image=3) == {"image": 3}
        assert b"Keyword" in clock.take()
        assert clock.take() == b""
    finally:
        clock.remove()


# -- slow samples ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_slowest_samples_are_named(workers):
    loader = unjam.DataLoader(Made(Quick(), 400, slow=(17, 333)), batch_size=8, num_workers=workers)
    for _ in loader:
        pass
    done = loader.statistics()
    assert {one.index for one in done.slowest[:2]} == {"17", "333"}
    assert done.slowest[0].batch in (2, 41)
    assert done.stages["getitem"].slowest.startswith("sample ")
    assert done.stalls.batches >= 1
    assert done.stalls.seconds > 0.05
    assert sum(count for _, count in done.stages["getitem"].spread) == 400
    assert done.stages["getitem"].p50 <= done.stages["getitem"].p99 < done.stages["getitem"].longest
    assert "waited" in str(done)


def test_uniform_samples_cause_no_stalls():
    loader = unjam.DataLoader(Made(Quick(), 200), batch_size=8, num_workers=1)
    for _ in loader:
        pass
    done = loader.statistics()
    assert done.stalls.seconds < done.stages["getitem"].total / 2
