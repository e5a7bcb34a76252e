"""However a loader ends, its workers are gone at once, whatever they are doing: samples here take an hour."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import textwrap
import threading
import time

import psutil
import pytest
import torch

import unjam
from support import Counting, Squares, script, start_python, wait_until

HOUR = 3600


class Sleepy(torch.utils.data.Dataset):
    """The first sample is quick; the rest take for ever."""

    def __init__(self, seconds=HOUR):
        self.seconds = seconds

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index >= 4:
            time.sleep(self.seconds)
        return index


class Stubborn(Sleepy):
    """Catches what it can."""

    def __getitem__(self, index):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if index >= 4:
            while True:
                try:
                    time.sleep(HOUR)
                except BaseException:
                    pass
        return index


def alive(pids):
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


def pids_of(iterator):
    return [process.pid for process in iterator._workers]


METHODS = [None, "fork"]


@pytest.mark.parametrize("method", METHODS)
def test_workers_stop_when_the_iterator_is_exhausted(method):
    iterator = iter(unjam.DataLoader(Squares(9), num_workers=3, multiprocessing_context=method))
    pids = pids_of(iterator)
    assert len(list(iterator)) == 9
    assert not alive(pids)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", [Squares, Sleepy, Stubborn])
def test_workers_stop_when_the_iterator_is_dropped(dataset, method):
    iterator = iter(unjam.DataLoader(dataset(), num_workers=2, batch_size=2, multiprocessing_context=method))
    next(iterator)
    pids = pids_of(iterator)
    assert alive(pids) == pids
    del iterator
    assert not alive(pids)


def test_workers_stop_when_a_reference_cycle_is_collected():
    loop = [iter(unjam.DataLoader(Squares(), num_workers=1))]
    loop.append(loop)
    pids = pids_of(loop[0])
    del loop
    gc.collect()
    assert not alive(pids)


def test_workers_stop_after_break():
    for batch in unjam.DataLoader(Squares(), num_workers=2):
        break
    del batch


def test_workers_stop_after_an_exception_in_the_loop():
    loader = unjam.DataLoader(Squares(), num_workers=2)
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0
    assert len(list(loader)) == 40


def test_persistent_workers_live_as_long_as_their_loader():
    loader = unjam.DataLoader(Squares(), num_workers=2, persistent_workers=True)
    list(loader)
    pids = pids_of(loader._iterator)
    assert alive(pids) == pids
    list(loader)
    assert pids_of(loader._iterator) == pids
    del loader
    assert not alive(pids)


def test_shutdown_can_be_repeated():
    iterator = iter(unjam.DataLoader(Squares(), num_workers=2))
    iterator._shutdown_workers()
    iterator._shutdown_workers()
    with pytest.raises(StopIteration):
        next(iterator)
    iterator = iter(unjam.DataLoader(Counting(5), num_workers=2))
    list(iterator)
    iterator._shutdown_workers()


def test_workers_stop_when_another_thread_drops_the_iterator():
    holder = [iter(unjam.DataLoader(Squares(), num_workers=2))]
    pids = pids_of(holder[0])
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join(10)
    assert not alive(pids)


def test_workers_outlive_the_thread_that_started_them():
    """The workers' lives are tied to the process, not to the thread that started them."""
    box = {}

    def work():
        box["iterator"] = iter(unjam.DataLoader(Squares(), num_workers=2, multiprocessing_context=method))
        box["first"] = next(box["iterator"])

    for method in METHODS:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(30)
        assert len(list(box["iterator"])) == 39
        box.clear()


PROGRAM = """
    import os, signal, sys, time, torch, unjam

    # a shell that runs the tests in the background has Ctrl-C ignored, and children inherit that
    def interrupted(number, frame):
        open("interrupted", "w").close()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)

    class Slow(torch.utils.data.Dataset):
        def __len__(self): return 1000
        def __getitem__(self, i):
            if i >= 4:
                open("busy", "w").close()
                {busy}
            return torch.zeros(3)

    def main():
        loader = unjam.DataLoader(Slow(), batch_size=2, num_workers=2, {options})
        iterator = iter(loader)
        next(iterator)
        from unjam.loader.pool import fork_server
        print(*[w.pid for w in iterator._workers], fork_server.server_pid() or "", flush=True)
        {then}

    main()
"""
BUSY = {
    "sleeping": "time.sleep(3600)",
    "in C with the interpreter locked": "import ctypes; ctypes.PyDLL(None).sleep(3600)",
    "spinning": "while True: pass",
}


