"""A sample fails: which one, where and why is said, and the policy decides what becomes of it."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import re
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset
from torch.utils.data import DataLoader as TorchLoader

from faulty import BadStream, Broken, Keyed, Locked, Sour, tried
from support import Bulk, tear
from unjam import CannotCollateError, DataLoader, Incident, SampleError, TooManyErrorsError, UnjamError
from unjam.statistics import Statistics

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def loader(dataset, workers=2, **options):
    return DataLoader(dataset, batch_size=4, num_workers=workers, **options)


def ys(batches):
    return [batch["y"].tolist() for batch in batches]


def notes(error):
    return "\n".join(error.__notes__)


# -- raise -------------------------------------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize(
    "make", [lambda: ValueError("bad"), lambda: Sour("a.jpg", 7), Locked, lambda: Keyed(what="k")], ids=range(4)
)
def test_the_users_exception_keeps_its_type(workers, make):
    error = make()
    with pytest.raises(type(error)) as caught:
        list(loader(Broken({13: error}), workers))
    assert str(caught.value) == str(error)
    where = "this process" if workers == 0 else "worker 1"
    assert caught.value.__notes__[0] == f"sample 13 (batch 3, {where})"
    if workers:
        assert "in __getitem__" in str(caught.value.__cause__), "the worker's traceback is its cause"
        for name, value in vars(error).items():
            if not name.startswith("__") and not isinstance(error, Locked):
                assert getattr(caught.value, name) == value


def test_the_epoch_continues_after_a_sample_raises():
    iterator = iter(loader(Broken({5: ValueError("bad")})))
    got = [next(iterator)["y"].tolist()]
    with pytest.raises(ValueError, match="bad"):
        next(iterator)
    got += ys(iterator)
    assert got == [list(range(n, n + 4)) for n in (0, 8, 12, 16, 20)]


@WORKERS
def test_the_name_that_the_dataset_gives_a_sample_is_reported(workers):
    class Files(Broken):
        def __init__(self):
            super().__init__({13: ValueError("bad")})
            self.samples = [(f"img/{n:03}.jpg", n % 3) for n in range(24)]

    for dataset in (Files(), Subset(Files(), list(range(24))), ConcatDataset([Files()])):
        with pytest.raises(ValueError, match="bad") as caught:
            list(loader(dataset, workers))
        assert "img/013.jpg" in notes(caught.value)
    nested = ConcatDataset([Broken({}, 10), Subset(Files(), [13, 2])])
    with pytest.raises(ValueError, match="bad") as caught:
        list(loader(nested, workers))
    assert "sample 10 " in notes(caught.value)
    assert "img/013.jpg" in notes(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit])
def test_exceptions_that_would_end_a_loop_are_converted(workers, kind):
    expected = RuntimeError if workers or kind is StopIteration else GeneratorExit
    with pytest.raises(expected):
        list(loader(Broken({13: kind("now")}), workers))
    if expected is GeneratorExit:
        return  # with no workers, what is no Exception is the user's own
    got = ys(loader(Broken({13: kind("now")}), workers, on_error="skip"))
    assert got[3] == [12, 14, 15]
    assert len(got) == 6


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_exceptions_that_would_end_the_program_are_converted(kind):
    with pytest.raises(RuntimeError, match=kind.__name__) as caught:
        list(loader(Broken({13: kind("now")})))
    assert "sample 13 (batch 3, worker 1)" in notes(caught.value)
    assert ys(loader(Broken({13: kind("now")}), on_error="skip"))[3] == [12, 14, 15]
    # in the user's own process Ctrl-C and sys.exit() are the user's, whatever the policy
    with pytest.raises(kind):
        list(loader(Broken({13: kind("now")}), 0, on_error="skip"))


@WORKERS
def test_warnings_turned_into_errors_are_sample_errors(workers):
    class Warns(Broken):
        def __getitem__(self, index):
            if index == 13:
                warnings.warn("old format", DeprecationWarning, stacklevel=1)
            return super().__getitem__(index)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module="multiprocessing")
        with pytest.raises(DeprecationWarning, match="old format") as caught:
            list(loader(Warns({}), workers))
        assert "sample 13" in notes(caught.value)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_stop_iteration_before_the_first_sample_is_an_error(persistent):
    """It would end the loop at once: an epoch without a batch, and without a word."""

    def init(worker):
        raise StopIteration("no shard left")

    made = loader(Broken({}), worker_init_fn=init, persistent_workers=persistent)
    with pytest.raises(RuntimeError, match="worker 0 raised StopIteration before its first sample") as told:
        list(made)
    assert str(told.value.__cause__) == "no shard left"


def test_a_failure_in_worker_init_fn_names_the_worker():
    def init(worker):
        if worker == 1:
            raise Sour("gpu", worker)

    made = loader(Broken({}), worker_init_fn=init, on_error="skip")
    with pytest.raises(Sour) as caught:
        list(made)
    assert "worker 1" in notes(caught.value)
    assert [error.stage for error in made.errors] == ["init"]


@WORKERS
def test_a_failing_sample_in_getitems_is_named(workers):
    class Bad(Bulk):
        def __getitem__(self, index):
            if index == 13:
                raise Sour("b", index)
            return super().__getitem__(index)

    with pytest.raises(Sour) as caught:
        list(loader(Bad(24), workers))
    assert "sample 13 (batch 3" in notes(caught.value)
    got = [batch[1].tolist() for batch in loader(Bad(24), workers, on_error="skip")]
    assert got[3] == [12, 14, 15]


@WORKERS
def test_a_getitems_failure_falls_back_to_single_samples(workers):
    class Bad(Bulk):
        def __getitems__(self, indices):
            if 13 in indices:
                raise OSError("too many at once")
            return super().__getitems__(indices)

    with pytest.raises(OSError, match="too many") as caught:
        list(loader(Bad(24), workers))
    assert "samples 12, 13, 14, 15 (batch 3" in notes(caught.value)
    made = loader(Bad(24), workers, on_error="skip")
    assert [batch[1].tolist() for batch in made][3] == [12, 13, 14, 15]
    assert made.statistics().retried == 4


# -- skip, replace, retry, a function ----------------------------------------------------------------------------------


@WORKERS
def test_skip_makes_the_batch_smaller(workers):
    made = loader(Broken({5: ValueError("a"), 6: Sour("b", 1), 8: None}), workers, on_error="skip")
    got = ys(made)
    assert got[1] == [4, 7]
    assert got[2] == [9, 10, 11]
    assert [error.index for error in made.errors] == [5, 6, 8]
    assert [error.stage for error in made.errors] == ["getitem", "getitem", "collate"]
    assert [type(error.exception) for error in made.errors] == [ValueError, Sour, CannotCollateError]
    assert {error.decision for error in made.errors} == {"skip"}
    stats = made.statistics()
    assert (stats.samples, stats.skipped, stats.failed) == (21, 3, 3)


@WORKERS
def test_an_empty_batch_is_skipped(workers):
    bad = {index: ValueError("bad") for index in range(4, 8)}
    made = loader(Broken(bad), workers, on_error="skip")
    assert ys(made) == [list(range(n, n + 4)) for n in (0, 8, 12, 16, 20)]
    assert made.statistics().empty_batches == 1


@WORKERS
def test_replace_keeps_the_size_and_is_reproducible(workers):
    def run():
        torch.manual_seed(3)
        made = loader(Broken({5: ValueError("a"), 8: None}), workers, on_error="replace")
        return ys(made), [(error.index, error.replacement) for error in made.errors]

    got, replaced = run()
    assert all(len(batch) == 4 for batch in got)
    assert got[1][0] == 4
    assert got[1][2:] == [6, 7]
    assert got[1][1] == dict(replaced)[5]
    assert dict(replaced)[5] in (4, 6, 7), "a sample that the sampler gave for this very batch"
    assert dict(replaced)[8] in (9, 10, 11)
    assert run() == (got, replaced)


@WORKERS
def test_replace_with_batches_of_one_sample(workers):
    made = DataLoader(Broken({5: ValueError("a")}), batch_size=1, num_workers=workers, on_error="replace")
    got = [batch["y"].item() for batch in made]
    assert len(got) == 24
    assert got[5] in range(5), "a recent one takes its place"


@WORKERS
def test_replace_with_batching_disabled(workers):
    made = DataLoader(Broken({5: ValueError("a")}), batch_size=None, num_workers=workers, on_error="replace")
    got = [sample["y"] for sample in made]
    assert len(got) == 24
    assert got[5] in range(5)


@WORKERS
def test_retry_repeats_a_failing_sample(workers, tmp_path):
    class Flaky(Broken):
        def __getitem__(self, index):
            if index == 5 and tried(tmp_path / f"{workers}") < 3:
                raise ConnectionError("reset")
            return super().__getitem__(index)

    made = loader(Flaky({}), workers, on_error="retry")
    assert ys(made)[1] == [4, 5, 6, 7]
    assert (tmp_path / f"{workers}").stat().st_size == 3
    assert [(error.tries, error.decision) for error in made.errors] == [(2, "retry")]
    assert made.statistics().retried == 1


@WORKERS
def test_retry_repeats_a_sample_that_does_not_collate(workers, tmp_path):
    class Sometimes(Broken):
        def __getitem__(self, index):
            return None if index == 5 and tried(tmp_path / f"{workers}") < 3 else super().__getitem__(index)

    made = loader(Sometimes({}), workers, on_error="retry")
    assert ys(made)[1] == [4, 5, 6, 7]
    assert [(error.index, error.decision) for error in made.errors] == [(5, "retry")]
    with pytest.raises(CannotCollateError, match="sample 5 is None") as caught:
        list(loader(Broken({5: None}), workers, on_error="retry", retries=2))
    assert "try 3" in notes(caught.value)


@WORKERS
def test_a_raising_index_list_is_not_a_sample_failure(workers):
    class Indices(list):
        def __iter__(self):
            yield from (4, 5)
            raise ZeroDivisionError("indices")

    with pytest.raises(ZeroDivisionError, match="indices"):
        list(DataLoader(Broken({}), batch_sampler=[[0, 1], Indices([4, 5])], num_workers=workers, on_error="skip"))


@WORKERS
def test_retries_are_limited(workers, tmp_path):
    class Never(Broken):
        def __getitem__(self, index):
            if index == 5:
                tried(tmp_path / f"{workers}")
                raise ConnectionError("reset")
            return super().__getitem__(index)

    with pytest.raises(ConnectionError, match="reset") as caught:
        list(loader(Never({}), workers, on_error="retry", retries=2))
    assert (tmp_path / f"{workers}").stat().st_size == 3
    assert "try 3" in notes(caught.value)


@WORKERS
def test_on_error_functions_run_in_the_training_process(workers):
    asked = []

    def decide(error):
        asked.append(error)
        return {5: "skip", 9: "replace"}.get(error.index, "raise")

    made = loader(Broken({5: ValueError("a"), 9: Sour("b", 2), 14: KeyError("c")}), workers, on_error=decide)
    iterator = iter(made)
    assert next(iterator)["y"].tolist() == [0, 1, 2, 3]
    assert next(iterator)["y"].tolist() == [4, 6, 7]
    assert len(next(iterator)["y"]) == 4
    with pytest.raises(KeyError):
        next(iterator)
    assert sorted(error.index for error in asked) == [5, 9, 14]
    assert all(isinstance(error, SampleError) for error in asked)
    assert {type(error.exception) for error in asked} == {ValueError, Sour, KeyError}
    del iterator


@WORKERS
def test_a_function_cannot_retry_for_ever(workers):
    asked = []

    def decide(error):
        asked.append(error.tries)
        return "retry"

    with pytest.raises(ValueError, match="a"):
        list(loader(Broken({5: ValueError("a")}), workers, on_error=decide, retries=2))
    assert asked == [1, 2, 3]


@WORKERS
def test_an_on_error_function_that_raises(workers):
    def decide(error):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        list(loader(Broken({5: ValueError("a")}), workers, on_error=decide))
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(TypeError, match="on_error returned 'ignore'"):
        list(loader(Broken({5: ValueError("a")}), workers, on_error=lambda error: "ignore"))


@WORKERS
def test_an_on_error_function_may_close_the_loader(workers):
    def decide(error):
        iterator._driver.close()
        return "skip"

    iterator = iter(loader(Broken({5: ValueError("a")}), workers, on_error=decide))
    assert len(list(iterator)) <= 2


@WORKERS
def test_an_on_error_function_cannot_request_a_batch(workers):
    def decide(error):
        next(iterator)
        return "skip"

    iterator = iter(loader(Broken({5: ValueError("a")}), workers, on_error=decide))
    next(iterator)
    with pytest.raises(RuntimeError, match="already making one"):
        next(iterator)
    iterator = None


def test_persistent_workers_continue_after_failures():
    made = loader(Broken({5: ValueError("a")}), on_error=lambda error: "skip", persistent_workers=True)
    assert [sum(map(len, ys(made))) for _ in range(3)] == [23, 23, 23]
    assert len(made.errors) == 3
    del made


# -- too many ----------------------------------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize(
    ("most", "passes"), [(3, True), (2, False), (0.125, True), (0.124, False), (1.0, True), (0, False)]
)
def test_max_errors(workers, most, passes):
    bad = {3: ValueError("bad 3"), 4: ValueError("bad 4"), 17: Sour("x", 1)}
    made = loader(Broken(bad), workers, on_error="skip", max_errors=most)
    if passes:
        assert sum(map(len, ys(made))) == 21
        assert sum(map(len, ys(made))) == 21, "the budget is an epoch's"
        return
    with pytest.raises(TooManyErrorsError) as caught:
        list(made)
    text = str(caught.value)
    assert f"max_errors={most}" in text
    assert "ValueError: bad #" in text
    assert caught.value.errors[0].index == 3
    assert isinstance(caught.value.incident, Incident)


@WORKERS
def test_an_epoch_of_only_failures_raises(workers):
    with pytest.raises(TooManyErrorsError, match="all 24 samples") as caught:
        list(loader(Broken({n: OSError(f"no file {n}") for n in range(24)}), workers, on_error="skip"))
    assert re.search(r"24 x OSError: no file #, at .*faulty.py:\d+; samples 0, 1, 2", str(caught.value))


def test_a_max_errors_fraction_with_unknown_epoch_length():
    class Endless:
        def __iter__(self):
            return iter(range(n, n + 4) for n in range(0, 400, 4))

    bad = {n: ValueError("bad") for n in range(200, 230)}
    made = DataLoader(Broken(bad, 400), batch_sampler=Endless(), num_workers=2, on_error="skip", max_errors=0.05)
    with pytest.raises(TooManyErrorsError):
        list(made)


# -- samples that do not fit together ----------------------------------------------------------------------------------


def by_torch(dataset, workers):
    """What torch's loader gives, or None where it raises."""
    try:
        return [tear(batch) for batch in TorchLoader(dataset, batch_size=4, num_workers=workers)]
    except Exception:
        return None
    finally:
        gc.collect()  # its iterator holds pipes until then


