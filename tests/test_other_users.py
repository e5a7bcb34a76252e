"""Another user of the machine prepares what unjam is going to find: none of it is read, followed, run or removed."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from support import python, script
from test_security import NOBODY, Runs, as_nobody  # noqa: F401 - a fixture
from unjam.deadlines import NAME_CONFLICT
from unjam.loader.cluster import node_copy as copies
from unjam.loader.ship.shipping import Manifest

CONTENT = os.urandom(8) + b"the content of a dataset" * 100
MANIFEST = Manifest(len(CONTENT), (0, 10), (0, 0), ())


@pytest.fixture
def place():
    """A folder that the other user can enter, unlike pytest's."""
    folder = tempfile.mkdtemp(dir="/var/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def copy_of(digest: str) -> bytes:
    """What a worker would get; the memory goes when this returns."""
    _, mapping = copies.node_copy(digest, MANIFEST, lambda: CONTENT)
    return bytes(mapping.view()[: len(CONTENT)])


# -- the copy of a dataset that the workers of a machine share -------------------------------------------------------------

PLANTS = """
digest, size = sys.argv[1], int(sys.argv[2])
fd = os.memfd_create(f"unjam-dataset-{digest}", os.MFD_ALLOW_SEALING)
os.write(fd, b"e" * size)
import fcntl
fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 0xF)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
print("ready", flush=True)
time.sleep(100)
"""


def test_memory_of_another_user_is_rejected(as_nobody):  # noqa: F811 - a fixture
    digest = copies.digest_of(CONTENT)
    process = as_nobody(PLANTS, digest, str(len(CONTENT)))
    assert process.stdout.readline() == "ready\n"
    assert copy_of(digest) == CONTENT


@pytest.mark.parametrize("kind", ["content", "unsealed", "size"])
def test_memory_with_other_content_is_rejected(kind):
    """A process of this user may be no friend either: the content is going to be unpickled."""
    digest = copies.digest_of(CONTENT)
    fd = os.memfd_create(f"unjam-dataset-{digest}", os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, CONTENT if kind == "unsealed" else CONTENT[:-1] if kind == "size" else CONTENT[:-1] + b"x")
        if kind != "unsealed":
            import fcntl

            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, copies._SEALS)
        assert copies._find(digest, len(CONTENT)) is None
        assert copy_of(digest) == CONTENT
    finally:
        os.close(fd)


def test_an_existing_copy_is_reused_by_other_processes():
    digest = copies.digest_of(CONTENT)
    made = copies.node_copy(digest, MANIFEST, lambda: CONTENT)
    again = copies.node_copy(digest, MANIFEST, lambda: pytest.fail("there is one"))
    assert bytes(again[1].view()[: len(CONTENT)]) == CONTENT
    with pytest.raises(OSError):
        os.pwrite(made[0], b"x", 0)


TAKES_NAME = """
import socket
taken = socket.socket(socket.AF_UNIX)
taken.bind(sys.argv[1].replace("@", chr(0)))
if sys.argv[2] == "listens":
    taken.listen(64)
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("how", ["listens", "is silent"])
def test_a_name_taken_by_another_user_costs_one_second(as_nobody, how):  # noqa: F811 - a fixture
    digest = copies.digest_of(CONTENT)
    process = as_nobody(TAKES_NAME, f"@unjam-{os.geteuid()}-{digest}", how)
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    assert copy_of(digest) == CONTENT
    assert time.monotonic() - began < NAME_CONFLICT.seconds + 2
    assert NAME_CONFLICT.seconds <= 1


def test_a_copy_in_progress_is_waited_for():
    digest = copies.digest_of(CONTENT)
    made = threading.Event()
    results = []

    def slow():
        made.set()
        time.sleep(1.5)
        return CONTENT

    first = threading.Thread(target=lambda: results.append(copies.node_copy(digest, MANIFEST, slow)))
    first.start()
    made.wait(10)
    copies.node_copy(digest, MANIFEST, lambda: pytest.fail("it is being made"))
    first.join(10)
    assert results


# -- a process that outlives `unjam check` ----------------------------------------------------------------------------------

# the doctor's folder is gone, and another user has made it again, with a socket that answers with a pickle
ANSWERS = """
import socket, struct
folder, reply = sys.argv[1], bytes.fromhex(sys.argv[2])
os.umask(0)
os.makedirs(folder)
server = socket.socket(socket.AF_UNIX)
server.bind(f"{folder}/twins")
server.listen(8)
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(struct.pack("!i", len(reply)) + reply)
    time.sleep(1)
    connection.close()
"""

LOADS = """
from torch.utils.data import DataLoader
for batch in DataLoader(range(8), batch_size=2, num_workers=1):
    pass
