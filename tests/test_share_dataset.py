"""`share_dataset`: the workers' copy of large containers, and that nobody can tell, but for the memory."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import time

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, get_worker_info

import unjam
from unjam.pools import shares

COUNT = 3000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Containers of some kilobytes count as large."""
    monkeypatch.setattr(shares, "LARGE", 100_000)


class Catalogue(Dataset):
    """Reads a list, a dict, a tuple and a list of dicts."""

    def __init__(self, count=COUNT):
        self.paths = [f"images/{i:08d}.jpg" for i in range(count)]
        self.same = self.paths
        self.labels = tuple(float(i) for i in range(count * 4))
        self.known = {f"images/{i:08d}.jpg": i for i in range(count)}
        self.boxes = [{"id": i, "box": [i, i + 1], "tags": ("a", None)} for i in range(count)]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        box = self.boxes[index]
        return self.known[path], self.labels[index], len(self.same), sum(box["box"]), box["tags"][0], random.random()


def plain(batch):
    if isinstance(batch, list):
        return [plain(part) for part in batch]
    return batch.tolist() if torch.is_tensor(batch) else batch


def batches(dataset, **options):
    options = {"batch_size": 50, "num_workers": 2, **options}
    torch.manual_seed(0)
    loader = unjam.DataLoader(dataset, **options)
    found = []
    for _ in range(options.pop("epochs", 1)):
        found += [plain(batch) for batch in loader]
    return found, loader.statistics().sharing


def shared_paths(sharing):
    return [part.path for part in sharing.shared]


@pytest.mark.parametrize(
    ("method", "mode"),
    [(None, "auto"), ("fork", "auto"), ("forkserver", "auto"), (None, True), ("fork", True)],
)
def test_the_batches_are_the_same(method, mode):
    expected, nothing = batches(Catalogue(), share_dataset=False, multiprocessing_context=method)
    found, sharing = batches(Catalogue(), share_dataset=mode, multiprocessing_context=method)
    assert nothing is None
    assert found == expected
    assert shared_paths(sharing) == ["dataset.paths", "dataset.labels", "dataset.known", "dataset.boxes"]
    assert not sharing.left_alone
    assert sharing.saved > 500_000
    assert "shared by all workers: dataset.paths (list of 3,000" in str(sharing)


def test_a_worker_has_no_copy():
    class Asks(Catalogue):
        def __getitem__(self, index):
            return [
                type(self.paths).__name__,
                type(self.boxes).__name__,
                isinstance(self.paths, list),
                self.paths[index],
            ]

    found, _ = batches(Asks(), share_dataset=True)
    assert found[0][0][0] == "_QuickTexts"
    assert found[0][1][0] == "StandingList"
    assert found[0][2] == [True] * 50


class Changes(Catalogue):
    """Does something to one of its containers; `late`: not in the dry run."""

    def __init__(self, action, late=0):
        super().__init__()
        self.action = action
        self.late = late
        self.calls = 0

    def __getitem__(self, index):
        self.calls += 1
        before = None
        if self.calls > self.late:
            before = ACTIONS[self.action](self, index)
        return (
            len(self.paths), len(self.known), len(self.boxes), str(self.boxes[index]), str(self.paths[-1]), str(before),
            self.known.get("new", -1),
        )  # fmt: skip


ACTIONS = {
    "setitem": lambda d, i: d.paths.__setitem__(-1, f"x{i}"),
    "append": lambda d, i: d.paths.append("x"),
    "extend": lambda d, i: d.paths.extend(["x", "y"]),
    "sort": lambda d, i: d.paths.sort(key=lambda path: path[::-1]),
    "pop": lambda d, i: d.paths.pop(),
    "reverse": lambda d, i: d.paths.reverse(),
    "shuffle": lambda d, i: random.Random(i).shuffle(d.paths),
    "delete a slice": lambda d, i: d.paths.__delitem__(slice(-1, None)),
    "a dict's item": lambda d, i: d.known.__setitem__("new", i),
    "a dict's pop": lambda d, i: d.known.pop(next(iter(d.known))),
    "a dict's update": lambda d, i: d.known.update(new=3),
    "setdefault": lambda d, i: d.known.setdefault("new", i),
    "an item's value": lambda d, i: d.boxes[i].__setitem__("seen", i),
    "an item's list": lambda d, i: d.boxes[i]["box"].append(7),
    "an item elsewhere": lambda d, i: d.boxes[(i * 7) % 1000]["box"].append(i),
    "another list": lambda d, i: setattr(d, "paths", [*d.paths, "x"]),
}


