"""Handles of each process's own, a lock that dies with its holder, and files that are mapped."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import pickle
import signal
import sqlite3
import sys
import textwrap
import threading
import time
import zipfile

import h5py
import lmdb
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import unjam
from support import python, start_python, wait_until

LOADERS = [
    pytest.param(loader, method, id=f"{name}-{method}")
    for name, loader in (("torch", TorchLoader), ("unjam", unjam.DataLoader))
    for method in ("fork", "forkserver" if name == "torch" else "spawn", None)
    if not (name == "torch" and method is None)
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("handles")
    (path / "plain.bin").write_bytes(b"".join(b"%08d" % number for number in range(400)))
    with h5py.File(path / "x.h5", "w") as file:
        file["rows"] = np.arange(400)
    with lmdb.open(str(path / "lmdb"), map_size=1 << 22) as env, env.begin(write=True) as writing:
        for number in range(400):
            writing.put(b"%d" % number, b"%d" % number)
    with sqlite3.connect(path / "x.db") as db:
        db.execute("create table numbers (n integer)")
        db.executemany("insert into numbers values (?)", [(number,) for number in range(400)])
    db.close()
    with zipfile.ZipFile(path / "x.zip", "w") as archive:
        for number in range(400):
            archive.writestr(f"{number}.txt", str(number))
    return path


class Everything(Dataset):
    """Handles of several libraries, made in __init__, as people do."""

    def __init__(self, folder):
        self.file = unjam.per_worker(open, folder / "plain.bin", "rb")
        self.h5 = unjam.per_worker(h5py.File, folder / "x.h5", "r")
        self.lmdb = unjam.per_worker(lmdb.open, str(folder / "lmdb"), readonly=True, lock=False)
        self.db = unjam.per_worker(sqlite3.connect, folder / "x.db")
        self.zip = unjam.per_worker(zipfile.ZipFile, folder / "x.zip")
        self.folder = folder

    @unjam.per_worker
    def again(self):
        return open(self.folder / "plain.bin", "rb")

    def __len__(self):
        return 400

    def __getitem__(self, index):
        self.file.seek(index * 8)
        with self.lmdb.begin() as reading:
            found = int(reading.get(b"%d" % index))
        self.again.seek(index * 8)
        return torch.tensor(
            [
                int(self.file.read(8)), int(self.h5["rows"][index]), found, int(self.zip.read(f"{index}.txt")), int(self.again.read(8)),
                self.db.execute("select n from numbers where n = ?", (index,)).fetchone()[0],
            ]
        )  # fmt: skip


@pytest.mark.parametrize(("loader", "method"), LOADERS)
def test_every_worker_has_its_own(loader, method, folder):
    dataset = Everything(folder)
    dataset[7]  # opened in this process too
    dataset.lmdb.close()  # which lmdb forbids to a forked child, until its parent has closed it
    found = torch.cat(
        list(loader(dataset, batch_size=20, num_workers=2, shuffle=False, multiprocessing_context=method))
    )
    assert torch.equal(found, torch.arange(400)[:, None].expand(400, 6))
    for handle in (dataset.file, dataset.h5, dataset.db, dataset.zip):
        handle.close()


def test_opened_on_first_use_once():
    opened = []
    handle = unjam.per_worker(lambda: opened.append(1) or io.BytesIO(b"abc"))
    assert not opened
    assert "not opened" in repr(handle)
    assert handle.read(1) == b"a"
    assert handle() is handle()
    assert handle.read() == b"bc"
    assert len(opened) == 1
    handle.close()
    handle.close()
    assert handle.read() == b"abc"
    assert len(opened) == 2


def test_a_failed_open_is_retried(tmp_path):
    handle = unjam.per_worker(open, tmp_path / "later")
    with pytest.raises(FileNotFoundError):
        handle.read()
    (tmp_path / "later").write_text("now")
    assert handle.read() == "now"
    handle.close()


def test_operations_are_forwarded_to_the_handle():
    table = unjam.per_worker(dict, a=1)
    table["b"] = 2
    assert (len(table), list(table), "b" in table, table == {"a": 1, "b": 2}, bool(table)) == (
        2,
        ["a", "b"],
        True,
        True,
        True,
    )
    del table["a"]
    array = unjam.per_worker(np.arange, 6)
    assert (array + 1).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.asarray(array).sum() == 15
    assert array[2:4].tolist() == [2, 3]
    lines = unjam.per_worker(io.StringIO, "a\nb\n")
    assert [line.strip() for line in lines] == ["a", "b"]
    double = unjam.per_worker(lambda: lambda x: 2 * x)
    assert double(4) == 8


def test_with_statements_use_the_handle(tmp_path):
    db = unjam.per_worker(sqlite3.connect, tmp_path / "x.db")
    with db:
        db.execute("create table t (n)")
        db.execute("insert into t values (1)")
    with pytest.raises(ZeroDivisionError), db:
        db.execute("insert into t values (2)")
        raise ZeroDivisionError
    assert db.execute("select count(*) from t").fetchone() == (1,)
    db.close()
    (tmp_path / "text").write_text("abc")
    file = unjam.per_worker(open, tmp_path / "text")
    for _ in range(2):  # closed by the first, opened anew by the second
        with file as opened:
            assert opened.read() == "abc"


@unjam.per_worker
def shard(number):
    return io.BytesIO(b"%d" % number)


def test_a_decorated_function_opens_one_handle_per_arguments():
    assert shard(1) is shard(number=1)
    assert shard(1) is not shard(2)
    assert shard(2).read() == b"2"
    assert pickle.loads(pickle.dumps(shard)) is shard
    assert copy.deepcopy(shard) is shard
    with pytest.raises(TypeError, match="not the handle"):
        unjam.per_worker(io.BytesIO())


def test_a_decorated_method_opens_one_handle_per_object():
    class Reader:
        made = 0

        @unjam.per_worker
        def buffer(self):
            Reader.made += 1
            return io.BytesIO()

    first, second = Reader(), Reader()
    assert first.buffer is first.buffer
    assert first.buffer is not second.buffer
    assert Reader.made == 2
    del first, second
    gc.collect()
    assert not vars(Reader)["buffer"]._others


def test_threads_share_one_open():
    opened = []

    def slowly():
        time.sleep(0.05)
        opened.append(1)
        return io.BytesIO()

    handle = unjam.per_worker(slowly)
    threads = [threading.Thread(target=handle.tell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(opened) == 1


def test_a_child_does_not_touch_what_its_parent_opened(tmp_path):
    log = unjam.per_worker(open, tmp_path / "log", "w")
    log.write("once\n")  # not flushed
    for end in (lambda: None, lambda: os._exit(0), lambda: log.close(), lambda: sys.exit(0)):
        process = multiprocessing.get_context("fork").Process(target=end)
        process.start()
        process.join(10)
    log.close()
    assert (tmp_path / "log").read_text() == "once\n"


def test_a_handle_that_cannot_be_reopened_in_a_child_is_explained(tmp_path):
    lmdb.open(str(tmp_path), map_size=1 << 20).close()
    env = unjam.per_worker(lmdb.open, str(tmp_path), readonly=True, lock=False)
    env.stat()
    answers = multiprocessing.get_context("fork").Queue()

    def child():
        try:
            env.stat()
        except lmdb.Error as error:
            answers.put(str(getattr(error, "__notes__", "")))
        else:
            answers.put("call .close() on it there")  # a library that allows it

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    said = answers.get(timeout=20)
    process.join(10)
    assert "call .close() on it there" in said or sys.version_info < (3, 11)
    env.close()


def test_handles_are_closed_when_the_process_ends(tmp_path):
    program = textwrap.dedent("""
        import multiprocessing, os, sys, unjam
        def opened(name): return open(name, "w")
        def closes(file): file.write("closed"); file.close()
        def child(name):
            dropped = unjam.per_worker(opened, name, close=closes); dropped.write("child "); del dropped
            global kept; kept = unjam.per_worker(opened, name + "2", close=closes); kept.write("kept ")
        if __name__ == "__main__":
            mine = unjam.per_worker(opened, "main", close=closes); mine.write("main ")
            for method in ("fork", "spawn"):
                p = multiprocessing.get_context(method).Process(target=child, args=(method,)); p.start(); p.join()
    """)
    (tmp_path / "program.py").write_text(program)
    python(["program.py"], cwd=tmp_path, check=True)
    found = {name: (tmp_path / name).read_text() for name in ("main", "fork", "fork2", "spawn", "spawn2")}
    assert found == {
        "main": "main closed",
        "fork": "child closed",
        "spawn": "child closed",
        "fork2": "kept closed",
        "spawn2": "kept closed",
    }


# -- the lock ----------------------------------------------------------------------------------------------------------------


def hold(lock, ready):
    lock.acquire(timeout=60)
    ready.set()
    time.sleep(60)


@pytest.mark.parametrize(
    ("end", "method"),
    [(signal.SIGKILL, "fork"), (signal.SIGSEGV, "fork"), (signal.SIGTERM, "fork"), (signal.SIGKILL, "spawn")],
)
def test_a_dead_process_releases_its_lock(end, method):
    context = multiprocessing.get_context(method)
    lock, ready = unjam.interprocess_lock(timeout=0.3), context.Event()
    process = context.Process(target=hold, args=(lock, ready))
    process.start()
    assert ready.wait(30)
    with pytest.raises(
        unjam.LockTimeoutError, match=rf"waited 0.3 s .* held by process {process.pid} \(.*test_per_worker.py:\d+"
    ):
        lock.acquire()
    assert not lock.acquire(block=False)
    assert str(process.pid) in lock.holder()
    os.kill(process.pid, end)
    process.join(10)
    with lock:
        assert lock.holder().startswith("this thread")
    assert not lock.locked()


def count_up(lock, path, times):
    for _ in range(times):
        with lock:
            number = int(path.read_text())
            path.write_text(str(number + 1))


def test_only_one_holder_at_a_time(tmp_path):
    """Threads and processes, related and not, that add to a number in a file."""
    path = tmp_path / "number"
    path.write_text("0")
    lock = unjam.interprocess_lock(path, timeout=30)
    program = (
        "import pathlib, sys, unjam\nfrom test_per_worker import count_up\n"
        f"count_up(unjam.interprocess_lock({str(path)!r}), pathlib.Path({str(path)!r}), 50)"
    )
    stranger = start_python(["-c", program], cwd=os.path.dirname(__file__))
    children = [multiprocessing.get_context("fork").Process(target=count_up, args=(lock, path, 50)) for _ in range(2)]
    threads = [threading.Thread(target=count_up, args=(unjam.interprocess_lock(path), path, 50)) for _ in range(2)]
    for one in (*children, *threads):
        one.start()
    for one in (*children, *threads):
        one.join(60)
    assert stranger.wait(60) == 0
    assert path.read_text() == "250"
    assert sorted(os.listdir(tmp_path)) == ["number", "number.lock"]


def test_waiters_are_not_starved(tmp_path):
    lock, over = unjam.interprocess_lock(tmp_path / "x"), threading.Event()

    def greedy():
        while not over.is_set():
            with lock:
                time.sleep(0.005)

    thread = threading.Thread(target=greedy)
    thread.start()
    wait_until(lock.locked)
    try:
        for _ in range(5):
            with unjam.interprocess_lock(tmp_path / "x", timeout=60):
                pass
    finally:
        over.set()
        thread.join(10)


def test_a_forked_child_does_not_inherit_a_held_lock(tmp_path):
    lock = unjam.interprocess_lock(tmp_path / "x", timeout=60)
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    with lock:
        process = context.Process(target=hold, args=(lock, ready))
        process.start()
        assert not ready.wait(0.3), "the child took along what its parent holds"
    assert ready.wait(60)
    process.kill()
    process.join(10)


def test_misuse_of_the_lock_is_reported(tmp_path):
    lock = unjam.interprocess_lock(tmp_path / "x")
    with lock:
        with pytest.raises(RuntimeError, match="acquiring it again would deadlock"):
            lock.acquire()
        assert not lock.acquire(block=False)
        assert pickle.loads(pickle.dumps(lock)).holder() == lock.holder()
    with pytest.raises(RuntimeError, match="is not held"):
        lock.release()
    os.unlink(lock.path)
    with lock:
        assert os.path.exists(lock.path)
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        unjam.interprocess_lock(tmp_path / "no" / "x")
    for wrong in (0, -1, float("nan"), None, "5"):
        with pytest.raises(ValueError, match="positive number of seconds"):
            unjam.interprocess_lock(timeout=wrong)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        with unjam.interprocess_lock(tmp_path / str(number)):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_an_unnamed_lock_file_is_removed_at_exit(tmp_path):
    program = "import unjam; lock = unjam.interprocess_lock(); lock.acquire(); print(lock.path)"
    done = python(["-c", program], check=True)
    assert done.stdout.strip().endswith(".lock")
    assert not os.path.exists(done.stdout.strip())
