"""Edge cases of failing samples, policies and error logs."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import time
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler, Subset
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data._utils import collate as torch_collate

from faulty import Broken, once
from support import wait_until
from test_cli import run as run_command
from unjam import DataLoader, ElasticSampler, Incident, SampleTimeoutError, TooManyErrorsError

WORKERS = pytest.mark.parametrize("workers", [0, 1])


class Whole(Dataset):
    """Gives all samples of a batch at once, as whatever it likes."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(float(index))

    def __getitems__(self, indices):
        match self.how:
            case "tensor":
                return torch.tensor(indices, dtype=torch.float32)
            case "array":
                return np.array(indices, dtype=np.float32)
            case "generator":
                return (torch.tensor(float(index)) for index in indices)
            case _:
                return tuple(torch.tensor(float(index)) for index in indices)


def keep(batch):
    return batch if isinstance(batch, torch.Tensor) else torch.tensor([float(one) for one in batch])


@WORKERS
@pytest.mark.parametrize("how", ["tensor", "array", "generator", "tuple"])
def test_getitems_may_return_any_container(workers, how):
    batches = list(DataLoader(Whole(how), 4, num_workers=workers, collate_fn=keep))
    assert torch.equal(torch.cat(batches), torch.arange(8.0))


@WORKERS
def test_replacements_that_do_not_fit_are_not_used(workers):
    class Mostly(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return None if index % 3 else index

    made = DataLoader(Mostly(), 1, num_workers=workers, on_error="replace")
    got = [batch.item() for batch in made]
    assert got[0] == 0
    assert set(got) <= {0, 3, 6, 9}
    assert [error.index for error in made.errors] == [index for index in range(12) if index % 3]
    with pytest.raises(TooManyErrorsError, match="all 12 samples"):
        list(DataLoader(Broken(dict.fromkeys(range(12)), 12), 4, num_workers=workers, on_error="replace"))


def test_iteration_continues_after_ctrl_c_without_workers():
    class Interrupts(Dataset):
        tried = 0

        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 2:
                self.tried += 1
                if self.tried == 1:
                    raise KeyboardInterrupt
            return index

    iterator = iter(DataLoader(Interrupts(), 1))
    got = []
    for _ in range(9):
        try:
            got.append(next(iterator).item())
        except KeyboardInterrupt:
            got.append("stop")
    assert got == [0, 1, "stop", 2, 3, 4, 5, 6, 7]


class Named(Dataset):
    def __init__(self):
        self.paths = [f"img/{index}.jpg" for index in range(8)]

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3:
            raise ValueError(f"bad {self.paths[index]}")
        return int(index)


@pytest.mark.parametrize("indices", [np.arange(7, -1, -1), torch.arange(7, -1, -1), list(range(7, -1, -1))], ids=type)
def test_a_subset_reports_the_original_sample_name(indices):
    made = DataLoader(Subset(Named(), indices), 4, on_error="skip")
    list(made)
    assert "img/3.jpg" in made.errors[0].key


def test_no_sample_name_is_guessed_through_a_renumbering_wrapper():
    class Shuffled(Dataset):
        def __init__(self):
            self.dataset, self.order = Named(), [7, 6, 5, 4, 3, 2, 1, 0]

        def __len__(self):
            return 8

        def __getitem__(self, index):
            return self.dataset[self.order[index]]

    made = DataLoader(Shuffled(), 4, on_error="skip")
    list(made)
    assert made.errors[0].index == 4
    assert made.errors[0].key is None


@WORKERS
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_an_iterator_that_keeps_failing_raises(workers, policy):
    class Gone(IterableDataset):
        def __iter__(self):
            return Connection()

    class Connection:
        count = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.count += 1
            if self.count > 5:
                raise ConnectionError("gone")
            return self.count

    made = DataLoader(Gone(), 2, num_workers=workers, on_error=policy)
    with pytest.raises(ConnectionError, match="gone"):
        list(made)
    assert made.errors[-1].note == "it failed 100 times in a row"


class ExitsInLen(Dataset):
    """Its length ends the program, as one that parses arguments may; torch asks for it only where it needs it."""

    def __len__(self):
        raise SystemExit("usage: ...")

    def __getitem__(self, index):
        raise IndexError(f"no sample {index}")


@WORKERS
def test_a_raising_len_does_not_hide_the_sample_error(workers):
    """To name a sample we ask for the length: what that raises must not end the program in place of the sample's error."""
    loader = DataLoader(ExitsInLen(), batch_size=None, sampler=[3], num_workers=workers)
    with pytest.raises(IndexError, match="no sample 3"):
        list(loader)


class Reuses:
    """A batch sampler that fills one list again and again."""

    def __init__(self, length=16):
        self.length = length

    def __len__(self):
        return self.length // 4

    def __iter__(self):
        batch = []
        for index in range(self.length):
            batch.append(index)
            if len(batch) == 4:
                yield batch
                batch.clear()


class CannotArrive(Dataset):
    def __init__(self, pid):
        self.pid = pid

    def __setstate__(self, state):
        self.__dict__.update(state)
        if os.getpid() != self.pid:
            raise RuntimeError("means nothing here")

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return index


def test_a_reused_index_list_survives_a_second_start():
    made = DataLoader(CannotArrive(os.getpid()), batch_sampler=Reuses(), num_workers=2)
    assert [batch.tolist() for batch in made] == [list(range(n, n + 4)) for n in range(0, 16, 4)]


@pytest.mark.parametrize("in_order", [True, False])
def test_a_second_start_keeps_the_position_of_the_sampler(in_order):
    def make(data):
        options = {"sampler": ElasticSampler(data, shuffle=True), "num_workers": 2, "in_order": in_order}
        return DataLoader(data, batch_size=2, rng="sample", **options)

    made = make(CannotArrive(os.getpid()))
    batches = iter(made)
    seen = next(batches).tolist()
    other = make(CannotArrive(os.getpid()))
    other.load_state_dict(made.state_dict())
    seen += [value for batch in other for value in batch.tolist()]
    assert sorted(seen) == list(range(16))
    del batches


class DiesAt(Dataset):
    def __init__(self, at, marker=None):
        self.at, self.marker = at, marker

    def __len__(self):
        return 16

    def __getitem__(self, index):
        numbers = index if isinstance(index, list) else [int(index)]
        if self.at in numbers and once(self.marker):
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([float(n) for n in numbers]) if isinstance(index, list) else float(index)


@pytest.mark.parametrize("batches", [Reuses(), list(torch.arange(16).split(4))], ids=["reused list", "tensors"])
def test_the_killing_sample_is_named_for_any_kind_of_batch(batches):
    made = DataLoader(DiesAt(5), batch_sampler=batches, num_workers=1, on_error="skip")
    got = [int(value) for batch in made for value in batch.tolist()]
    assert got == [n for n in range(16) if n != 5]
    assert int(made.errors[0].index) == 5
    assert isinstance(made.incidents[0].sample, (int, str))


def test_a_list_index_counts_as_one_sample():
    sampler = BatchSampler(SequentialSampler(range(16)), 4, drop_last=False)
    made = DataLoader(DiesAt(5), batch_size=None, sampler=sampler, num_workers=1, on_error="replace")
    got = [batch.tolist() for batch in made]
    assert got[1] == got[0], "a whole batch takes the place of a whole batch"
    assert made.errors[0].index == [4, 5, 6, 7]


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_batch_samplers_may_yield_iterators(policy):
    batches = [iter([0, 1, 2, 3]), iter([4, 5, 6, 7])]
    made = DataLoader(Broken({1: ValueError("bad")}), batch_sampler=batches, on_error=policy)
    assert [len(batch["y"]) for batch in made] == [3 if policy == "skip" else 4, 4]


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Slotted(Exception):
    __slots__ = ("code",)

    def __init__(self, code):
        self.code = code

    def __str__(self):
        return f"code {self.code}"


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


@WORKERS
@pytest.mark.parametrize("make", [Silent, lambda: Slotted(7), lambda: Frozen(7)], ids=["silent", "slots", "frozen"])
def test_exceptions_that_resist_modification_keep_their_type(workers, make):
    error = make()
    with pytest.raises(type(error)) as caught:
        list(DataLoader(Broken({5: error}), 4, num_workers=workers))
    if hasattr(error, "code"):
        assert caught.value.code == 7
    made = DataLoader(Broken({5: make()}), 4, num_workers=workers, on_error="skip")
    assert sum(len(batch["y"]) for batch in made) == 23
    assert type(made.errors[0].exception) is type(error)


@WORKERS
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_recorded_os_errors_keep_their_file_name(workers, policy):
    class Opens(Broken):
        def __getitem__(self, index):
            if index == 5:
                open("/nowhere/x.jpg")
            if index == 6:
                b"\xff".decode()
            return super().__getitem__(index)

    made = DataLoader(Opens({}), 1, num_workers=workers, on_error=policy)
    iterator = iter(made)
    for _ in range(24):
        try:
            next(iterator)
        except (OSError, ValueError):
            continue
        except StopIteration:
            break
    assert made.errors[0].exception.filename == "/nowhere/x.jpg"
    assert "No such file or directory: '/nowhere/x.jpg'" in str(made.errors[0])
    assert "can't decode byte 0xff" in str(made.errors[1])


def test_an_on_error_function_cannot_start_an_epoch():
    def decide(error):
        iter(made)
        return "skip"

    made = DataLoader(Broken({5: ValueError("a")}), 4, num_workers=1, on_error=decide, persistent_workers=True)
    with pytest.raises(RuntimeError, match="already making one"):
        list(made)
    made.on_error = "skip"
    made = None


def test_ctrl_c_in_an_on_error_function_is_raised_at_once():
    asked = []

    def decide(error):
        asked.append(error.index)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return "skip"

    iterator = iter(DataLoader(Broken({5: ValueError("a")}), 4, num_workers=1, on_error=decide))
    got = []
    while True:
        try:
            got += next(iterator)["y"].tolist()
        except KeyboardInterrupt:
            got.append("stop")
        except StopIteration:
            break
    assert [one for one in got if one != "stop"] == [n for n in range(24) if n != 5]
    assert got.count("stop") == 1
    assert asked == [5, 5], "it is asked again"


def test_a_timed_out_iterable_is_recorded():
    class Hangs(IterableDataset):
        def __iter__(self):
            import time

            yield 1
            time.sleep(3600)

    made = DataLoader(Hangs(), 1, num_workers=1, sample_timeout=1)
    with pytest.raises(SampleTimeoutError):
        list(made)
    assert made.incidents[0].kind == "timeout"


@WORKERS
def test_custom_collate_entries_for_mappings_are_used(workers):
    import collections.abc

    def mine(batch, *, collate_fn_map=None):
        return {"mine": len(batch)}

    torch_collate.default_collate_fn_map[collections.abc.Mapping] = mine
    try:
        assert list(DataLoader(Broken({}, 8), 4, num_workers=workers)) == [{"mine": 4}] * 2
    finally:
        del torch_collate.default_collate_fn_map[collections.abc.Mapping]


@WORKERS
def test_a_collate_entry_registered_by_a_sample_is_used_at_once(workers):
    class Registers(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            torch_collate.default_collate_fn_map[str] = lambda batch, *, collate_fn_map=None: "+".join(batch)
            return str(index)

    known = dict(torch_collate.default_collate_fn_map)
    try:
        assert list(DataLoader(Registers(), 2, num_workers=workers)) == ["0+1", "2+3"]
    finally:
        torch_collate.default_collate_fn_map.clear()
        torch_collate.default_collate_fn_map.update(known)


@WORKERS
def test_default_collate_called_by_a_custom_function_behaves_as_in_torch(workers):
    def collate(samples):
        return torch_collate.default_collate(samples)

    class Mixed(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"x": torch.zeros(2), "more": 1} if index == 0 else {"x": torch.zeros(2).double(), "more": 1, "z": 1}

    expected = next(iter(TorchLoader(Mixed(), 4, num_workers=workers, collate_fn=collate)))
    (got,) = DataLoader(Mixed(), 4, num_workers=workers, collate_fn=collate)
    assert got["x"].dtype == expected["x"].dtype
    assert got.keys() == expected.keys()


@WORKERS
def test_a_collate_function_may_modify_its_samples(workers):
    def collate(samples):
        return {"y": torch.tensor([sample.pop("y") for sample in samples])}

    made = DataLoader(
        Broken({2: {"x": torch.zeros(4)}}, 8), 4, num_workers=workers, collate_fn=collate, on_error="skip"
    )
    assert [batch["y"].tolist() for batch in made] == [[0, 1, 3], [4, 5, 6, 7]]
    assert [error.index for error in made.errors] == [2]


def test_no_sample_is_blamed_when_the_search_times_out(monkeypatch):
    import time

    from unjam.deadlines import Deadline
    from unjam.loader.failures import outlier

    monkeypatch.setattr(outlier, "PROBE_COLLATE", Deadline(0.05, "short"))

    def collate(samples):
        time.sleep(0.1)
        if len(samples) > 1:
            raise ValueError("always")

    samples = [{"a": 1}, {"a": 1}, {"b": 1}]
    assert outlier.find(samples, collate, strict=False, fresh=True) == []


def test_an_exception_of_an_on_error_function_is_raised():
    def decide(error):
        raise ValueError("Decision of mine")

    with pytest.raises(ValueError, match="Decision of mine"):
        list(DataLoader(Broken({5: ValueError("a")}), 4, on_error=decide))


def test_undecodable_file_names_are_logged(tmp_path):
    log = tmp_path / "errors.jsonl"
    name = os.fsdecode(b"img/\xff.jpg")
    list(DataLoader(Broken({5: ValueError(name)}), 4, on_error="skip", error_log=log))
    done = run_command("errors", log)
    assert done.returncode == 1, done.stderr
    assert "ValueError: img/" in done.stdout


class Drawn(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, float(torch.rand(())), index == 3


def _values(samples):
    return {index: value for index, value, _ in samples}


def _values_without_bad(samples):
    if any(bad for *_, bad in samples):
        raise ValueError("bad")
    return _values(samples)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_failed_collate_does_not_change_the_random_numbers_of_other_samples(workers, policy):
    options = {"num_workers": workers, "rng": "sample"}
    torch.manual_seed(0)
    (usual, *_) = DataLoader(Drawn(), 4, collate_fn=_values, **options)
    torch.manual_seed(0)
    (found, *_) = DataLoader(Drawn(), 4, collate_fn=_values_without_bad, on_error=policy, **options)
    assert found == {index: usual[index] for index in (0, 1, 2)}


class HangsWhole(Whole):
    def __getitem__(self, index):
        if index == 5:
            time.sleep(1000)
        return super().__getitem__(index)

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def test_a_sample_that_hangs_in_getitems_and_again_alone_is_left_out():
    made = DataLoader(HangsWhole("list"), 4, num_workers=1, sample_timeout=0.5, on_error="skip")
    assert [batch.tolist() for batch in made] == [[0, 1, 2, 3], [4, 6, 7]]
    assert made.errors[0].index == 5


def test_getitems_datasets_are_timed_by_batch():
    made = DataLoader(Whole("list"), 4, num_workers=1)
    list(made)
    assert made.statistics().stages["getitem"].slowest.startswith("batch ")


def test_numpy_indices_are_reported_as_numbers():
    made = DataLoader(Named(), sampler=[np.int64(n) for n in range(8)], on_error="skip")
    list(made)
    assert made.errors[0].place == "sample 3 (batch 3, this process)"
    assert "img/3.jpg" in made.errors[0].key


def test_the_odd_shape_is_reported_before_the_autograd_graph():
    class Grows(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.zeros(5 if index == 2 else 4, requires_grad=True)

    for workers in (0, 1):
        with pytest.raises(RuntimeError, match=r"sample 2 is a Tensor of shape \[5\]"):
            list(DataLoader(Grows(), 4, num_workers=workers))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@WORKERS
def test_nested_tensors_raise_the_torch_error(workers):
    class Nested(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return torch.nested.nested_tensor([torch.zeros(index + 1)])

    with pytest.raises(RuntimeError, match="nested tensors are not currently supported by the default collate_fn"):
        list(DataLoader(Nested(), 1, num_workers=workers))


def test_one_exception_object_raised_repeatedly():
    error = ValueError("one")
    made = DataLoader(Broken({5: error, 9: error}), 4, on_error="skip")
    list(made)
    list(made)
    assert len(made.errors) == 4
    assert len({id(one.exception) for one in made.errors}) == 4
    assert len(error.__notes__) == 2


def test_base_exceptions_propagate_without_workers():
    import asyncio

    with pytest.raises(asyncio.CancelledError):
        list(DataLoader(Broken({5: asyncio.CancelledError()}), 4, on_error="skip"))


# -- what a review found -----------------------------------------------------------------------------------------------


def test_a_dead_worker_with_a_living_child_is_replaced(tmp_path):
    class Forks(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 3 and once(tmp_path / "marker"):
                if os.fork() == 0:
                    wait_until((tmp_path / "done").exists)
                    os._exit(0)
                os._exit(1)
            return index

    assert [batch.item() for batch in DataLoader(Forks(), 1, num_workers=1)] == list(range(8))
    (tmp_path / "done").touch()


def test_ctrl_c_while_a_death_is_recorded(tmp_path, monkeypatch):
    made = DataLoader(DiesAt(5, tmp_path / "marker"), 4, num_workers=1)
    incident = made._state.recorder.incident

    def interrupted(*arguments, **options):
        monkeypatch.setattr(made._state.recorder, "incident", incident)
        raise KeyboardInterrupt

    monkeypatch.setattr(made._state.recorder, "incident", interrupted)
    got, iterator = [], iter(made)
    while True:
        try:
            got += [int(n) for n in next(iterator).tolist()]
        except KeyboardInterrupt:
            got.append("stop")
        except StopIteration:
            break
    assert [n for n in got if n != "stop"] == list(range(16))
    assert got.count("stop") == 1


def test_ctrl_c_while_a_batch_is_unpacked(monkeypatch):
    from unjam.loader.transport.unpacking import PackedBatch

    unpack, calls = PackedBatch.unpack, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return unpack(*arguments)

    monkeypatch.setattr(PackedBatch, "unpack", interrupted)
    iterator = iter(DataLoader(Large(), 2, num_workers=1))
    got = []
    for _ in range(9):
        try:
            got += next(iterator)[:, 0].tolist()
        except KeyboardInterrupt:
            got.append("stop")
        except StopIteration:
            break
    assert [n for n in got if n != "stop"] == list(range(8))


class Large(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((20000,), index)


def test_a_finished_sample_does_not_time_out_the_next(monkeypatch, tmp_path):
    """Between the look and the signal the worker went on: nobody is over time any more."""
    from unjam.loader.pool import process_pool

    class Slow(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            if index == 3:
                wait_until((tmp_path / "looked").exists)
            return index

    def late(handle):
        (tmp_path / "looked").touch()
        wait_until(lambda: handle.page.read().position != 3)
        return ""

    monkeypatch.setattr(process_pool, "take_stack", late)
    made = DataLoader(Slow(), 6, num_workers=1, sample_timeout=1, on_error="skip")
    assert [n for batch in made for n in batch.tolist()] == list(range(6))
    assert made.errors == ()


def test_a_raising_on_error_function_keeps_nothing_alive():
    def decide(error):
        raise ZeroDivisionError("mine")

    iterator = iter(DataLoader(Broken({1: ValueError("a")}), 4, num_workers=1, on_error=decide))
    with pytest.raises(ZeroDivisionError) as caught:
        next(iterator)
    assert "in decide" in "".join(caught.value.__notes__)
    gone = weakref.ref(iterator)
    del iterator, caught
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_worker_replaced_between_epochs_uses_the_epoch_seed():
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(40)).shuffle().sharding_filter()
    made = DataLoader(pipe, 4, num_workers=2, persistent_workers=True, shuffle=True)
    for _ in range(2):
        assert sorted(n for batch in made for n in batch.tolist()) == list(range(40))
        os.kill(made._iterator._workers[1].pid, signal.SIGKILL)
        made._iterator._workers[1].join(5)
    assert sorted(n for batch in made for n in batch.tolist()) == list(range(40))
    del made


def test_array_indices_are_supported():
    class Arrays(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return None if index[0] % 2 else int(index[0])

    made = DataLoader(Arrays(), 2, sampler=[np.array([n, 9]) for n in range(6)], on_error="replace")
    assert [len(batch) for batch in made] == [2, 2, 2]


def test_user_code_may_handle_sigusr2(tmp_path):
    def init(worker):
        signal.signal(signal.SIGUSR2, lambda *_: os._exit(9))

    class Slow(Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            time.sleep(0.5)
            return index

    made = DataLoader(Slow(), 1, num_workers=1, worker_init_fn=init, warn_after=0.2)
    assert [batch.item() for batch in made] == [0, 1, 2]
    assert made.statistics().restarts == 0


class HangsAt(Dataset):
    def __init__(self, at, marker=None):
        self.at, self.marker = at, marker

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == self.at and once(self.marker):
            time.sleep(3600)
        return index


def test_a_timeout_without_restarts_left_names_the_sample():
    made = DataLoader(HangsAt(3), 4, num_workers=1, sample_timeout=1, max_restarts=0)
    with pytest.raises(SampleTimeoutError, match=r"max_restarts allows.*loading sample 3 "):
        list(made)
    assert made.incidents[0].kind == "timeout"


def test_a_retried_timeout_is_recorded(tmp_path):
    log = tmp_path / "errors.jsonl"
    made = DataLoader(
        HangsAt(3, tmp_path / "marker"), 4, num_workers=1, sample_timeout=1, on_error="retry", error_log=log
    )
    assert [n for batch in made for n in batch.tolist()] == list(range(8))
    assert [incident.kind for incident in made.incidents] == ["timeout"]
    assert [Incident.from_json(line).decision for line in log.read_text().splitlines()] == ["retry"]


@WORKERS
def test_a_dataset_with_getitems_only(workers):
    class Only(Dataset):
        def __len__(self):
            return 8

        def __getitems__(self, indices):
            if 5 in indices:
                raise ValueError("bulk")
            return list(indices)

    made = DataLoader(Only(), 4, num_workers=workers, on_error="skip")
    assert [batch.tolist() for batch in made] == [[0, 1, 2, 3]]
    assert type(made.errors[0].exception) is ValueError


def test_a_worker_of_an_iterable_killed_between_epochs_is_replaced():
    class Numbers(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    made = DataLoader(Numbers(), 2, num_workers=1, persistent_workers=True)
    for _ in range(3):
        assert [n for batch in made for n in batch.tolist()] == [0, 1, 2, 3]
        os.kill(made._iterator._workers[0].pid, signal.SIGKILL)
        made._iterator._workers[0].join(5)
    del made


def test_a_batch_that_failed_counts_once_for_each_of_its_samples(tmp_path):
    from unjam.loader.failures import error_log as report

    incident = Incident("sample", "x", samples=(1, 2, 3, 4), exception="ValueError")
    assert [group.count for group in report.Groups([incident]).by("sample")] == [1, 1, 1, 1]
    assert [group.count for group in report.Groups([incident]).by("cause")] == [4]


@WORKERS
def test_ctrl_c_in_on_device_records_the_failures_once(workers):
    calls = []

    def on_device(batch):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return batch

    made = DataLoader(
        Broken({2: OSError("a")}, 16),
        4,
        num_workers=workers,
        on_error="skip",
        max_errors=1,
        device="cpu",
        on_device=on_device,
    )
    got, iterator = [], iter(made)
    while True:
        try:
            got += next(iterator)["y"].tolist()
        except KeyboardInterrupt:
            got.append("stop")
        except StopIteration:
            break
    assert got == ["stop", *(n for n in range(16) if n != 2)]
    assert (made.statistics().skipped, len(made.errors)) == (1, 1)


def test_ctrl_c_after_a_death_was_noted_counts_it_once(tmp_path, monkeypatch):
    """Between two bytecodes: the driver can take the death, but the pool has not removed the worker yet."""
    from collections import deque

    from unjam.loader.engine import events as ev
    from unjam.loader.pool import process_pool

    class Interrupts(deque):
        rings = 1

        def append(self, one):
            super().append(one)
            if isinstance(one, ev.Death) and self.rings:
                Interrupts.rings = 0
                raise KeyboardInterrupt

    monkeypatch.setattr(process_pool, "deque", Interrupts)
    made = DataLoader(DiesAt(5, tmp_path / "marker"), 4, num_workers=1, on_error="skip")
    got, iterator = [], iter(made)
    while True:
        try:
            got += next(iterator).tolist()
        except KeyboardInterrupt:
            got.append("stop")
        except StopIteration:
            break
    assert [n for n in got if n != "stop"] == list(range(16))
    assert got.count("stop") == 1
    found = made.statistics()
    assert (found.restarts, found.skipped, found.incidents) == (1, 0, {"death": 1})
    monkeypatch.undo()


@pytest.mark.static
def test_statistics_can_be_read_by_a_signal_handler():
    """It interrupts the thread that is counting, so waiting for that thread would take forever."""
    from unjam.loader.driver.times import Times

    times = Times()
    times.add(0, [0], b"", 5)
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(times.waited().longest))
    try:
        with times._counting:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == 1
