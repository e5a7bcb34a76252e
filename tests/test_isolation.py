"""A program under examination cannot change the user's files, whoever runs it and whatever the kernel allows."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import pytest

import confine
from support import can_isolate, python, start_python, wait_until
from unjam.system.isolation import landlock

NOBODY = 65534
ISOLATED = Path(__file__).with_name("run_isolated.py")


@pytest.fixture
def work():
    """A folder that any user can reach, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def facts(folder: Path) -> dict:
    """Every entry of a folder: kind, content, inode, links, mode and times, but not when it was last read."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        target = os.readlink(path) if path.is_symlink() else ""
        found[str(path.relative_to(folder))] = (
            content, target, status.st_ino, status.st_nlink, oct(status.st_mode), status.st_mtime_ns, status.st_ctime_ns,
        )  # fmt: skip
    return found


WAYS = {
    "view-root": ("view", {}),
    "view-user": ("view", {"user": NOBODY}),
    "refused-root": ("refused", {"mounts": False}),
    "refused-user": ("refused", {"user": NOBODY, "mounts": False}),
    "redirected-user": ("redirected", {"user": NOBODY, "mounts": False, "landlock": False}),
}


def skip_unless_possible(way: str, options: dict) -> None:
    if options.get("user") and (reason := confine.can_become(options["user"])):
        pytest.skip(reason)
    if way == "view" and not can_isolate():
        pytest.skip("needs the right to mount: root, or a user namespace")
    if way == "refused" and not landlock.version():
        pytest.skip("this kernel has no Landlock")


def give(folder: Path) -> None:
    """Let a folder and all in it belong to the other user."""
    for path in (folder, *folder.rglob("*")):
        if path.lstat().st_uid != NOBODY:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def isolated(code: str, work: Path, way: str = "view", **options) -> dict:
    """Run code as a program; what is said about its files."""
    base = work / "base"
    base.mkdir(exist_ok=True)
    if options.get("user"):
        give(work)
    folder = work / "data" if (work / "data").is_dir() else work
    words = confine.command([sys.executable, ISOLATED, way, base, textwrap.dedent(code)], **options)
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def make_data(folder: Path) -> None:
    (folder / "old").mkdir(parents=True)
    for name in (
        "old/best.pt",
        "delete",
        "overwrite",
        "truncate",
        "append",
        "rename",
        "replace",
        "link",
        "map",
        "touch",
    ):
        (folder / name).write_bytes(f"the original {name}".encode() * 20)
    (folder / "pointer").symlink_to("append")
    (folder / "shared").hardlink_to(folder / "touch")
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)


# each line changes files that exist, in one of the ways that programs use, and sees its own change
DESTROYS = """
import io, mmap, os, pathlib, shutil, sqlite3
import numpy as np

shutil.rmtree("old")
assert not os.path.exists("old/best.pt")
os.remove("delete")
open("overwrite", "w").write("new")
assert open("overwrite").read() == "new"
os.truncate("truncate", 3)
assert pathlib.Path("truncate").stat().st_size == 3
with open("append", "ab") as file:
    file.write(b"more")
with open("pointer", "ab") as file:
    file.write(b"through a link")
assert pathlib.Path("append").read_bytes().endswith(b"morethrough a link")
os.rename("rename", "renamed")
os.replace("renamed", "replace")
assert not os.path.exists("rename") and pathlib.Path("replace").read_text().startswith("the original rename")
os.link("link", "hard")
with open("hard", "r+b") as file:
    file.write(b"HARD")
