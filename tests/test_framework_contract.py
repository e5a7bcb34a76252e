"""What frameworks rely on, found by reading them."""

from __future__ import annotations

import copy
import inspect
import pickle
import weakref

import pytest
import torch
import torch.utils.data
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

import unjam
from support import Counting, Squares

TORCH = torch.utils.data.DataLoader


def test_the_class_is_a_torch_dataloader():
    assert unjam.DataLoader.__name__ == "DataLoader"
    assert issubclass(unjam.DataLoader, TORCH)
    assert unjam.DataLoader[int]
    assert "__init__" in vars(unjam.DataLoader)


def test_extra_arguments_are_keyword_only_and_optional():
    ours, theirs = (inspect.signature(cls.__init__).parameters for cls in (unjam.DataLoader, TORCH))
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default), name
    for name in list(ours)[len(theirs) :]:
        assert ours[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert ours[name].default is not inspect.Parameter.empty


def test_public_attributes_are_exactly_the_arguments():
    loader = unjam.DataLoader(Squares(), batch_size=2, num_workers=1)
    arguments = set(inspect.signature(unjam.DataLoader.__init__).parameters)
    assert {name for name in vars(loader) if not name.startswith("_")} <= arguments
    list(loader)
    assert {name for name in vars(loader) if not name.startswith("_")} <= arguments


def test_a_loader_can_be_rebuilt_from_its_public_attributes():
    """As ignite does, and accelerate with getattr."""
    loader = unjam.DataLoader(Squares(), batch_size=2, num_workers=1, worker_threads=3, memory_budget=10**6)
    public = {k: v for k, v in vars(loader).items() if not k.startswith("_")}
    public.pop("batch_sampler")
    again = type(loader)(**public)
    assert (again.worker_threads, again.memory_budget, again.batch_size) == (3, 10**6, 2)
    for name in inspect.signature(unjam.DataLoader.__init__).parameters:
        if name not in ("self", "shuffle"):
            getattr(loader, name)


def test_iterators_subclass_torch_iterators():
    inline, workers = iter(unjam.DataLoader(Squares())), iter(unjam.DataLoader(Squares(), num_workers=1))
    assert isinstance(inline, _SingleProcessDataLoaderIter)
    assert isinstance(workers, _MultiProcessingDataLoaderIter)
    assert isinstance(workers, _BaseDataLoaderIter)
    for name in ("_workers", "_shutdown_workers", "_reset", "_num_workers", "_index_sampler", "_sampler_iter"):
        assert hasattr(workers, name)
    (process,) = workers._workers
    assert process.is_alive()
    assert process.exitcode is None
    assert process.daemon
    assert process.name == "unjam-worker-0"
    workers._shutdown_workers()
    process.join(5)
    assert not process.is_alive()
    assert process.exitcode == 0


def test_private_attributes_used_by_frameworks_exist():
    loader = unjam.DataLoader(Squares(), batch_size=2, num_workers=1)
    assert loader._auto_collation
    assert loader._index_sampler is loader.batch_sampler
    assert loader._dataset_kind == torch.utils.data._DatasetKind.Map
    assert loader._DataLoader__initialized
    assert loader._iterator is None
    assert type(loader.sampler) is torch.utils.data.SequentialSampler
    assert type(loader.batch_sampler) is torch.utils.data.BatchSampler


def test_lightning_can_stop_persistent_workers_between_epochs():
    loader = unjam.DataLoader(Squares(6), num_workers=1, persistent_workers=True)
    for _ in range(2):
        assert len(list(loader)) == 6
        loader._iterator._shutdown_workers()
        loader._iterator = None
    del loader._iterator


class Repeat:
    """timm's and ultralytics' sampler that never ends."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class Infinite(unjam.DataLoader):
    """Keeps one iterator for ever, in their style."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        self.batch_sampler = Repeat(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

    def reset(self):
        self.iterator = self._get_iterator()


@pytest.mark.parametrize("workers", [0, 2])
def test_infinite_loader_subclasses_work(workers):
    loader = Infinite(Squares(10), batch_size=5, num_workers=workers)
    for _ in range(3):
        assert [i for _, indices in loader for i in indices.tolist()] == list(range(10))
    loader.reset()
    assert len(list(loader)) == 2


def test_samplers_are_read_again_each_epoch():
    class Growing:
        def __init__(self):
            self.epoch = 0

        def __iter__(self):
            return iter(range(self.epoch))

        def __len__(self):
            return self.epoch

    sampler = Growing()
    for options in (dict(num_workers=0), dict(num_workers=1), dict(num_workers=1, persistent_workers=True)):
        sampler.epoch = 0
        loader = unjam.DataLoader(Squares(), sampler=sampler, batch_size=None, **options)
        for epoch in range(3):
            sampler.epoch = epoch
            assert len(list(loader)) == epoch


def test_the_context_is_checked_on_assignment():
    loader = unjam.DataLoader(Squares(4), num_workers=1)
    with pytest.raises(ValueError, match="valid start method"):
        loader.multiprocessing_context = "nonsense"
    loader.multiprocessing_context = "fork"
    assert len(list(loader)) == 4


@pytest.mark.parametrize("how", [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy])
def test_loaders_can_be_pickled_and_copied(how):
    loader = unjam.DataLoader(Squares(6), num_workers=1, persistent_workers=True, worker_threads=2)
    list(loader)
    again = how(loader)
    assert again.worker_threads == 2
    assert again._iterator is None
    assert len(list(again)) == 6
    assert len(list(loader)) == 6


def test_loaders_and_iterators_can_be_weakly_referenced():
    loader = unjam.DataLoader(Squares(), num_workers=1)
    reference = weakref.ref(loader)
    iterator = iter(loader)
    assert weakref.ref(iterator)() is iterator
    del loader
    assert reference() is None, "an iterator does not keep its loader"
    assert len(list(iterator)) == 40


def test_the_iterator_cannot_be_pickled_as_in_torch():
    with pytest.raises(NotImplementedError):
        pickle.dumps(iter(unjam.DataLoader(Counting(), num_workers=1)))


def test_num_workers_may_change_between_epochs():
    loader = unjam.DataLoader(Squares(6), num_workers=1)
    assert len(list(loader)) == 6
    loader.num_workers = 2
    assert len(list(loader)) == 6
    loader.num_workers = 0
    loader.prefetch_factor = None
    assert len(list(loader)) == 6


def test_the_torch_profiler_sees_its_range():
    from torch.profiler import ProfilerActivity, profile

    loader = unjam.DataLoader(Squares(4), num_workers=1)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        list(loader)
    assert any("enumerate(DataLoader)" in event.key for event in seen.key_averages())
