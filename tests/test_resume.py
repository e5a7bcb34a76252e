"""A stopped run resumes with the same samples: samplers, streams, random numbers, deaths of workers."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
import pickle
import random
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

import unjam
from support import python
from unjam import CannotResumeError, DataLoader, ElasticSampler, UnjamWarning
from unjam.loader.driver.epoch_progress import EpochProgress
from unjam.loader.driver.index_source import IndexSource
from unjam.loader.worker.sample_random import SampleRandom
from unjam.system import random_state


class Noisy(Dataset):
    """Samples with random numbers of all three generators, an odd number of normal ones among them."""

    def __init__(self, length=37):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, torch.rand(()).item(), random.random(), float(np.random.randn())


class Plain(Dataset):
    def __len__(self):
        return 37

    def __getitem__(self, index):
        return index


class Numbers(IterableDataset):
    """A stream, divided among the workers, with random numbers in it."""

    def __init__(self, length=37):
        self.length = length
        self.given = 0

    def _rest(self, given):
        info = get_worker_info()
        mine = range(info.id, self.length, info.num_workers) if info else range(self.length)
        for number in mine[given:]:
            self.given += 1
            yield number, random.random(), torch.rand(()).item()

    def __iter__(self):
        self.given = 0
        return self._rest(0)


class Stateful(Numbers):
    def __iter__(self):
        yield from self._rest(self.given)
        self.given = 0

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


class StatefulIterator(Numbers):
    class Rest:
        def __init__(self, dataset):
            self.dataset, self.at = dataset, 0
            self.rest = dataset._rest(0)

        def __iter__(self):
            return self

        def __next__(self):
            self.at += 1
            return next(self.rest)

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]
            self.rest = self.dataset._rest(self.at)

    def __iter__(self):
        return StatefulIterator.Rest(self)


class Shuffled(Sampler):
    """A sampler that shuffles with Python's generator, at once in __iter__."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        order = list(range(len(self.data)))
        random.shuffle(order)
        return iter(order)


