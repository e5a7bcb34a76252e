"""Loaders on a real Ray cluster of two or three nodes on this machine; `tests/test_ray.py` runs them in a process of their own.

Without UNJAM_LONG only those whose subject is Ray itself; test_cluster.py has the logic on nodes that are agents in its process.
By hand: `UNJAM_LONG=1 pytest --noconftest tests/ray_cases.py`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import psutil
import pytest
import ray
import torch
import torch.utils.data
from ray.cluster_utils import Cluster
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import unjam
from support import Rows, Stream, wait_until
from unjam.loader.cluster.node_link import AgentCannotStart
from unjam.loader.cluster.ray_cluster import RayAgent

pytestmark = pytest.mark.timeout(120)
LONG = pytest.mark.skipif(
    "UNJAM_LONG" not in os.environ, reason="make test-all runs it; test_cluster.py has it without Ray"
)
STORE = 200 << 20
TORCHS: dict = {}  # batches of torch's loader


@pytest.fixture(scope="module")
def cluster():
    """A head without processors, and two nodes."""
    # before Ray is used: a process with its threads and sockets should not be forked, as torch's loader does
    for kind, workers in ((Rows, 3), (Stream, 2)):
        torch.manual_seed(3)
        theirs = torch.utils.data.DataLoader(kind(), **options(kind, workers))
        TORCHS[kind, workers] = [list(theirs), list(theirs)]
        del theirs
    os.environ["RAY_AUTH_MODE"] = "disabled"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
    made.nodes = [made.add_node(num_cpus=2, object_store_memory=STORE) for _ in range(2)]
    ray.init(address=made.address, logging_level="error", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(autouse=True)
def nothing_left(cluster):
    """After each test: no actor, no reserved processor, no thread of ours, no worker."""
    yield
    gc.collect()
    wait_until(lambda: not leftovers(), 30)


def leftovers():
    found = [one.get("ActorClassName") or str(one) for one in actors() if one["State"] not in ("DEAD",)]
    found += [one.name for one in threading.enumerate() if one.name.startswith("unjam-")]
    free, total = ray.available_resources().get("CPU", 0), ray.cluster_resources().get("CPU", 0)
    found += [f"{total - free} processors"] if free != total else []
    return found + [f"process {pid}" for pid in agents_workers()]


def actors():
    from ray._private.state import actors as known

    return list(known().values())


def agents_workers():
    """Processes of fork servers whose parent is an actor."""
    found = []
    for one in psutil.process_iter(["cmdline", "ppid"]):
        with contextlib.suppress(psutil.Error):
            line = " ".join(one.info["cmdline"] or ())
            if "unjam" in line and "server" in line and "ray::" in " ".join(psutil.Process(one.info["ppid"]).cmdline()):
                found.append(one.pid)
    return found


def options(kind, workers):
    return dict(batch_size=7, num_workers=workers, shuffle=kind is Rows, persistent_workers=True)


def same(first, second):
    first, second = list(first), list(second)
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)


class Slow(Dataset):
    def __init__(self, length=200, seconds=0.02):
        self.length, self.seconds = length, seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((2000,), index)


class Fails(Dataset):
    def __init__(self, how, length=40):
        self.how, self.length = how, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == 13:
            if self.how == "raises":
                raise ValueError("sample thirteen")
            if self.how == "hangs":
                time.sleep(1000)
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            with open(self.how) as file:
                return torch.tensor(len(file.read()))
        return torch.tensor(index)


def indices(batches):
    return [int(value) for batch in batches for value in (batch[:, 0] if batch.dim() > 1 else batch)]


# -- the same batches as torch's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "workers"), [(Rows, 3), (Stream, 2)])
def test_parity_with_torch(kind, workers):
    torch.manual_seed(3)
    ours = unjam.DataLoader(kind(), pool="ray", **options(kind, workers))
    for epoch in TORCHS[kind, workers]:
        same(ours, epoch)


@LONG
def test_workers_run_locally_and_on_nodes():
    loader = unjam.DataLoader(Slow(), batch_size=4, num_workers=1, pool=unjam.RayPool(workers=2))
    assert indices(loader) == list(range(200))
    told = loader.statistics().nodes
    assert set(told) >= {"here"}
    assert len(told) >= 2
    assert sum(one.batches for one in told.values()) == 50


@LONG
def test_auto_uses_the_cluster_processors():
    loader = unjam.DataLoader(Slow(120, 0.01), batch_size=4, num_workers="auto", pool="ray")
    assert indices(loader) == list(range(120))
    assert loader.statistics().auto.most == 4


@LONG
def test_resumes_where_it_stopped():
    def made():
        torch.manual_seed(3)
        return unjam.DataLoader(Rows(), pool="ray", **options(Rows, 3))

    loader = made()
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(5)]
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator, loader
    loader = made()
    loader.load_state_dict(state)
    same([*begun, *loader], TORCHS[Rows, 3][0])


# -- failures of samples -----------------------------------------------------------------------------------------------


@LONG
def test_a_sample_that_raises_names_its_node():
    loader = unjam.DataLoader(Fails("raises"), batch_size=4, num_workers=2, pool="ray")
    with pytest.raises(ValueError, match="thirteen") as caught:
        list(loader)
    assert any("on node" in note and "sample 13" in "".join(caught.value.__notes__) for note in caught.value.__notes__)


def test_a_hanging_sample_times_out():
    loader = unjam.DataLoader(Fails("hangs"), batch_size=4, num_workers=2, pool="ray", sample_timeout=1.5)
    with pytest.raises(unjam.SampleTimeoutError, match="sample 13") as caught:
        list(loader)
    assert "ray_cases.py" in str(caught.value)
    assert "a sleep to end" in str(caught.value)


@LONG
def test_a_sample_that_kills_its_worker_is_handled():
    loader = unjam.DataLoader(Fails("dies"), batch_size=4, num_workers=2, pool="ray", on_error="skip")
    assert indices(loader) == [index for index in range(40) if index != 13]
    assert "on node" in loader.incidents[0].what
    assert loader.incidents[0].signal == "SIGKILL"


# -- failures of the cluster -------------------------------------------------------------------------------------------


def test_a_killed_actor_loses_nothing():
    loader = unjam.DataLoader(Slow(), batch_size=4, num_workers=4, pool="ray")
    got = []
    for number, batch in enumerate(loader):
        got.append(batch)
        if number == 10:
            kill_an_actor(random.Random(1))
    assert indices(got) == list(range(200))
    assert "was lost with its node" in loader.incidents[0].what


def kill_an_actor(dice):
    alive = [one for one in actors() if one["State"] == "ALIVE"]
    return kill(dice.choice(alive)["Pid"]) if alive else False


def kill_a_process(dice):
    """Kill a worker, a template or a fork server of an actor."""
    ours = []
    for one in actors():
        with contextlib.suppress(psutil.Error):
            ours += psutil.Process(one["Pid"]).children(recursive=True) if one["State"] == "ALIVE" else []
    return kill(dice.choice(ours).pid) if ours else False


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


@pytest.mark.parametrize("kind", ["map", "stream"])
@LONG
def test_a_dead_node_loses_nothing(cluster, kind):
    extra = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    cluster.wait_for_nodes()
    data = Slow() if kind == "map" else SlowStream()
    loader = unjam.DataLoader(data, batch_size=4, num_workers=6, pool="ray")
    got = []
    for number, batch in enumerate(loader):
        got.append(batch)
        if number == 8:
            cluster.remove_node(extra, allow_graceful=False)
    assert sorted(indices(got)) == list(range(200))
    if kind == "map":
        assert indices(got) == list(range(200))


class SlowStream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 200, info.num_workers):
            time.sleep(0.02)
            yield torch.full((2000,), number)


@LONG
def test_workers_move_to_a_new_node(cluster):
    loader = unjam.DataLoader(Slow(40_000, 0.03), batch_size=4, num_workers=6, pool="ray")
    iterator = iter(loader)
    got = [next(iterator)]
    extra = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    cluster.wait_for_nodes()
    while len(loader.statistics().nodes) < 3:
        got.append(next(iterator))
    got += [next(iterator) for _ in range(40)]
    assert indices(got) == list(range(4 * len(got)))
    assert not loader.incidents
    del iterator
    cluster.remove_node(extra)


@LONG
def test_random_kills_lose_nothing(cluster):
    """Actors and workers die for a while; nothing is lost, repeated or out of order."""
    dice, kills, rounds = random.Random(5), 0, 0
    until = time.monotonic() + float(os.environ.get("UNJAM_CHAOS_SECONDS", "12"))
    while time.monotonic() < until:
        loader = unjam.DataLoader(Slow(600, 0.01), batch_size=4, num_workers=4, pool="ray", max_restarts=10_000)
        got = []
        for batch in loader:
            got.append(batch)
            if dice.random() < 0.04:  # after a batch: a slow machine has time to start again
                kills += kill_an_actor(dice) if dice.random() < 0.4 else kill_a_process(dice)
        assert indices(got) == list(range(600))
        rounds += 1
    print(f"{rounds} epochs, {kills} kills")
    assert kills


@LONG
def test_a_cluster_without_free_resources_is_reported():
    with pytest.raises(unjam.ClusterError, match="needs 1 CPU, 1 unobtainium"):
        list(unjam.DataLoader(Slow(8), num_workers=1, pool=unjam.RayPool(resources={"unobtainium": 1}, patience=2)))


def test_a_slow_start_is_not_a_lack_of_resources(tmp_path):
    gate = tmp_path / "gate"

    class Starts:
        def __init__(self, gate):
            while not os.path.exists(gate):
                time.sleep(0.02)

        def poll(self, seconds):
            return "news"

    slow = RayAgent(ray, ray.remote(num_cpus=1)(Starts).remote(str(gate)), patience=0.2)
    has_process = wait_until(slow._has_process) and slow._has_process
    slow._has_process = lambda: gate.touch() or has_process()  # it is asked while the agent still starts
    assert slow.poll(0.1, within=60) == "news"
    slow.close(1)
    nowhere = RayAgent(ray, ray.remote(num_cpus=1000)(Starts).remote(str(gate)), patience=1)
    with pytest.raises(AgentCannotStart, match="other jobs may have taken its processors"):
        nowhere.poll(0.1, within=60)
    nowhere.close(1)


def test_an_agent_reports_why_it_cannot_start():
    class Lacks:
        def __init__(self):
            import a_package_that_no_node_has  # noqa: F401

        def poll(self, seconds):
            return "news"

    lacks = RayAgent(ray, ray.remote(num_cpus=1)(Lacks).remote(), patience=30)
    with pytest.raises(AgentCannotStart, match="No module named 'a_package_that_no_node_has'"):
        lacks.poll(0.1, within=60)
    lacks.close(1)


@LONG
def test_a_lost_cluster_raises():
    """In a process of its own, whose cluster loses all its nodes."""
    code = textwrap.dedent(
        """
        import os, sys, time
        os.environ["RAY_AUTH_MODE"] = "disabled"
        sys.path.insert(0, sys.argv[1])
        from ray_cases import *
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
        node = made.add_node(num_cpus=2, object_store_memory=STORE)
        ray.init(address=made.address, logging_level="error", log_to_driver=False)
        loader = unjam.DataLoader(Slow(4000), batch_size=4, num_workers=2, pool=unjam.RayPool(patience=4))
        try:
            for number, batch in enumerate(loader):
                if number == 3:
                    began = time.monotonic()
                    made.remove_node(node, allow_graceful=False)
        except unjam.ClusterError as error:
            print("ClusterError", time.monotonic() - began < 30, error)
        made.shutdown()
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.path.dirname(__file__)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "ClusterError True" in done.stdout, done.stdout + done.stderr[-3000:]


