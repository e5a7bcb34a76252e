"""Other users of the machine, files and texts from anywhere: nothing of theirs runs, is followed, or ends up where it should not.

Where the suite runs as root, another user (uid 65534) plays the other side; elsewhere those tests say that they could not be tried.
"""

from __future__ import annotations

import json
import logging
import marshal
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unjam
import warm_start
from support import python, start_python, wait_until
from unjam.shared import untrusted
from unjam.system import leftovers
from unjam.system.masking import masked, masked_words, without_secrets
from unjam.system.printable import json_text, printable

NOBODY = 65534
HOSTILE = "\x1b]8;;http://evil\x07\x1b[2J\u202egnp.exe\u202c\x9b31m\r"
SECRET = "hunter2-very-secret"


# the interpreter may lie where the other user cannot go: it becomes that user after it has started
BECOME = f"""
import ctypes, os, random, signal, sys, threading, time
os.setgroups([]); os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""


@pytest.fixture
def as_nobody():
    """Starts Python code as another user."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root: run the suite as root to try it")
    started = []

    def start(code: str, *arguments: str, **more) -> subprocess.Popen:
        process = start_python(
            ["-c", BECOME + code, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True, **more
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.fixture
def open_folder(tmp_path):
    """A folder that everybody may enter and write to."""
    for folder in (*reversed(tmp_path.parents), tmp_path):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/") and str(folder).startswith("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    tmp_path.chmod(0o777)
    return tmp_path


def command(*words, cwd=None, timeout=100, **more) -> subprocess.CompletedProcess:
    return python(["-m", "unjam", *map(str, words)], timeout=timeout, cwd=cwd, **more)


def assert_safe(*texts: str) -> None:
    for text in texts:
        bad = {one for one in text if one in "\x1b\x07\x9b\r\u202e\u202c" or 0xD800 <= ord(one) < 0xE000}
        assert not bad, (bad, text[:2000])


# -- files that run code -------------------------------------------------------------------------------------------------


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["x.safetensors", "x.npy", "x.arrow", "x.bin", "x.shared", "x"])
@pytest.mark.parametrize("options", [{}, {"dtype": "uint8"}])
def test_a_data_file_runs_no_code(tmp_path, name, options):
    unjam.SharedList([Runs(str(tmp_path / "ran"))], path=tmp_path / name)
    with pytest.raises(ValueError) as caught:
        rows = unjam.mapped(tmp_path / name, **options)
        rows[0]
        raise ValueError(name) if name == "x.bin" and options else AssertionError  # bytes are only bytes
    assert name in str(caught.value)
    assert not (tmp_path / "ran").exists()
    if name in ("x.shared", "x"):
        assert "trusted=True" in str(caught.value)
        with pytest.raises(ValueError, match="trusted=True"):
            unjam.SharedList.open(tmp_path / name)
        unjam.mapped(tmp_path / name, trusted=True)[0]
        assert (tmp_path / "ran").exists(), "whoever trusts a file gets what is in it"


class Local:
    def __init__(self, x):
        self.x = x


def test_trusted_files_may_hold_objects(tmp_path):
    unjam.SharedList([Local(1), Local(2)], path=tmp_path / "objects")
    unjam.SharedDict({"a": Local(3)}, path=tmp_path / "dict")
    assert unjam.SharedList.open(tmp_path / "objects", trusted=True)[1].x == 2
    assert unjam.SharedDict.open(tmp_path / "dict", trusted=True)["a"].x == 3
    for kind, name in ((unjam.SharedList, "objects"), (unjam.SharedDict, "dict")):
        with pytest.raises(ValueError, match="trusted=True"):
            kind.open(tmp_path / name)


def test_plain_files_need_no_trust(tmp_path):
    rows = [{"name": f"n{i}", "box": [i, i + 0.5], "big": 1 << 80, "none": None} for i in range(50)]
    unjam.SharedList(rows, path=tmp_path / "rows")
    shared = unjam.SharedList.open(tmp_path / "rows")
    assert list(shared) == rows
    loader = unjam.DataLoader(shared, batch_size=None, num_workers=1)
    assert list(loader) == rows
    import pickle

    again = pickle.loads(pickle.dumps(shared))
    assert untrusted.loads in again._decode.args, "a reference to an untrusted file is not trusted either"


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False) | st.text(st.characters(), max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=4), inner, max_size=4) | st.frozensets(st.integers(), max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(_values)
@settings(max_examples=300, deadline=None)
def test_the_careful_decoder_reads_what_marshal_writes(value):
    back = untrusted.loads(marshal.dumps(value, 2))
    assert back == value
    assert marshal.dumps(back, 2) == marshal.dumps(marshal.loads(marshal.dumps(value, 2)), 2), "types and signs too"


def test_crafted_plain_files_are_refused_quickly(tmp_path):
    many = [k * ((1 << 61) - 1) for k in range(4_000)]
    for value in ({*many}, dict.fromkeys(many)):  # they all have the hash 0
        with pytest.raises(ValueError, match="keys"):
            untrusted.loads(marshal.dumps(value, 2))
    digits = 200_000
    assert untrusted.loads(marshal.dumps(1 << (15 * digits), 2)) == 1 << (15 * digits)
    with pytest.raises(ValueError, match="trusted=True"):
        untrusted.loads(b"(\x01\0\0\0" * 1000 + b"N")


def test_arrow_offsets_outside_the_file_are_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    batch = pa.record_batch([pa.array(["a", "bcdefgh", "ijkl"])], names=["t"])
    with pa.OSFile(str(tmp_path / "x.arrow"), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write(batch)
    data = (tmp_path / "x.arrow").read_bytes()
    offsets = np.array([0, 1, 8, 12], "<i4").tobytes()
    assert offsets in data
    (tmp_path / "x.arrow").write_bytes(data.replace(offsets, np.array([0, 1_900_000_000, 8, 12], "<i4").tobytes()))
    with pytest.raises(Exception, match=r"(?i)offset|invalid|arrow"):
        unjam.mapped(tmp_path / "x.arrow")[0]


def test_numpy_objects_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}, []], dtype=object))
    with pytest.raises(ValueError, match=r"x\.npy"):
        unjam.mapped(tmp_path / "x.npy")


