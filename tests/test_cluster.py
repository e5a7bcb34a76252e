"""Workers on the nodes of a cluster, whose nodes are agents in this process; test_ray.py has those on Ray itself."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import resource
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import unjam
from fake_cluster import FakeCluster, FakeNode, FakeRay
from support import Rows, Stream, wait_until
from unjam.deadlines import Deadline
from unjam.loader.cluster import cluster_pool
from unjam.loader.cluster.cluster_pool import ClusterPool
from unjam.loader.cluster.node_copy import _other_is_done, _takes
from unjam.loader.cluster.node_link import AgentCannotStart, NodeLink
from unjam.loader.cluster.open_pool import _named_in
from unjam.loader.cluster.ray_cluster import Node, RayAgent, RayCluster, cannot_travel, shares, workers_of_rank
from unjam.loader.cluster.remote_batch import HeldBatches, RemoteBatch, missing_there
from unjam.loader.driver import auto_size
from unjam.loader.pool.batch_result import ReceivedBatch
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.transport.unpacking import PackedBatch
from unjam.loader.worker.exceptions import record
from unjam.loader.worker.job import SampleFailure
from unjam.loader.worker.spec import WorkerInput

pytestmark = pytest.mark.usefixtures("cluster")


class Gated(Dataset):
    """Samples from `after` on are made only when the gate, a file, is there."""

    def __init__(self, gate, length=200, after=40):
        self.gate, self.length, self.after = gate, length, after

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.after:
            wait_until(self.gate.exists)
        return torch.full((2000,), index)


class GatedStream(IterableDataset):
    def __init__(self, gate):
        self.gate = gate

    def __iter__(self):
        info = get_worker_info()
        for number in range(info.id, 200, info.num_workers):
            if number >= 60:
                wait_until(self.gate.exists)
            yield torch.full((2000,), number)


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
                threading.Event().wait(1000)
            if self.how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            with open(self.how) as file:
                return torch.tensor(len(file.read()))
        return torch.tensor(index)


def options(kind, workers):
    return dict(batch_size=7, num_workers=workers, shuffle=kind is Rows, persistent_workers=True)


def same(first, second):
    first, second = list(first), list(second)
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)


def indices(batches):
    return [int(value) for batch in batches for value in (batch[:, 0] if batch.dim() > 1 else batch)]


# -- the same batches as torch's ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "workers"), [(Rows, 3), (Stream, 2)], ids=["rows", "stream"])
def test_parity_with_torch(kind, workers):
    torch.manual_seed(3)
    theirs = torch.utils.data.DataLoader(kind(), **options(kind, workers))
    torchs = [list(theirs), list(theirs)]
    del theirs
    torch.manual_seed(3)
    ours = unjam.DataLoader(kind(), pool="ray", **options(kind, workers))
    for epoch in torchs:
        same(ours, epoch)


def test_batches_can_be_changed_and_kept():
    loader = unjam.DataLoader(Rows(40, 60_000), batch_size=4, num_workers=2, pool="ray")
    kept = []
    for data, index, *_ in loader:
        data += 1
        kept.append((data, index))
    for data, index in kept:
        assert torch.equal(data, Rows(40, 60_000).data[index] + 1)
    del data, kept, loader


def test_workers_run_locally_and_on_nodes(tmp_path):
    loader = unjam.DataLoader(
        Gated(tmp_path / "gate", after=1000), batch_size=4, num_workers=1, pool=unjam.RayPool(workers=2)
    )
    assert indices(loader) == list(range(200))
    told = loader.statistics().nodes
    assert set(told) == {"here", "alpha", "beta"}
    assert sum(one.batches for one in told.values()) == 50


def test_lines_of_local_workers_are_profiled_beside_a_cluster(tmp_path):
    (tmp_path / "gate").touch()
    pool = unjam.RayPool(workers=1)
    loader = unjam.DataLoader(Gated(tmp_path / "gate"), batch_size=4, num_workers=1, pool=pool, profile=True)
    batches = iter(loader)
    next(batches)
    (thread,) = (one for one in threading.enumerate() if one.name == "unjam-profiler")
    time.sleep(0.2)
    assert thread.is_alive(), "it failed"
    list(batches)


def test_local_memory_does_not_limit_the_workers_of_a_cluster():
    sizer = auto_size.AutoSizer(resizes_within_epoch=True, start=2, depth=None)
    sizer.search.limits = dataclasses.replace(sizer.limits, workers=2, because="memory")
    sizer.use_cluster(512)
    assert sizer.limits.workers == 512


def test_a_loader_without_local_workers(tmp_path):
    loader = unjam.DataLoader(Gated(tmp_path, 40), batch_size=4, pool=unjam.RayPool(workers=2))
    assert indices(loader) == list(range(40))


def test_auto_uses_the_cluster_processors(tmp_path):
    loader = unjam.DataLoader(Gated(tmp_path, 120), batch_size=4, num_workers="auto", pool="ray")
    assert indices(loader) == list(range(120))
    assert loader.statistics().auto.most == 4


def test_resumes_where_it_stopped():
    def made():
        torch.manual_seed(3)
        return unjam.DataLoader(Rows(), pool="ray", **options(Rows, 3))

    loader = made()
    whole = list(loader)
    loader = made()
    iterator = iter(loader)
    begun = [next(iterator) for _ in range(5)]
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator, loader
    loader = made()
    loader.load_state_dict(state)
    same([*begun, *loader], whole)


def test_a_stream_on_the_cluster_alone_resumes(tmp_path):
    (tmp_path / "gate").touch()

    def made():
        return unjam.DataLoader(GatedStream(tmp_path / "gate"), batch_size=4, pool=unjam.RayPool(workers=2))

    whole = indices(made())
    loader = made()
    iterator = iter(loader)
    begun = [number for _ in range(5) for number in next(iterator)[:, 0].tolist()]
    state = loader.state_dict()
    del iterator, loader
    loader = made()
    loader.load_state_dict(state)
    assert [*begun, *indices(loader)] == whole


# -- failures of samples -----------------------------------------------------------------------------------------------


def test_a_sample_that_raises_names_its_node():
    loader = unjam.DataLoader(Fails("raises"), batch_size=4, num_workers=2, pool="ray")
    with pytest.raises(ValueError, match="thirteen") as caught:
        list(loader)
    assert any("on node" in note and "sample 13" in "".join(caught.value.__notes__) for note in caught.value.__notes__)


def test_on_error_policies_apply_on_a_cluster():
    loader = unjam.DataLoader(Fails("raises"), batch_size=4, num_workers=2, pool="ray", on_error="skip")
    assert indices(loader) == [index for index in range(40) if index != 13]
    asked = []
    loader = unjam.DataLoader(
        Fails("raises"),
        batch_size=4,
        num_workers=2,
        pool="ray",
        on_error=lambda error: asked.append(error.index) or "skip",
    )
    assert indices(loader) == [index for index in range(40) if index != 13]
    assert asked == [13]


def test_a_hanging_sample_times_out():
    loader = unjam.DataLoader(Fails("hangs"), batch_size=4, num_workers=2, pool="ray", sample_timeout=1.5)
    with pytest.raises(unjam.SampleTimeoutError, match="sample 13") as caught:
        list(loader)
    assert "test_cluster.py" in str(caught.value)
    assert "a lock" in str(caught.value)


def test_a_sample_that_kills_its_worker_is_handled():
    loader = unjam.DataLoader(Fails("dies"), batch_size=4, num_workers=2, pool="ray", on_error="skip")
    assert indices(loader) == [index for index in range(40) if index != 13]
    assert "on node" in loader.incidents[0].what
    assert loader.incidents[0].signal == "SIGKILL"


def test_a_path_missing_on_the_node_is_explained(tmp_path):
    here = tmp_path / "labels.txt"
    here.write_text("abc")

    def failed(error):
        return SampleFailure(0, 13, 0, 0, "getitem", 0.0, record(error, (), by_value=False))

    lost = FileNotFoundError(2, "No such file or directory", str(here))
    assert f"{here} exists on this machine" in missing_there(failed(lost))
    assert not missing_there(failed(FileNotFoundError(2, "No such file or directory", "/nowhere/labels.txt")))
    assert not missing_there(failed(ValueError(f"{here} has no labels")))
    with pytest.raises(FileNotFoundError) as caught:
        list(unjam.DataLoader(Fails("/nowhere/labels.txt"), batch_size=4, num_workers=1, pool="ray"))
    assert "on node" in str(caught.value.__notes__)


# -- failures of the cluster -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_dead_node_loses_nothing(cluster, kind, tmp_path):
    """Its batches are made again elsewhere: nothing is lost, repeated or out of order."""
    gate = tmp_path / "gate"
    data = Gated(gate) if kind == "map" else GatedStream(gate)
    loader = unjam.DataLoader(data, batch_size=4, num_workers=4, pool="ray")
    got = []
    for number, batch in enumerate(loader):
        got.append(batch)
        if number == 8:
            cluster.machines[1].die()
            gate.touch()
    assert sorted(indices(got)) == list(range(200))
    if kind == "map":
        assert indices(got) == list(range(200))
    assert "was lost with its node" in loader.incidents[0].what


def test_workers_move_to_a_new_node(cluster, tmp_path, monkeypatch):
    """Workers that share a processor move to a node that came."""
    monkeypatch.setattr(cluster_pool, "REBALANCE", Deadline(0.05, ""))
    gate = tmp_path / "gate"
    loader = unjam.DataLoader(Gated(gate, 40_000), batch_size=4, num_workers=6, pool="ray")
    iterator = iter(loader)
    got = [next(iterator)]
    cluster.machines.append(FakeNode("gamma"))
    gate.touch()
    while len(loader.statistics().nodes) < 3:
        time.sleep(0.005)  # or all batches are made before the new node has started
        got.append(next(iterator))
    got += [next(iterator) for _ in range(40)]
    assert indices(got) == list(range(4 * len(got)))
    assert not loader.incidents
    assert sum(one.workers for one in loader.statistics().nodes.values()) <= 6
    del iterator


def test_workers_move_later_when_they_cannot_move_at_once(cluster, monkeypatch):
    """They move later: the new node does not stay empty."""
    monkeypatch.setattr(cluster_pool, "REBALANCE", Deadline(0.05, ""))
    loader = unjam.DataLoader(range(400_000), batch_size=4, num_workers=6, pool="ray")
    iterator = iter(loader)
    got = [next(iterator) for _ in range(12)]
    links = iterator._pool._links
    everyone = [worker for link in links for worker in link.workers.values()]
    for worker in everyone:
        worker.prepared = False
    cluster.machines.append(FakeNode("gamma"))
    while len(links) < 3:
        time.sleep(0.005)
        got.append(next(iterator))
    assert len(loader.statistics().nodes) == 2
    for worker in everyone:
        worker.prepared = True
    while len(loader.statistics().nodes) < 3:
        time.sleep(0.005)
        got.append(next(iterator))
    assert torch.cat(got).tolist() == list(range(4 * len(got)))
    assert not loader.incidents
    del iterator


def test_random_kills_lose_nothing(cluster, tmp_path):
    """Workers and nodes die; nothing is lost, repeated or out of order."""
    dice, kills = random.Random(5), 0
    loader = unjam.DataLoader(
        Gated(tmp_path, 600), batch_size=4, num_workers=4, pool="ray", max_restarts=10_000, prefetch_factor=1
    )
    (tmp_path / "gate").touch()
    got = []
    for number, batch in enumerate(loader):
        got.append(batch)
        if number % 15 == 7:
            if number % 2:
                os.kill(dice.choice(wait_until(cluster.workers)), signal.SIGKILL)
            else:
                old = next(node for node in cluster.machines if not node.dead)
                cluster.machines.append(FakeNode(f"node {number}"))
                old.die()
            kills += 1
    assert indices(got) == list(range(600))
    assert kills == 10


def test_a_cluster_without_free_resources_is_reported(tmp_path):
    pool = unjam.RayPool(resources={"unobtainium": 1}, patience=0.5)
    with pytest.raises(unjam.ClusterError, match="needs 1 CPU, 1 unobtainium"):
        list(unjam.DataLoader(Gated(tmp_path, 8), num_workers=1, pool=pool))


def test_agents_report_why_they_cannot_start(cluster, tmp_path):
    for node in cluster.machines:
        node.refuses = "ModuleNotFoundError: No module named 'a_package'"
    with pytest.raises(unjam.UnjamError, match="No module named 'a_package'"):
        list(unjam.DataLoader(Gated(tmp_path, 8), num_workers=1, pool=unjam.RayPool(patience=0.5)))


def test_a_node_that_cannot_start_an_agent_is_skipped(cluster, tmp_path):
    cluster.machines[0].refuses = "no disk space left"
    assert indices(unjam.DataLoader(Gated(tmp_path, 40), batch_size=4, num_workers=2, pool="ray")) == list(range(40))


def test_a_lost_cluster_raises(cluster, tmp_path):
    gate = tmp_path / "gate"
    loader = unjam.DataLoader(Gated(gate), batch_size=4, num_workers=2, pool=unjam.RayPool(patience=0.5))

    def lose_it():
        for number, _ in enumerate(loader):
            if number == 3:
                for node in cluster.machines:
                    node.die()
                gate.touch()

    with pytest.raises(unjam.ClusterError, match="no node of the cluster accepted a worker"):
        lose_it()


def test_an_unresponsive_agent_is_replaced(cluster, tmp_path):
    gate = tmp_path / "gate"
    loader = unjam.DataLoader(Gated(gate), batch_size=4, num_workers=4, pool="ray")
    got = []
    for number, batch in enumerate(loader):
        got.append(batch)
        if number == 8:
            cluster.machines[0].agents[0].silent = True
            gate.touch()
    assert indices(got) == list(range(200))
    assert any("did not answer within" in one.what for one in loader.incidents)


def test_a_second_epoch_has_its_own_patience(cluster):
    """The time between two epochs does not count as waiting for a node."""
    nodes, cluster.machines = cluster.machines, []
    pool = ClusterPool(FakeCluster(cluster, unjam.RayPool(), None, None), [FakeSpec()], WorkerReports(), 0.2)
    try:
        pool.start([0], {})
        pool.begin_epoch(None, 1)
        time.sleep(0.3)
        pool.start([0], {})
    finally:
        pool.close()
        cluster.machines = nodes


@dataclasses.dataclass
class FakeSpec:
    start_at: object = None
    shared_seed: object = None
    epoch: int = 0


class Broken:
    """An agent whose calls raise what no agent should raise."""

    def tell(self, orders):
        raise OSError

    def poll(self, seconds, within):
        raise IndexError("list index out of range")

    def close(self, within):
        pass


def test_an_unexpected_error_of_an_agent_loses_its_link():
    link = NodeLink(Broken(), "alpha", 2, lambda: None)
    assert wait_until(lambda: link.lost) == "IndexError: list index out of range"
    link.close()


@pytest.mark.static
def test_an_error_of_ray_without_text_is_reported():
    class Ray:
        class exceptions:
            GetTimeoutError = RayTaskError = type("Unused", (Exception,), {})
            NodeDiedError = RayError = type("Unused", (Exception,), {})
            RayActorError = type("RayActorError", (Exception,), {"actor_init_failed": True})

        def is_initialized(self):
            return True

    class Actor:
        class tell:
            @staticmethod
            def remote(orders):
                raise Ray.exceptions.RayActorError("")

    with pytest.raises(AgentCannotStart, match="RayActorError"):
        RayAgent(Ray(), Actor(), 1.0).tell([])


# -- what travels ------------------------------------------------------------------------------------------------------


class Holds(Dataset):
    def __init__(self, what):
        self.inner = {"handle": what}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(index)


def test_unpicklable_objects_are_named():
    with pytest.raises(unjam.CannotShipError, match=r"dataset\.inner\['handle'\] cannot be sent"):
        list(unjam.DataLoader(Holds(one for one in ()), num_workers=1, pool="ray"))
    shared = torch.zeros(100_000).share_memory_()
    with pytest.raises(unjam.CannotShipError, match=r"dataset\.inner\['handle'\] cannot be sent"):
        list(unjam.DataLoader(Holds(shared), num_workers=1, pool="ray"))


@pytest.mark.static
def test_an_error_names_a_node_only_if_that_node_failed():
    given = WorkerInput(Holds(None), None, None, {})
    error = ValueError("no such model")
    assert "alpha" not in str(cannot_travel(given, error, lambda part: None, "alpha"))
    assert "cannot be rebuilt on" in str(cannot_travel(given, error, lambda part: None, "alpha"))
    assert "cannot be sent to another machine" in str(cannot_travel(given, error, lambda part: None))


@pytest.mark.static
def test_the_node_that_failed_is_tried():
    nodes = [Node("a", "10.0.0.1", 2), Node("b", "10.0.0.12", 2)]
    error = ValueError("no such model")
    assert _named_in(error, nodes) is None
    error.__notes__ = ["sample 3; on node 10.0.0.12"]
    assert _named_in(error, nodes) is nodes[1]


def test_a_copy_is_awaited_with_many_open_files(monkeypatch):
    """select() does not accept descriptors from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("needs 1200 open files")
    files = []
    name = f"\0unjam-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as maker:
        assert _takes(name, maker)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
            while not files or files[-1] < 1030:
                files.append(os.open(os.devnull, os.O_RDONLY))
            assert not _other_is_done(name, time.monotonic() + 0.05)
        finally:
            for fd in files:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- placement ---------------------------------------------------------------------------------------------------------