LATE = ["append", "sort", "delete a slice", "setdefault", "an item's list", "an item elsewhere"]


@pytest.mark.parametrize(
    ("action", "late"), [*((action, 0) for action in ACTIONS), *((action, 100) for action in LATE)]
)
def test_a_write_stays_with_its_worker(action, late):
    some = {"sampler": range(0, COUNT, 10), "batch_size": 20}
    expected, _ = batches(Changes(action, late), share_dataset=False, **some)
    found, sharing = batches(Changes(action, late), **some)
    assert found == expected
    if action != "another list":
        told = [part.path for part in sharing.left_alone] + [part.path for part in sharing.shared if part.note]
        noticed = (
            "dataset.boxes"
            if action.startswith("an item")
            else "dataset.known"
            if "dict" in action or "default" in action
            else "dataset.paths"
        )
        assert told == [noticed] or (late and action.startswith("an item")), sharing
        if not late and not action.startswith("an item"):
            assert "test_share_dataset.py" in sharing.left_alone[0].note


def test_what_workers_wrote_to_is_not_shared_again():
    dataset = Changes("append", late=100)
    loader = unjam.DataLoader(dataset, batch_size=50, num_workers=1)
    for _ in loader:
        pass
    assert "a worker has a copy of its own: " in next(
        p.note for p in loader.statistics().sharing.shared if p.path == "dataset.paths"
    )
    for _ in loader:
        pass
    (left,) = loader.statistics().sharing.left_alone
    assert left.path == "dataset.paths"
    assert "writes to it" in left.note


def test_what_the_program_changes_between_epochs():
    dataset = Catalogue()
    loader = unjam.DataLoader(dataset, batch_size=COUNT, num_workers=1)
    assert next(iter(loader))[3].tolist()[:3] == [1, 3, 5]
    dataset.boxes[0]["box"][0] = 100
    dataset.known[dataset.paths[1]] = 77
    dataset.labels = tuple(float(-i) for i in range(COUNT * 4))
    found = next(iter(loader))
    assert found[3].tolist()[:3] == [101, 3, 5]
    assert found[0].tolist()[:3] == [0, 77, 2]
    assert found[1].tolist()[:3] == [0, -1, -2]
    dataset.paths.append(dataset.paths[0])
    dataset.boxes.append({"id": 0, "box": [5, 5], "tags": ("b",)})
    found = next(iter(loader))
    assert len(next(iter(unjam.DataLoader(dataset, batch_size=COUNT + 1, num_workers=1)))[0]) == COUNT + 1
    assert found[2].tolist()[0] == COUNT + 1
    assert len(shared_paths(loader.statistics().sharing)) == 4


def test_an_unchanged_dataset_is_written_once(monkeypatch):
    made = []
    for name in ("make_list", "make_dict"):
        monkeypatch.setattr(shares, name, lambda *a, _real=getattr(shares, name), **k: made.append(1) or _real(*a, **k))
    loader = unjam.DataLoader(Catalogue(), batch_size=500, num_workers=1)
    for _ in range(3):
        for _ in loader:
            pass
    assert len(made) == 4


# -- what standing in cannot do ------------------------------------------------------------------------------------------------


class Particular(Catalogue):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def __getitem__(self, index):
        return HOWS[self.how](self, index)