ODD = {
    "none": (None, "sample 6 is None"),
    "none inside": (
        {"x": torch.zeros(4), "y": None},
        r"sample 6 has None at \['y'\]; each of the other 3 has a number",
    ),
    "ragged": (
        {"x": torch.zeros(5), "y": 1},
        r"sample 6 has a Tensor of shape \[5\] and dtype float32 at \['x'\]; each of the other 3 has a Tensor of shape \[4\]",
    ),
    "dtype": (
        {"x": torch.zeros(4).double(), "y": 1},
        r"sample 6 has .*float64 at \['x'\]; each of the other 3 has .*float32",
    ),
    "type": ({"x": "a word", "y": 1}, r"sample 6 has a str at \['x'\]"),
    "missing key": (
        {"x": torch.zeros(4)},
        r"sample 6 is a dict with keys 'x'; each of the other 3 is a dict with keys 'x', 'y'",
    ),
    "more keys": (
        {"x": torch.zeros(4), "y": 1, "z": 2},
        r"sample 6 is a dict with keys 'x', 'y', 'z'; each of the other 3",
    ),
    "another kind": ([1, 2], r"sample 6 is a sequence of length 2; each of the other 3 is a dict"),
    "an object": ({"x": Path("a"), "y": 1}, r"sample 6 has a pathlib.*PosixPath at \['x'\]"),
    "array": ({"x": np.zeros(4, "float32"), "y": 1}, r"sample 6 has an ndarray of shape \[4\]"),
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize(
    ("first", "workers"), [(False, 0), (False, 2), (True, 2)], ids=["later-0", "later-2", "first-2"]
)
def test_the_odd_sample_is_named(workers, what, first, caplog):
    value, words = ODD[what]
    at = 4 if first else 6
    if what == "array":
        value["x"] = np.zeros(5, "float32")
    dataset = Broken({at: value})
    expected = words.replace("sample 6", f"sample {at}").replace(r"\[4\]", r"\[\d\]")
    if by_torch(dataset, 0) is None:  # after an error, its workers would take seconds to end
        with pytest.raises(CannotCollateError, match=expected) as caught:
            list(loader(dataset, workers))
        assert isinstance(caught.value, (RuntimeError, TypeError)), "what torch raises there"
        assert f"sample {at} (batch 1" in notes(caught.value)
    else:
        torchs = by_torch(dataset, workers)
        assert [tear(batch) for batch in loader(dataset, workers)] == torchs, "torch casts, drops or makes a list"
        assert re.search(expected, caplog.text), "and it is said"
    made = loader(dataset, workers, on_error="skip")
    assert ys(made)[1] == [y for y in range(4, 8) if y != at]
    made = loader(dataset, workers, on_error="replace")
    assert len(ys(made)[1]) == 4
    assert made.errors[0].replacement in range(4, 8)


@WORKERS
def test_dropped_keys_and_silent_casts_are_logged(workers, caplog):
    extra = {5: {"x": torch.zeros(4), "y": 5, "z": 1}}
    torchs = by_torch(Broken(extra), workers)
    assert len(torchs) == 6, "torch drops the key"
    made = loader(Broken(extra), workers)
    for _ in range(2):
        assert [tear(batch) for batch in made] == torchs
    (said,) = [record.getMessage() for record in caplog.records]
    assert "'z'" in said
    assert "sample 5" in said


@WORKERS
def test_healthy_variation_is_not_reported(workers):
    class Fine(Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            return {
                "number": index if index % 2 else float(index),
                "words": "w" * index,
                "truth": bool(index % 3),
                "scalar": np.float32(index) if index % 2 else np.float64(index),
                "list": [index, index + 1],
            }

    assert len(list(loader(Fine(), workers))) == 4


@WORKERS
def test_a_custom_collate_function_may_filter(workers):
    def collate(samples):
        return [sample["y"] for sample in samples if sample is not None]

    assert list(loader(Broken({5: None}), workers, collate_fn=collate))[1] == [4, 6, 7]


@WORKERS
def test_the_odd_sample_of_a_custom_collate_function_is_named(workers):
    def collate(samples):
        return {"y": torch.tensor([sample["y"] for sample in samples])}

    with pytest.raises(TypeError) as caught:
        list(loader(Broken({5: None}), workers, collate_fn=collate))
    assert not isinstance(caught.value, UnjamError), "the user's own exception"
    assert "unlike the others: sample 5 is None" in notes(caught.value)
    assert "samples 4, 5, 6, 7 (batch 1" in notes(caught.value)
    assert ys(loader(Broken({5: None}), workers, collate_fn=collate, on_error="skip"))[1] == [4, 6, 7]

    def ragged(samples):
        return {"y": torch.tensor([s["y"] for s in samples]), "x": torch.stack([s["x"] for s in samples])}

    made = loader(Broken({5: None}), workers, collate_fn=collate, on_error="skip")
    list(made)
    assert "collate_fn fails on it alone" in notes(made.errors[0].exception)
    made = loader(Broken({5: {"x": torch.zeros(9), "y": 5}}), workers, collate_fn=ragged, on_error="skip")
    assert ys(made)[1] == [4, 6, 7]
    assert "works without it" in notes(made.errors[0].exception)


@WORKERS
@pytest.mark.parametrize("what", ["collate_fn", "__getitems__"])
def test_raising_an_error_does_not_rerun_user_code(workers, what):
    """Somebody's samples may count, write, or draw random numbers: the rest of the run must be as on torch."""

    class Counts(Broken):
        def __init__(self):
            super().__init__({})
            self.loaded = 0

        def __getitem__(self, index):
            self.loaded += 1
            return self.loaded, torch.rand(1)

        if what == "__getitems__":

            def __getitems__(self, indices):
                found = [self[i] for i in indices]
                if self.loaded == 4:
                    raise OSError("at the first time")
                return found

    def collate(samples):
        if what == "collate_fn" and samples[0][0] == 1:
            raise OSError("at the first time")
        return samples

    def run(kind):
        torch.manual_seed(3)
        iterator, got = iter(kind(Counts(), batch_size=4, collate_fn=collate, num_workers=workers)), []
        while True:
            try:
                got.append([(n, float(x)) for n, x in next(iterator)])
            except StopIteration:
                return got, torch.rand(1).item()
            except OSError:
                got.append("failed")

    assert run(DataLoader) == run(torch.utils.data.DataLoader)


@WORKERS
def test_an_always_failing_collate_function_blames_no_sample(workers):
    def collate(samples):
        raise ZeroDivisionError("always")

    with pytest.raises(ZeroDivisionError) as caught:
        list(loader(Broken({}), workers, collate_fn=collate))
    assert "samples 0, 1, 2, 3 (batch 0" in notes(caught.value)
    with pytest.raises(TooManyErrorsError, match="all 24 samples"):
        list(loader(Broken({}), workers, collate_fn=collate, on_error="skip"))


def test_an_unpicklable_batch_names_its_samples():
    import _thread

    class Unpicklable(Broken):
        def __getitem__(self, index):
            return _thread.allocate_lock() if index == 5 else index

    made = DataLoader(Unpicklable({}), batch_size=4, num_workers=2, collate_fn=list)
    with pytest.raises(TypeError, match="pickle") as caught:
        list(made)
    assert "samples 4, 5, 6, 7 (batch 1, worker 1)" in notes(caught.value)
    made = DataLoader(Unpicklable({}), batch_size=4, num_workers=2, collate_fn=list, on_error="skip")
    assert len(list(made)) == 5
    assert made.errors[0].stage == "pickle"


# -- iterables ---------------------------------------------------------------------------------------------------------


@WORKERS
def test_an_iterable_error_reports_its_position(workers):
    with pytest.raises(ValueError, match="bad 7") as caught:
        list(DataLoader(BadStream(7, goes_on=False), batch_size=2, num_workers=workers))
    # of worker 1's 1, 3, 5, 7 the last
    assert caught.value.__notes__[0].startswith("sample 3 of its iterable" if workers else "sample 7 of its iterable")


@WORKERS
def test_a_resumable_iterator_loses_one_sample(workers):
    made = DataLoader(BadStream(7, goes_on=True), batch_size=2, num_workers=workers, on_error="skip")
    assert sorted(n for batch in made for n in batch.tolist()) == [n for n in range(12) if n != 7]
    assert made.errors[0].yielded == (3 if workers else 7)
    made = DataLoader(BadStream(7, goes_on=True), batch_size=2, num_workers=workers, on_error="replace")
    got = [batch.tolist() for batch in made]
    assert sorted(n for batch in got for n in batch) == [n for n in range(12) if n != 7]


@WORKERS
def test_a_failed_generator_ends_and_is_reported(workers, caplog):
    made = DataLoader(BadStream(7, goes_on=False), batch_size=2, num_workers=workers, on_error="skip")
    got = sorted(n for batch in made for n in batch.tolist())
    assert got == ([0, 1, 2, 3, 4, 5, 6, 8, 10] if workers else list(range(7)))
    assert any("a generator cannot continue after an exception" in record.getMessage() for record in caplog.records)


@WORKERS
def test_max_errors_applies_to_iterables(workers):
    made = DataLoader(BadStream(11, goes_on=True), batch_size=4, num_workers=workers, on_error="skip", max_errors=0)
    with pytest.raises(TooManyErrorsError, match="bad #"):
        list(made)

    class Never(BadStream):
        def __iter__(self):
            raise OSError("no stream")
            yield

    made = DataLoader(Never(0, goes_on=False), batch_size=4, num_workers=workers, on_error="skip")
    with pytest.raises(TooManyErrorsError, match="no stream"):
        list(made)


@WORKERS
def test_retry_applies_to_iterables(workers):
    made = DataLoader(BadStream(7, goes_on=True), batch_size=2, num_workers=workers, on_error="retry")
    assert sorted(n for batch in made for n in batch.tolist()) == [n for n in range(12) if n != 7]
    with pytest.raises(ValueError, match="bad 7"):
        list(DataLoader(BadStream(7, goes_on=False), batch_size=2, num_workers=workers, on_error="retry"))


# -- the record --------------------------------------------------------------------------------------------------------


@WORKERS
def test_the_error_log_holds_one_line_per_failure(workers, tmp_path):
    path = tmp_path / "errors.jsonl"
    path.write_text('{"kind": "sample", "what": "half a li')  # a process was killed while it wrote
    made = loader(Broken({5: ValueError("ü\n2"), 8: None}), workers, on_error="skip", error_log=path)
    list(made)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    incidents = [Incident.from_json(line) for line in lines[1:]]
    assert [incident.sample for incident in incidents] == [5, 8]
    assert incidents[0].exception == "ValueError"
    assert incidents[0].message == "ü\n2"
    assert incidents[0].location.endswith(f":{_line_of('raise what')}")
    assert incidents[0].decision == "skip"
    assert all(Incident.from_json(incident.to_json()) == incident for incident in incidents)


def _line_of(text):
    import faulty

    lines = Path(faulty.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_an_incident_of_another_version_can_be_read():
    line = json.dumps({"kind": "sample", "what": "x", "sample": 3, "from_the_future": [1]})
    assert Incident.from_json(line).sample == 3
    for bad in ("[]", "{}", "nonsense"):
        with pytest.raises(ValueError, match=r"not an incident|Expecting value"):
            Incident.from_json(bad)


def test_an_unwritable_error_log_does_not_stop_the_training(tmp_path, caplog):
    path = tmp_path / "errors.jsonl"
    path.mkdir()
    made = loader(Broken({5: ValueError("a"), 9: ValueError("b")}), 0, on_error="skip", error_log=path)
    assert len(list(made)) == 6
    said = [record for record in caplog.records if "cannot be written" in record.getMessage()]
    assert len(said) == 1


def test_failures_are_logged_with_back_off(caplog):
    bad = {n: ValueError(f"bad {n}") for n in range(1, 33)}
    list(loader(Broken(bad, 64), 0, on_error="skip"))
    said = [record.getMessage() for record in caplog.records if record.name == "unjam"]
    assert len(said) == 6, "the 1st, 2nd, 4th, 8th, 16th and 32nd"
    assert "sample 1 (batch 0, this process): ValueError: bad 1; it was left out" in said[0]
    assert caplog.records[0].levelno == logging.WARNING


@WORKERS
def test_statistics_count_batches_samples_and_failures(workers):
    made = loader(Broken({}), workers)
    assert made.statistics().samples == 0
    list(made)
    stats = made.statistics()
    assert (stats.epochs, stats.batches, stats.samples) == (1, 6, 24)
    assert stats.stages["getitem"].count == 24
    assert stats.stages["collate"].count == 6
    assert 0 < stats.stages["getitem"].p50 <= stats.stages["getitem"].p95 <= stats.stages["getitem"].longest
    assert stats.stages["getitem"].slowest.startswith("sample ")
    assert stats.waited.count == 6
    assert stats.waited.total > 0
    assert "samples 24, batches 6, epochs 1" in str(stats)
    json.dumps(stats.as_dict())
    with pytest.raises(AttributeError):
        stats.samples = 3
    list(made)
    assert made.statistics().samples == 48


@pytest.mark.static
def test_statistics_show_sizes_with_three_digits():
    for size, text in ((999, "999 B"), (1000, "1 KB"), (999_600, "1 MB"), (12_345_678, "12.3 MB")):
        assert f", {text};" in str(Statistics(bytes=size))


def test_statistics_can_be_read_from_another_thread():
    made = DataLoader(list(range(3000)), 1)
    reading, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            reading.append(made.statistics().waited.count)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert sum(1 for _ in made) == 3000
    finally:
        stop.set()
        thread.join(60)
    assert reading == sorted(reading)
    assert made.statistics().waited.count == 3000


def test_statistics_name_the_slowest_sample():
    import time

    class Slow(Broken):
        def __getitem__(self, index):
            if index == 17:
                time.sleep(1)
            return super().__getitem__(index)

    made = loader(Slow({}), 2, shuffle=True)
    held = list(made)
    assert made.statistics().stages["getitem"].slowest.startswith("sample 17 ")
    assert held


def test_a_copied_loader_has_its_own_error_record():
    import copy

    made = loader(Broken({5: ValueError("a")}), 0, on_error="skip")
    list(made)
    for other in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other.errors == () or other is made
        assert other.on_error == "skip"
    assert len(made.errors) == 1


# -- bad options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"on_error": None},
        {"retries": -1},
        {"retries": 1.5},
        {"max_errors": -1},
        {"max_errors": 1.5},
        {"max_errors": True},
        {"max_errors": "many"},
        {"sample_timeout": 0},
        {"sample_timeout": "1"},
        {"warn_after": -3},
        {"warn_after": float("nan")},
        {"on_worker_death": "ignore"},
        {"max_restarts": -1},
        {"worker_threads": 0},
        {"memory_budget": 0},
        {"error_log": "/nowhere/at/all/errors.jsonl"},
    ],
    ids=str,
)
def test_bad_options_are_refused_at_once(options):
    with pytest.raises((ValueError, FileNotFoundError), match=next(iter(options))):
        loader(Broken({}), **options)