print("done")
"""


def test_a_folder_of_another_user_is_not_trusted(as_nobody, place):  # noqa: F811 - a fixture
    os.chmod(place, 0o777)
    folder, ran = f"{place}/base", f"{place}/ran"
    reply = pickle.dumps(Runs(ran))
    process = as_nobody(ANSWERS, folder, reply.hex())
    assert process.stdout.readline() == "ready\n"
    from unjam.doctor.check.cleanup_process import WATCH_VARIABLE
    from unjam.system.isolation.redirect import SITE

    environment = {**os.environ, WATCH_VARIABLE: folder, "PYTHONPATH": SITE}
    done = python(["-c", LOADS], env=environment, timeout=60, warm=False)
    assert done.stdout == "done\n", done.stderr
    assert not os.path.exists(ran)
    assert sorted(os.listdir(folder)) == ["twins"], "and nothing is written there"


def test_redirection_ends_when_its_folder_is_removed(as_nobody, place):  # noqa: F811 - a fixture
    """A process that goes on after the doctor reads no file that another user has put in the scratch folder."""
    os.chmod(place, 0o777)
    scratch = f"{place}/scratch"
    Path(place, "file").write_text("original")
    code = f"""
        import os, shutil
        from unjam.system.isolation import redirect
        redirect.use({scratch!r}, {place + "/none"!r})
        open({place + "/file"!r}, "w").write("changed")
        shutil.rmtree = None
        import subprocess
        subprocess.run(["rm", "-rf", {scratch!r}])
        subprocess.run(["install", "-d", "-o", "{NOBODY}", "-m", "777", {scratch!r}, {scratch + "/files"!r}, {scratch + "/hidden"!r}])
        try:
            print(open({place + "/file"!r}).read())
        except PermissionError:
            print("refused")
        """
    assert script(Path(place), code).stdout == "refused\n"


# -- folders named by the environment ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["precious", "unjam-run-1-2-x"])
def test_folders_unjam_did_not_create_are_kept(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "work").write_text("x")
    from unjam.doctor.run.settings import Settings

    environment = Settings({}, leader=0, folder=str(folder)).environment()
    # the process itself is the leader, which removes the folder at its end
    code = """
        import json, os
        given = json.loads(os.environ["UNJAM_RUN"])
        os.environ["UNJAM_RUN"] = json.dumps({**given, "leader": os.getpid()})
        from unjam.doctor.run import begin
        begin._begun.clear()
        begin.begin()
        print(begin.has_begun())
        """
    done = script(tmp_path, code, env=environment, warm=False)
    assert done.stdout == "True\n", done.stderr
    assert (folder / "work").exists()


def test_only_folders_of_this_process_are_removed(monkeypatch):
    from unjam.system import leftovers

    monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
    own = tempfile.mkdtemp(prefix=leftovers.prefix("run"))
    other = tempfile.mkdtemp(prefix=leftovers.prefix("run", 1))
    try:
        for path, kind, pid in ((own, "check", os.getpid()), (own, "run", 1), (other, "run", os.getpid()), (f"{own}/../{os.path.basename(other)}", "run", os.getpid()), ("/var/tmp", "run", os.getpid())):  # fmt: skip
            leftovers.remove_folder(path, kind, pid)
        assert os.path.isdir(own)
        assert os.path.isdir(other)
        leftovers.remove_folder(own, "run", os.getpid())
        assert not os.path.exists(own)
    finally:
        shutil.rmtree(other)
        shutil.rmtree(own, ignore_errors=True)


# -- what leaves the machine ------------------------------------------------------------------------------------------------


def test_neither_environment_nor_key_is_sent_to_other_machines(monkeypatch):
    from unjam.loader.ship.process_state import ProcessState

    monkeypatch.setenv("UNJAM_TEST_SECRET", "hunter2")
    here = ProcessState()
    assert here.environ["UNJAM_TEST_SECRET"] == "hunter2"
    sent = pickle.dumps(here.for_other_machines())
    assert b"hunter2" not in sent
    assert here.authkey not in sent
    assert here.authkey


@pytest.mark.parametrize(("address", "there"), [(None, False), (None, True), ("ray://head:10001", False)])
def test_a_started_cluster_listens_on_this_machine_only(monkeypatch, address, there):
    """Ray listens on every interface unless it believes that it makes no clusters; see also ray_cases.py."""
    from types import ModuleType, SimpleNamespace

    from unjam.loader.cluster.ray_cluster import _init

    constants = ModuleType("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = True
    private = ModuleType("ray._private")
    private.ray_constants = constants
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray._private", private)
    monkeypatch.setitem(sys.modules, "ray._private.ray_constants", constants)
    calls = []

    def init(**options):
        calls.append((options["address"], options.get("include_dashboard"), constants.ENABLE_RAY_CLUSTER))
        if options["address"] != "local" and not there:
            raise ConnectionError("there is none")

    if address is not None:
        with pytest.raises(ConnectionError):
            _init(SimpleNamespace(init=init), address)
        assert calls == [(address, None, True)], "a cluster that was named is never replaced by another"
        return
    _init(SimpleNamespace(init=init), None)
    assert calls == [("auto", None, True), *([] if there else [("local", False, False)])]
    assert constants.ENABLE_RAY_CLUSTER