# -- what `why` reads ----------------------------------------------------------------------------------------------------

# a program whose code claims to come from any file
CLAIMS = """
import sys, time
space = {}
exec(compile("def wait():\\n    import time\\n    time.sleep(1000)\\n", sys.argv[1], "exec"), space)
print("ready", flush=True)
space["wait"]()
"""


def _why(process, tmp_path):
    """All that the command would show and write."""
    from unjam.doctor.report import html, machine, scene
    from unjam.doctor.report.terminal import console
    from unjam.doctor.why import find, observe
    from unjam.system.memory_limits import OomKills

    assert process.stdout.readline() == "ready\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observe, "SHORT", 0.1)
        patch.setattr(observe, "oom_kills", lambda pid: OomKills(73, "machine"))
        diagnosis = find.why(find.find(process.pid)[0])
    assert (diagnosis.scene.kills, diagnosis.scene.quiet) == (73, 0)
    shown = console(with_markup=True)
    with shown.capture() as captured:
        scene.show(diagnosis, shown)
    return captured.get() + html.render(diagnosis, "0") + machine.dumps(scene.as_dict(diagnosis.scene))


def test_why_reads_no_source_the_program_could_not_read(as_nobody, open_folder):
    hidden, shown = open_folder / "hidden.txt", open_folder / "shown.txt"
    hidden.write_text(f"one\ntwo\n{SECRET}\n")
    hidden.chmod(0o600)
    shown.write_text("one\ntwo\nthis may be seen\n")
    shown.chmod(0o644)
    said = _why(as_nobody(CLAIMS, str(hidden)), open_folder)
    assert "hidden.txt:3" in said
    assert SECRET not in said
    assert "this may be seen" in _why(as_nobody(CLAIMS, str(shown)), open_folder)


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "/dev/tty", "directory", "huge", "/proc/self/environ"])
def test_why_never_blocks_on_a_file(as_nobody, open_folder, kind):
    path = open_folder / "source"
    if kind == "fifo":
        os.mkfifo(path, 0o666)
        path.chmod(0o666)
    elif kind == "directory":
        path.mkdir()
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 33)
    else:
        path = Path(kind)
    said = _why(as_nobody(CLAIMS, str(path)), open_folder)
    assert path.name in said
    assert "PATH=" not in said


def test_root_reads_no_hidden_file_beyond_the_file_limit(as_nobody, open_folder, monkeypatch):
    from unjam.system import foreign_files

    hidden = open_folder / "hidden.txt"
    hidden.write_text(f"one\ntwo\n{SECRET}\n")
    hidden.chmod(0o600)
    monkeypatch.setattr(foreign_files, "MOST_FILES", 0)
    assert SECRET not in _why(as_nobody(CLAIMS, str(hidden)), open_folder)


