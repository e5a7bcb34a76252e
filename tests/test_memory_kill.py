"""A worker that the system kills for memory: the pool shrinks before it gives up, and says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from faulty import Faults, once
from support import script
from unjam import DataLoader, WorkerDiedError
from unjam.loader.pool import worker_exits
from unjam.system.memory_limits import OomKills

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@pytest.fixture
def cgroup():
    """A memory cgroup of our own; where the system does not let us make one, the simulated tests below still run."""
    base, limit = (V1, "memory.limit_in_bytes") if (V1 / "memory.limit_in_bytes").exists() else (V2, "memory.max")
    folder = base / f"unjam-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / limit).write_text(str(2 << 30))  # less than the sample wants, more than any build of torch takes
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}; run as root on a host or in a privileged container")
    yield folder
    for pid in (folder / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    folder.rmdir()


PROGRAM = """
import os, sys
sys.path.insert(0, {tests!r})
open({procs!r}, "w").write(str(os.getpid()))
from unjam import DataLoader

class Hungry:
    def __len__(self): return 24
    def __getitem__(self, index):
        if index == 5:
            return len(bytearray(os.urandom(1 << 20) * 4000))
        return index

if __name__ == "__main__":
    loader = DataLoader(Hungry(), batch_size=4, num_workers=3, on_error={policy!r})
    try:
        got = [index for batch in loader for index in batch.tolist()]
        print("got", got == [n for n in range(24) if n != 5])
    except RuntimeError as error:
        print(type(error).__name__, error)
    for incident in loader.incidents:
        print(incident.decision, incident.memory)
    print(loader.statistics().restarts)
"""


@pytest.mark.parametrize("policy", ["skip", *(["raise"] if "UNJAM_LONG" in os.environ else [])])
def test_real_memory_kills_shrink_the_pool(policy, cgroup, tmp_path):
    text = PROGRAM.format(tests=os.path.dirname(__file__), procs=str(cgroup / "cgroup.procs"), policy=policy)
    done = script(tmp_path, text, warm=False)
    out = done.stdout
    assert "shrink cgroup oom_kill 0 -> 1" in out, done.stderr
    assert "shrink cgroup oom_kill 1 -> 2" in out
    assert "restart cgroup oom_kill 2 -> 3" in out
    assert "it will not be replaced (workers left: 2)" in done.stderr
    if policy == "skip":
        assert "got True" in out, "the sample that needs too much is left out in the end"
    else:
        assert "WorkerDiedError DataLoader worker" in out
        assert "while loading sample 5 (batch 1, worker" in out
        assert "help: use fewer workers" in out


def simulate(monkeypatch, counts):
    """The system's count of memory kills, as it is read one time after the other."""
    seen = iter(counts)
    monkeypatch.setattr(worker_exits, "oom_kills", lambda: OomKills(next(seen), "cgroup"))


def test_a_memory_kill_shrinks_the_pool(monkeypatch, tmp_path, caplog):
    simulate(monkeypatch, [0, 1, 1, 1])
    made = DataLoader(
        Faults("getitem", "sigkill", str(tmp_path / "marker")), batch_size=4, num_workers=2, persistent_workers=True
    )
    for _ in range(2):
        assert [index for _, indices in made for index in indices.tolist()] == list(range(24))
    assert [(incident.decision, incident.memory) for incident in made.incidents] == [
        ("shrink", "cgroup oom_kill 0 -> 1")
    ]
    assert made.statistics().restarts == 0
    assert any("it will not be replaced (workers left: 1)" in record.getMessage() for record in caplog.records)
    del made


def test_the_last_worker_is_replaced_and_its_sample_blamed(monkeypatch):
    simulate(monkeypatch, range(10))
    made = DataLoader(Faults("getitem", "sigkill"), batch_size=4, num_workers=2)
    with pytest.raises(WorkerDiedError, match=r"while loading sample 5 .*the OOM killer killed"):
        list(made)
    assert [incident.decision for incident in made.incidents] == ["shrink", "restart"]


def test_a_kill_not_counted_by_the_system_is_not_a_memory_kill(monkeypatch, tmp_path):
    simulate(monkeypatch, [4, 4, 4])
    made = DataLoader(Faults("getitem", "sigkill", str(tmp_path / "marker")), batch_size=4, num_workers=2)
    assert len(list(made)) == 6
    assert made.incidents[0].decision == "restart"
    assert once(tmp_path / "other")


def test_a_process_that_survives_sigkill_is_abandoned(monkeypatch):
    """State D: the process waits inside the kernel, and no signal reaches it."""
    made = DataLoader(Faults("getitem", "hang", at=5), batch_size=4, num_workers=2, sample_timeout=1, on_error="skip")
    iterator = iter(made)
    batches = [next(iterator)]
    stuck = iterator._workers[1]
    monkeypatch.setattr(stuck, "kill", lambda: None)
    batches += list(iterator)
    assert [index for _, indices in batches for index in indices.tolist()] == [n for n in range(24) if n != 5]
    monkeypatch.undo()
    stuck.kill()
    stuck.join(5)
