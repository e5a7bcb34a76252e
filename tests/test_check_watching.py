"""The program as it runs: what it writes does not last, every loader is seen, and edits are proven."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import python
from unjam.doctor.check.command.assemble_watched import tell_apart
from unjam.doctor.facts.program_facts import LoaderDescription, WatchedLoader
from unjam.doctor.facts.trial import Place
from unjam.doctor.fix import edits
from unjam.doctor.fix.source_edit import CannotEdit, SourceEdit


@pytest.mark.static
def test_loaders_from_one_line_are_named_by_the_line_that_iterates_them():
    made, places = Place("data.py", 9), [Place("train.py", 20), Place("train.py", 30), Place("train.py", 20)]
    loaders = [WatchedLoader(n, 1, LoaderDescription(), made, place) for n, place in enumerate(places)]
    other = WatchedLoader(3, 1, LoaderDescription(), Place("data.py", 12), places[0])
    tell_apart([*loaders, other])
    ends = [one.name.partition("(")[2] for one in (*loaders, other)]
    again = "data.py:9, iterated at train.py:20)"
    assert ends == [again, "data.py:9, iterated at train.py:30)", again, "data.py:12)"]


TRAINING = """
import os, shutil, tempfile, torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __init__(self, folder, numbers):
        self.paths = [os.path.join(folder, f"{number}.pt") for number in numbers]
        for number, path in zip(numbers, self.paths):
            torch.save(torch.full((2,), float(number)), path)
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, index):
        return torch.load(self.paths[index])

def main():
    open("written_by_the_program", "w").close()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        train = DataLoader(Files(folder, range(20)), batch_size=4, shuffle=True, num_workers=1)
        check = DataLoader(Files(folder, range(START, 40)), batch_size=4)
        for epoch in range(2):
            for x in train:
                model(x).mean().backward()
                optimizer.step()
            with torch.no_grad():
                for x in check:
                    model(x)

if __name__ == "__main__":
    main()
"""


def check(program: Path, *options: str) -> dict:
    out = program.with_suffix(".json")
    python(["-m", "unjam", "check", "--budget", "20", "--json", str(out), *options, str(program)], cwd=program.parent, timeout=200)  # fmt: skip
    return json.loads(out.read_text())


DROPPED = """
import gc, itertools
from torch.utils.data import DataLoader

def some():
    for _ in itertools.islice(DataLoader(range(64), batch_size=4, num_workers=2), 3):
        pass

if __name__ == "__main__":
    gc.disable()
    for _ in range(2):
        some()
        kept = [one for one in gc.get_objects() if type(one).__name__ == "_MultiProcessingDataLoaderIter"]
        print("kept:", len(kept))
"""


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(240)
def test_a_dropped_iterator_is_freed_at_once(tmp_path):
    program, evidence = tmp_path / "some.py", tmp_path / "evidence.json"
    program.write_text(DROPPED)
    check(program, "--evidence", str(evidence))
    watched = json.loads(evidence.read_text())["program"]
    assert watched["output"].count("kept: 0") == 2
    assert [epoch["over"] for loader in watched["processes"][0]["loaders"] for epoch in loader["epochs"]] == [
        True,
        True,
    ]


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("start", "codes"), [(20, []), (15, ["UJ521"])])
def test_every_loader_of_a_training_is_observed_and_nothing_is_left(tmp_path, start, codes):
    program = tmp_path / "train.py"
    program.write_text(TRAINING.replace("START", str(start)))
    said = check(program)
    assert [f["code"] for f in said["findings"] if f["severity"] != "note"] == codes
    assert len(said["loaders"]) == 2
    assert not (tmp_path / "written_by_the_program").exists()


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(300)
def test_edits_are_proven_and_written_only_with_fix(tmp_path):
    from unjam.doctor.rules import example

    program = tmp_path / "program.py"
    text = example("UJ524", "broken").read_text()
    program.write_text(text)
    check(program, "--diff")
    assert program.read_text() == text
    check(program, "--fix")
    assert "copy.deepcopy(self.data[index])" in program.read_text()
    assert check(program)["found"] == 0


CHECKPOINTS = """
import io, pathlib, random, torch
import torch.utils.data as data

NAMES = [f"clip{number:03}.wav" for number in range(60)]
random.RANDOM(NAMES)

