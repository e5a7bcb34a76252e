"""What can serve one worker only: a warning before the first batch, found by content, and never separated from its lock."""

from __future__ import annotations

import json
import logging
import mmap
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import confine
import unjam
from support import python
from unjam.loader.pool import open_pool
from unjam.system.isolation import landlock


class Holds(Dataset):
    def __init__(self, **parts):
        vars(self).update(parts)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


def warnings_of(caplog, dataset, **options) -> list[str]:
    open_pool._warned.clear()
    with caplog.at_level(logging.WARNING, "unjam"):
        iterator = iter(unjam.DataLoader(dataset, batch_size=4, num_workers=2, **options))
        told = [record.getMessage() for record in caplog.records]  # before the first batch
        assert [int(x) for batch in iterator for x in batch] == list(range(8))
    caplog.clear()
    return told


class Client:
    """Of a library that is written in Python."""

    def __init__(self, connection):
        self.pool = {"free": [connection]}


@pytest.mark.parametrize("method", [None, "fork"])
def test_shared_connections_are_logged_before_the_first_batch(caplog, method):
    one, other = socket.socketpair()
    reader, writer = multiprocessing.Pipe()
    read, write = os.pipe()
    with one, other, reader, writer, open(read, "rb") as pipe, open(write, "wb"):
        cases = {
            "dataset.connection": Holds(connection=one),
            "dataset.client.pool['free'][0]": Holds(client=Client(one)),
            "dataset.channel": Holds(channel=reader),
            "dataset.stream": Holds(stream=one.makefile("rb")),
            "dataset.pipe": Holds(pipe=pipe),
        }
        for path, dataset in cases.items():
            (told,) = warnings_of(caplog, dataset, multiprocessing_context=method)
            assert told.startswith(path), told
            assert "share" in told
            assert "samples may be wrong" in told
            assert "unjam.per_worker(" in told
        for dataset in cases.values():
            if hasattr(dataset, "stream"):
                dataset.stream.close()


class Private:
    __slots__ = ("__connection",)

    def __init__(self, connection):
        self.__connection = connection


COLLATES = None


def collate(rows):
    return (rows, COLLATES)[0]


@pytest.mark.parametrize(
    "how", ["both ways", "text", "private slot", "many attributes", "class", "global", "default", "map"]
)
def test_hidden_connections_are_found(caplog, monkeypatch, how):
    one, other = socket.socketpair()
    with one, other:
        dataset, options = Holds(), {}
        if how in ("both ways", "text"):
            dataset = Holds(stream=one.makefile("rwb" if how == "both ways" else "rw"))
        elif how == "private slot":
            dataset = Holds(client=Private(one))
        elif how == "many attributes":
            dataset = Holds(**{f"attribute{number}": [number] for number in range(200)}, last=one)
        elif how == "class":
            dataset = type("Shared", (Holds,), {"connection": one, "__module__": __name__})()
        elif how == "global":
            monkeypatch.setitem(globals(), "COLLATES", one)
            options["collate_fn"] = collate
        elif how == "default":
            options["collate_fn"] = lambda rows, connection=one: (rows, connection)[0]
        elif how == "map":
            dataset = Holds(rows=[[number] for number in range(50)] + [one])
        (told,) = warnings_of(caplog, dataset, multiprocessing_context="fork", **options)
        assert "all workers share this connection" in told
        if hasattr(dataset, "stream"):
            dataset.stream.close()


def test_shared_file_positions_are_logged(caplog, tmp_path):
    (tmp_path / "data").write_bytes(bytes(100))
    with open(tmp_path / "data", "rb") as file:
        (told,) = warnings_of(caplog, Holds(file=file), multiprocessing_context="fork")
        assert "position" in told
        assert "dataset.file" in told


@pytest.mark.parametrize("method", [None, "fork"])
def test_native_handles_are_logged(caplog, tmp_path, method):
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["rows"] = list(range(8))
        cases = {
            "dataset.base (sqlite3.Connection)": Holds(base=connection),
            "dataset.file (h5py._hl.files.File)": Holds(file=file),
            "dataset.client.pool['free'][0] (h5py._hl.dataset.Dataset)": Holds(client=Client(file["rows"])),
        }
        for name, dataset in cases.items():
            (told,) = warnings_of(caplog, dataset, multiprocessing_context=method)
            assert told.startswith(name), told
            assert "all workers share it" in told
            assert "unjam.per_worker(" in told
    connection.close()


def test_objects_made_for_several_processes_are_not_logged(caplog, tmp_path):
    (tmp_path / "log").touch()
    with open(tmp_path / "log", "a") as log:
        queue = multiprocessing.Queue()
        opened = unjam.per_worker(open, tmp_path / "log", "rb")
        assert opened.readable()  # the handle of this process stays here
        closed = h5py.File(tmp_path / "data.h5", "w")
        closed.close()
        fine = Holds(
            queue=queue, lock=multiprocessing.Lock(), event=multiprocessing.Event(), data=torch.arange(3), log=log,
            value=multiprocessing.Value("i", 0), rows=unjam.SharedList([1, 2]), later=unjam.per_worker(socket.socketpair),
            opened=opened, closed=closed, samples=(i for i in range(3)), memory=mmap.mmap(-1, 100), random=np.random.default_rng(0),
        )  # fmt: skip
        assert warnings_of(caplog, fine, multiprocessing_context="fork") == []
        opened.close()
        queue.close()
        queue.join_thread()


