"""After `unjam check` and `unjam tune`, however they end, no process, segment, semaphore or folder of the program is left."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import confine
from support import can_isolate, wait_until
from unjam.system.isolation import landlock

# uses everything that outlives a process: a session of its own, a detached child, segments, semaphores, folders
PROGRAM = """
import ctypes, multiprocessing as mp, os, subprocess, sys, tempfile
from multiprocessing import shared_memory
from torch.utils.data import DataLoader, Dataset

class Shared(Dataset):
    def __init__(self, name, lock):
        self.name, self.lock = name, lock
    def __len__(self):
        return 16
    def __getitem__(self, index):
        ctypes.CDLL(None).prctl(15, b"loads-samples", 0, 0, 0)
        segment = shared_memory.SharedMemory(self.name)
        with self.lock:
            return int(segment.buf[index])

if __name__ == "__main__":
    print("began", flush=True)
    subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(300)"])
    segment = shared_memory.SharedMemory(create=True, size=16)
    locks = [mp.get_context("spawn").Lock() for _ in range(4)]
    folder = tempfile.mkdtemp()
    manager = mp.Manager()
    data = Shared(segment.name, locks[0])
    loader = DataLoader(data, batch_size=4, num_workers=1)
    for epoch in range(EPOCHS):
        for batch in loader:
            pass
    manager.shutdown()
    segment.close()
    segment.unlink()
"""
ENDS = {"by itself": 0, "Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP, "SIGKILL": signal.SIGKILL}  # fmt: skip


def ours(mark: str) -> list[str]:
    """The living processes that were started with this variable."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            if mark.encode() in environment and state != "Z":
                found.append(Path(f"/proc/{name}/comm").read_text().strip())
        except OSError:
            continue
    return found


def with_folders_of_its_own(command: list[str], folders: dict[str, Path]) -> list[str]:
    """The command, with each of these folders in place of the machine's, so that no other program's entries are seen there."""
    for folder in folders.values():
        folder.mkdir(mode=0o1777)
        folder.chmod(0o1777)  # as the machine's: mkdir applies the umask
    binds = " && ".join(f"mount --bind {shlex.quote(str(folder))} {place}" for place, folder in folders.items())
    return ["unshare", "--mount", "sh", "-c", f'{binds} && exec "$@"', "sh", *command]


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("words", "way", "end"),
    [
        (("check", "--budget", "4"), "view", "by itself"),
        (("check", "--budget", "4"), "view", "Ctrl-C"),
        (("check", "--budget", "4"), "view", "SIGHUP"),
        (("check", "--budget", "4"), "view", "SIGKILL"),
        (("check", "--budget", "4"), "refused", "SIGKILL"),
        (("check", "--budget", "4", "--no-watch"), "view", "SIGTERM"),
        (("tune", "--budget", "4"), "view", "SIGKILL"),
    ],
)  # fmt: skip
def test_nothing_is_left_behind(tmp_path, words, way, end):
    if way == "view" and not can_isolate():
        pytest.skip("needs the right to mount: root, or a user namespace")
    if way == "refused" and not landlock.version():
        pytest.skip("this kernel has no Landlock")
    number = ENDS[end]
    (tmp_path / "train.py").write_text(PROGRAM.replace("EPOCHS", "1" if not number else "100"))
    mark = f"UNJAM_TEST_MARK={tmp_path}"
    command = [sys.executable, "-m", "unjam", *words, "train.py"]
    if way == "refused":
        command = confine.command(command, mounts=False)
    environment = dict([*os.environ.items(), mark.split("=", 1)])
    # an ordinary user cannot mount them: then only the processes are looked at
    folders = {"/dev/shm": tmp_path / "shm", "/var/tmp": tmp_path / "tmp"} if os.geteuid() == 0 else {}
    if folders:
        command = with_folders_of_its_own(command, folders)
        environment["TMPDIR"] = "/var/tmp"
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:  # fmt: skip
        if number:
            wait_until(lambda: "loads-samples" in ours(mark), 60)
            os.kill(process.pid, number)
        out = process.communicate(timeout=100)[0]
    assert process.returncode in (0, 1, 2, -number), out
    wait_until(lambda: not ours(mark), 20)
    for folder in folders.values():
        wait_until(lambda folder=folder: not os.listdir(folder), 20)