data = np.memmap("map", dtype="u1", mode="r+")
data[:] = 7
data.flush()
with open("map", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    mapped[:4] = b"MMAP"
assert pathlib.Path("map").read_bytes()[:5] == b"MMAP\\7"
os.utime("touch", (1, 1))
os.chmod("touch", 0o600)
fd = os.open("shared", os.O_RDWR)
os.pwrite(fd, b"SHARED", 0)
os.close(fd)
if files.isolation != "view":  # which knows nothing of libraries
    import torch
    torch.save({"step": 3}, "old.pt")
    assert torch.load("old.pt")["step"] == 3
pathlib.Path("new/deep").mkdir(parents=True)
np.save("new/deep/array.npy", np.arange(3))
shutil.copy2("append", "new/append")
shutil.move("new/append", "moved")
base = sqlite3.connect("base.sqlite")
base.execute("create table t (x)")
base.commit()
base.close()
assert sorted(os.listdir())[:3] == ["append", "base.sqlite", "hard"], os.listdir()
with open(SHM, "w") as file:
    file.write("changed")
os.remove(SHM)
assert not os.path.exists(SHM)
"""


@pytest.mark.parametrize("name", WAYS)
def test_no_original_file_changes(work, name):
    way, options = WAYS[name]
    skip_unless_possible(way, options)
    data = work / "data"
    make_data(data)
    before = {}
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="unjam-test-") as shm:
        shm.write(b"in shared memory")
        shm.flush()
        if options.get("user"):
            os.chown(shm.name, NOBODY, NOBODY)
            give(data)
        before = facts(data)
        said = isolated(f"SHM = {shm.name!r}\n" + DESTROYS, work, way, **options)
        assert facts(data) == before
        assert Path(shm.name).read_bytes() == b"in shared memory"
    assert said["refused"] == []
    assert ("native library can still change" in said["said"]) == (way == "redirected")
    assert bool(said["said"]) == (way != "view")


def test_refused_native_writes_are_named(work):
    skip_unless_possible("refused", {})
    make_data(work / "data")
    before = facts(work / "data")
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="unjam-test-") as shm:
        code = f"""
            import ctypes, os, subprocess
            from unjam.system.isolation.redirected_calls import original
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.creat(b"overwrite", 0o600) < 0
            assert libc.unlink(b"delete") < 0
            assert libc.truncate(b"truncate", 0) < 0
            assert libc.rename(b"rename", b"append") < 0
            assert libc.chmod(b"touch", 0) < 0
            assert libc.utimes(b"map", None) < 0
            for name, change in {{
                "replace": lambda fd: libc.fchmod(fd, 0), "link": lambda fd: libc.fchown(fd, 1, 1),
                "append": lambda fd: libc.fsetxattr(fd, b"user.x", b"x", 1, 0), "old": lambda fd: libc.fchmod(fd, 0),
                "shared": lambda fd: libc.ioctl(fd, 0x40086602, ctypes.byref(ctypes.c_long(64))),
            }}.items():
                assert change(original["open"](name, os.O_RDONLY)) < 0, name
            read, write = os.pipe()
            assert libc.fchmod(read, 0o600) == 0
            assert libc.unlink({shm.name!r}.encode()) < 0
            assert libc.open({shm.name!r}.encode(), os.O_RDWR) < 0
            assert subprocess.run(["rm", "-rf", "old"], stderr=subprocess.DEVNULL).returncode
            assert libc.creat(b"/dev/shm/unjam-test-made", 0o600) >= 0 and not libc.unlink(b"/dev/shm/unjam-test-made")
            """
        said = isolated(code, work, "refused", mounts=False)
        assert os.path.exists(shm.name)
    assert facts(work / "data") == before
    data = os.path.realpath(work / "data")
    expected = {
        f"{data}/{name}"
        for name in (
            "overwrite",
            "delete",
            "truncate",
            "rename",
            "touch",
            "map",
            "replace",
            "link",
            "append",
            "old",
            "shared",
        )
    }
    assert expected | {shm.name} <= set(said["refused"])
    assert f"{data}/overwrite" in said["said"]


def test_writes_that_cannot_be_redirected_are_refused(work):
    skip_unless_possible("redirected", {})
    make_data(work / "data")
    before = facts(work / "data")
    code = """
        import io, os
        from unjam.system.isolation.redirected_calls import original
        for write in (
            lambda: io.FileIO("overwrite", "w"), lambda: io.FileIO("made", "w"), lambda: original["remove"]("delete"),
            lambda: original["rename"]("rename", "append"), lambda: original["mkdir"]("folder"),
            lambda: original["truncate"]("truncate", 0), lambda: original["symlink"]("a", "b"),
        ):
            try:
                write()
            except PermissionError as error:
                assert "unjam" in str(error)
            else:
                raise AssertionError
        io.FileIO("append").close()
        io.FileIO("/dev/null", "w").close()
        """
    isolated(code, work, "redirected", mounts=False, landlock=False)
    assert facts(work / "data") == before


# -- views ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("isolation")
def test_a_nested_view_starts_from_the_snapshot(work):
    (work / "old").write_text("before")
    code = """
        import os, pathlib
        work = pathlib.Path.cwd()
        (work / "old").unlink()
        (work / "new").write_text("first")
        pathlib.Path(files.shared, "kept").write_text("x")
        copy = files.snapshot("then")
        (work / "new").write_text("second")
        (work / "old").write_text("again")
        again = files.snapshot("later")
        for number, (below, expected) in enumerate([(copy, "first"), (again, "second")]):
            pid = os.fork()
            if pid == 0:
                try:
                    files.enter(f"trial-{number}", below)
                    assert (work / "new").read_text() == expected
                    assert (work / "old").exists() == (expected == "second")
                    (work / "new").write_text("by the trial")
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
        assert (work / "new").read_text() == "second"
        """
    isolated(code, work)
    assert (work / "old").read_text() == "before"
    assert not (work / "new").exists()
    assert (work / "base" / "shared" / "kept").exists()


@pytest.mark.usefixtures("isolation")
def test_servers_outside_the_view_can_be_reached(work):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(work / "server"))
        server.listen(1)
        (work / "server").chmod(0o777)
        code = """
            import pathlib, socket
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(pathlib.Path.cwd() / "server"))
            """
        isolated(code, work)


@pytest.mark.usefixtures("isolation")
def test_shared_memory_segments_are_private_to_the_view(work):
    code = """
        import os
        from multiprocessing import shared_memory
        made = shared_memory.SharedMemory("unjam-test-segment", create=True, size=100)
        made.buf[0] = 7
        pid = os.fork()
        if pid == 0:
            try:
                files.enter("trial", files.snapshot("then"))
                again = shared_memory.SharedMemory("unjam-test-segment")
                assert again.buf[0] == 7
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        """
    isolated(code, work)
    assert not os.path.exists("/dev/shm/unjam-test-segment")


@pytest.mark.usefixtures("isolation")
def test_the_size_of_the_layers_is_limited(work):
    code = """
        import errno
        from unjam.system.isolation import view
        view._room = lambda: 1 << 20
        import os
        pid = os.fork()
        if pid == 0:
            try:
                files.enter("trial")
                try:
                    with open("large", "wb") as file:
                        file.write(bytes(8 << 20))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        """
    isolated(code, work)


@pytest.mark.parametrize("name", ["view-root", "view-user"])
def test_original_folders_can_be_renamed(work, name):
    """And so is a file from one place to another that is on the same file system outside."""
    way, options = WAYS[name]
    skip_unless_possible(way, options)
    make_data(work / "data")
    (work / "data" / "full").mkdir()
    (work / "data" / "full" / "file").touch()
    is_same = os.stat("/tmp").st_dev == work.stat().st_dev
    code = f"""
        import os, subprocess, sys
        os.rename("old", "older")
        assert os.listdir("older") == ["best.pt"] and not os.path.exists("old")
        again = "import os; os.rename('older', 'oldest'); assert os.listdir('oldest') == ['best.pt']"
        again = "from unjam.system.isolation import redirect; redirect.begin(); " + again
        subprocess.run([sys.executable, "-c", again], check=True)
        for target, expected in (("full", "Directory not empty"), ("/dev/shm/oldest", "Invalid cross-device link")):
            try:
                os.rename("oldest", target)
            except OSError as error:
                assert error.strerror == expected, error
            else:
                raise AssertionError(target)
        assert os.listdir("oldest") == ["best.pt"] and os.listdir("full") == ["file"]
        try:
            os.replace("link", "/tmp/unjam-test-link")
        except OSError as error:
            assert not {is_same}
        else:
            assert {is_same} and not os.path.exists("link")
            assert open("/tmp/unjam-test-link").read().startswith("the original link")
        """
    if options.get("user"):
        give(work)
    before = facts(work / "data")
    isolated(code, work, way, **options)
    assert facts(work / "data") == before


ODD = [
    b"with space",
    b"colon:comma,",
    b"back\\slash",
    "größe-データ".encode(),
    b"not-utf8-\xff",
    b"tab\tnewline\n",
    b"a\\040b",
]


@pytest.fixture
def vanishing_folders():
    """Beside the test's own folder, others appear and vanish all the time, as those of other programs do."""
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            made = [tempfile.mkdtemp(dir="/var/tmp", prefix="unjam-test-") for _ in range(40)]
            for one in made:
                shutil.rmtree(one)

    thread = threading.Thread(target=churn)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system for the test needs root")
