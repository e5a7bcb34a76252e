"""What type checkers and editors know of the loader's options."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import python
from unjam.loader import options
from unjam.loader.options import OptionKeywords

pytestmark = pytest.mark.static
SOURCE = Path(__file__).parents[1] / "src"
# what each line begins with says whether a type checker accepts it
CALLS = """\
from __future__ import annotations

import torch
from torch.utils.data import Dataset

import unjam
from unjam import DataLoader


class Numbers(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 8


def decide(error: unjam.SampleError) -> str:
    return "skip" if error.index == 3 else "raise"


numbers = Numbers()
DataLoader(numbers, batch_size=4, num_workers=2, on_error="skip", max_errors=0.01, error_log="errors.jsonl")  # right
DataLoader(numbers, 4, shuffle=True, num_workers="auto", sample_timeout=30, rng="sample", profile=True)  # right
DataLoader(numbers, on_error=decide, retries=2, warn_after=None, worker_threads=None, memory_budget=1 << 30)  # right
DataLoader(numbers, device=torch.device("cuda", 1), on_device=lambda batch: batch)  # right
DataLoader(numbers, device="cpu", pool=unjam.RayPool(workers=4), on_worker_death="raise", max_restarts=3)  # right
loader: torch.utils.data.DataLoader[int] = DataLoader(numbers, snapshot_every_n_steps=10)  # right
unjam.install(on_error="replace", auto=True)  # right
DataLoader(numbers, on_eror="skip")  # wrong
DataLoader(numbers, on_error="drop")  # wrong
DataLoader(numbers, retries="three")  # wrong
DataLoader(numbers, rng="batch")  # wrong
DataLoader(numbers, batchsize=4)  # wrong
DataLoader(numbers, num_workers="all")  # wrong
DataLoader(numbers, on_worker_death="ignore")  # wrong
DataLoader(numbers, pool=3)  # wrong
unjam.install(retrys=3)  # wrong
"""


def lines(word: str) -> list[int]:
    return [number for number, line in enumerate(CALLS.splitlines(), 1) if line.endswith(f"# {word}")]


def test_typed_keywords_match_the_options():
    assert OptionKeywords.__annotations__.keys() == options.DEFAULTS.keys()
    for name, hint in OptionKeywords.__annotations__.items():
        assert hint.__forward_arg__ == options.LoaderOptions.__annotations__[name], name


def test_mypy_accepts_valid_calls_and_rejects_invalid_ones(tmp_path):
    calls = tmp_path / "calls.py"
    calls.write_text(CALLS)
    done = python(
        ["-m", "mypy", "--strict", "--no-error-summary", "--show-column-numbers", "--cache-dir", str(tmp_path), str(calls)],
        warm=False, env={**os.environ, "MYPYPATH": str(SOURCE)}, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    found = {
        int(line.split(":")[1])
        for line in done.stdout.splitlines()
        if line.startswith("calls.py") and ": error:" in line
    }
    assert sorted(found) == lines("wrong"), done.stdout + done.stderr
    assert 'did you mean "on_error"' in done.stdout


def test_pyright_accepts_valid_calls_and_rejects_invalid_ones(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "standard", "extraPaths": [str(SOURCE)], "pythonPlatform": "Linux"})
    )
    program = shutil.which("basedpyright", path=os.path.dirname(sys.executable))
    assert program is not None, "pip install basedpyright"
    done = subprocess.run(
        [program, "--outputjson", "--pythonpath", sys.executable, "calls.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert sorted(errors) == lines("wrong"), found
