"""`unjam check` as a user runs it: targets, outputs, exit codes, interruptions, and nothing left behind."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from support import can_isolate, python, start_python, wait_until
from unjam.system import waiting

HEAD = "import torch\nfrom torch.utils.data import DataLoader, Dataset\n"
HEALTHY = HEAD + (
    "class Squares(Dataset):\n"
    "    def __len__(self):\n"
    "        return 40\n"
    "    def __getitem__(self, i):\n"
    "        return torch.tensor(i * i), str(i)\n"
    "def make_loader():\n"
    "    return DataLoader(Squares(), batch_size=4, num_workers=2, shuffle=True, persistent_workers=True)\n"
    "if __name__ == '__main__':\n"
    "    import sys\n"
    "    assert sys.argv[1:] == ['--lr', '0.1'], sys.argv\n"
    "    loader = make_loader()\n"
    "    for epoch in range(2):\n"
    "        for batch, names in loader:\n"
    "            open('trained', 'w').close()\n"
)
# two independent causes, and names that must not be believed
TWICE = HEAD + (
    "import numpy as np\n"
    "Odd = type('<script>alert(1)</script>', (Dataset,), {\n"
    "    '__init__': lambda self: setattr(self, 'rng', np.random.RandomState(0)),\n"
    "    '__len__': lambda self: 40,\n"
    "    '__getitem__': lambda self, i: i + self.rng.rand() / (i - 7) if i != 7 else 1 / 0,\n"
    "})\n"
    "for batch in DataLoader(Odd(), batch_size=4, num_workers=2):\n"
    "    pass\n"
)
STUCK = HEAD + (
    "import time\n"
    "class Slow(Dataset):\n"
    "    def __len__(self):\n"
    "        return 40\n"
    "    def __getitem__(self, i):\n"
    "        time.sleep(600 if i == 5 else 0)\n"
    "        return i\n"
    "for batch in DataLoader(Slow(), batch_size=4, num_workers=1):\n"
    "    pass\n"
)


def run(*arguments: str, cwd: Path, timeout: float = 100) -> subprocess.CompletedProcess:
    return python(["-m", "unjam", "check", *arguments], cwd=cwd, timeout=timeout)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder, and the proof that a check leaves nothing behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    before = set(glob.glob("/dev/shm/*"))
    yield tmp_path
    wait_until(lambda: not _processes(str(tmp_path)))
    wait_until(lambda: not glob.glob(str(tmp_path / "tmp" / "unjam-check-*")))
    assert set(glob.glob("/dev/shm/torch_*")) <= before


def _processes(mark: str) -> dict[int, str]:
    """Processes that still work in a folder, or were started for a program in it."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if mark in line or os.readlink(f"/proc/{name}/cwd") == mark:
                    found[int(name)] = line
            except OSError:
                continue
    return found


def test_a_healthy_program_has_no_findings(folder):
    (folder / "train.py").write_text(HEALTHY)
    done = run("--json", "out.json", "train.py", "--lr", "0.1", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout
    assert "0 workers" in done.stdout  # what was tried
    assert "trying" in done.stderr  # progress
    assert not (folder / "trained").exists(), "the training body ran"
    said = json.loads((folder / "out.json").read_text())
    assert said["schema"] == 1
    assert said["findings"] == []
    assert said["trials"]


def test_functions_and_datasets_can_be_checked(folder):
    (folder / "data.py").write_text(HEALTHY)
    done = run("data:make_loader", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run("--budget", "15", "data.py:Squares", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "over Squares (40 samples), batch_size=8, 2 workers" in done.stdout


def test_findings_are_written_in_every_report_format(folder):
    (folder / "odd.py").write_text(TWICE)
    done = run("--json", "o.json", "--html", "o.html", "--sarif", "o.sarif", "odd.py", cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    said = json.loads((folder / "o.json").read_text())
    codes = {finding["code"] for finding in said["findings"]}
    assert {"UJ306", "UJ505"} <= codes, codes
    fields = {"code", "rule", "title", "culprit", "evidence", "confidence", "help", "location", "severity", "diff"}
    for finding in said["findings"]:
        assert set(finding) == fields
        assert finding["confidence"] in ("proven", "seen", "likely", "possible")
    assert next(f for f in said["findings"] if f["code"] == "UJ306")["culprit"].startswith("sample 7")
    assert "error[UJ306]" in done.stdout
    assert "help:" in done.stdout
    page = (folder / "o.html").read_text()
    assert page.count("<script") == 2  # the data and our own: the name of the class is escaped
    assert "&lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    sarif = json.loads((folder / "o.sarif").read_text())
    results = sarif["runs"][0]["results"]
    assert {result["ruleId"] for result in results} == codes
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "odd.py"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise RuntimeError('no data folder')", "no data folder"),
        ("print('hello')", "before it iterated a DataLoader"),
        ("def broken(:\n", "SyntaxError"),
        (None, "there is no file"),
    ],
)
def test_an_unexaminable_program_exits_with_2(folder, program, said):
    if program is not None:
        (folder / "program.py").write_text(program)
    done = run("program.py", cwd=folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr


@pytest.mark.usefixtures("isolation")
def test_a_failure_outside_the_loaders_is_reported(folder):
    (folder / "program.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "for batch in DataLoader(list(range(8)), batch_size=4):\n    torch.zeros(3, 3) @ batch.float()\n"
    )
    done = run("program.py", cwd=folder)
    assert done.returncode == 0, done.stdout
    assert "the program failed: RuntimeError: " in done.stdout
    assert "at program.py:4; nothing found in its loaders" in done.stdout


def _sleeps_for_long(pid: int) -> bool:
    found = waiting.current_wait(pid)
    return found.kind == "sleep" and (found.limit or 0) > 100  # as the sample does, not the doctor's own processes


def test_ctrl_c_reports_what_is_known(folder):
    (folder / "stuck.py").write_text(STUCK)
    command = ["-m", "unjam", "check", "--json", "o.json", "stuck.py"]
    # not warm: the process that sleeps must be one of the program
    process = start_python(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, warm=False)
    wait_until(lambda: any(_sleeps_for_long(pid) for pid in _processes(str(folder))))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "stopped early" in out
    assert "stuck.py:" in out, out  # the line where the program stands
    if can_isolate():
        assert process.returncode in (0, 1), out + err
    else:
        assert process.returncode == 2, "nothing was watched, so nothing could be said before it was stopped"
    assert json.loads((folder / "o.json").read_text())["stopped"]


def test_killing_check_ends_all_its_processes(folder):
    (folder / "stuck.py").write_text(STUCK)
    process = start_python(["-m", "unjam", "check", "stuck.py"], cwd=folder, stderr=subprocess.DEVNULL)
    wait_until(lambda: _processes_of(folder) >= 4)
    process.kill()
    process.wait(10)


def _processes_of(folder: Path) -> int:
    return len(_processes(str(folder)))


def test_rules_and_explain_print_the_catalogue():
    done = python(["-m", "unjam", "rules"], check=True)
    assert len(done.stdout.splitlines()) >= 30
    done = python(["-m", "unjam", "explain", "uj501"], check=True)
    for heading in ("What happened", "Why", "How to confirm", "How to fix", "Limits"):
        assert heading in done.stdout
    done = python(["-m", "unjam", "explain", "UJ999"])
    assert done.returncode == 2