@pytest.mark.usefixtures("isolation", "vanishing_folders")
@pytest.mark.parametrize("user", [0, NOBODY])
def test_every_mount_is_covered(work, user):
    """Odd names, a file that is mounted by itself, and file systems below /run."""
    if user and (reason := confine.can_become(user)):
        pytest.skip(reason)
    (work / "source").mkdir()
    (work / "source" / "config.yaml").write_text("original")
    (work / "single").write_text("covered by the mount")
    mounts = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x20000) == 0 and libc.mount(None, b"/", None, 1 << 18 | 1 << 14, None) == 0
work = {os.fsencode(work)!r}
os.makedirs("/run/unjam-test", exist_ok=True)
places = [os.path.join(work, b"mounts", name) for name in {ODD!r}] + [b"/run/unjam-test"]
for place in places:
    os.makedirs(place, exist_ok=True)
    assert libc.mount(b"tmpfs", place, b"tmpfs", 0, b"mode=0777") == 0
    with open(place + b"/file", "wb") as file:
        file.write(b"original")
    os.chown(place + b"/file", {user}, {user})
    os.chown(place, {user}, {user})
assert libc.mount(work + b"/source/config.yaml", work + b"/single", None, 1 << 12, None) == 0
os.chown(work + b"/single", {user}, {user})
pid = os.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
assert os.waitpid(pid, 0)[1] == 0
for place in places:
    assert open(place + b"/file", "rb").read() == b"original", place
    assert os.listdir(place) == [b"file"], place