class Counting(Sampler):
    """A sampler that saves its own state."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        while self.at < len(self.data):
            self.at += 1
            yield (self.at * 7) % len(self.data)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def seed(number=0):
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def plain(batch):
    return tuple(one.tolist() for one in batch) if isinstance(batch, (list, tuple)) else batch.tolist()


def epochs(make, count):
    loader = make()
    return [[plain(batch) for batch in loader] for _ in range(count)]


def stopped(make, epoch, after):
    """What came until the stop in an epoch (from 0), and the state there."""
    loader, got = make(), []
    for _ in range(epoch):
        got.append([plain(batch) for batch in loader])
    iterator = iter(loader)
    got.append([plain(batch) for batch in itertools.islice(iterator, after)])
    return got, json.loads(json.dumps(loader.state_dict()))


def resumed(make, state, got, count):
    seed(99)  # as a new process has other generators
    loader = make()
    loader.load_state_dict(state)
    got[-1] += [plain(batch) for batch in loader]
    return got + [[plain(batch) for batch in loader] for _ in range(count - len(got))]


def same(make, epoch=1, after=3, count=3, later=None):
    seed()
    whole = epochs(make, count)
    seed()
    got, state = stopped(make, epoch, after)
    assert resumed(later or make, state, got, count) == whole
    return state


SAMPLERS = {
    "in order": lambda data: {},
    "shuffle": lambda data: {"shuffle": True},
    "generator": lambda data: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "subset": lambda data: {"sampler": SubsetRandomSampler(range(0, 37, 2))},
    "weighted": lambda data: {"sampler": WeightedRandomSampler([1.0 + n for n in range(37)], 30)},
    "with replacement": lambda data: {"sampler": RandomSampler(data, replacement=True, num_samples=50)},
    "python's generator": lambda data: {"sampler": Shuffled(data)},
    "its own state": lambda data: {"sampler": Counting(data)},
    "batches": lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 5, drop_last=True), "batch_size": 1},
    "one by one": lambda data: {"sampler": RandomSampler(data), "batch_size": None},
    "distributed": lambda data: {"sampler": DistributedSampler(data, num_replicas=2, rank=1, shuffle=True)},
    "elastic": lambda data: {"sampler": ElasticSampler(data, 2, 1)},
}


def maker(data, options, workers, **more):
    def make():
        return DataLoader(
            data,
            **{"batch_size": 4, **SAMPLERS[options](data), **more},
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    return make


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [name for name in SAMPLERS if name != "one by one"])
def test_every_sampler_resumes(options, workers):
    same(maker(Noisy(), options, workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_unbatched_loaders_resume(workers):
    def make():
        data = Plain()
        context = "fork" if workers else None
        return DataLoader(
            data,
            batch_size=None,
            sampler=RandomSampler(data),
            num_workers=workers,
            multiprocessing_context=context,
            collate_fn=torch.tensor,
        )

    same(make, after=7)


@pytest.mark.parametrize("after", [0, 1, 9, 10])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_resuming_works_at_every_position(workers, after):
    same(maker(Noisy(), "shuffle", workers), after=after)


@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize("more", [{"persistent_workers": True}, {"prefetch_factor": 4}, {"in_order": False}])
def test_resuming_works_with_worker_options(more, epoch):
    if "in_order" in more:
        make = maker(Plain(), "shuffle", 2, **more)
        seed()
        whole = epochs(make, 1)[0]
        seed()
        got, state = stopped(make, 0, 4)
        again = resumed(make, state, got, 1)[0]
        assert sorted(itertools.chain(*again)) == sorted(itertools.chain(*whole)) == list(range(37))
    else:
        same(maker(Noisy(), "shuffle", 2, **more), epoch=epoch)


@pytest.mark.parametrize(("before", "later"), [(2, 3), (3, 1), (2, 0), (0, 2)])
def test_resuming_with_another_number_of_workers(before, later):
    data = Plain()
    state = same(maker(data, "shuffle", before), later=maker(data, "shuffle", later))
    assert state["num_workers"] == before


@pytest.mark.parametrize(("before", "later"), [(2, 3), (3, 0), (0, 2), ("auto", 2), (2, "auto")])
def test_per_sample_random_numbers_resume_with_any_number_of_workers(before, later):
    seed()
    whole = epochs(maker(Noisy(), "shuffle", before, rng="sample"), 2)
    seed()
    assert epochs(maker(Noisy(), "shuffle", later, rng="sample"), 2) == whole
    first, second = ({sample: rest for batch in epoch for sample, *rest in zip(*batch, strict=True)} for epoch in whole)
    assert first.keys() == second.keys()
    assert not any(first[index] == second[index] for index in first), "the same random numbers in two epochs"
    same(maker(Noisy(), "shuffle", before, rng="sample"), later=maker(Noisy(), "shuffle", later, rng="sample"))


def test_auto_workers_resume():
    same(maker(Noisy(), "shuffle", "auto"))


def test_every_start_method_resumes_alike():
    def make():
        return DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)

    same(make, count=2)


# -- streams -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 4, 9, 10])  # the tenth is short, and the last
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("kind", [Numbers, Stateful, StatefulIterator])
def test_streams_resume(kind, workers, after):
    def make():
        context = "fork" if workers else None
        return DataLoader(kind(), batch_size=4, num_workers=workers, multiprocessing_context=context)

    same(make, epoch=0, after=after, count=2)


def test_streams_with_auto_workers_resume():
    def make():
        return DataLoader(Numbers(), batch_size=4, num_workers="auto")

    same(make, epoch=0, after=4, count=1)


def test_streams_with_rare_snapshots_resume():
    def make():
        return DataLoader(
            Stateful(), batch_size=4, num_workers=2, multiprocessing_context="fork", snapshot_every_n_steps=3
        )

    seed()
    whole = epochs(make, 1)
    seed()
    got, state = stopped(make, 0, 5)
    loader = make()
    loader.load_state_dict(state)
    assert [got[0] + [plain(batch) for batch in loader]] == whole
    assert 0 < loader.statistics().reread_samples < 20


def test_the_number_of_reread_samples_is_reported(caplog):
    loader = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    iterator = iter(loader)
    list(itertools.islice(iterator, 4))
    state = loader.state_dict()
    other = DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    other.load_state_dict(state)
    assert len(list(other)) == 10 - 4
    assert other.statistics().reread_samples == 16
    assert sum("were read again" in one.message for one in caplog.records) == 1


def test_a_stream_with_another_number_of_workers_is_refused():
    loader = DataLoader(Numbers(), batch_size=4)
    next(iter(loader))
    other = DataLoader(Numbers(), batch_size=4, num_workers=2)
    with pytest.raises(CannotResumeError, match="num_workers=0"):
        other.load_state_dict(loader.state_dict())


class Unrepeatable(Numbers):
    def __iter__(self):
        for _ in range(37):
            yield os.urandom(4).hex()


def test_a_non_repeatable_stream_is_an_error():
    loader = DataLoader(Unrepeatable(), batch_size=4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    other = DataLoader(Unrepeatable(), batch_size=4, num_workers=1, multiprocessing_context="fork")
    other.load_state_dict(state)
    with pytest.raises(CannotResumeError, match="is not repeatable"):
        list(other)


# -- deaths ------------------------------------------------------------------------------------------


class Deadly(Noisy):
    """Sample `at` kills its worker, the first time."""

    def __init__(self, flag, at=17):
        super().__init__()
        self.flag, self.at = flag, at

    def __getitem__(self, index):
        if index == self.at and not os.path.exists(self.flag):
            open(self.flag, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("persistent", [False, True])
def test_worker_death_changes_no_random_number(tmp_path, persistent):
    def make():
        return DataLoader(
            Deadly(str(tmp_path / "flag")),
            batch_size=4,
            num_workers=2,
            persistent_workers=persistent,
            multiprocessing_context="fork",
        )

    (tmp_path / "flag").touch()
    seed()
    whole = epochs(make, 2)
    (tmp_path / "flag").unlink()
    seed()
    assert epochs(make, 2) == whole
    assert (tmp_path / "flag").exists()


def deadly(kind):
    class DeadlyStream(kind):
        def __init__(self, flag):
            super().__init__()
            self.flag = flag

        def _rest(self, given):
            for sample in super()._rest(given):
                if sample[0] == 20 and not os.path.exists(self.flag):
                    open(self.flag, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield sample

    return DeadlyStream


@pytest.mark.parametrize("kind", [Numbers, Stateful, StatefulIterator])
def test_a_worker_of_a_stream_is_replaced(tmp_path, kind):
    def make():
        return DataLoader(
            deadly(kind)(str(tmp_path / "flag")), batch_size=4, num_workers=2, multiprocessing_context="fork"
        )

    (tmp_path / "flag").touch()
    seed()
    whole = epochs(make, 1)
    (tmp_path / "flag").unlink()
    seed()
    assert epochs(make, 1) == whole
    assert (tmp_path / "flag").exists()


def test_a_stream_sample_that_always_kills_ends_the_epoch(tmp_path):
    class Always(Numbers):
        def _rest(self, given):
            for sample in super()._rest(given):
                if sample[0] == 20:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield sample

    loader = DataLoader(Always(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    with pytest.raises(unjam.WorkerDiedError, match="cannot be skipped"):
        list(loader)


# -- the state ---------------------------------------------------------------------------------------


def test_the_state_is_small_plain_and_immutable():
    loader = DataLoader(Noisy(10_000), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    assert len(json.dumps(state)) < 64 << 10
    assert state == json.loads(json.dumps(state)) == pickle.loads(pickle.dumps(state))
    next(iterator)
    assert state == kept != loader.state_dict()
    assert (state["batches"], loader.state_dict()["batches"]) == (1, 2)


def test_prefetched_batches_do_not_count():
    loader = DataLoader(Plain(), batch_size=1, num_workers=2, prefetch_factor=8, multiprocessing_context="fork")
    iterator = iter(loader)
    next(iterator)
    assert loader.state_dict()["position"] == 1


def test_a_loaded_state_is_returned_unchanged():
    seed()
    make = maker(Noisy(), "shuffle", 2)
    loader = make()
    list(itertools.islice(iter(loader), 3))
    state = loader.state_dict()
    other = make()
    other.load_state_dict(state)
    assert other.state_dict() == state
    list(itertools.islice(iter(other), 0))
    assert other.state_dict() == state, "nothing was delivered yet"


def test_states_before_and_between_epochs_resume():
    make = maker(Noisy(), "shuffle", 2)
    seed()
    loader = make()
    state = loader.state_dict()
    first = [plain(batch) for batch in loader]
    between = loader.state_dict()
    second = [plain(batch) for batch in loader]
    seed(5)
    for known, wanted in ((state, first), (between, second)):
        other = make()
        other.load_state_dict(known)
        assert [plain(batch) for batch in other] == wanted


@pytest.mark.parametrize("state", [{"_snapshot": 1}, {"unjam": 99}])
def test_foreign_states_are_refused(state):
    with pytest.raises(CannotResumeError, match="state_dict"):
        DataLoader(Plain()).load_state_dict(state)


def test_an_empty_state_is_ignored():
    loader = DataLoader(Plain(), batch_size=4)
    loader.load_state_dict({})
    assert len(list(loader)) == 10


def test_an_elastic_sampler_begins_again_after_a_break():
    sampler = ElasticSampler(range(40), shuffle=False)
    loader = DataLoader(range(40), 4, sampler=sampler, num_workers=1)
    for _ in range(2):
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    assert [int(index) for batch in loader for index in batch] == list(range(40))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupt_while_the_sampler_saves_its_state_loses_no_batch(workers):
    class Interrupted(ElasticSampler):
        interrupts = 0

        def state_dict(self):
            if self._since == 12 and not self.interrupts:
                self.interrupts = 1
                raise KeyboardInterrupt
            return super().state_dict()

    sampler = Interrupted(range(40), shuffle=False)
    batches, got = None, []
    while batches is None or len(got) < 40:
        try:
            batches = batches or iter(
                DataLoader(range(40), 4, sampler=sampler, num_workers=workers, prefetch_factor=1 if workers else None)
            )
            got += next(batches).tolist()
        except KeyboardInterrupt:
            continue
    assert sampler.interrupts
    assert got == list(range(40))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_state_that_fails_once_is_raised_once(workers):
    class Fails(ElasticSampler):
        failures = 0

        def state_dict(self):
            if self._since == 12:
                self.failures += 1
                raise ValueError("no state now")
            return super().state_dict()

    sampler = Fails(range(40), shuffle=False)
    batches = iter(DataLoader(range(40), 4, sampler=sampler, num_workers=workers))
    got = []
    for _ in range(20):
        try:
            got += next(batches).tolist()
        except ValueError:
            continue
        except StopIteration:
            break
    else:
        pytest.fail("it does not end")
    assert sampler.failures == 1
    assert got[:8] == list(range(8))


class Uneven(IterableDataset):
    def __iter__(self):
        yield from range(4 if get_worker_info().id == 0 else 400)


def test_a_state_does_not_grow_after_a_short_stream_has_ended():
    loader = DataLoader(Uneven(), 2, num_workers=2)
    for _ in itertools.islice(iter(loader), 100):
        pass
    assert len(loader.state_dict()["finished_ahead"]) <= 2


def test_a_run_that_resumed_out_of_order_can_be_resumed_again():
    sampler = SubsetRandomSampler(range(40))
    source = index_source(sampler)
    progress = EpochProgress(position=3, finished_ahead={4: (0, None)})
    source.begin(progress)
    requests = [source.next(n) for n in range(2)]
    assert [one.number for one in requests] == [3, 5]
    progress.finish_batch(requests[0], delivered=True)
    assert progress.position == 5
    assert progress.indices_checksum not in (0, requests[0].indices_checksum)


def index_source(sampler):
    settings = SimpleNamespace(batched=False, seed=None)
    source = IndexSource(settings, spares=False)
    source.draw = functools.partial(next, iter(sampler))
    return source


def test_a_sampler_with_a_changed_order_is_reported():
    class Unseeded(Shuffled):
        def __iter__(self):
            order = list(range(len(self.data)))
            random.Random(os.urandom(8)).shuffle(order)
            return iter(order)

    data = Plain()
    loader = DataLoader(data, batch_size=4, sampler=Unseeded(data))
    list(itertools.islice(iter(loader), 3))
    other = DataLoader(data, batch_size=4, sampler=Unseeded(data))
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UnjamWarning, match="different indices than before"):
        iter(other)


def test_a_dataset_may_save_the_program_generator():
    class Saving(Plain):
        def state_dict(self):
            return {"torch": torch.get_rng_state().tolist()}

        def load_state_dict(self, state):
            torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))

    def make():
        return DataLoader(Saving(), 4, shuffle=True)

    torch.manual_seed(0)
    whole = [plain(batch) for loader in [make()] for _ in range(3) for batch in loader]
    torch.manual_seed(0)
    loader = make()
    got = [plain(batch) for _ in range(2) for batch in loader]
    later = make()
    later.load_state_dict(loader.state_dict())
    assert got + [plain(batch) for batch in later] == whole


def test_the_program_may_set_the_generators():
    make = maker(Noisy(), "shuffle", 0)
    seed()
    loader = make()
    list(itertools.islice(iter(loader), 3))
    state, own = loader.state_dict(), random_state.capture()
    other = make()
    other.load_state_dict(state)
    random_state.restore(own)
    iter(other)
    assert random_state.capture() == own


def test_skipped_and_failing_batches_count_as_done():
    class Bad(Plain):
        def __getitem__(self, index):
            if index in (4, 5, 6, 7, 9):
                raise ValueError(index)
            return index

    def make():
        return DataLoader(Bad(), batch_size=4, num_workers=2, on_error="skip", multiprocessing_context="fork")

    same(make, epoch=0, after=2, count=2)


@pytest.mark.timeout(300)
def test_a_killed_program_resumes_from_its_checkpoint(tmp_path):
    """A program that is killed at any moment goes on from its last checkpoint."""
    program = tmp_path / "train.py"
    program.write_text(
        "import json, os, random, sys, torch, unjam\n"
        "class Noisy(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 40\n"
        "    def __getitem__(self, index): return index, random.random()\n"
        "folder, stop = sys.argv[1], int(sys.argv[2])\n"
        "torch.manual_seed(0)\n"
        "loader = unjam.DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context='fork')\n"
        "seen, epoch = [], 0\n"
        "if os.path.exists(folder + '/saved'):\n"
        "    saved = json.load(open(folder + '/saved'))\n"
        "    loader.load_state_dict(saved['loader']); seen, epoch = saved['seen'], saved['epoch']\n"
        "for epoch in range(epoch, 3):\n"
        "    for batch in loader:\n"
        "        seen.append([one.tolist() for one in batch])\n"
        "        if len(seen) % 2 == 0:\n"
        "            json.dump({'loader': loader.state_dict(), 'seen': seen, 'epoch': epoch}, open(folder + '/new', 'w'))\n"
        "            os.replace(folder + '/new', folder + '/saved')\n"
        "        if len(seen) == stop: os.kill(os.getpid(), 9)\n"
        "json.dump(seen, open(folder + '/all', 'w'))\n"
    )

    def run(folder, stop):
        folder.mkdir(exist_ok=True)
        return python([str(program), str(folder), str(stop)]).returncode

    assert run(tmp_path / "whole", -1) == 0
    for stop in (3, 17):
        assert run(tmp_path / "parts", stop) == -9
    assert run(tmp_path / "parts", -1) == 0
    assert json.loads((tmp_path / "parts" / "all").read_text()) == json.loads((tmp_path / "whole" / "all").read_text())


# -- ranks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "later"), [(2, 3), (4, 1), (1, 4), (3, 3)])
@pytest.mark.parametrize("source", ["dataset", "sampler"])
def test_an_elastic_sampler_resumes_with_another_number_of_ranks(before, later, source):
    data = list(range(120))

    def sampler(ranks, rank):
        return ElasticSampler(
            WeightedRandomSampler([1.0] * 120, 120, replacement=False) if source == "sampler" else data, ranks, rank
        )

    loaders = [DataLoader(data, batch_size=5, sampler=sampler(before, rank), num_workers=0) for rank in range(before)]
    iterators = [iter(loader) for loader in loaders]
    first = [index for _ in range(2) for iterator in iterators for index in next(iterator).tolist()]
    state = json.loads(json.dumps(loaders[0].state_dict()))
    rest = []
    for rank in range(later):
        loader = DataLoader(data, batch_size=5, sampler=sampler(later, rank), num_workers=0)
        loader.load_state_dict(state)
        rest += [index for batch in loader for index in batch.tolist()]
    left = 120 - len(first)
    assert set(first + rest) == set(data)
    assert len(rest) == -(-left // later) * later, "only filled up to equal shares"


def test_an_elastic_sampler_covers_every_epoch():
    data = list(range(10))
    ranks = [ElasticSampler(data, 2, rank) for rank in range(2)]
    orders = [[list(rank) for rank in ranks] for _ in range(3)]
    assert all(sorted(one + other) == data for one, other in orders)
    assert orders[0] != orders[1]
    ranks[0].set_epoch(1)
    assert list(ranks[0]) == orders[1][0]
    with pytest.raises(CannotResumeError, match="seed=0"):
        ElasticSampler(data, seed=3).load_state_dict(ranks[0].state_dict())
    with pytest.raises(ValueError, match="rank"):
        ElasticSampler(data, 2, 2)


# -- one sample --------------------------------------------------------------------------------------


def test_replay_uses_the_random_numbers_of_the_sample():
    loader = DataLoader(Noisy(), batch_size=1, num_workers=2, rng="sample", multiprocessing_context="fork")
    got = [{int(batch[0]): plain(batch) for batch in loader} for _ in range(2)]
    before = random_state.capture()
    for epoch in (1, 2):
        assert list(loader.replay(11, epoch=epoch)) == [one[0] for one in got[epoch - 1][11]]
    assert list(loader.replay(11)) == [one[0] for one in got[1][11]]
    assert random_state.capture() == before


def test_loading_leaves_the_program_generators_unchanged():
    def numbers():
        return random.random(), float(np.random.randn()), torch.rand(()).item()

    known = DataLoader(Noisy(), rng="sample")
    list(known)
    seed(3)
    want = numbers()
    for load in (
        lambda: list(DataLoader(Plain(), batch_size=4, rng="sample", generator=torch.Generator())),
        lambda: known.replay(3, epoch=1),
    ):
        seed(3)
        load()
        assert numbers() == want


def test_functions_of_random_are_pickled_by_name():
    code = (
        "import pickle, random\n"
        "from unjam.loader.worker.sample_random import SampleRandom\n"
        "SampleRandom(1, 1).seed_sample(0)\n"
        "assert pickle.loads(pickle.dumps(random.random)) is random.random\n"
    )
    assert python(["-c", code], warm=False).returncode == 0  # in a fork, `random` has forgotten its first functions


def test_a_stream_that_fails_when_reread():
    class Failing(Numbers):
        def __init__(self, fails):
            super().__init__()
            self.fails = fails

        def __iter__(self):
            return self if self.fails else super().__iter__()

        def __next__(self):
            raise ValueError("no more")

    loader = DataLoader(Failing(fails=False), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    other = DataLoader(Failing(fails=True), batch_size=4)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(CannotResumeError, match="100 times in a row"):
        iter(other)


def test_the_python_generator_is_seeded_on_first_use():
    before = random_state.capture()
    try:
        seeds = SampleRandom(1, 1)
        for use in (
            random.random,
            lambda: random.getrandbits(40),
            lambda: random.randint(0, 1 << 40),
            lambda: random.gauss(0, 1),
            lambda: random.sample(range(10_000), 4),
            lambda: random.shuffle(order := list(range(50))) or order,
            lambda: random.getstate(),
        ):
            seen = []
            for index in (3, 3, 4):
                seeds.seed_sample(index)
                seen.append(use())
            assert seen[0] == seen[1] != seen[2]
        seeds.seed_sample(3)
        random.seed(1)
        assert random.random() == random.Random(1).random()
        seeds.seed_sample(3)
        random.setstate(random.Random(2).getstate())
        assert random.random() == random.Random(2).random()
    finally:
        random_state.restore(before)


@pytest.mark.parametrize(
    "use",
    [
        lambda: random.random(),
        lambda: random.gauss(0, 1),
        lambda: np.random.rand(),
        lambda: np.random.randn(),
        lambda: torch.rand(1),
        lambda: torch.randn(()),
    ],
)
def test_use_of_a_generator_is_detected(use):
    changes = random_state.Changes()
    assert changes.names() == []
    for _ in range(3):  # the second normal number comes with the first
        use()
        assert len(changes.names()) == 1
        assert changes.names() == []


# -- frameworks --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of lightning itself
def test_lightning_resumes_mid_epoch(tmp_path):
    import lightning

    seen, saved = [], tmp_path / "saved.ckpt"

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            seen.append(batch.tolist())
            return self.layer(batch.float()[:, None]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class Save(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 6 and not saved.exists():
                trainer.save_checkpoint(saved)

    def fit(checkpoint=None):
        seen.clear()
        seed()
        trainer = lightning.Trainer(
            max_epochs=2, callbacks=[Save()], logger=False, enable_progress_bar=False, enable_checkpointing=False,
            enable_model_summary=False, accelerator="cpu",
        )  # fmt: skip
        trainer.fit(Model(), maker(Plain(), "shuffle", 2)(), ckpt_path=checkpoint)
        return list(seen)

    whole = fit()
    assert whole[:6] + fit(saved) == whole


@pytest.mark.filterwarnings("ignore")  # of accelerate itself
def test_accelerate_saves_a_registered_loader(tmp_path):
    from accelerate import Accelerator

    make, whole = maker(Plain(), "shuffle", 2), []
    seed()
    loader, accelerator = make(), Accelerator(cpu=True)
    accelerator.register_for_checkpointing(loader)
    for epoch in range(2):
        for number, batch in enumerate(loader):
            whole.append(batch.tolist())
            if (epoch, number) == (0, 5):
                accelerator.save_state(str(tmp_path / "saved"))
    seed(7)
    loader, accelerator = make(), Accelerator(cpu=True)
    accelerator.register_for_checkpointing(loader)
    accelerator.load_state(str(tmp_path / "saved"))
    assert whole[:6] + [batch.tolist() for _ in range(2) for batch in loader] == whole


def test_an_empty_state_changes_nothing():
    loader = DataLoader(Plain(), 4, num_workers=1, persistent_workers=True)
    list(loader)
    before = [worker.pid for worker in loader._iterator._workers]
    loader.load_state_dict({})
    list(loader)
    assert [worker.pid for worker in loader._iterator._workers] == before


class ByPair(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index.sum().item(), torch.rand(()).item()


def test_random_numbers_of_a_sample_may_belong_to_an_index_that_is_an_array():
    pairs = [torch.tensor([number, number + 1]) for number in range(4)]
    epochs = [
        list(
            DataLoader(
                ByPair(),
                None,
                sampler=pairs,
                num_workers=workers,
                rng="sample",
                generator=torch.Generator().manual_seed(1),
            )
        )
        for workers in (0, 2)
    ]
    assert epochs[0] == epochs[1]
    assert len({drawn for _, drawn in epochs[0]}) == 4


class RebuiltOnlyHere:
    """Cannot be rebuilt in a worker, so the workers are forked after they have failed to start."""

    def __init__(self):
        self.pid = os.getpid()

    def __setstate__(self, state):
        if os.getpid() != state["pid"]:
            raise RuntimeError("cannot be rebuilt here")
        self.__dict__.update(state)


class StreamRebuiltOnlyHere(RebuiltOnlyHere, IterableDataset):
    def __iter__(self):
        return iter(range(40))


def test_a_stream_whose_workers_had_to_be_forked_counts_every_batch():
    loader = DataLoader(StreamRebuiltOnlyHere(), 4, num_workers=1)
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(3)]
    state = loader.state_dict()
    assert (state["batches"], state["position"]) == (3, 3)
    again = DataLoader(StreamRebuiltOnlyHere(), 4, num_workers=1)
    again.load_state_dict(state)
    assert got + [batch.tolist() for batch in again] == [list(range(n, n + 4)) for n in range(0, 40, 4)]


class SharedStream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        yield from range(worker.id, 40, worker.num_workers)


def test_a_stream_with_an_automatic_number_of_workers_resumes():
    loader = DataLoader(SharedStream(), 4, num_workers="auto")
    iterator = iter(loader)
    got = next(iterator).tolist()
    state = loader.state_dict()
    again = DataLoader(SharedStream(), 4, num_workers="auto")
    again.load_state_dict(state)
    assert sorted(got + [n for batch in again for n in batch.tolist()]) == list(range(40))


class SomeBad(Plain):
    def __getitem__(self, index):
        if index in (3, 14, 25):
            raise OSError("bad")
        return index


@pytest.mark.parametrize("batch_size", [None, 1, 4])
@pytest.mark.parametrize("at", [1, 6, 15])
def test_samples_in_place_of_bad_ones_are_the_same_after_resuming(batch_size, at):
    def make():
        torch.manual_seed(2)  # chooses the sample in place of a bad one
        return DataLoader(SomeBad(), batch_size, sampler=range(37), num_workers=1, on_error="replace")

    loader = make()
    iterator = iter(loader)
    got = [torch.as_tensor(next(iterator)).tolist() for _ in range(min(at, len(loader) - 1))]
    state = loader.state_dict()
    iterator = None
    again = make()
    again.load_state_dict(state)
    got += [torch.as_tensor(batch).tolist() for batch in again]
    assert got == [torch.as_tensor(batch).tolist() for batch in make()]