# -- what travels ------------------------------------------------------------------------------------------------------


def test_local_modules_are_sent_by_value(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text(
        "import torch\n"
        "SCALE = 3\n"
        "def scaled(value):\n"
        "    return torch.tensor(value * SCALE)\n"
        "class Numbers(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n"
        "        return 12\n"
        "    def __getitem__(self, index):\n"
        "        return scaled(index)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    loader = unjam.DataLoader(only_here.Numbers(), batch_size=4, num_workers=1, pool="ray")
    os.rename(tmp_path / "only_here.py", tmp_path / "gone.py")
    import shutil

    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert indices(loader) == [3 * index for index in range(12)]


class Shared(Dataset):
    def __init__(self):
        self.names = unjam.share([f"name {number}" for number in range(50_000)])
        self.sizes = unjam.share({f"key {number}": number for number in range(20_000)})
        self.images = unjam.share(np.arange(400_000, dtype=np.float32).reshape(1000, 400))

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor(
            int(self.names[index].split()[1]) + self.sizes[f"key {index}"] + float(self.images[index][0])
        )


@LONG
def test_shared_data_is_sent():
    assert indices(unjam.DataLoader(Shared(), batch_size=4, num_workers=2, pool="ray")) == [402 * n for n in range(40)]


@LONG
def test_an_unresponsive_agent_is_replaced(monkeypatch):
    from unjam.deadlines import Deadline
    from unjam.loader.cluster import node_link

    monkeypatch.setattr(node_link, "NODE_SILENT", Deadline(3.0, ""))
    loader = unjam.DataLoader(Slow(), batch_size=4, num_workers=4, pool="ray")
    got = []
    for number, batch in enumerate(loader):
        got.append(batch)
        if number == 8:
            stopped = next(one["Pid"] for one in actors() if one["State"] == "ALIVE")
            os.kill(stopped, signal.SIGSTOP)
    assert indices(got) == list(range(200))
    assert any("did not answer within 3 s" in one.what for one in loader.incidents)
    os.kill(stopped, signal.SIGCONT)


class Holds(Dataset):
    def __init__(self, what):
        self.inner = {"handle": what}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(index)


class OnlyHere:
    """Can be rebuilt only in the process that made it."""

    def __init__(self):
        self.home = os.getpid()

    def __setstate__(self, state):
        if state["home"] != os.getpid():
            raise RuntimeError("the licence is for another machine")
        self.__dict__.update(state)


def test_objects_that_cannot_be_rebuilt_on_a_node_are_named():
    with pytest.raises(unjam.CannotShipError, match=r"dataset\.inner\['handle'\] cannot be rebuilt on node") as caught:
        list(unjam.DataLoader(Holds(OnlyHere()), num_workers=1, pool="ray"))
    assert "the licence is for another machine" in str(caught.value)


@LONG
def test_one_copy_of_the_dataset_per_machine():
    data = Rows(400, 10_000)
    loaders = [
        unjam.DataLoader(data, batch_size=50, num_workers=2, pool="ray", persistent_workers=True) for _ in range(2)
    ]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    copies = set()
    for one in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error, OSError):
            if "ray::" in " ".join(one.info["cmdline"] or ()):
                for fd in os.listdir(f"/proc/{one.pid}/fd"):
                    with contextlib.suppress(OSError):
                        if "unjam-dataset-" in os.readlink(f"/proc/{one.pid}/fd/{fd}"):
                            copies.add(os.stat(f"/proc/{one.pid}/fd/{fd}").st_ino)
    assert len(copies) == 1  # all nodes of this cluster are on one machine
    del iterator, iterators, loaders


# -- placement ---------------------------------------------------------------------------------------------------------


@LONG
def test_more_workers_than_processors_work():
    loader = unjam.DataLoader(Slow(80, 0.005), batch_size=4, num_workers=9, pool="ray")
    assert indices(loader) == list(range(80))


def test_a_placement_group_is_used():
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 2}])
    ray.get(group.ready(), timeout=30)
    loader = unjam.DataLoader(Slow(40, 0.005), batch_size=4, num_workers=3, pool=unjam.RayPool(placement=group))
    assert indices(loader) == list(range(40))
    ray.util.remove_placement_group(group)


@LONG
def test_a_started_cluster_listens_on_the_loopback_interface_only():
    code = textwrap.dedent(
        """
        import os
        import psutil, ray
        from unjam.loader.cluster.ray_cluster import _on_this_machine_only
        with _on_this_machine_only():
            ray.init(address="local", include_dashboard=False, logging_level="error", num_cpus=1, object_store_memory=200 << 20)
        ray.get(ray.remote(lambda: 1).remote())
        found = set()
        for one in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            found |= {made.laddr.ip for made in one.net_connections() if made.status == psutil.CONN_LISTEN}
        print("listens on", *sorted(found))
        ray.shutdown()
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("listens on")]
    assert said.split()[2:], done.stdout
    assert all(address in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for address in said.split()[2:]), said