HOWS = {
    "type": lambda d, i: "a list" if type(d.paths) is list else "something else",
    "json": lambda d, i: len(json.dumps(d.paths)),
    "list's own method": lambda d, i: list.index(d.paths, d.paths[i]),
}


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("method", [None, "fork"])
def test_code_that_asks_the_object_itself_gets_the_object(how, method):
    expected, _ = batches(Particular(how), share_dataset=False, multiprocessing_context=method)
    found, sharing = batches(Particular(how), multiprocessing_context=method)
    assert found == expected
    assert not sharing.shared
    assert all("with its containers shared" in part.note for part in sharing.left_alone)


FINE = {
    "numpy": lambda d, i: np.array(d.labels[: 3 + i % 5]).sum(),
    "tensor": lambda d, i: torch.tensor(d.labels)[i].item(),
    "random": lambda d, i: random.Random(i).sample(d.paths, 2),
    "sorted": lambda d, i: sorted(d.labels[:10], reverse=True),
    "joined": lambda d, i: "".join(d.paths[i : i + 2]),
    "unpacked": lambda d, i: len([*d.paths, *d.known]),
    "membership": lambda d, i: (d.paths[i] in d.known, "x" in d.known, 17.0 in d.labels),
    "a dict of it": lambda d, i: len({**d.known, "x": 1}),
    "views": lambda d, i: (sum(d.known.values()), next(iter(d.known.items())), len(d.known.keys())),
    "pickled": lambda d, i: len(__import__("pickle").dumps(d.paths[:5])),
    "copied": lambda d, i: len(__import__("copy").deepcopy(d.paths)),
    "compared": lambda d, i: (d.paths == d.same, d.paths == [], d.labels > (5.0,), d.known == {}),
    "the container itself": lambda d, i: d.paths if i % 50 == 0 else ["x"],
}


@pytest.mark.parametrize("how", FINE)
def test_what_one_does_with_a_list(how, monkeypatch):
    monkeypatch.setitem(HOWS, how, FINE[how])
    options = {"batch_size": None, "sampler": range(0, COUNT, 50), "multiprocessing_context": "fork"}
    expected, _ = batches(Particular(how), share_dataset=False, **options)
    found, sharing = batches(Particular(how), **options)
    assert found == expected
    assert sharing.shared


# -- where containers hang, and what they hold -----------------------------------------------------------------------------------


class Wrapper(Dataset):
    def __init__(self, inner):
        self.inner = {"train": [inner]}

    def __len__(self):
        return len(self.inner["train"][0])

    def __getitem__(self, index):
        return self.inner["train"][0][index]


def test_datasets_in_datasets():
    inner = Catalogue()
    dataset = Subset(ConcatDataset([Wrapper(inner), inner]), range(0, 2 * COUNT, 3))
    expected, _ = batches(dataset, share_dataset=False)
    found, sharing = batches(dataset)
    assert found == expected
    assert len(sharing.shared) == 4
    assert all(".datasets[0].inner['train'][0]." in path or ".datasets[1]." in path for path in shared_paths(sharing))


class Odd(Dataset):
    class Names(list):
        pass

    def __init__(self):
        self.mine = self.Names(f"{i:030d}" for i in range(COUNT))
        self.objects = [torch.device("cpu"), *(f"{i:030d}" for i in range(COUNT))]
        self.keys = {torch.device("cpu"): 1, **{f"{i:030d}": i for i in range(COUNT)}}
        self.arrays = [np.zeros(100) for _ in range(COUNT)]
        self.plain = [f"{i:030d}" for i in range(COUNT)]

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return len(self.mine[index]) + len(self.plain[index])


def test_what_is_not_plain_is_left_alone_and_named():
    _, sharing = batches(Odd())
    assert shared_paths(sharing) == ["dataset.plain"]
    left = {part.path: part.note for part in sharing.left_alone}
    assert left["dataset.objects"] == "item 0 holds a device"
    assert "keys are strings, bytes, numbers" in left["dataset.keys"]
    assert left["dataset.arrays"].startswith("item 0 holds a ndarray")
    assert "left alone: dataset.objects (list of 3,001" in str(sharing)