@pytest.mark.static
def test_workers_are_divided_over_nodes():
    nodes = [Node("a", "a", 5), Node("b", "b", 2)]
    assert [share for _, share in shares(nodes, 4, spread=True)] == [2, 2]
    assert [share for _, share in shares(nodes, 6, spread=True)] == [4, 2]
    assert [share for _, share in shares(nodes, 100, spread=True)] == [5, 2]
    assert [share for _, share in shares(nodes, 6, spread=False)] == [5, 1]
    assert shares([], 6, spread=True) == []


def test_a_rank_gets_its_share_of_the_processors_in_total(cluster, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    placed = FakeCluster(cluster, unjam.RayPool(), None, None)
    placed._keys["alpha"] = "alpha"
    assert placed.grow(4, [SimpleNamespace(name="alpha", room=2)], [], lambda: None) == []


@pytest.mark.static
@pytest.mark.parametrize(("ranks", "workers"), [("2", 2), ("", 4), ("0", 4), ("two", 4), ("-1", 4)])
def test_the_number_of_ranks_may_be_missing(ranks, workers, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", ranks)
    assert workers_of_rank(FakeRay(FakeNode("alpha", 4)), unjam.RayPool()) == workers


@pytest.mark.static
def test_a_resource_that_workers_do_not_take_is_ignored():
    pool = unjam.RayPool(resources={"GPU": 0}, placement=SimpleNamespace(bundle_specs=[{"CPU": 3.0}]))
    assert RayCluster(None, pool, None, None).nodes() == [Node("0", "bundle 0", 3)]


@pytest.mark.parametrize(("placement", "used"), [("spread", 2), ("pack", 1)])
def test_workers_are_spread_or_packed(placement, used, cluster, tmp_path):
    pool = unjam.RayPool(placement=placement)
    loader = unjam.DataLoader(Gated(tmp_path, 40), batch_size=4, num_workers=2, pool=pool)
    assert indices(loader) == list(range(40))
    assert sum(bool(node.agents) for node in cluster.machines) == used


def test_more_workers_than_processors_are_logged(tmp_path, caplog):
    loader = unjam.DataLoader(Gated(tmp_path, 80, 80), batch_size=4, num_workers=9, pool="ray")
    assert indices(loader) == list(range(80))
    assert "the cluster has 4 free processors for 9 workers" in caplog.text


@pytest.mark.static
def test_invalid_pool_settings_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="pool should be"):
        unjam.DataLoader(Rows(), pool="dask")
    with pytest.raises(ValueError, match="workers should be"):
        unjam.RayPool(workers=0)
    with pytest.raises(ValueError, match="placement should be"):
        unjam.RayPool(placement="anywhere")


def test_a_fork_leaves_the_agents_of_its_parent_alone():
    closed = []
    pool = ClusterPool(None, [], WorkerReports(), 60.0)
    pool._links.append(SimpleNamespace(lost="", close=lambda: closed.append(1)))
    owner, pool._owner_pid = pool._owner_pid, -1  # as in a fork
    pool.close_links()
    assert (len(pool._links), closed) == (1, [])
    pool._owner_pid = owner
    pool.close()
    assert closed == [1]


@pytest.mark.static
def test_the_bytes_of_a_small_batch_count_once():
    sent = ReceivedBatch(PackedBatch(b"s" * 10, None, (), None, batch=0, data=b"d" * 1000), None)
    message, data, _ = sent.relay()
    assert RemoteBatch(message, data, HeldBatches(), "alpha").report.nbytes == sent.report.nbytes == 1010