assert open(work + b"/single").read() == "original"
os.rmdir("/run/unjam-test") if not os.path.ismount("/run/unjam-test") else None
"""
    code = f"""
import os
work = {os.fsencode(work)!r}
for place in [os.path.join(work, b"mounts", name) for name in {ODD!r}] + [b"/run/unjam-test"]:
    with open(place + b"/file", "ab") as file:
        file.write(b"changed")
    with open(place + b"/made", "wb") as file:
        file.write(b"made")
    assert open(place + b"/file", "rb").read() == b"originalchanged"
with open(work + b"/single", "a") as file:
    file.write("changed")
assert open(work + b"/single").read() == "originalchanged"
"""
    (work / "base").mkdir()
    if user:
        for path in (work, work / "base", work / "source", work / "single"):
            os.chown(path, user, user)
    words = confine.command([sys.executable, ISOLATED, "view", work / "base", code], user=user)
    done = subprocess.run([sys.executable, "-c", mounts, *words], cwd=work, capture_output=True, text=True, timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (work / "source" / "config.yaml").read_text() == "original"
    with open("/proc/self/mountinfo") as file:
        assert "unjam-test" not in file.read()
    shutil.rmtree("/run/unjam-test", ignore_errors=True)


@pytest.mark.usefixtures("isolation")
def test_processes_are_found_by_their_view(work):
    """Also one in a session of its own; and no other, although the number of a namespace is used again."""
    from unjam.doctor.check.processes import program_processes, view_processes

    base = work / "base"
    base.mkdir()
    code = "import os, time; os.setsid(); print('ready', flush=True); time.sleep(100)"
    with start_python(
        [ISOLATED, "view", base, code], stdout=subprocess.PIPE, text=True, cwd=work, warm=False
    ) as process:
        assert process.stdout.readline() == "ready\n"
        (found,) = view_processes(str(base), "program")
        assert found.pid in [one.pid for one in program_processes(str(base))]
        assert view_processes(str(base), "trial-1") == []
        assert program_processes(str(work / "other")) == []
        os.kill(found.pid, 9)
        process.stdout.read()
    wait_until(lambda: not program_processes(str(base)))


# -- redirected files ----------------------------------------------------------------------------------------------------

NAMES = [
    "a",
    "b",
    "d",
    "d/x",
    "d/y",
    "e",
    "e/f",
    "e/f/z",
    "l",
    "k",
    "d/n",
    "new",
    "e/new",
    "lnk/x",
    "dl",
    "dl/x",
    "q",
    "q/r",
]


def make_tree(top: Path) -> None:
    (top / "d").mkdir(parents=True)
    (top / "e" / "f").mkdir(parents=True)
    for name in ("a", "b", "d/x", "d/y", "e/f/z"):
        (top / name).write_text(f"original {name}")
    for name, target in (("l", "a"), ("dl", "d"), ("k", "nowhere")):
        (top / name).symlink_to(target)


def use_files(seed: int, count: int) -> list:
    """Change files by chance in the current folder, and say what each step gave."""
    draw = random.Random(seed)
    log = []
    for _ in range(count):
        one, other = draw.choice(NAMES), draw.choice(NAMES)
        mode, flags = draw.choice(["w", "a", "r+", "x"]), draw.choice([os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, os.O_WRONLY | os.O_TRUNC])  # fmt: skip
        steps = [
            lambda: Path(one).write_text("pathlib"),
            lambda: _write(open(one, mode), f"{mode}{one}"),
            lambda: _write(os.fdopen(os.open(one, flags, 0o644), "w"), "os"),
            lambda: os.remove(one), lambda: os.rmdir(one), lambda: os.mkdir(one),
            lambda: os.makedirs(f"{one}/deep", exist_ok=True), lambda: os.rename(one, other),
            lambda: os.symlink(os.path.basename(other), one), lambda: os.truncate(one, 1),
            lambda: None if os.path.islink(one) else shutil.rmtree(one), lambda: sorted(os.listdir(one)),
            lambda: open(one).read(), lambda: shutil.move(one, other), lambda: shutil.copy2(one, other),
            lambda: sorted((entry.name, entry.is_dir(), entry.is_symlink()) for entry in os.scandir(one)),
            lambda: os.readlink(one), lambda: os.path.realpath(one)[-3:],
        ]  # fmt: skip
        step = draw.randrange(len(steps))
        try:
            gave = steps[step]()
        except OSError as error:
            gave = [type(error).__name__, error.errno]
        log.append([step, one, other, gave, os.path.exists(one), os.path.isdir(other), os.path.islink(one)])
    for folder, folders, names in os.walk("."):
        for name in sorted(folders + names):
            path = os.path.join(folder, name)
            content = os.readlink(path) if os.path.islink(path) else "" if os.path.isdir(path) else open(path).read()
            log.append([os.path.relpath(path), content])
    return sorted(log[count:]) + log[:count]


def _write(file, text: str) -> None:
    with file:
        file.write(text)


USES = """
import json, os, sys
sys.path[:0] = sys.argv[1:2]
from unjam.system.isolation import redirect
from test_isolation import use_files
top, scratch, first, last = sys.argv[2:]
found = []
for seed in range(int(first), int(last)):
    os.chdir(f"{top}/{seed}")
    if scratch:
        redirect.use(f"{scratch}/{seed}", scratch)
    found.append(use_files(seed, 60))
    os.chdir("/")
