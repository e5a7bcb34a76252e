"""A trial that needs a server of the program, or the accelerator, and does not have it, says so."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import threading
import types

import pytest

from support import python
from unjam.doctor.check.trial import trial_resources
from unjam.doctor.check.trial.trial_resources import missing, note_connections, note_error, own_servers


def own(address: str):
    (found,) = [one for one in own_servers() if one.address == address]
    return found


def run_trial(folder, servers, connect) -> None:
    """What a trial does: it is a fork, so it has the program's descriptors and none of its threads."""
    pid = os.fork()
    if pid == 0:
        try:
            note_connections(str(folder), servers)
            connect()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("kind", ["tcp", "tcp6", "unix", "abstract"])
def test_a_trial_that_needs_an_ended_server_is_not_possible(tmp_path, kind):
    family = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6}.get(kind, socket.AF_UNIX)
    name = {"tcp": ("127.0.0.1", 0), "tcp6": ("::1", 0), "unix": str(tmp_path / "s"), "abstract": f"\0unjam{tmp_path}"}[kind]  # fmt: skip
    server = socket.socket(family)
    server.bind(name)
    server.listen()
    address = server.getsockname()
    if kind in ("unix", "abstract"):
        shown = f"@{name[1:]}" if kind == "abstract" else name
        address = name
    else:
        shown = f"{address[0]}:{address[1]}" if kind == "tcp" else f"[{address[0]}]:{address[1]}"
        address = ("localhost", address[1]) if kind == "tcp" else address
    servers = (own(shown),)

    def connect():
        client = socket.socket(family)
        client.settimeout(5)
        client.connect(address)

    serving = threading.Thread(target=lambda: server.accept()[0].close())
    serving.start()
    run_trial(tmp_path, servers, connect)
    serving.join(10)
    assert missing(str(tmp_path)) == "", "it was there"
    server.close()
    assert missing(str(tmp_path)) == f"it needs the program's own server at {shown}, which has ended"


def test_a_server_that_stopped_accepting_counts_as_ended(tmp_path):
    """http.server keeps its socket after shutdown()."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        servers = (own(f"127.0.0.1:{address[1]}"),)
        run_trial(tmp_path, servers, lambda: socket.create_connection(address, timeout=5))
        assert "has ended" in missing(str(tmp_path))
        server.accept()[0].close()
        assert missing(str(tmp_path)) == ""


def test_servers_the_trial_does_not_use_are_ignored(tmp_path):
    """Metrics, a debugger: that they end says nothing about a trial."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        servers = (own(f"127.0.0.1:{server.getsockname()[1]}"),)
        run_trial(tmp_path, servers, lambda: None)
    assert missing(str(tmp_path)) == ""


def test_an_earlier_connection_to_a_child_is_recognised(tmp_path):
    with multiprocessing.Manager() as manager:
        numbers = manager.dict({1: 2})
        assert numbers[1] == 2
        (server,) = [one for one in own_servers() if one.is_connected]
        run_trial(tmp_path, (server,), lambda: None)
        assert missing(str(tmp_path)) == ""
    assert server.address in missing(str(tmp_path))


def test_a_reused_pid_is_not_the_same_server(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = own(f"127.0.0.1:{server.getsockname()[1]}")
        assert trial_resources._is_served(found)
        assert not trial_resources._is_served(
            trial_resources.Server(found.address, found.inode, found.pid, found.born - 1)
        )


def test_an_accelerator_error_in_a_forked_trial_is_recognised(tmp_path):
    import torch

    code = compile("def _lazy_init():\n    raise RuntimeError('not in a fork')\n", f"{os.path.dirname(torch.__file__)}/cuda/__init__.py", "exec")  # fmt: skip
    module = types.ModuleType("fake")
    exec(code, vars(module))
    try:
        module._lazy_init()
    except RuntimeError as error:
        note_error(str(tmp_path), error, in_worker=False)
    assert "cuda" in missing(str(tmp_path))
    try:
        raise RuntimeError("Cannot re-initialize CUDA")
    except RuntimeError as error:
        (tmp_path / "other").mkdir()
        note_error(str(tmp_path / "other"), error, in_worker=False)
    assert missing(str(tmp_path / "other")) == ""


MANAGED = """
import multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

class Shared(Dataset):
    def __init__(self, rows):
        self.rows = rows
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return self.rows[index]

if __name__ == "__main__":
    with mp.Manager() as manager:
        rows = manager.dict({index: float(index) for index in range(32)})
        for batch in DataLoader(Shared(rows), batch_size=4, num_workers=2):
            pass
"""


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(120)
def test_a_healthy_program_with_its_own_server_has_no_findings(tmp_path):
    (tmp_path / "train.py").write_text(MANAGED)
    report = tmp_path / "report.json"
    done = python(["-m", "unjam", "check", "--budget", "15", "--json", report, "train.py"], cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stdout
    said = json.loads(report.read_text())
    assert all(trial["outcome"].startswith("not possible") for trial in said["trials"]), said["trials"]
    assert "the program's own server" in done.stdout


FULL = """
import os
from torch.utils.data import DataLoader, Dataset

class Cache(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        with open(f"cache-{index}", "wb") as file:
            for _ in range(32):
                file.write(bytes(1 << 20))
        return index

if __name__ == "__main__":
    try:
        for batch in DataLoader(Cache(), batch_size=1, num_workers=1):
            pass
    except OSError:
        REACTS
"""


@pytest.mark.usefixtures("isolation")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("reacts", ["raise", "__import__('threading').Event().wait()"])
def test_a_program_that_fills_its_view_cannot_be_examined(tmp_path, reacts):
    (tmp_path / "train.py").write_text(FULL.replace("REACTS", reacts))
    report = tmp_path / "report.json"
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("from unjam.system.isolation import view; view.SHARE_OF_MEMORY = 1 << 40\n")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = python(["-m", "unjam", "check", "--budget", "15", "--json", report, "train.py"], cwd=tmp_path, timeout=100, env=environment)  # fmt: skip
    said = json.loads(report.read_text())
    assert done.returncode == 2, done.stdout
    assert "wrote more than 64 MB" in said["error"]
