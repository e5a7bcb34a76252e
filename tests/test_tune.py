"""`unjam tune`: what is recommended and why; on climbs that were made up, and on real ones."""

from __future__ import annotations

import contextlib
import io
import json
import os

import pytest
from rich.console import Console
from typer.testing import CliRunner

from support import empty_case, python
from unjam.cli import app
from unjam.doctor.facts.tune_measurements import Measurement, TuneResult, TuneSetting
from unjam.doctor.report import tune as report
from unjam.doctor.rules.tuning import judge
from unjam.doctor.tune import search


def measured(setting, rate, **facts):
    known = {
        "stages": {"getitem": setting.workers / rate if setting.workers else 1 / rate},
        "memory": 100_000_000 * (1 + setting.workers),
    }
    known |= {"workers_cpu": 0.2 * setting.workers, "first": 0.2, "turn": 0.2, "busy": 1.0, **facts}
    return Measurement(
        setting, "fine", "", 2.0, 100, int(rate * 2), (int(rate * 2), 2.0), (rate * 0.99, rate, rate * 1.01), **known
    )


def tune_result(rates, *, step=None, as_is=None, extra=(), **facts):
    found = [
        measured(TuneSetting("unjam", workers), rate, **facts.get("each", {}).get(workers, {}))
        for workers, rate in rates.items()
    ]
    known = {key: value for key, value in facts.items() if key != "each"}
    as_is = as_is or TuneSetting("torch", 2)
    return TuneResult(
        (*found, *extra),
        32,
        known.pop("processors", 8),
        known.pop("most", 32),
        "memory",
        as_is,
        "Photos",
        step=step,
        **known,
    )


# -- the recommendation ------------------------------------------------------------------------------------------------------


def test_the_cheapest_nearly_fastest_setting_is_chosen():
    tuned = judge(tune_result({0: 100, 1: 95, 2: 190, 4: 370, 8: 380, 16: 375}))
    assert tuned.choice == TuneSetting("unjam", 4)
    assert tuned.fastest == TuneSetting("unjam", 8)
    assert tuned.enough is None
    assert tuned.line == "num_workers=4"


def test_a_setting_fast_enough_for_the_training_is_chosen():
    tuned = judge(tune_result({0: 100, 1: 95, 2: 190, 4: 370, 8: 700}, step=0.2))  # 160 samples/s
    assert tuned.choice == TuneSetting("unjam", 2)
    assert tuned.enough
    assert "enough" in report.verdict(tuned)
    assert any("does not need that" in note for note in tuned.notes)


def test_it_is_reported_when_no_setting_is_fast_enough():
    tuned = judge(tune_result({0: 100, 1: 95, 2: 190}, step=0.01))
    assert tuned.choice == TuneSetting("unjam", 2)
    assert tuned.enough is False
    assert "bottleneck" in report.verdict(tuned)


def test_no_workers_is_chosen_only_if_training_never_waits():
    tuned = judge(
        tune_result({0: 200, 1: 190, 2: 380}, step=0.2)
    )  # 160 are needed; without workers the training waits for each batch
    assert tuned.choice == TuneSetting("unjam", 1)
    tuned = judge(tune_result({0: 50_000, 1: 20_000}, step=0.2))
    assert tuned.choice == TuneSetting("unjam", 0)
    assert judge(tune_result({0: 50_000, 1: 20_000})).choice == TuneSetting("unjam", 0), "a clear lead"
    assert judge(tune_result({0: 100, 1: 95})).choice == TuneSetting("unjam", 1), (
        "nobody knows what the training takes: load beside it"
    )
    assert "from torch.utils.data" in tuned.code, "without workers there is nothing that unjam's would add in speed"


def test_torch_is_chosen_when_it_is_as_good():
    tuned = judge(tune_result({0: 100, 2: 200, 4: 400}, extra=(measured(TuneSetting("torch", 4), 398),)))
    assert tuned.choice == TuneSetting("torch", 4)
    assert tuned.code.startswith("from torch.utils.data")
    tuned = judge(tune_result({0: 100, 2: 200, 4: 400}, extra=(measured(TuneSetting("torch", 4), 300),)))
    assert tuned.choice == TuneSetting("unjam", 4)
    assert any("torch's loader with the same workers: 0.75" in note for note in tuned.notes)


