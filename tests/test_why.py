"""`unjam why` on programs that it did not start: stuck ones, slow ones, healthy ones; with and without the right to read memory.

Twelve of them; `make frozen` takes all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess

import psutil
import pytest

from run_frozen import TRUTH, WITHOUT_PTRACE, look, look_until_found, settle, start, stop
from support import python, start_python, wait_until
from unjam.system import native_stacks

STUCK = [
    "vision_lock_refresher", "mplock_holder_killed", "omp_torch_then_fork", "socket_silent_server", "worker_sigstopped",
    "lost_batch_lambda", "infinite_loop_python",
]  # fmt: skip
WELL = ["slow_sleep_samples", "step_sleeps_5s", "lock_used_properly"]
# what /proc alone can tell, and what it must not
BLIND_STUCK = ["vision_lock_refresher"]
BLIND_WELL = ["notebook_idle"]
may_refuse = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="taking a capability away needs root and setpriv"
)


@pytest.fixture
def program(request):
    """A program of tests/frozen that is stuck, or well at work."""
    process = start(f"{request.param}.py")
    try:
        settle(process)
        yield request.param, process
    finally:
        stop(process)


def each(names):
    return pytest.mark.parametrize("program", names, indirect=True)


@each(STUCK)
def test_a_stuck_program_is_explained(program):
    name, process = program
    one = look_until_found(f"{name}.py", process.pid)
    assert one.right, (TRUTH[f"{name}.py"], one.serious, one.said)
    assert one.code == 1
    assert all(finding["help"] and finding["evidence"] for finding in one.serious)


@pytest.mark.static
@pytest.mark.parametrize(
    ("on_stack", "waits"),
    [
        (["libc.so.6", "torch/lib/libgomp.so.1", "torch/lib/libtorch_cpu.so", "libpython3.11.so"], True),
        (["libc.so.6", "libsqlite3.so.0", "lib-dynload/_sqlite3.cpython-311.so", "libpython3.11.so"], True),
        (["libc.so.6", "libpython3.11.so", "torch/lib/libtorch_cpu.so"], False),
        (["libc.so.6", "lib-dynload/_multiprocessing.cpython-311.so", "libpython3.11.so"], False),
        (["libc.so.6", "libcrypto.so.3", "lib-dynload/_multiprocessing.cpython-311.so", "libpython3.11.so"], False),
    ],
    ids=["library", "library of the standard library", "interpreter", "semaphore", "semaphore over remains of a call"],
)
def test_waits_in_the_c_library_are_not_blamed_on_libraries(monkeypatch, on_stack, waits):
    """A stack holds remains of earlier calls: a wait for a semaphore must not be called one of a library."""
    monkeypatch.setattr(native_stacks, "_on_stack", lambda pid, tid: [f"/usr/{path}" for path in on_stack])
    assert native_stacks.waits_in_library(1) is waits


@each(WELL)
def test_a_healthy_program_has_no_findings(program):
    name, process = program
    one = look(f"{name}.py", process.pid)
    assert one.right, (one.serious, one.said)
    assert process.poll() is None, "it ended while it was looked at"


@may_refuse
@each(BLIND_STUCK)
def test_a_stuck_program_is_explained_without_ptrace(program):
    name, process = program
    # without stacks only time tells that nothing moves
    one = look_until_found(f"{name}.py", process.pid, WITHOUT_PTRACE)
    assert one.serious[0]["code"].startswith("UJ2")
    suspended = one.serious[0]["code"] == "UJ210"
    assert one.serious[0]["confidence"] == ("seen" if suspended else "possible")
    assert "SYS_PTRACE" in one.environment["remedy"]


@may_refuse
@each(BLIND_WELL)
def test_a_healthy_program_has_no_findings_without_ptrace(program):
    name, process = program
    assert look(f"{name}.py", process.pid, WITHOUT_PTRACE).serious == []


# -- one program for the rest ------------------------------------------------------------------------------------------

OURS = """
import os, sys, time
from torch.utils.data import Dataset
from unjam import DataLoader
class Once(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        if i == 13 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            time.sleep(10_000)
        return i
if __name__ == "__main__":
    for batch in DataLoader(Once(), batch_size=4, num_workers=2, warn_after=None):
        print(*batch.tolist(), flush=True)
"""


def why(*arguments):
    return python(["-m", "unjam", "why", *map(str, arguments)])


@pytest.fixture
def ours(tmp_path):
    program = tmp_path / "ours.py"
    program.write_text(OURS)
    flag = tmp_path / "flag"
    process = start_python(
        [str(program), str(flag)], warm=False, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(flag.exists)
    settle(process)
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()


def test_a_stuck_unjam_worker_is_named_and_rescued(ours, tmp_path):
    dump, page = tmp_path / "dump.json", tmp_path / "why.html"
    done = why(ours.pid, "--dump", dump, "--html", page)
    assert done.returncode == 1, done.stderr
    assert "worker 1 in sample 13" in done.stdout
    assert "ours.py:11" in done.stdout
    kept = json.loads(dump.read_text())
    worker = next(one for one in kept["processes"] if one["activity"]["index"] == "13")
    assert worker["activity"]["loader"] == "unjam"
    assert worker["threads"][0]["frames"][0]["line"] == 11
    text = page.read_text()
    assert "worker 1" in text
    assert "<img" not in text
    # any process of the program leads to the same answer
    again = why(worker["pid"], "--json", "-")
    assert json.loads(again.stdout)["findings"][0]["code"] == "UJ205"
    assert ours.poll() is None
    assert "was killed" in why(ours.pid, "--rescue", "--yes").stderr
    out, _ = ours.communicate(timeout=30)
    assert out.split() == [str(n) for n in range(24)], "every sample once, in order"
    assert ours.returncode == 0


def test_unjam_workers_report_their_sample_without_py_spy(ours):
    # without stacks: what /proc tells of the wait, and the heartbeat of the sample
    code = "import sys; from unjam.system import python_stacks; python_stacks.py_spy = lambda: None; from unjam.cli import app; app(sys.argv[1:])"
    done = python(["-c", code, "why", str(ours.pid)])
    assert "pip install py-spy" in done.stdout, done.stderr
    assert "worker 1 in sample at position 1 of batch 3" in done.stdout, done.stdout
    assert "waits for a sleep to end" in done.stdout


def test_only_unjam_workers_are_rescued():
    process = start("sleep_a_day.py")
    try:
        settle(process)
        done = why(process.pid, "--rescue", "--yes")
        assert done.returncode == 2
        assert "does not recover" in done.stderr
        assert process.poll() is None
        # and without a number it is found, or listed among others
        done = why("--json", "-")
        assert str(process.pid) in done.stdout + done.stderr
    finally:
        stop(process)


def test_missing_processes_exit_with_2():
    assert "there is no process" in why(2**22 - 1).stderr
    assert why(2**22 - 1).returncode == 2
    child = subprocess.Popen(["true"])
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    try:
        assert "has ended" in why(child.pid).stderr
    finally:
        child.wait()
    assert why("--seconds", "x").returncode == 2


def test_a_process_without_training_has_no_findings():
    child = subprocess.Popen(["sleep", "60"])
    try:
        done = why(child.pid)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    finally:
        child.kill()
        child.wait()


def test_timeouts_of_waits_are_read():
    from unjam.system import waiting

    child = start_python(["-c", "import time; time.sleep(500)"])
    try:
        found = wait_until(lambda: (one := waiting.current_wait(child.pid)).kind == "sleep" and one)
        assert found.kind == "sleep"
        assert 400 < found.limit <= 500
    finally:
        child.kill()
        child.wait()
