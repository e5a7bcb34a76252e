"""Phase x way of failing x start method x persistent or not: each ends as stated, within its bound, nothing left behind.

`once`: the first worker fails and its replacement does not: every batch comes, in order, with its bytes. `always`: each
worker fails there: the error names the phase and the sample, or the policy leaves the sample out. A parent that is killed with
its workers alive, Ctrl-C and the interpreter's exit are in test_stopping.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import psutil
import pytest
import torch

from faulty import Collate, Faults, Init, tried
from support import wait_until
from unjam import DataLoader, SampleTimeoutError, WorkerDiedError
from unjam.loader.pool.process_pool import ProcessPool
from unjam.loader.pool.worker_handle import WorkerHandle
from unjam.loader.transport.status_page import Stage

PHASES = ["loading", "init", "getitem", "collate", "pickle", "send"]
WAYS = ["sigkill", "sigsegv", "sigterm", "exit 0"]
NAMES = {
    "sigkill": "SIGKILL",
    "sigsegv": "SIGSEGV",
    "sigterm": "SIGTERM",
    "exit 0": "exited with status 0 before its work was done",
}


def make(faults, *, method=None, persistent=False, workers=2, **options):
    collate = Collate(faults)
    return DataLoader(
        faults,
        batch_size=4,
        num_workers=workers,
        multiprocessing_context=method,
        persistent_workers=persistent,
        collate_fn=collate,
        worker_init_fn=Init(faults),
        **options,
    )


def expect(batches, without=()):
    got = [index for batch in batches for index in batch[1]]
    assert got == [index for index in range(24) if index not in without]
    for batch in batches:
        assert torch.equal(batch[0], torch.tensor([[float(i)] * 2000 for i in batch[1]]))


@pytest.mark.parametrize(
    ("method", "persistent"),
    [(None, False), (None, True), ("fork", False)],
    ids=["new workers", "persistent workers", "forked workers"],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_that_happens_once_is_recovered(phase, way, method, persistent, tmp_path):
    if phase == "loading" and method == "fork":
        phase = "getitem"  # a forked worker loads nothing: the cell is another sample's
    faults = Faults(phase, way, str(tmp_path / "marker"), at=21 if persistent else 5)
    made = make(faults, method=method, persistent=persistent)
    expect(list(made))
    assert (tmp_path / "marker").exists(), "the fault did not happen"
    assert made.statistics().restarts == 1
    assert NAMES[way] in made.incidents[0].what
    assert made.incidents[0].decision == "restart"
    if phase == "getitem":
        assert made.incidents[0].sample == faults.at
    if persistent:
        expect(list(made))
    del made


@pytest.mark.parametrize(
    ("phase", "method"),
    [("loading", "spawn"), ("pickle", "forkserver")],
)
def test_a_fault_that_happens_once_is_recovered_in_multiprocessing_contexts(phase, method, tmp_path):
    faults = Faults(phase, "sigkill", str(tmp_path / "marker"))
    made = make(faults, method=method, workers=1)
    expect(list(made))
    assert (tmp_path / "marker").exists()
    assert made.statistics().restarts == 1


@pytest.mark.parametrize("method", [None, "fork"], ids=["auto", "fork"])
@pytest.mark.parametrize("way", ["sigkill", "sigsegv", "exit 0"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_fault_that_always_happens_is_an_error(phase, way, method):
    if phase == "loading" and method == "fork":
        phase = "init"
    faults = Faults(phase, way)
    made = make(faults, method=method)
    with pytest.raises(WorkerDiedError) as caught:
        list(made)
    text = str(caught.value)
    assert NAMES[way] in text
    assert {
        "loading": "loading the dataset",
        "init": "running worker_init_fn",
        "getitem": "while loading sample 5 (batch 1, worker 1)",
        "collate": "collating samples 4, 5, 6, 7 (batch 1, worker 1)",
        "pickle": "packing samples 4, 5, 6, 7 (batch 1, worker 1)",
        "send": "sending samples 4, 5, 6, 7 (batch 1, worker 1)",
    }[phase] in text
    assert caught.value.incident.pid
    if way == "sigsegv":
        assert {"getitem": "in __getitem__", "collate": "in __call__", "pickle": "in __reduce__"}.get(phase, "") in text


@pytest.mark.parametrize("policy", ["skip", "replace", "function"])
@pytest.mark.parametrize("phase", ["getitem", "collate", "pickle", "send"])
def test_a_sample_that_kills_its_worker_goes_to_the_policy(phase, policy, tmp_path):
    faults = Faults(phase, "sigkill")
    made = make(faults, on_error=(lambda error: "skip") if policy == "function" else policy)
    batches = list(made)
    if phase == "getitem" and policy == "replace":
        assert [len(batch[1]) for batch in batches] == [4] * 6
        assert made.errors[0].replacement in (4, 6, 7)
    else:
        expect(batches, [5] if phase == "getitem" else [4, 5, 6, 7])
    assert made.statistics().restarts == 2, "tried twice and not for ever"
    (error,) = made.errors
    assert isinstance(error.exception, WorkerDiedError)
    assert error.index == (5 if phase == "getitem" else None)
    assert error.decision == ("replace" if phase == "getitem" and policy == "replace" else "skip")


def test_a_sample_that_kills_its_worker_is_retried(tmp_path):
    class Twice(Faults):
        def __getitem__(self, index):
            if index == 5 and tried(tmp_path / "count") <= 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    expect(list(make(Twice(), on_error="retry", retries=3)))
    assert (tmp_path / "count").stat().st_size == 4


def test_the_killing_sample_is_identified_with_getitems():
    class Bulk(Faults):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    made = make(Bulk("getitem", "sigkill"), on_error="skip")
    expect(list(made), [5])
    assert made.errors[0].index == 5


def test_on_worker_death_raise(tmp_path):
    made = make(Faults("getitem", "sigkill", str(tmp_path / "marker")), on_worker_death="raise")
    with pytest.raises(WorkerDiedError, match=r"while loading sample 5 .*on_worker_death is 'raise'"):
        list(made)
    expect(list(made))


def test_max_restarts():
    class Each(Faults):
        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL)

    made = make(Each(), max_restarts=4, on_error="skip")
    with pytest.raises(WorkerDiedError, match="max_restarts"):
        list(made)
    assert made.statistics().restarts == 4


def test_a_worker_killed_while_it_waits(tmp_path):
    made = make(Faults(), prefetch_factor=1)
    iterator = iter(made)
    batches = [next(iterator)]
    for worker in list(iterator._workers):
        _until_idle(iterator, worker)
        os.kill(worker.pid, signal.SIGKILL)
    expect(batches + list(iterator))
    assert "waiting for work" in made.incidents[0].what


def _until_idle(iterator, worker):
    number = iterator._workers.index(worker)
    wait_until(lambda: iterator._pool.heartbeat(number).stage is Stage.IDLE)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_killed_between_epochs(persistent):
    made = make(Faults(), persistent=persistent)
    expect(list(made))
    if persistent:
        for worker in made._iterator._workers:
            os.kill(worker.pid, signal.SIGKILL)
    expect(list(made))
    del made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV], ids=lambda n: n.name)
def test_a_worker_killed_while_it_is_being_stopped(number):
    made = make(Faults("getitem", "hang", at=23))
    iterator = iter(made)
    next(iterator)
    workers = list(iterator._workers)
    stopping = iterator._pool
    killer = threading.Thread(
        target=lambda: (
            wait_until(lambda: stopping.closed) and [os.kill(one.pid, number) for one in workers if one.is_alive()]
        )
    )
    killer.start()
    del iterator
    killer.join(60)
    wait_until(lambda: not any(worker.is_alive() for worker in workers))


def test_a_sample_of_an_iterable_that_always_kills_ends_the_epoch(tmp_path):
    from faulty import BadStream

    class Dies(BadStream):
        def _generate(self, numbers):
            for number in numbers:
                if number == 7:
                    os._exit(0)
                yield number

    with pytest.raises(WorkerDiedError, match=r"while loading sample 3 of its iterable .*cannot be skipped") as caught:
        list(DataLoader(Dies(99, goes_on=False), batch_size=2, num_workers=2, on_error="skip"))
    assert "help: " in str(caught.value)


# -- silence -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "way"),
    [("getitem", "hang"), ("getitem", "hold"), ("getitem", "spin"), ("collate", "hold"), ("pickle", "hang")],
)
def test_a_timed_out_sample_is_an_error(phase, way):
    made = make(Faults(phase, way), method="fork" if way == "hang" else None, sample_timeout=1.5)
    with pytest.raises(SampleTimeoutError) as caught:
        list(made)
    text = str(caught.value)
    assert "sample_timeout=1.5" in text
    assert ("sample 5 (batch 1, worker 1)" if phase == "getitem" else "samples 4, 5, 6, 7 (batch 1, worker 1)") in text
    assert {"hang": "in wait", "hold": "in hold_the_interpreter", "spin": "in end"}[way] in text
    assert {"hang": "a lock", "hold": "it is computing", "spin": "it is computing"}[
        way
    ] in caught.value.incident.waits_for
    assert "faulty.py" in caught.value.incident.location


def test_a_timed_out_sample_goes_to_the_policy(tmp_path):
    made = make(Faults("getitem", "hang"), sample_timeout=1.5, on_error="skip")
    expect(list(made), [5])
    assert isinstance(made.errors[0].exception, SampleTimeoutError)
    assert made.errors[0].index == 5
    assert made.errors[0].seconds > 1.5
    faults = Faults("getitem", "hang", str(tmp_path / "marker"))
    made = make(faults, sample_timeout=1.5, on_error="retry", on_worker_death="raise")
    expect(list(made))


def test_sample_timeout_applies_to_a_getitems_batch():
    class Slow(Faults):
        def __getitems__(self, indices):
            time.sleep(3 if 0 in indices else 0)
            return [self[index] for index in indices]

    # four samples in one call may take four times as long
    expect(list(make(Slow(length=24), sample_timeout=2)))


def test_a_slow_but_healthy_sample_is_not_interrupted():
    class Slow(Faults):
        def __getitem__(self, index):
            time.sleep(0.3)
            return super().__getitem__(index)

    made = make(Slow(length=8), sample_timeout=30, workers=2)
    assert [index for batch in made for index in batch[1]] == list(range(8))
    assert made.incidents == ()


def test_a_suspended_worker_is_continued():
    made = make(Faults("getitem", "sigstop"), sample_timeout=30)
    expect(list(made))
    assert made.incidents[0].kind == "suspended"
    assert made.statistics().restarts == 0


@pytest.mark.parametrize("step", ["_stop_polling", "_release", "_listen"])
def test_an_interrupt_while_an_exit_is_handled_does_not_lose_the_death(step, tmp_path, monkeypatch):
    made = make(Faults("getitem", "sigkill", marker=tmp_path / "once"))
    batches, got, interrupts = iter(made), [], []
    plain = getattr(ProcessPool, step)

    def interrupted(pool, *args):
        if not interrupts and any(one.death is not None for one in args if isinstance(one, WorkerHandle)):
            interrupts.append(step)
            raise KeyboardInterrupt
        return plain(pool, *args)

    monkeypatch.setattr(ProcessPool, step, interrupted)
    while True:
        try:
            got.append(next(batches))
        except KeyboardInterrupt:
            continue
        except StopIteration:
            break
    assert interrupts == [step]
    expect(got)


def test_a_permanently_suspended_worker_is_replaced():
    made = make(Faults(), warn_after=0.2)
    iterator = iter(made)
    stop = threading.Event()
    victim = iterator._workers[0].pid

    def suspend():
        while not stop.wait(0.01):
            try:
                os.kill(victim, signal.SIGSTOP)
            except ProcessLookupError:
                return

    suspending = threading.Thread(target=suspend)
    suspending.start()
    try:
        expect(list(iterator))
    finally:
        stop.set()
        suspending.join(5)


def test_silence_is_explained(caplog, tmp_path):
    made = make(Faults("getitem", "hang", at=1), warn_after=0.3, timeout=5)
    with pytest.raises(RuntimeError, match=r"timed out after 5 seconds: .* loading sample 1 ") as caught:
        list(made)
    assert "in wait" in str(caught.value)
    said = [record.getMessage() for record in caplog.records if "no progress" in record.getMessage()]
    assert 2 <= len(said) <= 5, "after 0.3, 0.6, 1.2 and 2.4 s"
    # on a slow machine the first ones are about the worker's start
    assert "loading sample 1 (batch 0, worker 0)" in said[-1]
    assert "it waits for a lock" in said[-1]
    assert "faulty.py" in said[-1]


@pytest.mark.parametrize("phase", ["loading", "init"])
def test_silence_before_the_first_sample_is_explained(phase, caplog):
    made = make(Faults(phase, "hang"), warn_after=0.3, timeout=4)
    with pytest.raises(RuntimeError, match={"loading": "loading the dataset", "init": "running worker_init_fn"}[phase]):
        list(made)
    assert any("faulty.py" in record.getMessage() for record in caplog.records)


def test_the_wait_of_a_worker_is_described():
    import socket

    from unjam.system import waiting

    class Waits(Faults):
        def __getitem__(self, index):
            if index == 0:
                here, self.there = socket.socketpair()
                here.recv(1)
            if index == 1:
                read, self.write = os.pipe()
                os.read(read, 1)
            if index == 2:
                subprocess.run(["sleep", "3600"], check=True)
            if index == 3:
                time.sleep(3600)
            return index

    made = DataLoader(Waits(length=4), batch_size=None, num_workers=4, warn_after=None)
    iterator = iter(made)
    pids = [process.pid for process in iterator._workers]
    for pid, kind in zip(pids, ["socket", "pipe", "child", "sleep"], strict=True):
        wait_until(lambda pid=pid, kind=kind: waiting.current_wait(pid).kind == kind)
    for child in psutil.Process().children(recursive=True):
        if child.name() == "sleep":
            child.kill()
    del iterator


# -- what the consumer does --------------------------------------------------------------------------------------------


def test_two_threads_share_an_iterator():
    iterator = iter(make(Faults(length=80)))
    got, lock = [], threading.Lock()

    def take():
        for batch in iterator:
            with lock:
                got.extend(batch[1])

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(got) == list(range(80))


def test_closing_while_another_thread_waits():
    iterator = iter(make(Faults("getitem", "hang", at=1)))
    ended = threading.Event()

    def take():
        for _ in iterator:
            pass
        ended.set()

    thread = threading.Thread(target=take)
    thread.start()
    wait_until(lambda: iterator._pool.heartbeat(0).stage is Stage.GETITEM)
    iterator._shutdown_workers()
    assert ended.wait(60)
    thread.join(60)


def test_an_exception_in_the_loop_body():
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            for _ in make(Faults("getitem", "hang", at=20)):
                1 / 0


def test_the_parent_may_fork_while_workers_run():
    iterator = iter(make(Faults()))
    batches = [next(iterator)]
    pid = os.fork()
    if pid == 0:
        del iterator
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    expect(batches + list(iterator))