class Aliased(Catalogue):
    """The same dicts under two names."""

    def __init__(self, late=0):
        super().__init__()
        self.by_id = {box["id"]: box for box in self.boxes}
        self.late = late
        self.calls = 0

    def __getitem__(self, index):
        self.calls += 1
        if self.calls > self.late:
            self.boxes[index]["seen"] = 1
        return self.by_id[index].get("seen", 0)


def test_items_that_others_hold_are_left_alone():
    expected, _ = batches(Aliased(100), share_dataset=False)
    found, sharing = batches(Aliased(100))
    assert found == expected
    left = {part.path: part.note for part in sharing.left_alone}
    assert set(left) == {"dataset.boxes", "dataset.by_id"}
    assert all("held somewhere else too" in note for note in left.values())


class Counted(IterableDataset):
    """Workers take turns by a counter that they share."""

    def __init__(self, counter):
        self.lines = [f"line {i:020d}" for i in range(COUNT)]
        self.counter = counter

    def __iter__(self):
        while True:
            with self.counter.get_lock():
                mine, self.counter.value = self.counter.value, self.counter.value + 1
            if mine >= COUNT:
                return
            yield self.lines[mine]


def test_what_belongs_to_several_processes_is_not_tried():
    found, sharing = batches(Counted(multiprocessing.Value("i", 0)), multiprocessing_context="fork")
    assert sum(len(batch) for batch in found) == COUNT
    assert "dataset.counter" in sharing.left_alone[0].note


