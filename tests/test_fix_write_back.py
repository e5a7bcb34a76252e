"""`--fix` writes an edit back without losing work, and a file keeps all that is not its text."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from unjam.doctor.facts.case import Part
from unjam.doctor.facts.object_state import ObjectState
from unjam.doctor.fix import write_back as module
from unjam.doctor.fix.proposals import _protected_by
from unjam.doctor.fix.source_edit import SourceEdit
from unjam.doctor.fix.write_back import CannotWrite, Edited, write_back

BEFORE, AFTER = b"x = 1\n", b"x = 2\n"


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_bytes(BEFORE)
    return path


def edit(path) -> list[str]:
    return write_back([Edited(str(path), BEFORE, AFTER)])


def test_the_original_is_kept_beside_the_file(program):
    assert edit(program) == [f"{program}.orig"]
    assert program.read_bytes() == AFTER
    assert (program.parent / "program.py.orig").read_bytes() == BEFORE
    program.write_bytes(BEFORE)
    assert edit(program) == [f"{program}.orig.1"], "an older backup stays"


def test_changes_saved_meanwhile_are_kept(program):
    program.write_bytes(b"x = 1\ny = 'saved in the editor'\n")
    with pytest.raises(CannotWrite, match="has changed"):
        edit(program)
    assert b"saved in the editor" in program.read_bytes()
    assert os.listdir(program.parent) == ["program.py"]


def test_changes_saved_at_the_last_moment_are_kept(program, monkeypatch):
    listxattr = os.listxattr

    def save(path):
        program.write_bytes(b"saved in the last moment")
        return listxattr(path)

    monkeypatch.setattr(module.os, "listxattr", save)
    with pytest.raises(CannotWrite, match="has changed"):
        edit(program)
    assert program.read_bytes() == b"saved in the last moment"


def test_all_files_are_written_or_none(program, tmp_path):
    other = tmp_path / "other.py"
    other.write_bytes(b"changed meanwhile")
    with pytest.raises(CannotWrite, match=r"other\.py"):
        write_back([Edited(str(program), BEFORE, AFTER), Edited(str(other), BEFORE, AFTER)])
    assert program.read_bytes() == BEFORE


def test_a_conflict_rolls_back_files_already_written(program, tmp_path, monkeypatch):
    other = tmp_path / "other.py"
    other.write_bytes(BEFORE)
    replace = os.replace

    def save(source, target):
        replace(source, target)
        other.write_bytes(b"saved meanwhile")

    monkeypatch.setattr(module.os, "replace", save)
    with pytest.raises(CannotWrite, match=r"other\.py has changed"):
        write_back([Edited(str(program), BEFORE, AFTER), Edited(str(other), BEFORE, AFTER)])
    assert program.read_bytes() == BEFORE
    assert other.read_bytes() == b"saved meanwhile"
    assert sorted(os.listdir(tmp_path)) == ["other.py", "program.py"]


@pytest.mark.parametrize("mode", [0o444, 0o555])
def test_a_read_only_file_is_refused(program, mode):
    program.chmod(mode)
    with pytest.raises(CannotWrite, match="read-only"):
        edit(program)
    assert program.read_bytes() == BEFORE


def test_an_immutable_file_is_refused(program):
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", program], capture_output=True).returncode:
        pytest.skip("this file system, or this user, cannot make a file immutable: run the suite as root on ext4")
    try:
        with pytest.raises(CannotWrite, match=r"cannot be written|read-only"):
            edit(program)
    finally:
        subprocess.run(["chattr", "-i", program], check=True)
    assert program.read_bytes() == BEFORE
    assert os.listdir(program.parent) == ["program.py"]


def test_mode_links_and_attributes_are_kept(program, tmp_path):
    program.chmod(0o764)
    os.setxattr(program, "user.note", b"mine")
    edit(program)
    assert program.stat().st_mode & 0o7777 == 0o764
    assert os.getxattr(program, "user.note") == b"mine"
    program.write_bytes(BEFORE)
    hard, link = tmp_path / "hard.py", tmp_path / "link.py"
    hard.hardlink_to(program)
    link.symlink_to("program.py")
    edit(link)
    assert hard.read_bytes() == AFTER
    assert os.path.samefile(hard, program)
    assert link.is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")
def test_the_owner_is_kept(program):
    os.chown(program, 65534, 65534)
    edit(program)
    assert (program.stat().st_uid, program.stat().st_gid) == (65534, 65534)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_no_backup_is_written_for_committed_files(program):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *words], cwd=program.parent, check=True, capture_output=True)  # fmt: skip

    git("init")
    git("add", "program.py")
    git("commit", "-m", "x")
    assert edit(program) == []
    program.write_bytes(BEFORE)
    git("add", "program.py")
    program.write_bytes(b"not committed\n")
    write_back([Edited(str(program), b"not committed\n", AFTER)])
    assert (program.parent / "program.py.orig").read_bytes() == b"not committed\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    "how", ["another file by a pattern", "assume-unchanged", "skip-worktree", "a filter", "another repository"]
)
def test_work_hidden_from_git_is_backed_up(tmp_path, monkeypatch, how):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *words], cwd=tmp_path, check=True, capture_output=True)  # fmt: skip

    (tmp_path / "train1.py").write_bytes(BEFORE)
    path = tmp_path / ("train[1].py" if how == "another file by a pattern" else "train1.py")
    git("init")
    if how == "a filter":
        (tmp_path / ".gitattributes").write_text("*.py filter=strip")
        git("config", "filter.strip.clean", "grep -v SECRET")
    git("add", "-A")
    git("commit", "-m", "x")
    if how in ("assume-unchanged", "skip-worktree"):
        git("update-index", f"--{how}", "train1.py")
    if how == "another repository":
        monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
        path = tmp_path / "inner" / "train1.py"
        path.parent.mkdir()
        subprocess.run(["git", "init", path.parent], check=True, capture_output=True, env={"PATH": os.environ["PATH"]})
    work = BEFORE if how == "another repository" else BEFORE + b"SECRET = 2\n"
    path.write_bytes(work)
    assert write_back([Edited(str(path), work, AFTER)]) == [f"{path}.orig"]
    assert (path.parent / f"{path.name}.orig").read_bytes() == work


def inserted(text: str, line: int) -> str:
    edit = SourceEdit("program.py", text)
    edit.insert_before(edit.statement(line), ["import b"])
    return edit.edited_text()


def test_line_endings_are_kept():
    assert inserted("a\r\nc\r\n", 2) == "a\r\nimport b\r\nc\r\n"
    assert inserted("a\r\nc\nd\r\n", 3) == "a\r\nc\nimport b\r\nd\r\n"
    assert inserted("a\nc\n", 2) == "a\nimport b\nc\n"
    assert inserted("a\n\x0c\nc = '\x85\u2028'\nd\n", 4) == "a\n\x0c\nc = '\x85\u2028'\nimport b\nd\n"


@pytest.mark.parametrize(
    ("lock", "others", "expected"),
    [
        ("dataset.lock", ["dataset.connection"], "dataset.connection"),
        ("dataset.guard.lock", ["dataset.client.socket"], "dataset.client.socket"),
        ("global LOCK", ["dataset.file"], "dataset.file"),
        ("dataset.lock", [], ""),
    ],
)
@pytest.mark.parametrize("between_processes", [False, True])
def test_objects_that_a_lock_may_protect_are_found(lock, others, expected, between_processes):
    """Wherever the lock lies: what all workers share is not left without it."""
    part = Part(lock, "lock", "Lock", state=ObjectState(between_processes=between_processes))
    case = SimpleNamespace(parts=[part, *(Part(path, "handle", "socket") for path in others)])
    wanted = [one for one in (expected, "data shared by the processes" if between_processes else "") if one]
    assert _protected_by(part, case) == ", ".join(wanted)
