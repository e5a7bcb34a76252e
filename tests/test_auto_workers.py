"""`num_workers="auto"`: it grows where that helps, shrinks where it does not, and nobody can tell from the batches."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import random
import signal
import time
import weakref

import pytest
import torch

import unjam
from support import wait_until
from unjam.loader.driver import auto_size
from unjam.loader.driver.consumer_lock import ConsumerLock
from unjam.loader.engine.size_search import Limits, Setting, SizeSearch, Window
from unjam.loader.options import AutoWorkers
from unjam.system import limits


class Noisy(torch.utils.data.Dataset):
    """Each sample draws from every generator, and says who made it."""

    def __init__(self, size=200, seconds=0.0, bad=()):
        self.size, self.seconds, self.bad = size, seconds, bad

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        import numpy as np

        if self.seconds:
            time.sleep(self.seconds)
        if index in self.bad:
            raise ValueError(f"bad {index}")
        return index, random.random(), torch.rand(1).item(), float(np.random.rand())


def batches(loader):
    return [[part.tolist() for part in batch] for batch in loader]


def resize(loader, iterator, *sizes):
    """Change the size by hand, as the search would."""
    sizer = loader._state.sizer
    sizer._resizes_within_epoch = False  # it measures, and decides nothing
    for size in sizes:
        sizer.search.setting = sizer.wanted = Setting(size, 2)
        yield next(iterator)


def make(dataset, **options):
    torch.manual_seed(7)
    return unjam.DataLoader(dataset, batch_size=4, shuffle=True, num_workers="auto", **options)


# -- what is delivered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1], [3, 1, 4, 2, 1, 5], [2, 1]], ids=str)
def test_batches_do_not_depend_on_the_number_of_workers(sizes):
    loader = make(Noisy())
    iterator = iter(loader)
    expected = [[part.tolist() for part in batch] for batch in resize(loader, iterator, *[2] * 50)]
    assert next(iterator, None) is None
    loader = make(Noisy())
    iterator = iter(loader)
    changing = resize(loader, iterator, *(sizes * 50)[:50])
    got = [[part.tolist() for part in batch] for batch in changing]
    assert next(iterator, None) is None
    assert got == expected
    assert sorted(i for batch in got for i in batch[0]) == list(range(200))


def test_the_random_state_of_the_training_process_is_unchanged():
    loader = make(Noisy())
    torch.manual_seed(1)
    random.seed(1)
    alone = [torch.rand(1).item(), random.random()]
    iterator = iter(loader)
    next(iterator)
    torch.manual_seed(1)
    random.seed(1)
    for _ in resize(loader, iterator, 1, 2, 1, 1, 3, 1, 1, 1):
        pass
    assert [torch.rand(1).item(), random.random()] == alone


def test_epochs_differ_from_each_other_but_are_reproducible():
    loader = make(Noisy(40), persistent_workers=True)
    first, second = batches(loader), batches(loader)
    assert [b[1] for b in first] != [b[1] for b in second], "an epoch repeats the random numbers of the one before"
    again = make(Noisy(40), persistent_workers=True)
    assert [batches(again), batches(again)] == [first, second]


def test_worker_death_during_a_resize_loses_nothing():
    expected = batches(make(Noisy(200, 0.001)))
    loader = make(Noisy(200, 0.001))
    iterator = iter(loader)
    got, sizes = [], [1, 4, 2, 5, 1, 3, 1, 2, 4, 1] * 2
    for turn, batch in enumerate(resize(loader, iterator, *sizes)):
        got.append([part.tolist() for part in batch])
        alive = [pid for n in range(5) if (pid := iterator._driver.pool.pid(n))]
        if turn % 7 == 3 and alive:
            with contextlib.suppress(ProcessLookupError):  # it has left meanwhile
                os.kill(alive[turn % len(alive)], signal.SIGKILL)
    got += [[part.tolist() for part in batch] for batch in iterator]
    assert got == expected


def test_on_error_policies_apply_during_a_resize():
    kept = [i for i in range(200) if i not in (3, 90, 151)]
    loader = make(Noisy(bad=(3, 90, 151)), on_error="skip")
    iterator = iter(loader)
    got = [i for batch in resize(loader, iterator, *[1, 2, 1, 3, 1] * 4) for i in batch[0].tolist()]
    got += [i for batch in iterator for i in batch[0].tolist()]
    assert sorted(got) == kept
    assert loader.statistics().skipped == 3


def test_a_failure_is_raised_at_its_position():
    loader = unjam.DataLoader(Noisy(bad=(37,)), batch_size=4, num_workers="auto")
    seen = []
    with pytest.raises(ValueError, match="bad 37"):
        for batch in loader:
            seen += batch[0].tolist()
    assert seen == list(range(36))


def test_unneeded_workers_are_stopped():
    loader = make(Noisy(400))
    iterator = iter(loader)
    for _ in resize(loader, iterator, 4, 4, 4, 4):
        pass
    pool = iterator._driver.pool
    assert sum(pool.pid(n) is not None for n in range(6)) == 4
    wait_until(lambda: [*resize(loader, iterator, 1)] and [n for n in range(6) if pool.pid(n)] == [0])
    for _ in resize(loader, iterator, 2, 2):
        pass
    assert [n for n in range(6) if pool.pid(n)] == [0, 1]


# -- iterables -----------------------------------------------------------------------------------------------------------


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from range(64)


class Divided(Stream):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        yield from range(0 if info is None else info.id, 64, 1 if info is None else info.num_workers)


class Wrapped(Stream):
    """Another object divides."""

    def __init__(self):
        self.parts = [Divided()]

    def __iter__(self):
        for part in self.parts:
            yield from part


@pytest.mark.parametrize("dataset", [Stream, Divided, Wrapped], ids=lambda kind: kind.__name__)
def test_an_iterable_dataset_yields_every_sample_once(dataset):
    loader = unjam.DataLoader(dataset(), batch_size=4, num_workers="auto")
    for _ in range(2):
        assert sorted(i for batch in loader for i in batch.tolist()) == list(range(64))
    assert loader.num_workers == (1 if dataset is Stream else min(limits.processors(), 8))


class Slowly(Stream):
    """It does not divide, and the consumer waits for it: more workers would give every sample several times."""

    def __iter__(self):
        for number in range(160):
            time.sleep(0.004)
            yield number


def test_an_unsharded_iterable_never_gets_a_second_worker():
    loader = unjam.DataLoader(Slowly(), batch_size=2, num_workers="auto")
    for _ in range(4):
        assert [i for batch in loader for i in batch.tolist()] == list(range(160))
    assert loader.statistics().auto.workers == 1


# -- as an object --------------------------------------------------------------------------------------------------------


def test_auto_survives_a_framework_rebuilding_the_loader():
    loader = make(Noisy(), persistent_workers=True)
    assert loader.num_workers >= 1
    anew = unjam.DataLoader(loader.dataset, batch_size=2, num_workers=loader.num_workers)
    assert isinstance(anew.num_workers, AutoWorkers)
    assert anew.statistics().auto is None  # nothing has run
    for one in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert len(batches(one)) == 50
        assert one.statistics().auto is not None


def test_invalid_auto_options_are_rejected():
    with pytest.raises((ValueError, TypeError)):
        unjam.DataLoader(Noisy(), num_workers="automatic")


def test_an_explicit_prefetch_factor_is_kept():
    loader = make(Noisy(4000), prefetch_factor=3)
    for _ in loader:
        pass
    assert {step.prefetch for step in loader.statistics().auto.steps} <= {3}
    assert loader.statistics().auto.prefetch == 3


def test_workers_are_added_when_samples_wait():
    loader = unjam.DataLoader(Noisy(3000, 0.004), batch_size=4, num_workers="auto")
    for number, _ in enumerate(loader):
        if any(step.verdict == "kept" for step in loader.statistics().auto.steps):
            break
        assert number < 600, loader.statistics().auto
    text = str(loader.statistics())
    assert "auto:" in text
    assert "kept" in text


# -- the search, with no process at all --------------------------------------------------------------------------------------


def run(pace, world, most=40):
    """Windows from a world that says how quick it is under a setting."""
    for _ in range(most):
        if pace.settled:
            break
        pace.judge(world(pace.setting))
    return pace


def window(rate, *, busy, waited=1.0, usual=0.001, uneven=False):
    return Window(1.0, 20, round(rate), waited, busy, 0.5, usual, uneven)


LIMITS = Limits(64, 16, 8)


def test_the_search_grows_until_growth_stops_helping():
    pace = run(SizeSearch(Setting(2, 2), LIMITS), lambda s: window(min(s.workers, 16) * 100, busy=1.0))
    assert pace.setting == Setting(16, 2)
    assert "32 workers were 1.00 times as fast" in pace.why


def test_the_search_shrinks_when_more_workers_never_helped():
    pace = run(SizeSearch(Setting(8, 2), LIMITS), lambda s: window(100, busy=1.0))
    assert pace.setting.workers == 1


def test_the_search_adds_no_workers_the_training_does_not_need():
    need = 2.5

    def world(setting):
        rate = min(setting.workers, need)
        return window(rate * 100, busy=rate / setting.workers, waited=0.0 if setting.workers >= need else 0.2)

    pace = run(SizeSearch(Setting(8, 2), LIMITS), world)
    assert pace.setting.workers in (3, 4)
    pace = run(SizeSearch(Setting(1, 2), LIMITS), world)
    assert pace.setting.workers == 4


def test_the_search_prefetches_more_when_workers_idle():
    def world(setting):
        share = min(1.0, setting.depth / 8)
        return window(share * setting.workers * 50, busy=share)

    pace = run(SizeSearch(Setting(2, 2), Limits(2, 16, 8)), world)
    assert pace.setting == Setting(2, 8)
    assert run(SizeSearch(Setting(2, 2), Limits(2, 16, 8), adapts_depth=False), world).setting == Setting(2, 2)


def test_the_search_ignores_noise():
    dice = random.Random(3)
    pace = run(
        SizeSearch(Setting(4, 2), LIMITS),
        lambda s: window(min(s.workers, 4) * 100 * dice.uniform(0.98, 1.02), busy=1.0),
    )
    assert pace.setting.workers == 4
    for _ in range(300):
        before = pace.setting
        pace.judge(Window(0.1, 20, round(40 * dice.uniform(0.9, 1.1)), 1.0, 1.0))
        assert pace.setting == before or not pace.settled
    assert pace.setting.workers in (2, 4, 8)


def test_the_search_restarts_when_conditions_change():
    pace = run(SizeSearch(Setting(2, 2), LIMITS), lambda s: window(200, busy=0.9, waited=0.0))
    assert pace.setting.workers == 2
    for _ in range(3):
        pace.judge(window(100, busy=1.0, waited=0.6))
    assert not pace.settled
    run(pace, lambda s: window(min(s.workers, 8) * 50, busy=1.0, waited=0.6 if s.workers < 8 else 0.0))
    assert pace.setting.workers == 8


def test_the_search_compares_work_when_few_samples_dominate():
    lucky, unlucky = window(900, busy=0.5, uneven=True), window(300, busy=0.5, uneven=True)
    assert lucky.gain(unlucky, 4, 4) == pytest.approx(1.0)
    assert window(300, busy=0.5, uneven=True).gain(lucky, 8, 4) == pytest.approx(2.0)
    # a sample that takes twice as long because there are twice as many workers has gained nothing
    assert window(300, busy=0.5, uneven=True, usual=0.002).gain(lucky, 8, 4) == pytest.approx(1.0)


# -- what the machine allows -----------------------------------------------------------------------------------------------


def test_ranks_divide_the_processors_between_them(monkeypatch):
    monkeypatch.setattr(limits, "processors", lambda: 16)
    monkeypatch.setattr(limits, "_affinity", lambda: 16)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert limits.own_processors() == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "8(x2)")
    assert limits.own_processors() == 2
    # a rank that was bound to its own processors has them for itself
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert limits.own_processors() == 16


@pytest.mark.parametrize(
    ("memory", "files", "because"), [(1 << 30, 10_000, "memory"), (1 << 40, 300, "the limit on open files")]
)
def test_the_limiting_resource_is_named(monkeypatch, memory, files, because):
    monkeypatch.setattr(auto_size, "available_memory", lambda: memory)
    monkeypatch.setattr(limits, "descriptors", lambda: (files, 100))
    found = auto_size._limits()
    assert found.because == because
    assert 1 <= found.workers <= 11


# -- batches that are made in the training process ---------------------------------------------------------------------------


class Seldom(torch.utils.data.Dataset):
    """It draws from numpy in a late sample only."""

    def __len__(self):
        return 200

    def __getitem__(self, index):
        import numpy as np

        return index, float(np.random.rand()) if index == 150 else 0.0


def test_late_numpy_draws_are_reproducible_per_batch():
    import numpy as np

    def run(size):
        torch.manual_seed(3)
        loader = unjam.DataLoader(Seldom(), batch_size=4, num_workers="auto")
        iterator = iter(loader)
        np.random.seed(5)
        got = [batch[1].sum().item() for batch in resize(loader, iterator, *[size] * 50)]
        return got, np.random.rand()

    (alone, after_alone), (workers, after_workers) = run(1), run(2)
    assert alone == workers
    assert sum(alone) > 0
    assert after_alone == after_workers, "the training's own numbers were left alone"


class Remembers(torch.utils.data.Dataset):
    """Opens, counts and keeps when it loads; the program tells it the epoch."""

    def __init__(self, path):
        self.path, self.file, self.loaded, self.kept, self.epoch = path, None, 0, {}, 0

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        self.file = self.file or open(self.path, "rb")
        self.loaded += 1
        self.kept[index] = index
        return index, self.epoch


def test_workers_never_modify_the_dataset_but_the_program_can(tmp_path):
    (tmp_path / "bytes").write_bytes(b"some")
    dataset = Remembers(tmp_path / "bytes")
    loader = unjam.DataLoader(dataset, batch_size=4, num_workers="auto")
    for epoch in range(3):
        dataset.epoch = epoch
        for number, (_, seen) in enumerate(loader):
            assert set(seen.tolist()) == {epoch}
            dataset.epoch = epoch  # also in the middle, as a schedule would
            if number == 20:
                dataset.note = number
        assert (dataset.file, dataset.loaded, dataset.kept) == (None, 0, {})
        assert (dataset.epoch, dataset.note) == (epoch, 20), "what the program did stays"


def test_samples_are_never_loaded_in_the_training_process():
    class Asks(Noisy):
        def __getitem__(self, index):
            return torch.utils.data.get_worker_info().id

    loader = unjam.DataLoader(Asks(4000), batch_size=1, num_workers="auto")
    assert max(int(batch) for batch in loader) >= 0


def test_replacement_samples_do_not_depend_on_the_number_of_workers():
    def run(*sizes):
        loader = make(Noisy(bad=tuple(range(40, 60))), on_error="replace")
        iterator = iter(loader)
        got = [batch[0].tolist() for batch in resize(loader, iterator, *(sizes * 60)[:40])]
        return got + [batch[0].tolist() for batch in iterator]

    assert run(2) == run(1) == run(1, 2, 3, 1)


def test_max_errors_applies_to_every_epoch():
    loader = make(Noisy(bad=range(60, 90)), on_error="skip", max_errors=5, persistent_workers=True)
    for _ in range(2):
        iterator = iter(loader)
        with pytest.raises(unjam.TooManyErrorsError):
            for _ in resize(loader, iterator, *[1] * 60):
                pass
    iterator = None


def test_iteration_continues_after_a_signal_handler_raises():
    def ring(*_):
        raise KeyboardInterrupt

    loader = unjam.DataLoader(Noisy(600), batch_size=4, num_workers=2)
    iterator, got, rings = iter(loader), [], 0
    before = signal.signal(signal.SIGALRM, ring)
    try:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0015 if rings < 60 else 0)
                try:
                    batch = next(iterator, None)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                if batch is None:
                    break
                got += batch[0].tolist()
            except KeyboardInterrupt:
                rings += 1
            except RuntimeError as error:
                assert "sampler was interrupted" in str(error)
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert got == sorted(set(got)), "each at most once, and in order"
    iterator = None


def test_a_lock_left_by_an_interrupted_request_is_released():
    lock = ConsumerLock()

    def interrupted():
        lock.enter(lambda: False)
        raise KeyboardInterrupt  # as a signal handler does, before anything could leave

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert not lock.is_mine
    lock.enter(lambda: False)
    with pytest.raises(RuntimeError):
        lock.enter(lambda: False)
    lock.leave()


def test_a_dataset_that_references_its_loader_is_collected():
    dataset = Noisy(4000)
    loader = unjam.DataLoader(dataset, batch_size=4, num_workers="auto", persistent_workers=True)
    dataset.loader = type("Box", (), {"__reduce__": lambda self: (object, ())})()
    dataset.loader.inside = loader
    iterator = iter(loader)
    for _ in resize(loader, iterator, 2, 1, 1, 1):
        pass
    gone = weakref.ref(iterator)
    del iterator, dataset, loader
    gc.collect()
    assert gone() is None
