"""The same batches as torch, to the byte, over the documented options."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler

import unjam
from support import Bulk, Counting, Nested, Noisy, Squares, Strings, Uneven, epochs, seed_all, tear

TORCH = torch.utils.data.DataLoader


def both(make_dataset, *, count=1, **options):
    ours = epochs(unjam.DataLoader, make_dataset, count=count, options=options)
    theirs = epochs(TORCH, make_dataset, count=count, options=options)
    assert ours == theirs
    return ours


WORKERS = (0, 1, 3)


@pytest.mark.parametrize(("batch_size", "workers"), [(4, 0), (4, 1), (4, 3), (1, 0), (1, 3), (None, 0), (None, 3)])
@pytest.mark.parametrize("dataset", [Squares, Noisy, Bulk, Strings, Nested, Counting, Uneven])
def test_datasets(dataset, batch_size, workers):
    both(dataset, batch_size=batch_size, num_workers=workers)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("persistent", [False, True])
def test_worker_randomness_over_epochs(workers, persistent):
    if persistent and not workers:
        return
    got = both(Noisy, count=3, batch_size=5, num_workers=workers, shuffle=True, persistent_workers=persistent)
    assert got[0] != got[1], "epochs differ"


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("dataset", [Noisy, lambda: Counting(noisy=True)])
def test_drop_last(dataset, drop_last, workers):
    both(dataset, batch_size=7, num_workers=workers, drop_last=drop_last)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_prefetch_factor(prefetch, workers):
    both(Noisy, batch_size=3, num_workers=workers, prefetch_factor=prefetch)


@pytest.mark.parametrize("workers", WORKERS)
def test_samplers(workers):
    for make in (
        lambda: SequentialSampler(range(20)),
        lambda: RandomSampler(range(20), replacement=True, num_samples=31),
        lambda: SubsetRandomSampler([3, 5, 8, 13]),
        lambda: WeightedRandomSampler([0.1, 5, 2], 9),
        lambda: [4, 2, 0],
    ):
        both(Noisy, batch_size=3, num_workers=workers, sampler=make())
    both(Noisy, num_workers=workers, batch_sampler=BatchSampler(SequentialSampler(range(11)), 4, drop_last=False))
    both(Noisy, num_workers=workers, batch_sampler=[[1, 2], [3], [4, 5, 6]])
    both(Strings, batch_size=2, num_workers=workers, sampler=["1", "7", "5"])


@pytest.mark.parametrize("workers", WORKERS)
def test_generator(workers):
    results = []
    for loader_class in (TORCH, unjam.DataLoader):
        loader = loader_class(
            Noisy(), batch_size=4, num_workers=workers, shuffle=True, generator=torch.Generator().manual_seed(3)
        )
        seed_all(1)
        results.append([[tear(batch) for batch in loader] for _ in range(2)])
    assert results[0] == results[1]


def double(batch):
    return torch.stack([sample["torch"] * 2 for sample in batch]), [sample["index"] for sample in batch]


def calls_default(batch):
    return torch.utils.data.default_collate([sample for sample in batch if sample["index"] % 3])


@pytest.mark.parametrize("collate", [double, calls_default, lambda batch: batch, lambda batch: len(batch)])
@pytest.mark.parametrize("workers", WORKERS)
def test_custom_collate(collate, workers):
    both(Noisy, batch_size=4, num_workers=workers, collate_fn=collate)


def seed_worker(worker):
    import random

    import numpy as np

    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed + worker)


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_start_methods(method):
    both(Noisy, batch_size=6, num_workers=2, worker_init_fn=seed_worker, multiprocessing_context=method)


def test_out_of_order_loading_delivers_each_sample_once():
    loader = unjam.DataLoader(Squares(50), batch_size=4, num_workers=3, in_order=False)
    for _ in range(2):
        assert sorted(i for _, indices in loader for i in indices.tolist()) == list(range(50))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", [Noisy, lambda: Counting(noisy=True)])
def test_early_break_and_iterating_again(dataset, persistent):
    seen = []
    for loader_class in (TORCH, unjam.DataLoader):
        seed_all(5)
        loader = loader_class(dataset(), batch_size=3, num_workers=2, persistent_workers=persistent)
        got = [[tear(batch) for batch, _ in zip(loader, range(stop), strict=False)] for stop in (2, 1, 100)]
        seen.append(got)
        del loader
    assert seen[0] == seen[1]


@pytest.mark.parametrize("workers", WORKERS)
def test_two_iterators_of_one_loader_at_once(workers):
    seen = []
    for loader_class in (TORCH, unjam.DataLoader):
        seed_all(5)
        loader = loader_class(Noisy(), batch_size=4, num_workers=workers, shuffle=True)
        first, second = iter(loader), iter(loader)
        seen.append([(tear(a), tear(b)) for a, b in itertools.zip_longest(first, second)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("dataset", [Squares, Counting])
def test_lengths(dataset, workers):
    ours, theirs = (cls(dataset(), batch_size=4, num_workers=workers) for cls in (unjam.DataLoader, TORCH))
    assert len(ours) == len(theirs)
    if dataset is Squares:
        assert len(iter(ours)) == len(iter(theirs))
    unknown = unjam.DataLoader(Uneven(), num_workers=workers)
    with pytest.raises(TypeError):
        len(unknown)


def test_the_length_warning_matches_torch():
    class Liar(Counting):
        def __len__(self):
            return 3

    for workers in (0, 1):
        loader = unjam.DataLoader(Liar(8), num_workers=workers)
        len(loader)
        with pytest.warns(UserWarning, match="Length of IterableDataset"):
            list(loader)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(num_workers=-1),
        dict(timeout=-1),
        dict(prefetch_factor=2),
        dict(num_workers=1, prefetch_factor=-1),
        dict(persistent_workers=True),
        dict(num_workers=1, multiprocessing_context="nonsense"),
        dict(num_workers=1, multiprocessing_context=object),
        dict(multiprocessing_context="fork"),
        dict(sampler=[1], shuffle=True),
        dict(batch_sampler=[[1]], batch_size=2),
        dict(batch_size=None, drop_last=True),
        dict(batch_size=0),
    ],
)
def test_bad_arguments_raise_the_same_errors_as_torch(wrong):
    with pytest.raises((ValueError, TypeError)) as theirs:
        TORCH(Squares(), **wrong)
    with pytest.raises(theirs.type) as ours:
        unjam.DataLoader(Squares(), **wrong)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("wrong", [dict(worker_threads=0), dict(memory_budget=0)])
def test_bad_unjam_arguments_are_rejected(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        unjam.DataLoader(Squares(), **wrong)


def test_iterator_misuse_raises_the_same_errors_as_torch():
    for options in (dict(timeout=3), dict(num_workers=1, prefetch_factor=0)):
        with pytest.raises(AssertionError):
            iter(unjam.DataLoader(Squares(), **options))


@pytest.mark.parametrize("attribute", ["batch_size", "sampler", "drop_last", "dataset", "persistent_workers"])
def test_attributes_are_fixed_after_init(attribute):
    loader = unjam.DataLoader(Squares())
    with pytest.raises(ValueError, match="should not be set after"):
        setattr(loader, attribute, 1)


def test_pin_memory_without_an_accelerator():
    both(Noisy, batch_size=4, num_workers=2, pin_memory=True)


class Raising(Squares):
    def __init__(self, make_error, at=17):
        super().__init__()
        self.make_error = make_error
        self.at = at

    def __getitem__(self, index):
        if index == self.at:
            raise self.make_error()
        return super().__getitem__(index)


class Demanding(Exception):
    """Its constructor takes something else than its args."""

    def __init__(self, *, code, detail):
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: ValueError("bad"),
        lambda: KeyError("key"),
        lambda: OSError(2, "gone"),
        lambda: RuntimeError("x", 3),
        lambda: Demanding(code=4, detail=[1]),
    ],
)
def test_exceptions_arrive_in_order_and_iteration_continues(make, workers):
    error = make()
    iterator, got = iter(unjam.DataLoader(Raising(make), batch_size=4, num_workers=workers)), []
    while True:
        try:
            got.append(next(iterator)[1].tolist())
        except StopIteration:
            break
        except type(error) as caught:
            assert caught.args == error.args
            assert vars(caught).items() >= vars(error).items()
            if workers:
                assert "in __getitem__" in str(caught.__cause__)
                assert "sample 17 (batch 4, worker " in "".join(
                    getattr(caught, "__notes__", ["sample 17 (batch 4, worker "])
                )
            got.append("error")
    expected = [list(range(i, i + 4)) for i in range(0, 40, 4)]
    expected[4] = "error"
    assert got == expected


def test_an_unpicklable_exception_arrives_as_text():
    class Local(Exception):
        def __init__(self, handle):
            super().__init__(handle)
            self.handle = handle

    class Opens(Squares):
        def __getitem__(self, index):
            raise Local(open("/dev/null", "w"))

    for method in (None, "fork"):
        with pytest.raises(Exception, match=r"Local|TextIOWrapper|/dev/null") as caught:
            list(unjam.DataLoader(Opens(), num_workers=1, multiprocessing_context=method))
        assert "raise Local(" in str(caught.value.__cause__)


@pytest.mark.parametrize("workers", WORKERS)
def test_stop_iteration_in_a_dataset_does_not_end_the_epoch_silently(workers):
    loader = unjam.DataLoader(Raising(StopIteration), batch_size=4, num_workers=workers)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(loader)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_errors_while_preparing(workers, persistent):
    def refuse(worker):
        raise LookupError(f"worker {worker} will not")

    class Never(Counting):
        def __iter__(self):
            raise LookupError("no iterator")

    options = dict(num_workers=workers, persistent_workers=persistent)
    for loader in (
        unjam.DataLoader(Squares(), worker_init_fn=refuse, **options),
        unjam.DataLoader(Never(), **options),
    ):
        with pytest.raises(LookupError, match=r"will not|no iterator"):
            list(loader)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_raising_sampler_raises_at_its_position(workers):
    def indices():
        yield from range(6)
        raise ArithmeticError("no more")

    class Breaks:
        def __iter__(self):
            return indices()

    for loader_class in (TORCH, unjam.DataLoader):
        with pytest.raises(ArithmeticError, match="no more"):
            list(loader_class(Squares(), sampler=Breaks(), num_workers=workers))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_datapipes(workers, persistent):
    from torch.utils.data.datapipes.iter import IterableWrapper
    from torch.utils.data.datapipes.map import SequenceWrapper

    if persistent and not workers:
        return

    def pipe():
        return IterableWrapper(range(20)).map(lambda x: x + 1).shuffle().sharding_filter()

    options = dict(batch_size=3, num_workers=workers, shuffle=True, persistent_workers=persistent)
    ours = epochs(unjam.DataLoader, pipe, count=2, options=options)
    theirs = epochs(TORCH, pipe, count=2, options={**options, "multiprocessing_context": "fork" if workers else None})
    assert ours == theirs
    both(lambda: SequenceWrapper(list(range(9))), batch_size=2, num_workers=workers)


def test_without_workers_the_sampler_is_read_lazily():
    asked = []

    class Watched(torch.utils.data.Sampler):
        def __iter__(self):
            for index in range(6):
                asked.append(index)
                yield index

        def __len__(self):
            return 6

    iterator = iter(unjam.DataLoader(list(range(6)), batch_size=2, sampler=Watched()))
    assert asked == []
    next(iterator)
    assert asked == [0, 1]
