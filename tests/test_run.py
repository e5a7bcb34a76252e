"""`unjam run`: unmodified programs in the styles of their users, and everything about them as it was without unjam."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Subset

from support import python, start_python, wait_until
from unjam.doctor.facts.run import LoaderRun, TimedBatch, Wait
from unjam.doctor.facts.sample_files import file_list, file_of
from unjam.doctor.rules.advice import slow_samples
from unjam.doctor.run.settings import SITE, parse
from unjam.units import duration

HEAD = "import sys, os, time, torch\nfrom torch.utils.data import DataLoader, Dataset, IterableDataset\n"
SQUARES = HEAD + (
    "class Squares(Dataset):\n"
    "    def __init__(self, n=40, bad=()):\n"
    "        self.n, self.bad = n, bad\n"
    "    def __len__(self):\n"
    "        return self.n\n"
    "    def __getitem__(self, i):\n"
    "        if i in self.bad:\n"
    "            raise KeyError(f'no image {i}')\n"
    "        return torch.tensor(float(i * i))\n"
)


def run(
    folder: Path,
    code: str | None,
    *arguments,
    options=(),
    program="train.py",
    plain=False,
    stdin="",
    timeout=90,
    **more,
):
    if code is not None:
        (folder / program).write_text(code)
    before = [] if plain else ["-m", "unjam", "run", *map(str, options)]
    words = [] if code is None else [program]
    return python([*before, *words, *map(str, arguments)], cwd=folder, typed=stdin, timeout=timeout, **more)


def summary(folder: Path, code: str | None, *arguments, options=(), **more):
    out = folder / "summary.json"
    done = run(folder, code, *arguments, options=["--json", out, *options], **more)
    assert out.exists(), done.stderr
    return done, json.loads(out.read_text())


# -- as without unjam --------------------------------------------------------------------------------------------------

FAITHFUL = SQUARES + (
    "print(sys.argv, __name__, os.path.basename(__file__), os.getcwd(), sys.path[0], sys.stdin.read())\n"
    "print(sys.modules['__main__'].Squares is Squares, __spec__)\n"
    "print(type(DataLoader(Squares())), DataLoader.__module__)\n"
    "for batch in DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context='fork'):\n"
    "    print(batch.tolist())\n"
    "sys.exit(7)\n"
)


def test_the_program_behaves_as_without_unjam(tmp_path):
    ours = run(tmp_path, FAITHFUL, "--lr", "0.1", "-m", "x", stdin="typed")
    plain = run(tmp_path, FAITHFUL, "--lr", "0.1", "-m", "x", stdin="typed", plain=True)
    assert ours.stdout == plain.stdout
    assert ours.returncode == plain.returncode == 7
    assert plain.stderr == ""
    assert "40 samples in 5 batches, 1 epoch, 2 workers" in ours.stderr


RAISES = SQUARES + (
    "def train():\n    for batch in DataLoader(Squares(bad=(9,)), batch_size=4):\n        pass\ntrain()\n"
)


def test_tracebacks_and_exit_codes_are_unchanged(tmp_path):
    ours = run(tmp_path, RAISES)
    plain = run(tmp_path, RAISES, plain=True)
    assert ours.returncode == plain.returncode == 1

    def own_lines(text):
        return [line for line in text.splitlines() if re.search(r"train\.py|^KeyError", line)]

    assert (
        own_lines(plain.stderr)
        == [line for line in own_lines(ours.stderr) if "DataLoader over" not in line][: len(own_lines(plain.stderr))]
    )
    assert "the program ended with KeyError" in ours.stderr
    assert "sample" in ours.stderr.split("-- unjam")[1]


WAITS = SQUARES + (
    "loader = iter(DataLoader(Squares(4000), batch_size=8, num_workers=2))\n"
    "next(loader)\n"
    "print('ready', os.getpid(), flush=True)\n"
    "time.sleep(60)\n"
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_the_program_as_without_unjam(tmp_path, number):
    (tmp_path / "train.py").write_text(WAITS)
    codes = []
    for number_of, before in enumerate(([], ["-m", "unjam", "run"])):
        said, err = tmp_path / f"out{number_of}", tmp_path / f"err{number_of}"
        with open(said, "w") as out, open(err, "w") as errors:
            process = start_python([*before, "train.py"], cwd=tmp_path, stdout=out, stderr=errors)
        wait_until(lambda said=said: said.read_text().endswith("\n"))
        word, pid = said.read_text().split()
        assert word == "ready"
        assert int(pid) == process.pid, "the program is the process that was started"
        process.send_signal(number)
        codes.append(process.wait(timeout=60))
        if number == signal.SIGINT:
            assert "KeyboardInterrupt" in err.read_text()
    assert codes[0] == codes[1]


def test_a_module_runs_with_its_arguments(tmp_path):
    package = tmp_path / "project"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "data.py").write_text(SQUARES)
    (package / "__main__.py").write_text(
        "import sys\nfrom .data import Squares, DataLoader\n"
        "print(sys.argv[1:], __package__, sum(b.sum().item() for b in DataLoader(Squares(), batch_size=5, num_workers=1)))\n"
    )
    done = run(tmp_path, None, "project", "--epochs", "3", options=["-m"])
    assert done.stdout == f"['--epochs', '3'] project {float(sum(i * i for i in range(40)))}\n", done.stderr
    assert "over Squares" in done.stderr


def test_bad_input_has_clear_messages(tmp_path):
    for options, code, words in (
        (["--on-error", "sometimes"], "pass", "on_error should be one of"),
        (["--sample-timeout", "-1"], "pass", "sample_timeout should be"),
        (["--error-log", "no/such/folder/log"], "pass", "does not exist"),
        (["--max-errors", "x"], "pass", "--max-errors: 'x' is not a valid number"),
        (["--observe", "--on-error", "skip"], "pass", "--observe keeps torch's loader"),
    ):
        done = run(tmp_path, code, options=options)
        assert done.returncode == 2
        assert words in done.stderr
    missing = python(["-m", "unjam", "run", "nowhere.py"])
    assert missing.returncode == 2
    assert "there is no file nowhere.py" in missing.stderr


# -- what it is for ----------------------------------------------------------------------------------------------------


def test_bad_samples_are_skipped_and_reported(tmp_path):
    code = SQUARES + (
        "seen = [len(b) for _ in range(2) for b in DataLoader(Squares(bad=(3, 17)), batch_size=10, num_workers=2)]\n"
        "print(sum(seen))\n"
    )
    log = tmp_path / "errors.jsonl"
    done, told = summary(tmp_path, code, options=["--on-error", "skip", "--error-log", log])
    assert done.stdout == "76\n", done.stderr
    loader = told["loaders"][0]
    assert loader["failed"] == 4
    assert loader["epochs"] == 2
    assert {one["samples"] for one in loader["failures"]} == {"3", "17"}
    assert "KeyError: 'no image 3' (sample 3)" in done.stderr
    assert len(log.read_text().splitlines()) == 4
    assert any(one["code"] == "UJ306" for one in told["advice"])


def test_a_slow_sample_is_named(tmp_path):
    code = SQUARES.replace("return torch", "time.sleep(3 if i == 21 else 0.004)\n        return torch") + (
        "for batch in DataLoader(Squares(60), batch_size=4, num_workers=2):\n    time.sleep(0.01)\n"
    )
    for options in ([], ["--observe"]):
        done, told = summary(tmp_path, code, options=options)
        assert done.returncode == 0, done.stderr
        slow = [one for one in told["advice"] if one["code"] == "UJ603"]
        assert slow, done.stderr
        assert "sample 21" in slow[0]["change"]
        assert slow[0]["saves"] > 1
        assert told["loaders"][0]["driver"] == ("torch" if options else "unjam")
        assert told["loaders"][0]["samples"] == 60


@pytest.mark.static
@pytest.mark.parametrize("late", [-1, 0, 50], ids=["before", "at once", "after"])
def test_a_wait_is_blamed_on_the_batch_being_loaded(late):
    """However late a busy worker notes that its batch is done."""
    ms = 10**6
    slow = TimedBatch(1, 100 * ms, 1100 * ms, (1100 + late) * ms, 4, 990 * ms, "21")
    usual = [TimedBatch(n % 2, n * ms, n * ms, (n + 3) * ms, 4, ms, str(n)) for n in range(20)]
    waits = (Wait(0, 90 * ms, first=True), Wait(105 * ms, 1100 * ms), Wait(1101 * ms, 1130 * ms))
    run = LoaderRun("", None, 2, 4, persistent=False, driver="torch", waits=waits, made=(*usual, slow))
    [(waited, sample, took)] = slow_samples(run)
    assert (sample, took) == ("21", 0.99)
    assert waited == 0.99


STYLES = HEAD + (
    "from torch.utils.data import TensorDataset, dataloader\n"
    "class Stream(IterableDataset):\n"
    "    def __iter__(self):\n"
    "        info = torch.utils.data.get_worker_info()\n"
    "        yield from range(info.id, 30, info.num_workers)\n"
    "class Prefetcher(DataLoader):\n"  # a subclass that wraps
    "    def __iter__(self):\n"
    "        for batch in super().__iter__():\n"
    "            yield batch * 2\n"
    "class Own(DataLoader):\n"  # a subclass that makes its iterator itself
    "    def _get_iterator(self):\n"
    "        return dataloader._SingleProcessDataLoaderIter(self)\n"
    "def collate(samples):\n"
    "    return torch.tensor(samples)\n"
    "streamed = DataLoader(Stream(), batch_size=4, num_workers=2, collate_fn=collate, persistent_workers=True)\n"
    "for epoch in range(3):\n"
    "    print(sorted(n for b in streamed for n in b.tolist()) == list(range(30)))\n"
    "class Named(DataLoader):\n"  # compares and hashes by what its __init__ sets
    "    def __init__(self, name, *args, **kwargs):\n"
    "        self.name = name\n"
    "        super().__init__(*args, **kwargs)\n"
    "    def __eq__(self, other):\n"
    "        return self.name == other.name\n"
    "    __hash__ = None\n"
    "print([len(b) for b in Named('a', range(6), batch_size=2)])\n"
    "data = torch.arange(20)\n"
    "print([b.tolist() for b in Prefetcher(data, batch_size=10)])\n"
    "print([b.tolist() for b in Own(data, batch_size=10)])\n"
)


def test_streams_subclasses_and_several_loaders_are_summarised(tmp_path):
    done, told = summary(tmp_path, STYLES)
    assert done.stdout == run(tmp_path, STYLES, plain=True).stdout, done.stderr
    by_name = {one["name"].split()[0]: one for one in told["loaders"]}
    assert by_name["DataLoader"]["epochs"] == 3
    assert by_name["DataLoader"]["samples"] == 90
    assert by_name["Prefetcher"]["driver"] == "unjam"
    assert by_name["Own"]["driver"] == "torch"
    assert "created by the loader's own class" in done.stderr
    assert by_name["Own"]["samples"] == 20


SEEDED = SQUARES + (
    "for n in (40, 16):\n"
    "    torch.manual_seed(0)\n"
    "    for batch in DataLoader(Squares(n), batch_size=4, num_workers=1): pass\n"
    "torch.manual_seed(0)\n"
    "for batch in DataLoader(Squares(8), batch_size=8, num_workers=1): pass\n"
)


def test_loaders_with_the_same_seed_are_told_apart(tmp_path):
    trace = tmp_path / "trace.json"
    done, told = summary(tmp_path, SEEDED, options=["--observe", "--trace", trace])
    assert done.returncode == 0, done.stderr
    assert [one["samples"] for one in told["loaders"]] == [56, 8]
    check_trace(trace, 64)


ALIKE = HEAD + (
    "class Photos(Dataset):\n"
    "    def __init__(self, names):\n"
    "        self.root, self.names = 'photos', names\n"
    "    def __len__(self):\n"
    "        return len(self.names)\n"
    "    def __getitem__(self, i):\n"
    "        text = open(os.path.join(self.root, self.names[i])).read()\n"
    "        time.sleep(2 if text == '5' else 0.004)\n"
    "        return torch.tensor(float(text))\n"
    "def make(names):\n"
    "    return DataLoader(Photos(names), batch_size=2, num_workers=1)\n"
    "os.makedirs('photos', exist_ok=True)\n"
    "for n in range(24):\n"
    "    open(f'photos/{n}.txt', 'w').write(str(n))\n"
    "names = [f'{n}.txt' for n in range(24)]\n"
    "train = make(names[:16])\n"
    "test = make(names[16:])\n"
    "for batch in [*train, *test]: pass\n"
    "first, second = make(names[:4]), make(names[4:])\n"
    "for batch in [*first, *second, *first]: pass\n"
)


@pytest.mark.parametrize("options", [[], ["--observe"]], ids=["ours", "observed"])
def test_loaders_of_one_class_are_told_apart_in_every_report(tmp_path, options):
    page, trace = tmp_path / "run.html", tmp_path / "trace.json"
    done, told = summary(tmp_path, ALIKE, options=["--html", page, "--trace", trace, *options])
    labels = [
        "DataLoader over Photos at train.py:13, called at train.py:18",
        "DataLoader over Photos at train.py:13, called at train.py:19",
        "DataLoader over Photos at train.py:13, called at train.py:21, loader 1",
        "DataLoader over Photos at train.py:13, called at train.py:21, loader 2",
    ]
    assert [one["label"] for one in told["loaders"]] == labels, done.stderr
    assert [one["samples"] for one in told["loaders"]] == [16, 8, 8, 20]
    for label in labels:
        assert f"  {label}: " in done.stderr
        assert f">{label}</h2>" in page.read_text()
        assert f'"{label}"' in trace.read_text()
    file = os.path.join("photos", "5.txt")
    [slow] = [one for one in told["loaders"][0]["slowest"] if one["seconds"] > 1]
    assert (slow["sample"], slow["file"]) == ("5", file)
    assert f"sample 5 in {file}" in done.stderr
    assert file in page.read_text()


def test_the_waiting_time_is_the_same_in_every_report(tmp_path):
    page = tmp_path / "run.html"
    code = SQUARES + "for batch in DataLoader(Squares(), batch_size=4, num_workers=2):\n    time.sleep(0.01)\n"
    done, told = summary(tmp_path, code, options=["--html", page])
    [loader] = told["loaders"]
    assert f"    waited {duration(loader['waited'])}: " in done.stderr
    assert loader["waited"] >= loader["started"] > 0
    assert loader["waited"] == pytest.approx(told["waited"], abs=0.01)
    assert sum(one["seconds"] for one in loader["waited_for"]) == pytest.approx(loader["waited"], abs=0.05)
    assert f"training waited {duration(told['waited'])} " in done.stderr
    assert f"training waited {duration(told['waited'])} " in page.read_text()


@pytest.mark.static
def test_a_duration_has_three_digits_and_a_unit():
    known = {
        0: "0 s", 2.5e-8: "25 ns", 1.234e-6: "1.23 µs", 0.059097: "59.1 ms", 0.99999: "1 s", 6.294: "6.29 s", 119.6: "120 s",
        125: "2 min 5 s", 7500: "2 h 5 min",
    }  # fmt: skip
    assert {seconds: duration(seconds) for seconds in known} == known


@pytest.mark.static
def test_the_file_of_a_sample_is_read_from_the_datasets_list(tmp_path):
    for n in range(4):
        (tmp_path / f"{n}.png").write_text("")

    def holding(**attributes):
        dataset = torch.utils.data.Dataset()
        vars(dataset).update(attributes)
        return dataset

    names, paths = [f"{n}.png" for n in range(4)], [str(tmp_path / f"{n}.png") for n in range(4)]
    tuples = holding(classes=["cat", "dog"], samples=[(path, 1) for path in paths])
    relative = holding(root=tmp_path, names=np.array(names))
    for dataset in (tuples, relative, holding(items=[{"image": path, "label": 2} for path in paths])):
        assert file_of(dataset, "2") == paths[2]
        assert file_of(Subset(Subset(dataset, [3, 2, 1]), [1, 0]), "1") == paths[3]
        for unknown in ("9", "number 3", ""):
            assert file_of(dataset, unknown) == ""
    assert file_list(relative) == file_list(relative) != file_list(tuples)
    for dataset in (list(range(4)), holding(names=["a", "b"], n=4, data=np.arange(4), one=np.float64(1))):
        assert file_list(dataset) is None


def test_torchs_warning_about_too_many_workers_appears_once(tmp_path):
    code = SQUARES + (
        "class Loader(DataLoader):\n"
        "    def check_worker_number_rationality(self):\n"
        "        import warnings\n"
        "        warnings.warn('too many workers', stacklevel=2)\n"
        "for batch in Loader(Squares(), batch_size=20, num_workers=2): pass\n"
    )
    assert run(tmp_path, code, options=["--quiet"]).stderr.count("too many workers") == 1


SPAWNED = SQUARES + (
    "if __name__ == '__main__':\n"
    "    print([b.tolist() for b in DataLoader(Squares(8), batch_size=4, num_workers=1, multiprocessing_context=sys.argv[1])])\n"
)


@pytest.mark.parametrize(
    ("method", "options"), [("spawn", []), ("forkserver", ["--observe"])], ids=["ours", "observed"]
)
def test_loaders_in_spawned_children_are_covered(tmp_path, method, options):
    done, told = summary(tmp_path, SPAWNED, method, options=options)
    assert done.stdout == "[[0.0, 1.0, 4.0, 9.0], [16.0, 25.0, 36.0, 49.0]]\n", done.stderr
    assert told["loaders"][0]["samples"] == 8


RANKS = SQUARES + (
    "import torch.distributed as dist, torch.multiprocessing as mp\n"
    "from torch.utils.data import DistributedSampler\n"
    "def work(rank, meet):\n"
    "    if meet:\n"
    "        dist.init_process_group('gloo', init_method=f'file://{meet}', rank=rank, world_size=2)\n"
    "    else:\n"
    "        dist.init_process_group('gloo')\n"
    "    rank, data, total = dist.get_rank(), Squares(), torch.zeros(())\n"
    "    for batch in DataLoader(data, batch_size=5, num_workers=1, sampler=DistributedSampler(data, shuffle=False)):\n"
    "        part = batch.sum()\n"
    "        dist.all_reduce(part)\n"
    "        total += part\n"
    "    os.write(1, f'rank {rank} {total.item()}\\n'.encode())\n"
    "    dist.destroy_process_group()\n"
    "if __name__ == '__main__':\n"
    "    if 'RANK' in os.environ:\n"
    "        work(0, None)\n"
    "    else:\n"
    "        mp.spawn(work, (os.path.abspath('meet'),), nprocs=2)\n"
)
TOTAL = float(sum(i * i for i in range(40)))


def test_torchrun_ranks_are_covered(tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    out = tmp_path / "summary.json"
    done = run(
        tmp_path, None, "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py",
        options=["--json", out, "-m"], timeout=120,
    )  # fmt: skip
    assert sorted(done.stdout.splitlines()) == [f"rank 0 {TOTAL}", f"rank 1 {TOTAL}"], done.stderr
    assert done.returncode == 0
    assert "unjam, rank 0" in done.stderr
    assert "unjam, rank 1" in done.stderr
    for name, rank in (("summary.json", "0"), ("summary.rank1.json", "1")):
        told = json.loads((tmp_path / name).read_text())
        assert told["rank"] == rank
        assert told["loaders"][0]["samples"] == 20


def test_multiprocessing_ranks_are_covered(tmp_path):
    done = run(tmp_path, RANKS, timeout=120)
    assert sorted(done.stdout.splitlines()) == [f"rank 0 {TOTAL}", f"rank 1 {TOTAL}"], done.stderr
    assert done.stderr.count("20 samples in 4 batches") == 2


def test_unjam_can_be_enabled_by_a_variable(tmp_path):
    code = SQUARES + "print(sum(len(b) for b in DataLoader(Squares(bad=(5,)), batch_size=10)))\n"
    path = SITE + os.pathsep + os.environ.get("PYTHONPATH", "")
    known = {**os.environ, "PYTHONPATH": path, "UNJAM": "1", "UNJAM_OPTIONS": "--on-error skip"}
    done = run(tmp_path, code, plain=True, env=known)
    assert done.stdout == "39\n", done.stderr
    assert "-- unjam" in done.stderr
    off = run(tmp_path, code, plain=True, env={**known, "UNJAM": "0"})
    assert off.returncode == 1
    assert "-- unjam" not in off.stderr
    assert SITE not in off.stderr
    wrong = run(tmp_path, "print('runs')", plain=True, env={**known, "UNJAM_OPTIONS": "--colour blue"})
    assert wrong.stdout == "runs\n"
    assert "there is no option --colour" in wrong.stderr
    told = python(["-m", "unjam", "site"], check=True)
    assert told.stdout.strip() == SITE
    assert parse(["--trace=x.json", "--retries", "2", "--observe"])["options"] == {"retries": 2}


def test_an_existing_sitecustomize_still_runs(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import builtins\nbuiltins.was_here = True\n")
    path = str(folder) + os.pathsep + os.environ.get("PYTHONPATH", "")
    code = "import sitecustomize\nprint(was_here, sitecustomize.__file__)\n"
    done = run(tmp_path, code, env={**os.environ, "PYTHONPATH": path})
    assert done.stdout == f"True {folder / 'sitecustomize.py'}\n", done.stderr


def test_nothing_is_left_behind(tmp_path):
    code = WAITS.replace("time.sleep(60)", "os.kill(os.getpid(), signal.SIGKILL)").replace(
        "import sys", "import signal, sys"
    )
    known = {**os.environ, "TMPDIR": str(tmp_path)}
    assert run(tmp_path, code, env=known).returncode == -signal.SIGKILL
    assert run(tmp_path, "pass", env=known).returncode == 0
    wait_until(lambda: not list(tmp_path.glob("unjam-run-*")))  # the next run sweeps what a killed one left


# -- the trace and the page --------------------------------------------------------------------------------------------


def check_trace(path: Path, samples: int) -> set[str]:
    """As Perfetto's importer reads it: complete events, named tracks, slices of a track nested or apart."""
    trace = json.loads(path.read_text())
    tracks: dict[tuple[int, int], list[tuple[float, float, str]]] = {}
    named = set()
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            named.add((event["pid"], event["tid"], event["name"]))
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        tracks.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"], event["name"])
        )
    for (pid, tid), slices in tracks.items():
        assert (pid, tid, "thread_name") in named
        open_ends: list[float] = []
        for begin, end, _ in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_ends and begin >= open_ends[-1] - 0.002:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.002, "slices of a track overlap"
            open_ends.append(end)
    names = [one[2] for slices in tracks.values() for one in slices]
    assert names.count("sample") == samples
    return set(names)


@pytest.mark.parametrize("options", [[], ["--observe"]], ids=["ours", "observed"])
def test_a_trace_and_a_page_are_written(tmp_path, options):
    trace, page = tmp_path / "trace.json", tmp_path / "run.html"
    code = SQUARES + "for batch in DataLoader(Squares(), batch_size=4, num_workers=2):\n    time.sleep(0.01)\n"
    done = run(tmp_path, code, options=["--trace", trace, "--html", page, *options])
    assert done.returncode == 0, done.stderr
    names = check_trace(trace, 40)
    assert {"batch", "fetch", "sample", "collate", "wait", "first wait", "train"} <= names
    text = page.read_text()
    assert "Squares" in text
    assert text.count("<script") == 2  # the data and our own
    assert "http:" not in text
    assert "https:" not in text