class Reconnects:
    """A client of a library that leaves its connection behind when it is pickled."""

    __module__ = "xml.dom"  # any library

    def __init__(self, connection):
        self.pools = {("host", 80): [connection]}

    def __reduce__(self):
        return Reconnects, (None,)


def test_connections_that_are_not_sent_are_not_logged(caplog):
    one, other = socket.socketpair()
    with one, other:
        # the name of the connection itself would help nobody
        (told,) = warnings_of(caplog, Holds(client=Reconnects(one)), multiprocessing_context="fork")
        assert told.startswith("dataset.client (xml.dom.Reconnects): all workers share this connection"), told
        assert warnings_of(caplog, Holds(client=Reconnects(one))) == []


FEATURES = """
import socket, struct, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

def serve(server):
    while True:
        connection, _ = server.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()

def answer(connection):
    while len(asked := connection.recv(8)) == 8:
        time.sleep(0.003)
        connection.sendall(struct.pack("<4q", *[struct.unpack("<q", asked)[0] * 10 + k for k in range(4)]))

class Features(Dataset):
    def __init__(self, address):
        self.connection = socket.create_connection(address)
        self.lock = threading.Lock()
    def __len__(self):
        return 200
    def __getitem__(self, index):
        LOCKED
    def load(self, index):
        self.connection.sendall(struct.pack("<q", index))
        raw = b""
        while len(raw) < 32:
            raw += self.connection.recv(32 - len(raw))
        return torch.tensor(struct.unpack("<4q", raw))

def busy(lock):
    while True:
        with lock:  # held at every fork: nobody else can run between two turns
            time.sleep(0.05)

if __name__ == "__main__":
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve, args=(server,), daemon=True).start()
    data = Features(server.getsockname())
    BUSY
    for batch in DataLoader(data, batch_size=4, num_workers=2):
        pass
"""


def check(folder: Path, text: str, *options: str) -> tuple[dict, str]:
    (folder / "train.py").write_text(text)
    out = folder / "out.json"
    words = ["-m", "unjam", "check", "--budget", "20", "--json", out, *options, "train.py"]
    done = python(words, cwd=folder, timeout=150)
    return json.loads(out.read_text()), done.stdout


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(200)
def test_a_shared_connection_is_proven_by_the_samples(tmp_path):
    text = FEATURES.replace("LOCKED", "return self.load(index)").replace("BUSY", "pass")
    said, shown = check(tmp_path, text, "--fix")
    (found,) = [one for one in said["findings"] if one["severity"] == "error"]
    assert (found["code"], found["confidence"], found["culprit"]) == ("UJ501", "proven", "dataset.connection"), shown
    assert "unjam.per_worker(socket.create_connection, address)" in (tmp_path / "train.py").read_text()
    assert (tmp_path / "train.py.orig").read_text() == text


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
@pytest.mark.timeout(200)
def test_an_edit_that_cannot_be_tried_is_not_written(tmp_path):
    text = FEATURES.replace("LOCKED", "return self.load(index)").replace("BUSY", "pass")
    (tmp_path / "train.py").write_text(text)
    words = [sys.executable, "-m", "unjam", "check", "--budget", "15", "--fix", "train.py"]
    done = subprocess.run(confine.command(words, mounts=False), cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False)  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "an edit can only be tried where the program's file writes are isolated" in done.stdout
    assert (tmp_path / "train.py").read_text() == text


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(200)
def test_an_edit_never_separates_a_lock_from_its_connection(tmp_path):
    """Each worker with a lock of its own would use the one connection at the same time: a hang became wrong data."""
    locked = "with self.lock:\n            return self.load(index)"
    text = FEATURES.replace("LOCKED", locked).replace("BUSY", "threading.Thread(target=busy, args=(data.lock,), daemon=True).start()")  # fmt: skip
    said, shown = check(tmp_path, text, "--fix")
    assert [one["code"] for one in said["findings"] if one["severity"] == "error"] == ["UJ201"], shown
    assert (tmp_path / "train.py").read_text() == text
    assert "dataset.connection" in shown.partition("not edited")[2]


CURED = """
import threading, time, torch, unjam
from torch.utils.data import Dataset

class Locked(Dataset):
    def __init__(self):
        self.lock = threading.Lock()
    def __len__(self):
        return 40
    def __getitem__(self, index):
        with self.lock:
            return torch.tensor(index)

def busy(lock):
    while True:
        with lock:  # held at every fork: nobody else can run between two turns
            time.sleep(0.05)

if __name__ == "__main__":
    data = Locked()
    threading.Thread(target=busy, args=(data.lock,), daemon=True).start()
    for batch in unjam.DataLoader(data, batch_size=4, num_workers=2):
        pass
"""


SURVIVED = """
import os, signal, torch, unjam
from torch.utils.data import Dataset

class Rows(Dataset):
    def __init__(self):
        self.mark = os.path.abspath(f"killed-{os.getpid()}")
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if index % 9 == 3:
            return None
        if index == 14 and not os.path.exists(self.mark):
            open(self.mark, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)

if __name__ == "__main__":
    for batch in unjam.DataLoader(Rows(), batch_size=4, num_workers=2, on_error="skip"):
        pass
"""


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("text", "name"), [(CURED, "Locked"), (SURVIVED, "Rows")], ids=["locked", "killed"])
def test_a_program_is_examined_with_the_loader_it_uses(tmp_path, text, name):
    """Torch's loader would freeze or fail here; unjam's does not, so nothing is wrong with the program."""
    said, shown = check(tmp_path, text)
    assert said["findings"] == [], shown
    assert len(said["loaders"]) == 1, shown
    assert f"unjam.DataLoader over {name} (40 samples)" in shown