class Rare(Catalogue):
    """Needs a real list, but not in the samples of the dry run."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def __getitem__(self, index):
        if index % 700 == 699:
            return HOWS[self.how](self, index)
        return 0

    def collate(self, samples):
        if sum(samples) > 0 and self.how == "json":
            json.dumps(self.known)
        return samples


@pytest.mark.parametrize("how", ["json", "list's own method"])
@pytest.mark.parametrize("method", [None, "fork"])
def test_a_real_one_where_nothing_else_will_do(how, method):
    dataset = Rare(how)
    options = {"multiprocessing_context": method, "collate_fn": dataset.collate}
    expected, _ = batches(dataset, share_dataset=False, **options)
    found, sharing = batches(dataset, **options)
    assert found == expected
    assert "needs a real one (TypeError" in next(part.note for part in sharing.shared if part.path == "dataset.paths")


def test_a_failure_that_is_not_ours_is_told_as_it_is():
    class Bad(Catalogue):
        def __getitem__(self, index):
            if index == 1000:
                raise TypeError("my own")
            return len(self.paths[index])

    with pytest.raises(TypeError, match="my own"):
        batches(Bad())


def test_items_that_would_have_to_be_rebuilt_each_time():
    dataset = Catalogue()
    dataset.by_class = {number: [f"{i:020d}" for i in range(500)] for number in range(100)}
    _, sharing = batches(dataset)
    assert [part.path for part in sharing.left_alone] == ["dataset.by_class"]
    assert "its items are large" in sharing.left_alone[0].note


def test_sets_have_an_order():
    dataset = Catalogue()
    dataset.tags = [{"t": {i, i + 8}} for i in range(COUNT)]
    _, sharing = batches(dataset)
    assert "holds a set" in sharing.left_alone[0].note


class Stream(IterableDataset):
    def __init__(self):
        self.lines = [f"line {i:020d}" for i in range(COUNT)]

    def __iter__(self):
        info = get_worker_info()
        yield from self.lines[info.id :: info.num_workers]


def test_a_stream():
    expected, _ = batches(Stream(), share_dataset=False)
    found, sharing = batches(Stream())
    assert found == expected
    assert shared_paths(sharing) == ["dataset.lines"]


class Bulk(Catalogue):
    def __getitems__(self, indices):
        return [len(self.paths[index]) for index in indices]


def test_all_at_once():
    expected, _ = batches(Bulk(), share_dataset=False)
    found, sharing = batches(Bulk())
    assert found == expected
    assert len(sharing.shared) == 4


class Fails(Catalogue):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def __getitem__(self, index):
        if self.how == "raises":
            raise ValueError("every sample")
        if self.how == "dies" and get_worker_info().seed >= 0 and not os.path.exists(os.environ["UNJAM_TEST_MARK"]):
            open(os.environ["UNJAM_TEST_MARK"], "w").close()
            os._exit(3)
        if self.how == "first is bad" and index == 0:
            raise ValueError("the first")
        return len(self.paths[index])


@pytest.mark.parametrize(
    ("how", "said"), [("raises", "no sample came"), ("dies", "ended with status 3"), ("first is bad", "")]
)  # fmt: skip
def test_a_dry_run_that_fails(how, said, tmp_path, monkeypatch):
    monkeypatch.setenv("UNJAM_TEST_MARK", str(tmp_path / "mark"))
    loader = unjam.DataLoader(Fails(how), batch_size=50, num_workers=2, on_error="skip")
    with contextlib.suppress(unjam.TooManyErrorsError):
        for _ in loader:
            pass
    sharing = loader.statistics().sharing
    if said:
        assert not sharing.shared
        assert all(said in part.note for part in sharing.left_alone)
    else:
        assert len(sharing.shared) == 4


def test_a_dry_run_that_hangs(monkeypatch):
    monkeypatch.setattr("unjam.pools.trying.DRY_RUN", type(unjam.pools.trying.DRY_RUN)("dry run", 1.0, "a test"))
    dataset = Slow()
    began = time.monotonic()
    iterator = iter(unjam.DataLoader(dataset, batch_size=1, num_workers=1))
    assert time.monotonic() - began < 10
    del iterator


class Slow(Catalogue):
    def __getitem__(self, index):
        time.sleep(30)


def test_what_the_dataset_prints_is_not_printed_by_the_dry_run(capfd):
    class Talks(Catalogue):
        def __getitem__(self, index):
            if index == 0:
                print("sample 0", flush=True)
            return len(self.paths[index])

    batches(Talks())
    assert capfd.readouterr().out.count("sample 0") == 1


@pytest.mark.parametrize("policy", [{"num_workers": "auto"}, {"persistent_workers": True}])
def test_with_other_options(policy):
    expected, _ = batches(Catalogue(), share_dataset=False, **policy)
    found, sharing = batches(Catalogue(), **policy)
    assert found == expected
    assert sharing is None or len(sharing.shared) == 4


def test_small_ones_are_nobodys_business(monkeypatch):
    monkeypatch.setattr(shares, "LARGE", 16 << 20)
    _, sharing = batches(Catalogue())
    assert sharing is None


def test_arrays_are_told():
    dataset = Catalogue()
    dataset.weights = np.zeros((500, 100))
    _, sharing = batches(dataset)
    assert sharing.shared[-1].path == "dataset.weights"
    assert sharing.shared[-1].kind == "array"


def test_what_cannot_be_meant():
    with pytest.raises(ValueError, match="share_dataset should be 'auto', True or False"):
        unjam.DataLoader(Catalogue(), share_dataset="yes")


@pytest.mark.parametrize("method", [None, "fork"])
def test_the_memory_of_workers_does_not_grow(method, monkeypatch):
    """Two epochs over a list that a copy in each worker would double."""
    monkeypatch.setattr(shares, "LARGE", 16 << 20)
    dataset = Names()
    own = {}
    for mode in (False, "auto"):
        loader = unjam.DataLoader(
            dataset, batch_size=1000, num_workers=2, shuffle=True, persistent_workers=True, share_dataset=mode,
            multiprocessing_context=method,
        )  # fmt: skip
        for _ in range(2):
            for _ in loader:
                pass
        own[mode] = sum(_private(worker.pid) for worker in loader._iterator._workers)
        del loader
    assert own[False] - own["auto"] > 50 << 20, own


class Names(Dataset):
    def __init__(self):
        self.names = [f"images/{i:030d}.jpg" for i in range(400_000)]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return len(self.names[index])


def _private(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(
            int(line.split()[1]) * 1024 for line in file if line.startswith(("Private_Dirty:", "Private_Clean:"))
        )