class Clips(data.Dataset):
    def __init__(self, names):
        self.names = names
    def __len__(self):
        return len(self.names)
    def __getitem__(self, index):
        return torch.tensor([float(self.names[index][4:7])])

class Run:
    def __init__(self):
        self.net = torch.nn.Linear(1, 1)
        self.opt = torch.optim.Adam(self.net.parameters())
        self.step = 0
    def save(self):
        file = io.BytesIO()
        torch.save({"net": self.net.state_dict(), "opt": self.opt.state_dict(), "progress": {"step": self.step}}, file)
        pathlib.Path("last.ckpt").write_bytes(file.getvalue())
    def fit(self, loader, passes=2):
        for _ in range(passes):
            for clips in loader:
                self.net(clips).mean().backward()
                self.opt.step()
                self.step += 1
                if self.step % EVERY == 0:
                    self.save()

Run().fit(data.DataLoader(Clips(NAMES[:40]), 4, True))
"""


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("shuffle", "every", "codes"),
    [("Random(0).shuffle", 10, []), ("shuffle", 3, [("UJ534", "note"), ("UJ535", "warning")])],
)
def test_runs_that_resume_from_a_checkpoint_are_judged(tmp_path, shuffle, every, codes):
    program = tmp_path / "train.py"
    program.write_text(CHECKPOINTS.replace("RANDOM", shuffle).replace("EVERY", str(every)))
    said = check(program)
    assert sorted((f["code"], f["severity"]) for f in said["findings"]) == codes
    assert not (tmp_path / "last.ckpt").exists()


EDITS = [
    (edits.make_per_worker, (3,), "class A:\n    def f(self):\n        self.x = open('a', mode='rb')\n", "unjam.per_worker(open, 'a', mode='rb')"),
    (edits.add_main_guard, (2,), "import os\nfor x in loader:\n    print(x)\n", 'if __name__ == "__main__":\n    for x in loader:\n        print(x)'),
    (edits.raise_again, (3,), "try:\n    x = 1\nexcept ValueError:\n    x = None\n", "except ValueError:\n    raise"),
    (edits.set_option, (1, "num_workers", "2"), "l = DataLoader(d, batch_size=4)\n", "DataLoader(d, batch_size=4, num_workers=2)"),
    (edits.call_set_epoch, (2,), "for epoch in range(3):\n    for x in loader:\n        pass\n", "loader.sampler.set_epoch(epoch)\n    for x"),
    (edits.name_lambda, (2,), "import os\nt = lambda x: x + 1  # more\n", "def _t(x):\n    return x + 1\n"),
    (edits.use_unjam, (), "from torch.utils.data import DataLoader, Dataset\n", "from unjam import DataLoader"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "given", "text", "wanted"), EDITS, ids=lambda one: getattr(one, "__name__", None))
def test_edits_change_only_what_they_must(edit, given, text, wanted):
    source = SourceEdit("program.py", text)
    edit(source, *given)
    assert wanted in source.edited_text()


def test_unsafe_edits_are_refused():
    source = SourceEdit("program.py", "def f(k):\n    t = lambda x: x + k\n    return t\n")
    with pytest.raises(CannotEdit, match="uses k"):
        edits.name_lambda(source, 2)


SLOW = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Waits(Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        time.sleep(0.1)
        return torch.tensor(index)

for batch in DataLoader(Waits(), batch_size=4, num_workers=2):
    pass
"""


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(240)
def test_sampling_from_outside_finds_the_line_samples_wait_at(tmp_path):
    from unjam.doctor.facts.recording import replay

    program = tmp_path / "waits.py"
    program.write_text(SLOW)
    check(program, "--evidence", str(tmp_path / "facts.json"))
    watched, cases = replay(json.loads((tmp_path / "facts.json").read_text()))
    (loader,) = watched.loaders
    assert len(loader.worker_pids) == 2
    looks = watched.observations_of(loader)
    assert sum(one.waits.get("sleep", 0) for one in looks) > 10
    if not any(one.stacks for one in looks):
        pytest.skip("stacks of other processes may not be read here (ptrace)")
    lines = {line.place.line for one in looks for line in one.lines if line.stage == "sample"}
    assert lines == {1 + SLOW[: SLOW.index("time.sleep(0.1)")].count("\n")}
    assert cases[0].watched_loader is loader
