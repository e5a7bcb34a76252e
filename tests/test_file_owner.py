"""Whose a file is: decided by folders, whatever words its path has in it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from unjam.doctor.facts.trial import ProcessEnd
from unjam.doctor.rules import example
from unjam.system import file_owner
from unjam.system.file_owner import is_installed, is_ours, is_pythons, is_users
from unjam.system.stacks import Frame


@pytest.mark.parametrize(
    "file",
    [
        "/home/me/unjam/data.py",
        "/srv/unjam/src/unjam_project/train.py",
        "/data/lib/python3/project/train.py",
        "/data/lib/python3.11/project/train.py",
        "/home/me/my-site-packages.py",
        "/home/me/site-packages-notes/train.py",
        "/home/me/torch/train.py",
        "/tmp/ipykernel_1/ipynb_cell.py",
        "<stdin>",
        "<ipython-input-3-abc>",
    ],
)
def test_user_files_are_recognised(file):
    assert is_users(file)
    assert not is_installed(file)


@pytest.mark.parametrize("file", [os.__file__, subprocess.__file__, "<frozen importlib._bootstrap>"])
def test_python_files_are_recognised(file):
    assert is_pythons(file)
    assert not is_users(file)


def test_files_of_another_interpreter_are_recognised(tmp_path):
    """`unjam why` looks at programs of other Pythons."""
    library = tmp_path / "lib" / "python3.9"
    library.mkdir(parents=True)
    (library / "os.py").touch()
    file_owner._has_a_standard_library.cache_clear()
    assert is_pythons(str(library / "queue.py"))
    assert not is_pythons(str(tmp_path / "other" / "lib" / "python3.9" / "queue.py"))
    assert is_installed(str(library / "site-packages" / "requests" / "api.py"))
    assert not is_pythons(str(library / "site-packages" / "requests" / "api.py"))


def test_installed_and_unjam_files_are_recognised():
    assert is_installed(torch.__file__)
    assert is_installed(os.path.join(sysconfig.get_paths()["purelib"], "anything.py"))
    assert is_ours(file_owner.__file__)
    assert not is_users(file_owner.__file__)
    assert is_users(str(example("UJ501", "broken"))), "the rules' own programs stand for a user's"


def test_a_pip_target_folder_is_recognised(tmp_path, monkeypatch):
    """`pip install --target`, Bazel, module files of a cluster; the user's own files may lie beside."""
    record = tmp_path / "lib_a-1.0.dist-info"
    record.mkdir()
    (record / "RECORD").write_text("lib_a/__init__.py,sha256=x,3\nlib_a-1.0.dist-info/RECORD,,\nsingle.py,,\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    file_owner._installed_names.cache_clear()
    assert is_installed(str(tmp_path / "lib_a" / "deep" / "inner.py"))
    assert is_installed(str(tmp_path / "single.py"))
    assert is_users(str(tmp_path / "train.py"))


def test_a_crash_in_unjam_code_blames_no_sample():
    ours = Frame(file_owner.__file__, 3, "cap_threads")
    library = Frame(torch.__file__, 3, "set_num_threads")
    users = Frame("/home/me/unjam/data.py", 3, "__getitem__")
    assert ProcessEnd(1, 0, -11, "SIGSEGV", "3", (library, ours, users)).by_our_own
    assert not ProcessEnd(1, 0, -11, "SIGSEGV", "3", (library, users, ours)).by_our_own
    assert not ProcessEnd(1, 0, -11, "SIGSEGV", "3", ()).by_our_own


def test_check_works_in_a_folder_named_like_a_library(tmp_path):
    folder = tmp_path / "unjam" / "lib" / "python3"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Rows(Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i):\n"
        "        return i / (i - 5)\n"
        "for batch in DataLoader(Rows(), batch_size=2, num_workers=1):\n"
        "    pass\n"
    )
    command = [sys.executable, "-m", "unjam", "check", "--budget", "8", "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert "UJ306" in done.stdout, done.stdout + done.stderr
    assert "train.py:5" in done.stdout
    assert "return i / (i - 5)" in done.stdout
    assert Path.cwd() != folder