def run_and_watch(tmp_path, *, busy, then, options="", kill=None, group=False, twice=False):
    """Start a program, wait for its workers, end it some way, and see its processes gone; its exit code and errors."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM).format(busy=BUSY[busy], then=then, options=options))
    program = start_python(
        [str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=group, cwd=tmp_path
    )
    try:
        line = program.stdout.readline()
        pids = [int(word) for word in line.split()]
        assert len(pids) >= 2, program.stderr.read()
        if kill is not None:
            wait_until((tmp_path / "busy").exists)
            (os.killpg if group else os.kill)(program.pid, kill)
        if twice:
            wait_until((tmp_path / "interrupted").exists)
            os.killpg(program.pid, kill)
        _, err = program.communicate(timeout=60)
        wait_until(lambda: not alive(pids), 30)
        return program.returncode, err
    finally:
        program.kill()
        program.wait(10)
        program.stdout.close()
        program.stderr.close()


@pytest.mark.parametrize("busy", BUSY)
@pytest.mark.parametrize("options", ["", "multiprocessing_context='fork'"])
def test_workers_stop_when_the_parent_is_killed(tmp_path, busy, options):
    code, _ = run_and_watch(tmp_path, busy=busy, then="time.sleep(3600)", options=options, kill=signal.SIGKILL)
    assert code == -signal.SIGKILL


@pytest.mark.parametrize("busy", BUSY)
def test_workers_stop_at_interpreter_exit(tmp_path, busy):
    assert run_and_watch(tmp_path, busy=busy, then="sys.exit(3)") == (3, "")


@pytest.mark.parametrize("options", ["", "persistent_workers=True", "multiprocessing_context='fork'"])
def test_workers_stop_on_ctrl_c(tmp_path, options):
    """As the terminal sends it: to every process of the group."""
    code, err = run_and_watch(
        tmp_path,
        busy="sleeping",
        then="next(iterator); next(iterator)",
        options=options,
        kill=signal.SIGINT,
        group=True,
    )
    assert code == -signal.SIGINT
    assert err.count("Traceback") == 1, err
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_workers_are_killed_on_a_second_ctrl_c(tmp_path):
    """The second one arrives while the workers are being stopped: they are killed, and nobody is left."""
    code, _ = run_and_watch(
        tmp_path, busy="spinning", then="next(iterator); next(iterator)", kill=signal.SIGINT, group=True, twice=True
    )
    assert code != 0


def test_the_fork_server_ends_with_the_process(tmp_path):
    done = script(
        tmp_path,
        """
        import unjam
        from unjam.loader.pool import fork_server
        list(unjam.DataLoader(range(4), num_workers=1))
        print(fork_server.server_pid())
        """,
    )
    assert not alive([int(done.stdout)])
    assert done.stderr == ""


def test_a_forked_child_does_not_stop_the_workers_of_its_parent():
    iterator = iter(unjam.DataLoader(Squares(), num_workers=2))
    next(iterator)
    pid = os.fork()
    if pid == 0:
        try:
            del iterator
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(iterator)) == 39


def test_a_forked_child_can_create_its_own_loader():
    list(unjam.DataLoader(Squares(4), num_workers=1))
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            count = len(list(unjam.DataLoader(Squares(6), num_workers=2)))
            from unjam.loader.pool import fork_server

            fork_server.shut_down()
            os.write(write, str(count).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    assert os.read(read, 10) == b"6"
    os.close(read)
    assert len(list(unjam.DataLoader(Squares(4), num_workers=1))) == 4


# -- a worker or the server dies -----------------------------------------------------------------------------------


class Deadly(torch.utils.data.Dataset):
    def __init__(self, how, marker=None):
        self.how = how
        self.marker = marker

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 11 and (self.marker is None or not os.path.exists(self.marker)):
            if self.marker is not None:
                with open(self.marker, "w"):
                    pass
            if self.how == "exit":
                os._exit(0)
            os.kill(os.getpid(), getattr(signal, self.how))
        return index


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit"])
def test_a_worker_that_dies_once_is_replaced(tmp_path, how, method):
    dataset = Deadly(how, str(tmp_path / "died"))
    loader = unjam.DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=method)
    assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 24, 2)]


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit"])
def test_a_sample_that_kills_twice_is_an_error(how):
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid \d+\) (is killed by signal|exited)"):
        list(unjam.DataLoader(Deadly(how), batch_size=2, num_workers=2))


def test_workers_killed_from_outside_are_replaced():
    import random

    loader = unjam.DataLoader(Squares(400), batch_size=2, num_workers=3)
    got, kills = [], 0
    iterator = iter(loader)
    for _, indices in iterator:
        got += indices.tolist()
        if len(got) % 40 == 0 and kills < 6:
            kills += 1
            os.kill(random.choice(iterator._workers).pid, signal.SIGKILL)
    assert got == list(range(400))


def test_a_killed_fork_server_is_replaced(server):
    from unjam.loader.pool import fork_server

    current = fork_server.shared()
    os.kill(current.pid, signal.SIGKILL)
    assert len(list(unjam.DataLoader(Squares(8), num_workers=2))) == 8, "a new server takes over"


def test_a_fork_server_killed_mid_epoch_loses_nothing():
    from unjam.loader.pool import fork_server

    iterator = iter(unjam.DataLoader(Squares(200), num_workers=2))
    got = [next(iterator)[1].item() for _ in range(5)]
    os.kill(fork_server.shared().pid, signal.SIGKILL)
    got += [indices.item() for _, indices in iterator]
    assert got == list(range(200))


def test_timeout_raises_the_same_error_as_torch():
    iterator = iter(unjam.DataLoader(Sleepy(), batch_size=4, num_workers=1, timeout=4))
    next(iterator)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 4 seconds"):
        next(iterator)


class SlowToBegin(torch.utils.data.IterableDataset):
    def __iter__(self):
        time.sleep(1.5)
        return iter(range(8))


def test_a_stream_that_starts_slowly_is_not_restarted(monkeypatch):
    from unjam.loader.driver import stalls

    monkeypatch.setattr(stalls, "MAX_IDLE", 0.3)
    loader = unjam.DataLoader(SlowToBegin(), batch_size=4, num_workers=1, persistent_workers=True, warn_after=0.4)
    for _ in range(2):
        assert torch.cat(list(loader)).tolist() == list(range(8))
    assert loader.statistics().restarts == 0
    loader._iterator._shutdown_workers()