def test_source_lines_are_counted_as_python_does(tmp_path):
    import linecache

    from unjam.doctor.facts.source import tree_of
    from unjam.system.foreign_files import read_their_file

    odd = tmp_path / "odd.py"
    odd.write_bytes(b"# -*- coding: latin-1 -*-\na = 1\x0c\nb = '\xe4\xe2\x80\xa8'\nc = 3\n")
    from unjam.system.foreign_files import load_sources

    load_sources(os.getpid(), {str(odd)})
    assert linecache.getline(str(odd), 4) == "c = 3\n"
    assert "ä" in linecache.getline(str(odd), 3)
    assert read_their_file(os.getpid(), str(tmp_path / "not there")) is None
    deep = tmp_path / "deep.py"
    deep.write_text("x = " + "-" * 100_000 + "1\n")
    assert tree_of(str(deep)) is None, "the parser gives up"


def test_why_follows_no_link_in_place_of_a_log(as_nobody, open_folder):
    from unjam.system.foreign_files import read_their_output

    log, secret = open_folder / "log", open_folder / "secret"
    secret.write_text(f"ValueError: {SECRET}\n")
    secret.chmod(0o600)
    code = (
        "import os, sys, time\n"
        "sys.stderr.write('RuntimeError: mine\\n'); sys.stderr.flush()\n"
        "os.unlink(sys.argv[1]); os.symlink(sys.argv[2], sys.argv[1])\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)\n"
    )
    log.touch()
    os.chown(log, NOBODY, NOBODY)
    with log.open("wb") as file:
        process = as_nobody(code, str(log), str(secret), stderr=file)
    assert process.stdout.readline() == "ready\n"
    assert read_their_output(process.pid, 2, 1000) == b"RuntimeError: mine\n"