def test_failed_settings_are_named_and_not_recommended():
    bad = Measurement(TuneSetting("unjam", 8), "died", "the process ended (SIGKILL)")
    tuned = judge(tune_result({0: 100, 4: 390}, extra=(bad, measured(TuneSetting("unjam", 16), 1))))
    assert tuned.choice == TuneSetting("unjam", 4)
    assert any("SIGKILL" in note for note in tuned.notes)
    assert judge(tune_result({}, extra=(bad,))).choice is None


def test_persistent_workers_are_recommended_for_short_epochs():
    facts = {"epochs": 10, "epoch_samples": 400}
    assert "persistent_workers=True" in judge(tune_result({2: 400}, **facts)).line
    assert "persistent_workers" not in judge(tune_result({2: 400}, epochs=1, epoch_samples=400)).line
    assert "persistent_workers" not in judge(tune_result({2: 400}, epochs=10, epoch_samples=400_000)).line


def test_unusual_arguments_are_printed():
    odd = TuneSetting("unjam", 4, prefetch=8, threads=2)
    tuned = judge(tune_result({4: 100}, extra=(measured(odd, 200),)))
    assert tuned.line == "num_workers=4, prefetch_factor=8, worker_threads=2"
    tuned = judge(tune_result({}, extra=(measured(TuneSetting("torch", 4, start="spawn"), 200),)))
    assert tuned.line == "num_workers=4, multiprocessing_context='spawn'"


# -- why adding workers stops helping -------------------------------------------------------------------------------------------


def reasons(**facts):
    return [reason.words for reason in judge(tune_result(**facts)).stops]


def test_saturated_processors_are_reported():
    each = {n: {"workers_cpu": min(n, 8) * 0.98, "waits": {"nothing": 90, "pipe": 3}} for n in (2, 4, 8, 16)}
    assert reasons(rates={2: 200, 4: 400, 8: 800, 16: 805}, each=each) == ["all 8 processors are in use"]


@pytest.mark.parametrize(
    ("kind", "words"), [("lock", "a lock that the workers share"), ("disk", "the disk"), ("socket", "a server")]
)
def test_waits_for_a_shared_resource_are_reported(kind, words):
    each = {
        n: {"workers_cpu": 0.3, "waits": {kind: 80, "nothing": 10}, "stages": {"getitem": n * 0.01}} for n in (1, 2, 4)
    }
    assert reasons(rates={1: 100, 2: 101, 4: 99}, each=each) == [f"samples wait for {words}"]


def test_slow_samples_are_reported():
    each = {
        n: {"workers_cpu": 0.5, "stalled": 0.4, "slowest": (("17", 2.0),), "stages": {"getitem": 0.01}} for n in (2, 4)
    }
    tuned = judge(tune_result({2: 200, 4: 205}, each=each))
    assert [reason.words for reason in tuned.stops] == ["all workers wait for a few slow samples"]
    assert "17 (2 s)" in tuned.stops[0].evidence[1]


def test_memory_bandwidth_is_reported():
    each = {n: {"workers_cpu": n * 0.4, "stages": {"getitem": 0.01}} for n in (2, 4)}
    assert reasons(rates={2: 200, 4: 205}, each=each) == ["memory bandwidth, or processors that share a core"]


def test_a_saturated_main_process_is_reported():
    each = {n: {"main_cpu": 0.97, "workers_cpu": 0.5, "stages": {"getitem": 0.001}} for n in (2, 4)}
    assert "the main process is busy receiving batches" in reasons(rates={2: 2000, 4: 2050}, each=each)


def test_unknown_causes_are_not_claimed():
    each = {n: {"workers_cpu": 0.5, "stages": {"getitem": 0.01}} for n in (2, 4)}
    assert reasons(rates={2: 200, 4: 205}, each=each) == ["the cause is unknown"]
    assert reasons(rates={1: 100, 2: 200, 4: 400}) == []
    assert reasons(rates={1: 100, 2: 200, 4: 400}, most=4) == ["more than 4 workers were not tried: memory"]


def shown(tuned):
    console = Console(width=140, record=True, file=io.StringIO())
    report.show(tuned, console)
    return console.export_text()


def test_terminal_and_json_reports_show_the_result():
    tuned = judge(
        tune_result(
            {0: 100, 2: 200, 4: 400},
            step=0.1,
            extra=(Measurement(TuneSetting("torch", 2), "raised", "ValueError: [x]"),),
        )
    )
    text = shown(tuned)
    for words in ("→", "unjam, 2 workers", "training needs", "num_workers=", "ValueError: [x]", "█"):
        assert words in text, words
    told = json.loads(report.as_json(tuned, "1"))
    assert told["choice"]["workers"] == 4
    assert {setting["words"] for setting in told["rungs"]} >= {"torch, 2 workers", "unjam, 4 workers"}