print(json.dumps(found))
"""


def test_redirected_files_behave_like_files(tmp_path):
    """The same random steps on real files and on redirected ones give the same results, and no original changes."""
    first = random.randrange(10**6)
    print(f"seeds from {first}")
    seeds = range(first, first + 15)
    for kind in ("real", "redirected"):
        for seed in seeds:
            make_tree(tmp_path / kind / str(seed))
    before = facts(tmp_path / "redirected")
    gave = []
    for kind, scratch in (("real", ""), ("redirected", tmp_path / "scratch")):
        words = [Path(__file__).parent, tmp_path / kind, scratch, seeds.start, seeds.stop]
        gave.append(json.loads(python(["-c", USES, *words], check=True, warm=False).stdout))
    for seed, real, redirected in zip(seeds, *gave, strict=True):
        for expected, found in zip(real, redirected, strict=False):
            assert found == expected, f"seed {seed}"
        assert len(real) == len(redirected), f"seed {seed}"
    assert facts(tmp_path / "redirected") == before


# -- `unjam check` -------------------------------------------------------------------------------------------------------

TRAINS = """
import os, pathlib, shutil, torch
from torch.utils.data import DataLoader, Dataset

here = pathlib.Path(__file__).parent

class Cached(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        (here / f"cache-{index}").write_text("x")
        if index == 17:
            raise ValueError("sample 17 is damaged")
        return torch.ones(3) * index

if __name__ == "__main__":
    shutil.rmtree(here / "old")
    (here / "append").open("a").write("more")
    for batch in DataLoader(Cached(), batch_size=4, num_workers=2):
        pass
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["view-user", "refused-user", "redirected-user"])
def test_check_finds_the_fault_and_changes_no_file(work, name):
    way, options = WAYS[name]
    skip_unless_possible(way, options)
    data = work / "data"
    make_data(data)
    (data / "train.py").write_text(TRAINS)
    give(work)
    before = facts(data)
    report = work / "report.json"
    words = [sys.executable, "-m", "unjam", "check", "--budget", "15", "--json", report, "train.py"]
    environment = {**os.environ, "HOME": str(work)}
    done = subprocess.run(
        confine.command(words, **options), cwd=data, env=environment, capture_output=True, text=True, timeout=180, check=False
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert facts(data) == before
    said = json.loads(report.read_text())
    assert [found["code"] for found in said["findings"] if found["severity"] == "error"] == ["UJ306"], done.stdout
    protection = said["environment"].get("files", "")
    if way == "view":
        assert not protection
    else:
        assert "scratch folder" in protection
    if way == "redirected":
        warned = done.stderr.partition("sample 17")[0]
        assert "native library can still change your files" in warned, "said before the program runs"


NATIVE_CACHE = """
import ctypes, os
from torch.utils.data import DataLoader, Dataset

class Cached(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return int(open(f"cache/{index}").read() or index)

if __name__ == "__main__":
    for index in range(16):
        ctypes.CDLL(None).creat(f"cache/{index}".encode(), 0o600)
    for batch in DataLoader(Cached(), batch_size=4, num_workers=1):
        pass
"""


def test_a_failure_caused_by_a_refused_write_is_not_a_finding(tmp_path):
    skip_unless_possible("refused", {})
    (tmp_path / "train.py").write_text(NATIVE_CACHE)
    (tmp_path / "cache").mkdir()
    words = [sys.executable, "-m", "unjam", "check", "--budget", "6", "train.py"]
    done = subprocess.run(confine.command(words, mounts=False), cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)  # fmt: skip
    assert done.returncode == 2, done.stdout
    assert "the kernel refused writes" in done.stderr
    assert str(tmp_path / "cache") in done.stderr


TEMPORARY = """
import os, tempfile
from torch.utils.data import DataLoader, Dataset

class Parts(Dataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, str(number)) for number in range(16)]
        for number, path in enumerate(self.paths):
            with open(path, "w") as file:
                file.write(str(number))
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return int(open(self.paths[index]).read())

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for batch in DataLoader(Parts(folder), batch_size=4, num_workers=1):
            pass
"""


@pytest.mark.timeout(100)
def test_removed_temporary_files_exist_again_in_a_trial(tmp_path):
    """The program has removed them by then."""
    skip_unless_possible("refused", {})
    (tmp_path / "train.py").write_text(TEMPORARY)
    words = [sys.executable, "-m", "unjam", "check", "--budget", "6", "--json", "out.json", "train.py"]
    done = subprocess.run(confine.command(words, mounts=False), cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    trials = json.loads((tmp_path / "out.json").read_text())["trials"]
    assert trials
    assert all("samples" in one["outcome"] and "failed" not in one["outcome"] for one in trials), trials


REDIRECTED_CASES = {
    "threads that first write different files": """
        import threading
        contents = {}
        def use(number):
            with open(f"f{number}", "a") as file:
                file.write("x")
            contents[number] = set(open(f"f{number}").read())
        threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
        [one.start() for one in threads]
        [one.join() for one in threads]
        assert contents == {number: {str(number), "x"} for number in range(4)}, contents
        """,
    "processes that append to one file": """
        import os
        def use():
            for _ in range(50):
                with open("f0", "a") as file:
                    file.write("Q")
        children = []
        for _ in range(6):
            pid = os.fork()
            if pid == 0:
                use()
                os._exit(0)
            children.append(pid)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 6
        assert open("f0").read().count("Q") == 300
        """,
    "first writes into one folder": """
        import threading
        failed = []
        def use(number):
            try:
                open(f"sub/n{number}", "w").close()
            except OSError as error:
                failed.append(error)
        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        [one.start() for one in threads]
        [one.join() for one in threads]
        assert not failed, failed
        """,
    "a new folder that is entered": """
        import os
        os.mkdir("run")
        os.chdir("run")
        open("log", "w").close()
        assert os.listdir() == ["log"] and os.getcwd().endswith("/run")
        """,
    "a folder moved into the temporary folder and back": """
        import os, shutil, tempfile
        there = tempfile.mkdtemp()
        os.rename("sub", there + "/sub")
        assert os.listdir(there + "/sub") == ["inner"] and not os.path.exists("sub")
        shutil.move(there + "/sub", "back")
        assert os.listdir("back") == ["inner"] and not os.path.exists(there + "/sub")
        """,
    "descriptors": """
        import os, sys, tempfile
        with open("made", "w") as file:
            os.fchmod(file.fileno(), 0o640)
            os.fchown(file.fileno(), -1, -1)
        assert os.stat("made").st_mode & 0o777 == 0o640
        with tempfile.TemporaryFile() as file:
            os.utime(file.fileno(), (1, 1))
            os.truncate(file.fileno(), 5)
        with open("f1") as file:
            os.fchmod(file.fileno(), 0o600)
        read, write = os.pipe()
        with open(f"/dev/fd/{write}", "w") as file:
            file.write("x")
        assert os.read(read, 1) == b"x"
        memory = os.memfd_create("x")
        with open(f"/proc/self/fd/{memory}", "wb") as file:
            file.write(b"x")
        """,
    "a module that was just written": """
        import sys
        open("just_written.py", "w").write("value = 7")
        sys.path.insert(0, ".")
        import just_written
        assert just_written.value == 7
        import os, runpy
        assert runpy.run_path("just_written.py")["value"] == 7
        os.mkdir("package")
        open("package/__init__.py", "w").write("value = 8")
        import importlib
        importlib.invalidate_caches()
        import package
        assert package.value == 8
        """,
    "what modules have kept": """
        import bz2, gzip, lzma, os, tarfile, tempfile, zipfile
        with tempfile.NamedTemporaryFile(dir=".") as file:
            name = file.name
            assert os.path.exists(name)
        assert not os.path.exists(name)
        for module in (bz2, gzip, lzma):
            with module.open("packed", "wb") as file:
                file.write(b"x")
            assert module.open("packed").read() == b"x"
        with tarfile.open("x.tar.bz2", "w:bz2") as archive:
            archive.add("f1")
        with zipfile.ZipFile("x.zip", "w") as archive:
            archive.write("f1")
        """,
    "databases": """
        import sqlite3, sqlite3.dbapi2
        sqlite3.dbapi2.connect("q.db").execute("create table t (x)")
        try:
            sqlite3.connect("nowhere/x.db")
        except sqlite3.OperationalError:
            pass
        else:
            raise AssertionError
        try:
            sqlite3.Connection("c.db").execute("create table t (x)")
        except (PermissionError, sqlite3.OperationalError):
            pass
        sqlite3.Connection(":memory:").execute("create table t (x)")
        """,
    "a child with an environment of its own": """
        import os, subprocess, sys
        for number, given in enumerate([{"PATH": os.environ["PATH"]}, {**os.environ, "PYTHONPATH": "elsewhere"}, None]):
            subprocess.run([sys.executable, "-c", f"open('child{number}', 'w').write('x')"], env=given, check=True)
            assert open(f"child{number}").read() == "x"
        """,
    "a child in a folder that was just made": """
        import os, subprocess, sys
        os.makedirs("runs/1")
        write = [sys.executable, "-c", "open('log', 'w').write('x')"]
        subprocess.run(write, cwd="runs/1", check=True)
        assert open("runs/1/log").read() == "x"
        subprocess.run([sys.executable, "-c", "assert open('f1').read(1) == '1'"], cwd=".", check=True)
        """,
    "a program that takes the place of another": """
        import os, sys
        write = [sys.executable, "-c", "open('spawned', 'a').write('x')"]
        assert os.waitpid(os.posix_spawn(sys.executable, write, {}), 0)[1] == 0
        if os.fork() == 0:
            os.execve(sys.executable, write, {})
        assert os.wait()[1] == 0
        assert open("spawned").read() == "xx"
        """,
    "a folder that becomes writable": """
        import os, shutil
        os.chmod("sub", 0o555)
        for change in (lambda: open("sub/new", "w"), lambda: os.remove("sub/inner")):
            try:
                change()
            except PermissionError:
                pass
            else:
                assert os.geteuid() == 0
        os.chmod("locked", 0o755)
        open("locked/new", "w").close()
        shutil.rmtree("locked")
        """,
    "weights that are mapped": """
        import torch
        torch.save({"w": torch.arange(4)}, "w.pt")
        assert torch.load("w.pt", mmap=True)["w"].tolist() == [0, 1, 2, 3]
        """,
    "links that lead nowhere": """
        import os, posix
        posix.unlink("dangling")
        assert not os.path.lexists("dangling")
        posix.mkfifo("fifo")
        assert os.path.exists("fifo")
        """,
}  # fmt: skip


@pytest.mark.parametrize("case", REDIRECTED_CASES)
def test_a_program_behaves_the_same_with_redirected_files(work, case):
    data = work / "data"
    (data / "sub").mkdir(parents=True)
    (data / "sub" / "inner").touch()
    (data / "locked").mkdir()
    (data / "locked" / "inner").touch()
    (data / "locked").chmod(0o555)
    (data / "dangling").symlink_to("nowhere")
    for number in range(4):
        (data / f"f{number}").write_text(str(number) * 200_000)
    before = facts(data)
    user = {} if os.geteuid() or confine.can_become(NOBODY) else {"user": NOBODY}
    if user:
        give(work)
        before = facts(data)
    isolated(REDIRECTED_CASES[case], work, "redirected", mounts=False, landlock=False, **user)
    assert facts(data) == before