def test_container_links_do_not_lead_outside(as_nobody, open_folder):
    from unjam.system.foreign_files import read_their_file

    secret = open_folder / "secret"
    secret.write_text(SECRET)
    (open_folder / "link").symlink_to(secret)
    code = "import os, sys; os.chroot(sys.argv[1]); print('ready', flush=True); import time; time.sleep(1000)"
    process = start_python(["-c", "import time\n" + code, str(open_folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        # inside, the link's target does not exist
        assert read_their_file(process.pid, "/link") is None
        assert read_their_file(process.pid, "/secret") == SECRET
        assert read_their_file(process.pid, "/../../../secret") == SECRET, "its root has no parent"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_heartbeat_is_read_not_mapped():
    from unjam.doctor.why.heartbeat import heartbeat_of

    code = (
        "import os, sys\n"
        "fd = os.memfd_create('unjam-page'); os.ftruncate(fd, 4096)\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    os.ftruncate(fd, 0); os.ftruncate(fd, 4096)\n"
    )
    process = start_python(["-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        for _ in range(3000):  # a mapping would end this process by SIGBUS
            heartbeat_of(process.pid)
        maps = Path("/proc/self/maps").read_text()
        assert "unjam-page" not in maps or "fork" not in maps
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


CHANGES = """
import os, sys, time, random, threading
kind = sys.argv[1]
print("ready", flush=True)
def spin():
    while True:
        pass
if kind == "exits":
    time.sleep(random.random() * 0.3)
elif kind == "forks":
    while True:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
elif kind == "renames":
    while True:
        with open("/proc/self/comm", "w") as comm:
            comm.write(random.choice(["pt_data_worker", "unjam-worker-\u00b2", ") R 1 1", "\\x1b[31m"]))
elif kind == "threads":
    while True:
        one = threading.Thread(target=time.sleep, args=(0.01,)); one.start(); one.join()
elif kind == "execs":
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], kind, sys.argv[2]])
elif kind == "closes":
    while True:
        fd = os.open("/dev/null", 0); os.dup2(fd, 2); os.close(fd)
"""


@pytest.mark.parametrize("kind", ["exits", "forks", "renames", "threads", "execs", "closes"])
def test_a_changing_program_can_be_examined(kind, monkeypatch):
    """`UNJAM_ROUNDS=1000` looks as often as that."""
    from unjam.doctor.report import machine, scene
    from unjam.doctor.report.terminal import console
    from unjam.doctor.why import find, observe

    monkeypatch.setattr(observe, "SHORT", 0.1)
    monkeypatch.setattr(observe, "LONG", 0.2)
    rounds = int(os.environ.get("UNJAM_ROUNDS", "36")) // 6
    process = None
    try:
        for _ in range(rounds):
            if process is None or process.poll() is not None:
                if process is not None:
                    process.stdout.close()
                process = start_python(
                    ["-c", CHANGES, kind, CHANGES],
                    warm=False,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                process.stdout.readline()
            try:
                diagnosis = find.why(find.find(process.pid)[0])
            except find.CannotLook:
                continue  # it has ended
            found = machine.as_json(diagnosis, "0") + machine.dumps(scene.as_dict(diagnosis.scene))
            assert_safe(found)
            # one that calls itself a worker is taken for a child of the tests' own process, whose helper waits for programs
            serious = [
                one for one in diagnosis.serious if not (one.location and one.location.file == warm_start.__file__)
            ]
            assert not serious, serious
            terminal = console(with_markup=True)
            with terminal.capture() as shown:
                scene.show(diagnosis, terminal)
            assert_safe(shown.get())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


# -- modules of the current folder ---------------------------------------------------------------------------------------

PROGRAM = """
import torch
from torch.utils.data import DataLoader, Dataset
import helper
class Squares(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, i):
        return torch.tensor(helper.square(i))
if __name__ == "__main__":
    for batch in DataLoader(Squares(), batch_size=4, num_workers=1):
        pass
"""


@pytest.mark.parametrize("words", [("check", "--budget", "8"), ("tune", "--budget", "4")], ids=lambda words: words[0])
def test_commands_run_no_code_of_the_current_folder(tmp_path, words):
    planted, project = tmp_path / "planted", tmp_path / "project"
    planted.mkdir()
    project.mkdir()
    (project / "program.py").write_text(PROGRAM)
    (project / "helper.py").write_text("def square(i):\n    return i * i\n")
    for name in (
        "unjam",
        "torch",
        "json",
        "pickle",
        "random",
        "multiprocessing",
        "sitecustomize",
        "cloudpickle",
        "threadpoolctl",
    ):
        (planted / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    installed = [
        sys.executable,
        "-c",
        "import sys; sys.path[:] = filter(None, sys.path); from unjam.cli import app; app(sys.argv[1:])",
    ]
    done = subprocess.run(
        [*installed, *words, str(project / "program.py")],
        cwd=planted,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_fresh_trials_find_modules_beside_the_program(tmp_path):
    from unjam.doctor.check.command.target_process import TargetProcess
    from unjam.doctor.check.command.trial_watch import TrialTimeouts
    from unjam.doctor.facts.trial import Plan

    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("def square(i):\n    return i * i\n")
    target = TargetProcess(["script", str(tmp_path / "program.py")])
    try:
        target.wait_for_loader()
        _, tries = target.gather(0)
        trial = target.run_trial(0, Plan(fresh=True, workers=1), tries, TrialTimeouts(20, 20, 60), 1)
    finally:
        target.end()
    assert trial.fine, (trial.outcome, trial.output)


# -- locks and logs --------------------------------------------------------------------------------------------------------


class Fails:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise ValueError(f"bad {HOSTILE} https://user:{SECRET}@host/x?X-Amz-Signature={SECRET} --token {SECRET}")
        return index


def _plant(kind: str, victim: Path, place: Path) -> None:
    victim.write_text("precious")
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "hard link":
        os.link(victim, place)
    elif kind == "dangling":
        victim.unlink()
        place.symlink_to(victim)
    else:
        os.mkfifo(place)


@pytest.mark.parametrize("kind", ["link", "hard link", "dangling", "fifo"])
def test_an_error_log_follows_no_link(tmp_path, kind, caplog):
    victim, log = tmp_path / "victim", tmp_path / "errors.jsonl"
    _plant(kind, victim, log)
    with caplog.at_level(logging.WARNING, "unjam"):
        assert len(list(unjam.DataLoader(Fails(), on_error="skip", error_log=str(log)))) == 3
    assert "cannot be written" in caplog.text
    assert not victim.exists() if kind == "dangling" else victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["link", "hard link", "dangling", "fifo"])
def test_a_lock_follows_no_link(tmp_path, kind):
    victim, lock = tmp_path / "victim", tmp_path / "data.lock"
    _plant(kind, victim, lock)
    with pytest.raises(OSError, match=r"link|regular"):
        unjam.interprocess_lock(tmp_path / "data", timeout=1).acquire()
    assert not victim.exists() if kind == "dangling" else victim.read_text() == "precious"


def test_a_lock_never_overwrites_data(tmp_path):
    data = tmp_path / "notes.lock"
    data.write_text("x" * 600)
    lock = unjam.interprocess_lock(tmp_path / "notes", timeout=1)
    with lock:
        assert lock.locked()
    assert data.read_text() == "x" * 600
    own = unjam.interprocess_lock(tmp_path / "other")
    for _ in range(2):  # its own note is written over
        with own:
            assert "test_security" in (tmp_path / "other.lock").read_text()


def test_lock_file_content_is_shown_as_text(tmp_path):
    lock = unjam.interprocess_lock(tmp_path / "x", timeout=0.2)
    code = (
        "import sys, os, time, unjam\n"
        "lock = unjam.interprocess_lock(sys.argv[1]); lock.acquire()\n"
        "fd = os.open(sys.argv[1] + '.lock', os.O_RDWR)\n"
        "note = os.pread(fd, 496, 16).split()\n"
        "os.pwrite(fd, b' '.join(note[:3]) + b' \\x1b[31m\\xe2\\x80\\xae evil', 16)\n"
        "print('ready', flush=True); time.sleep(100)\n"
    )
    process = start_python(["-c", code, str(tmp_path / "x")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        assert "evil" in lock.holder()
        assert_safe(lock.holder())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


# -- the temporary folder --------------------------------------------------------------------------------------------------


def test_the_cleanup_removes_only_own_files_and_never_raises(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    mine = [tmp_path / f"{leftovers.prefix(kind, ended.pid)}abc" for kind in ("run", "check", "lock")]
    for path in mine[:2]:
        path.mkdir()
        (path / "file").touch()
    mine[2].touch()
    world = leftovers.prefix("run").split("-")[2]
    kept = [
        tmp_path / f"unjam-run-{world}-{'9' * 60}-x", tmp_path / f"unjam-run-{world}-0-x", tmp_path / f"unjam-run-{world}-²-x",
        tmp_path / f"unjam-run-{world}--1-x", tmp_path / f"{leftovers.prefix('run')}living", tmp_path / "unjam-run-", tmp_path / "unjam-run-1-2",
    ]  # fmt: skip
    for path in kept:
        path.mkdir()
    link = tmp_path / f"{leftovers.prefix('run', ended.pid)}link"
    target = tmp_path / "elsewhere"
    target.mkdir()
    (target / "precious").touch()
    link.symlink_to(target)
    if os.geteuid() == 0:
        theirs = tmp_path / f"{leftovers.prefix('run', ended.pid)}theirs"
        theirs.mkdir()
        os.chown(theirs, NOBODY, NOBODY)
        kept.append(theirs)
    leftovers.sweep()
    assert not any(path.exists() for path in mine)
    assert all(path.exists() for path in kept)
    assert (target / "precious").exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    leftovers.sweep()


def test_absurd_names_do_not_stop_unjam_run(tmp_path):
    world = leftovers.prefix("run").split("-")[2]
    for name in (f"unjam-run-{world}-{'9' * 100}-x", f"unjam-run-{world}-²³-x", f"unjam-run-{'9' * 90}-1-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "program.py").write_text("print('it runs')\n")
    done = command("run", tmp_path / "program.py", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert "it runs" in done.stdout
    assert "runs without it" not in done.stderr


def test_lock_files_of_killed_owners_are_removed(tmp_path):
    code = "import unjam, os, signal; lock = unjam.interprocess_lock(); print(lock.path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    first = python(["-c", code], env=environment).stdout.strip()
    assert os.path.exists(first)
    assert stat.S_IMODE(os.stat(first).st_mode) == 0o600
    python(["-c", code], env=environment)
    assert not os.path.exists(first)


# -- terminals and secrets ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def failing(tmp_path_factory):
    """A program whose data is hostile, run by `unjam run`, and its reports."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "program.py").write_text(
        "import sys, torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        f"HOSTILE, SECRET = {HOSTILE!r}, {SECRET!r}\n"
        "class Fails(Dataset):\n"
        "    def __len__(self):\n"
        "        return 8\n"
        "    def __getitem__(self, i):\n"
        "        if i == 5:\n"
        "            raise ValueError(f'bad {HOSTILE} https://user:{SECRET}@host/x?X-Amz-Signature={SECRET}')\n"
        "        return torch.tensor(i)\n"
        "if __name__ == '__main__':\n"
        "    for batch in DataLoader(Fails(), batch_size=2, num_workers=1):\n"
        "        pass\n"
    )
    files = {
        "--json": folder / "run.json",
        "--html": folder / "run.html",
        "--trace": folder / "trace.json",
        "--error-log": folder / "log.jsonl",
    }
    options = [word for pair in files.items() for word in pair]
    done = command(
        "run", "--on-error", "skip", *options, folder / "program.py", "--api-key", SECRET, f"--password={SECRET}"
    )
    return folder, files, done


def test_run_output_is_sanitised(failing):
    _, files, done = failing
    assert done.returncode == 0, done.stderr
    assert "ValueError" in done.stderr
    assert_safe(done.stderr, *(path.read_text() for path in files.values()))
    for path in files.values():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
        assert SECRET not in path.read_text(), path
    assert "--api-key ***" in json.loads(files["--json"].read_text())["command"]


def test_errors_output_is_sanitised(failing, tmp_path):
    _, files, _ = failing
    out = tmp_path / "errors.json"
    for done in (
        command("errors", files["--error-log"]),
        command("errors", files["--error-log"], "--json", "-"),
        command("errors", files["--error-log"], "--json", out),
    ):
        assert done.returncode == 1
        assert_safe(done.stdout, done.stderr)
        assert SECRET not in done.stdout
    assert json.loads(out.read_text())["incidents"] == 1
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_check_output_is_sanitised(failing, tmp_path):
    folder, _, _ = failing
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "html", "sarif")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", path)]
    done = command("check", "--budget", "10", *options, folder / "program.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "UJ306" in done.stdout
    assert_safe(done.stdout, done.stderr, *(path.read_text() for path in files.values()))
    for path in files.values():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert SECRET not in path.read_text()
    assert SECRET not in done.stdout


def test_why_output_is_sanitised(tmp_path):
    name = tmp_path / f"odd {HOSTILE.replace('/', '')}.py"
    name.write_text(
        "import sys, time\n"
        f"password = token = {SECRET!r}\n"
        "def wait(api_key, url):\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(1000)\n"
        f"wait({SECRET!r}, 'https://me:{SECRET}@host/')\n"
    )
    process = start_python(
        [str(name), "--token", SECRET, HOSTILE], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout.readline() == "ready\n"
        dump, page = tmp_path / "dump.json", tmp_path / "page.html"
        shown = command("why", process.pid, "--dump", dump, "--html", page)
        as_json = command("why", process.pid, "--json", "-")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert "sleeps" in shown.stdout
    assert stat.S_IMODE(page.stat().st_mode) == stat.S_IMODE(dump.stat().st_mode) == 0o600
    assert "before you share it" in shown.stderr
    for text in (shown.stdout, shown.stderr, as_json.stdout, dump.read_text(), page.read_text()):
        assert_safe(text)
        assert SECRET not in text
    assert "--token" not in shown.stdout or "--token ***" in shown.stdout
    assert "nothing was stopped, signalled or changed" in " ".join(shown.stdout.split()), (
        "texts are made safe before lines are broken"
    )


def test_loader_logs_are_sanitised(caplog):
    with caplog.at_level(logging.WARNING, "unjam"):
        list(unjam.DataLoader(Fails(), num_workers=1, on_error="skip"))
    assert "bad" in caplog.text
    for record in caplog.records:
        assert_safe(record.getMessage())


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_a_log_line_never_raises(caplog):
    from unjam.system.logs import log

    with caplog.at_level(logging.WARNING, "unjam"):
        log.warning("it failed: %s", Mute())
    assert "it failed" in caplog.text


def test_command_errors_are_sanitised(tmp_path):
    for words in (
        ("errors", f"no {HOSTILE}"),
        ("check", f"no {HOSTILE}.py"),
        ("run", f"no {HOSTILE}.py"),
        ("explain", HOSTILE),
        ("tune", f"no {HOSTILE}.py"),
    ):
        done = command(*words, cwd=tmp_path)
        assert done.returncode == 2, (words, done.stdout)
        assert_safe(done.stderr.replace("\r\n", "\n"), done.stdout)


def test_foreign_text_is_escaped():
    assert printable("plain text ä 語 🙂\n\t") == "plain text ä 語 🙂\n\t"
    assert printable("\x1b[31m\u202e\ud800") == "\\x1b[31m\\u202e\\ud800"
    assert json.loads(json_text({"a": HOSTILE + "\ud800"})) == {"a": HOSTILE + "\ud800"}
    assert_safe(json_text(HOSTILE))


@pytest.mark.parametrize(
    "text",
    [
        f"train.py --api-key {SECRET}", f"--token={SECRET}", f"https://user:{SECRET}@host/path", f"https://{SECRET}@host", f"?X-Amz-Signature={SECRET}&x=1",
        f"blob?sv=1&sig={SECRET}", f"{{'password': '{SECRET}'}}", f'"client_secret": "{SECRET}"', f"AWS_SECRET_ACCESS_KEY={SECRET}", f"Authorization: Bearer {SECRET}",
        "key ghp_abcdefghijklmnopqrstuvwxyz0123", "hf_abcdefghijklmnopqrstuvwx", "AKIAIOSFODNN7EXAMPLE", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----", f"db password: {SECRET}", f"postgres://u:{SECRET}@db/x", f"PGPASSWORD={SECRET}", f'os.environ["DB_PASSWORD"] = "{SECRET}"', f"Authorization: Token {SECRET}",
        f'{{\\"token\\": \\"{SECRET}\\"}}', f"--key {SECRET}",
    ],
)  # fmt: skip
def test_secrets_are_masked(text):
    assert SECRET not in masked(text)
    assert "***" in masked(text)
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'cat_17'", "unknown token: foo", "key=images/7.jpg", "monkey=3", "tokenizer=gpt2", "--max-tokens 512", "author=Bob", "self.token = token",
        "token = vocab[word]", "git@github.com:a/b.git", "the secret of life: 42", "password=None", "--use-auth-token train.py", 'File "password.py", line 3',
        "https://host/path?x=1&page=2", "sample key: a/b", "pad_token='[PAD]'", "unknown token: '</s>'", "next_token=50256", "--sort-key len --label-key cls",
        '{"token": "the"}', "for basic indexing; expected a key", "signal 9", "assigned=5", "design=flat",
    ],
)  # fmt: skip
def test_harmless_text_is_not_masked(text):
    assert masked(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "token " + "-" * 20_000,
        "token " + "a." * 10_000,
        "key " + "://" * 7_000,
        "--a" * 7_000 + " token",
        "password=" * 3_000,
    ],
)
def test_masking_hostile_text_takes_no_longer(text):
    began = time.process_time()
    masked(text)
    plain = time.process_time()
    masked("token " + "word " * 4_000)
    assert plain - began < 20 * max(0.02, time.process_time() - plain)


def test_arguments_and_values_are_masked():
    assert masked_words(["a.py", "--token", "x", "-v", "--key=8f3k2l1m9x0z7", "--sort-key=len", "API_TOKEN=z"]) == [
        "a.py",
        "--token",
        "***",
        "-v",
        "--key=***",
        "--sort-key=len",
        "API_TOKEN=***",
    ]
    assert without_secrets({"token": "x", "n": [1, ("--password", "a=b")]}) == {
        "token": "***",
        "n": [1, ("--password", "a=b")],
    }
    whole = {"a": (1, 2.5, None)}
    assert without_secrets(whole) is whole


def test_reports_are_written_only_to_safe_targets(open_folder):
    from unjam.system.private_files import write_report

    victim, report = open_folder / "victim", open_folder / "report.json"
    victim.write_text("precious")
    report.symlink_to(victim)
    write_report(str(report), "x")
    assert victim.read_text() == "x", "a link of one's own is meant"
    os.link(victim, open_folder / "second")
    with pytest.raises(OSError, match="more than one hard link"):
        write_report(str(open_folder / "second"), "y")
    fifo = open_folder / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="no process reads"):
        write_report(str(fifo), "y")
    read, write = os.pipe()
    write_report(f"/dev/fd/{write}", "into a pipe")
    assert os.read(read, 100) == b"into a pipe"
    os.close(read)
    os.close(write)
    if os.geteuid() != 0:
        return
    os.lchown(report, NOBODY, NOBODY)
    with pytest.raises(OSError, match="link of another user"):
        write_report(str(report), "y")
    theirs = open_folder / "theirs"
    theirs.write_text("")
    theirs.chmod(0o666)
    os.chown(theirs, NOBODY, NOBODY)
    with pytest.raises(OSError, match="another user"):
        write_report(str(theirs), "y")
    assert victim.read_text() == "x"
    assert theirs.read_text() == ""


# -- error logs of anybody's making ------------------------------------------------------------------------------------------


def test_one_bad_line_does_not_stop_errors(tmp_path):
    log = tmp_path / "log.jsonl"
    good = json.dumps(
        {"kind": "sample", "what": "it broke", "at": 1.7e9, "sample": 3, "exception": "ValueError", "message": "x"}
    )
    bad = [
        "[" * 100_000, '{"a":' * 50_000, '{"kind": 1, "what": 2}', '{"kind": "sample", "what": "x", "samples": 5}', '{"kind": "sample", "what": "x", "at": 1e400}',
        '{"kind": "sample", "what": "x", "at": NaN}', '{"kind": "sample", "what": "x", "at": 9e99}', '{"kind": "sample", "what": "x", "worker": ' + "9" * 6000 + "}",
        '{"kind": "sample", "what": "x", "message": {"a": 1}}', "x" * (9 << 20), "null", "17", '{"kind": "sample", "what": "x", "worker": "a"}', "\0\0\0",
    ]  # fmt: skip
    deep = '{"kind": "sample", "what": "x", "sample": ' + "[" * 900 + "]" * 900 + "}"
    log.write_text("\n".join([good, *bad, deep, good, good[:20]]), encoding="utf-8")
    for words in ((), ("--json", "-")):
        done = command("errors", log, *words)
        assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["incidents"] == 3
    assert found["unreadable"] == len(bad) + 1
    assert f"{len(bad) + 1} lines could not be read" in command("errors", log).stdout
    assert command("errors", "/dev/zero").returncode == 2


def test_an_endless_log_takes_little_memory(tmp_path):
    log = tmp_path / "log.jsonl"
    with log.open("w") as file:
        for n in range(25_000):
            file.write(
                json.dumps(
                    {
                        "kind": "sample",
                        "what": "x",
                        "sample": f"{n}" + "y" * 150,
                        "exception": f"E{n}",
                        "message": f"{'m' * 100}{chr(97 + n % 26)}",
                    }
                )
                + "\n"
            )
    code = (
        "from unjam.loader.failures import error_log as errors\n"
        "kept = lambda name: next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith(name))\n"
        f"before = kept('VmRSS'); found = errors.read({str(log)!r})\n"
        "print(found.incidents, found.ungrouped > 0, kept('VmHWM') - before)\n"
    )
    done = python(["-c", code], check=True)
    count, capped, kilobytes = done.stdout.split()
    assert (count, capped) == ("25000", "True")
    assert int(kilobytes) < 50_000


def test_one_line_with_many_samples_is_read_quickly(tmp_path):
    from unjam.loader.failures import error_log as errors

    log = tmp_path / "log.jsonl"
    trace = "".join(f'File "/data/x{n}.py", line {n}, in f\n' for n in range(300))
    line = {"kind": "sample", "what": "x", "samples": [f"{n:060d}" for n in range(10_000)], "traceback": trace}
    log.write_text("\n".join([json.dumps(line)] * 5))
    began = time.process_time()
    found = errors.read(str(log))
    assert time.process_time() - began < 20
    assert found.incidents == 5
    assert all(len(group.samples) == 1 for group in found.by("sample"))


def test_readers_survive_fuzzed_input():
    """The same inputs each time; `python tests/fuzz_readers.py 600` takes others, for ten minutes."""
    done = python([Path(__file__).parent / "fuzz_readers.py", "100", "0", "500"], timeout=110)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    assert min(json.loads(done.stdout.splitlines()[-1]).values()) > 10


# -- what was tried and held -------------------------------------------------------------------------------------------------


class Sees:
    """Tells what its worker has open."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        links = [
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{fd}")
        ]
        return {"links": links, "pid": os.getpid(), "parent": os.getppid()}


def test_sockets_and_memory_are_anonymous():
    before = {name for name in os.listdir("/dev/shm") if "unjam" in name}
    loader = unjam.DataLoader(Sees(), batch_size=None, num_workers=2)
    found = list(loader)
    listening = [
        line
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    inodes = {line.split()[9] for line in listening}
    for one in found:
        sockets = {link[8:-1] for link in one["links"] if link.startswith("socket:")}
        assert not sockets & inodes
    unix = Path("/proc/self/net/unix").read_text()
    assert "unjam" not in unix, "sockets are pairs without a name"
    assert {name for name in os.listdir("/dev/shm") if "unjam" in name} == before


def test_the_fork_server_ends_with_its_parent():
    code = (
        "import unjam, os, signal\n"
        "class Data:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, i): return os.getppid()\n"
        "print(list(unjam.DataLoader(Data(), batch_size=None, num_workers=1))[0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = python(["-c", code])
    server = int(done.stdout)
    wait_until(lambda: not _lives(server))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_reports_contain_no_environment(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM.replace("import helper\n", "").replace("helper.square(i)", "i"))
    page, out = tmp_path / "page.html", tmp_path / "out.json"
    environment = {**os.environ, "UNTOLD_VARIABLE": "value-of-a-variable"}
    command("check", "--budget", "6", "--html", page, "--json", out, tmp_path / "program.py", env=environment)
    for path in (page, out):
        assert "value-of-a-variable" not in path.read_text()


def test_another_user_can_open_nothing(as_nobody, tmp_path):
    shared = unjam.SharedList(range(1000))
    lock = unjam.interprocess_lock()
    array = unjam.SharedArray(torch.arange(10))
    code = (
        "import os, sys\n"
        "pid, lock = sys.argv[1:]\n"
        "for attempt in (lambda: os.listdir(f'/proc/{pid}/fd'), lambda: open(lock, 'rb'), lambda: open(lock, 'r+b'), lambda: open(f'/proc/{pid}/mem', 'rb')):\n"
        "    try:\n"
        "        attempt()\n"
        "    except OSError:\n"
        "        print('refused', flush=True)\n"
        "    else:\n"
        "        print('allowed', flush=True)\n"
    )
    process = as_nobody(code, str(os.getpid()), lock.path)
    assert [process.stdout.readline() for _ in range(4)] == ["refused\n"] * 4
    assert len(shared) == 1000
    assert array.shape == (10,)


# -- ending a worker -----------------------------------------------------------------------------------------------------------


def test_rescue_ends_only_the_process_it_was_shown(monkeypatch):
    from types import SimpleNamespace

    from unjam.doctor.why.rescue import StuckWorker

    child = subprocess.Popen(["sleep", "100"])
    target = StuckWorker(SimpleNamespace(name="worker 1"), os.pidfd_open(child.pid))
    child.kill()
    child.wait()
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a number may belong to somebody else by now"))
    assert target.end() is False