# -- the climb, with a measuring process that was made up -----------------------------------------------------------------


class Clock:
    """Time that passes only while something is measured."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class Target:
    """As a `TargetProcess` whose measuring processes answer what `rate(setting)` says, after the time they were given."""

    def __init__(self, clock, rate):
        self.clock, self.rate, self.tried, self.processes = clock, rate, [], 0

    def measuring(self, number):
        self.processes += 1
        return Answers(self)


class Answers:
    gone = False

    def __init__(self, target):
        self.target = target

    def measure(self, setting, seconds, tick, *, profile, most):
        self.target.tried.append(setting)
        self.target.clock.now += seconds
        found = self.target.rate(setting)
        if isinstance(found, Measurement):
            self.gone = found.outcome == "died"
            return found
        return measured(setting, found)

    def end(self):
        self.gone = True


@pytest.fixture
def climb(monkeypatch):
    """Run a whole climb over made-up rates; the tuner, its target and the recommendation."""

    def run(rate, budget=60.0, workers=1, **wishes):
        clock = Clock()
        monkeypatch.setattr(search, "time", clock)
        monkeypatch.setattr(search, "most_workers", lambda memory: (16, "the processors"))
        target = Target(clock, rate)
        case = empty_case(num_workers=workers)
        tuner = search.Tuner(target, 0, case, search.TuneOptions(budget, **wishes), lambda words, done: None)
        return judge(tuner.run()), target, clock

    return run


def test_waiting_samples_get_more_workers(climb):
    tuned, target, _ = climb(lambda setting: 300 * max(1, min(setting.workers, 8)))
    assert tuned.choice.workers == 8
    assert [setting.workers for setting in target.tried[:7]] == [1, 0, 1, 2, 4, 8, 16], "as it is, then the climb"
    assert target.processes == 1, "one process measures all of them"
    assert {setting.driver for setting in target.tried} == {"torch", "unjam"}


def test_the_search_stops_when_more_workers_do_not_help(climb):
    tuned, target, _ = climb(lambda setting: 300 + setting.workers % 2)
    assert max(setting.workers for setting in target.tried if setting.driver == "unjam") <= 2
    assert tuned.choice.workers <= 1


def test_the_search_survives_a_setting_that_dies(climb):
    def rate(setting):
        if setting.driver == "unjam" and setting.workers >= 2:
            return Measurement(setting, "died", "the process ended (exit code 3)")
        return 300 * max(1, setting.workers)

    tuned, target, _ = climb(rate)
    assert tuned.choice.workers == 1
    assert any("unjam, 2 workers" in note for note in tuned.notes), tuned.notes
    assert target.processes > 1, "another process goes on"
    assert target.tried.count(TuneSetting("unjam", 2)) == 1, "not measured again"


def test_unsharded_iterables_get_no_second_worker(climb):
    note = "the iterable does not ask which worker it is in: every worker would give every sample"
    tuned, _, _ = climb(lambda setting: Measurement(setting, "refused", note) if setting.workers > 1 else 300)
    assert tuned.choice.workers <= 1
    assert any("every worker would give every sample" in note for note in tuned.notes)


def test_a_budget_is_respected_and_skipped_settings_are_reported(climb):
    tuned, _, clock = climb(lambda setting: 5 * max(1, setting.workers), budget=4.0)
    assert clock.now <= 1004.0
    assert any("--budget" in note for note in tuned.notes), tuned.notes


def test_the_search_stops_when_the_training_no_longer_waits(climb):
    tuned, target, _ = climb(lambda setting: 10_000 * max(1, setting.workers), step=0.2)
    assert tuned.enough
    assert max(setting.workers for setting in target.tried) == 1


def test_ctrl_c_gives_the_best_so_far(climb):
    def rate(setting):
        if setting.workers == 4:
            raise KeyboardInterrupt
        return 300 * max(1, setting.workers)

    tuned, _, _ = climb(rate)
    assert tuned.choice == TuneSetting("unjam", 2)
    assert "best setting so far" in shown(tuned)


# -- one measurement, for real -----------------------------------------------------------------------------------------

PROGRAM = """
import multiprocessing, os, sys, time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Waits(Dataset):
    def __len__(self): return 5000
    def __getitem__(self, i):
        time.sleep(0.003)
        return torch.full((4,), float(i)), i

class Stream(IterableDataset):
    def __iter__(self):
        yield from range(3000)

class Locked(Waits):
    def __init__(self): self.lock = multiprocessing.Lock()
    def __getitem__(self, i):
        with self.lock:
            time.sleep(0.002)
        return i

class Empty(Waits):
    def __len__(self): return 0

class Short(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        until = time.thread_time() + 0.003
        while time.thread_time() < until: pass
        return i

class Fails(Waits):
    def __getitem__(self, i):
        if i % 50 == 7: raise ValueError(i)
        return super().__getitem__(i)

def skips():
    import unjam
    return unjam.DataLoader(Fails(), batch_size=8, num_workers=2, on_error="skip")

waits = lambda: DataLoader(Waits(), batch_size=8, num_workers=1)
short = lambda: DataLoader(Short(), batch_size=4, num_workers=2)
single = lambda: DataLoader(Waits(), batch_size=None)
stream = lambda: DataLoader(Stream(), batch_size=8)
locked = lambda: DataLoader(Locked(), batch_size=8, num_workers=2)
empty = lambda: DataLoader(Empty(), batch_size=8)

if __name__ == "__main__":
    for epoch in range(3):
        for x, y in waits():
            time.sleep(0.02)
"""
MEASURE = """
import dataclasses, json, sys, time
import program
from unjam.doctor.check.trial.measuring import measure
from unjam.doctor.facts.tune_measurements import TuneSetting
loader = getattr(program, sys.argv[1])()
setting = TuneSetting(sys.argv[2], int(sys.argv[3]))
print(json.dumps(dataclasses.asdict(measure(loader, setting, 0.6, time.monotonic() + 60, profile=False)), default=str))
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tune")
    (path / "program.py").write_text(PROGRAM)
    (path / "measure.py").write_text(MEASURE)
    return path


def measure(folder, name, driver, workers):
    return json.loads(python([folder / "measure.py", name, driver, workers], cwd=folder, check=True).stdout)


def test_short_epochs_are_measured_in_full(folder):
    """64 samples of 3 ms: two workers make no more than 667 a second, however many batches lie ready at the beginning."""
    found = measure(folder, "short", "unjam", 2)
    assert found["outcome"] == "fine"
    assert max(found["rates"]) < 900
    assert set(found["stages"]) >= {"getitem", "collate"}


def test_unbatched_loaders_are_measured_in_samples(folder):
    found = measure(folder, "single", "unjam", 0)
    assert found["samples"] == found["batches"], "a tensor of four numbers is one sample"


def test_unjam_loaders_keep_their_policies(folder):
    assert measure(folder, "skips", "unjam", 2)["outcome"] == "fine", "its bad samples are skipped"


def test_an_unsharded_iterable_is_refused_for_several_workers(folder):
    assert measure(folder, "stream", "unjam", 2)["outcome"] == "refused"


def test_a_shared_lock_is_detected(folder):
    assert measure(folder, "locked", "unjam", 2)["waits"].get("lock")


# -- the whole command ---------------------------------------------------------------------------------------------------


@pytest.mark.alone  # it measures: what else runs would be measured too
def test_the_step_time_is_learnt_from_the_program(folder):
    page = folder / "tune.html"
    done = python(
        ["-m", "unjam", "tune", "--steps", "15", "--budget", "4", "--json", "steps.json", "--html", page, "program.py"],
        cwd=folder,
        warm=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "steps.json").read_text())
    assert 0.018 < told["step_seconds"]
    assert "num_workers=" in done.stdout
    assert "Waits" in page.read_text()
    assert not _left(folder), "processes of the program"


def _left(folder):
    """Processes that still work in the folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/cwd") == str(folder):
                found.append(name)
    return found


def test_an_empty_loader_cannot_be_measured(folder):
    done = python(["-m", "unjam", "tune", "--budget", "3", "program.py:empty"], cwd=folder, warm=False)
    assert done.returncode == 2
    assert "no setting succeeded" in done.stdout + done.stderr
    assert not _left(folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py"], "there is no file"),
        (["--budget", "nan", "program.py"], "--budget"),
        (["--html", "nowhere/x.html", "program.py"], "the folder does not exist"),
        (["--steps", "3", "--step-ms", "4", "program.py"], "either --steps"),
        (["--step-ms", "-3", "program.py"], "--step-ms"),
        (["--steps", "5", "program.py:waits"], "--step-ms"),
        (["--bugdet", "5", "program.py"], "--budget"),
        ([], "give a script"),
    ],
)
def test_bad_arguments_exit_with_2(folder, arguments, words, monkeypatch):
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(app, ["tune", *arguments])
    assert done.exit_code == 2, done.output
    assert words in done.output
