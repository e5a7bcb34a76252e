"""Mechanisms that judge what was recorded of a program's processes: each finds its fault, and leaves the repaired program alone."""

from __future__ import annotations

import dataclasses

import pytest

from support import empty_case
from test_mechanisms import HERE, failure, program, said
from unjam.doctor.facts.case import Part, WorkerArgument
from unjam.doctor.facts.faults import FileOperation, LockFile, LostBatch, SampleOutput, ShrunkFile
from unjam.doctor.facts.object_state import ObjectState
from unjam.doctor.facts.program_facts import (
    ProcessObservations,
    WatchedEpoch,
    WatchedLoader,
    WatchedProcess,
    WatchedSample,
)
from unjam.doctor.facts.scene import Activity, Process, Scene, Thread
from unjam.doctor.facts.trial import Place, Plan, Trial
from unjam.doctor.proof import Confidence, Severity
from unjam.system.stacks import Frame
from unjam.system.waiting import Waiting

pytestmark = pytest.mark.static


def codes(watched, *cases) -> list[str]:
    return [one.rule.code for one in said(watched, *cases)]


def case_of(loader: WatchedLoader, **changes):
    case = empty_case(**changes)
    case.watched_loader = loader
    return case


# -- one connection, one file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("users", "found"), [((21, 22), ["UJ501"]), ((21,), [])])
def test_a_connection_used_by_several_workers_is_found(users, found):
    watched, loader = program()
    loader.worker_pids = [21, 22]
    watched.processes[0].used_connections = {"socket:[7]": list(users)}
    case = case_of(loader)
    case.parts = (Part("dataset.client.sock", "handle", "socket", HERE, ObjectState(target="socket:[7]")),)
    assert codes(watched, case) == found


def test_a_connection_several_workers_were_seen_waiting_on_is_found():
    watched, loader = program()
    loader.worker_pids = [21, 22]
    watched.observations = tuple(ProcessObservations(pid, 50, {"socket": 20}, {"socket:[7]": 20}) for pid in (21, 22))
    case = case_of(loader)
    case.parts = (Part("dataset.sock", "handle", "socket", HERE, ObjectState(target="socket:[7]")),)
    (found,) = said(watched, case)
    assert (found.rule.code, found.confidence) == ("UJ501", Confidence.LIKELY)


@pytest.mark.parametrize(("second", "found"), [("socket:[7]", ["UJ501"]), ("socket:[8]", [])])
def test_a_connection_without_an_attribute_is_only_possible(second, found):
    watched, loader = program()
    lock = Part("dataset.lock", "lock", "Lock", HERE, ObjectState(between_processes=True))
    loader.worker_pids = [21, 22]
    watched.observations = tuple(
        ProcessObservations(21 + at, 50, {"socket": 20}, {one: 20}) for at, one in enumerate(("socket:[7]", second))
    )
    assert codes(watched, case_of(loader)) == found
    guarded = case_of(loader)
    guarded.parts = (lock,)
    assert all(one.confidence is Confidence.POSSIBLE for one in said(watched, guarded))


@pytest.mark.parametrize(
    ("pids", "locks", "word"), [((21, 22), False, "likely"), ((21, 22), True, ""), ((21,), False, "")]
)
def test_a_path_written_and_read_by_several_workers_is_found(pids, locks, word):
    written = [SampleOutput("/tmp/decoded.wav", pid, HERE, locks) for pid in pids]
    watched, _ = program(sample_outputs=written)
    assert [one.confidence.value for one in said(watched)] == ([word] if word else [])


def test_a_file_read_while_another_worker_writes_it_is_found():
    written = [SampleOutput("/cache/a.npz", 21, HERE, locks=False, read=False)]
    reads = failure(type_name="EOFError", files=("/cache/a.npz",), pid=22, worker=1)
    assert codes(program("failed", sample_outputs=written, failures=[reads])[0]) == ["UJ537"]
    other = dataclasses.replace(reads, files=("/cache/b.npz",))
    assert codes(program("failed", sample_outputs=written, failures=[other])[0]) == []


def test_a_truncated_mapped_file_is_found():
    truncation = FileOperation("truncated", "/data/bank.npy", HERE, at=1.0)
    shrunk = ShrunkFile("/data/bank.npy", 8 << 20, 1 << 20, None, was_whole=True)
    (found,) = said(program("failed", shrunk_files=[shrunk], file_operations=[truncation])[0])
    assert (found.rule.code, found.location, found.weight) == ("UJ304", HERE, Severity.ERROR)
    died = failure(
        stage="next",
        type_name="RuntimeError",
        message="DataLoader worker (pid 1) is killed",
        worker=-1,
        at=2.0,
        index="",
    )
    assert codes(
        program("failed", file_operations=[truncation], mapped_files=["/data/bank.npy"], failures=[died])[0]
    ) == ["UJ304"]
    assert (
        codes(program("failed", file_operations=[truncation], mapped_files=["/data/other.npy"], failures=[died])[0])
        == []
    )


# -- waits ----------------------------------------------------------------------------------------------------------------


def process(pid: int, role: str, waiting: Waiting, *frames: Frame, **fields) -> Process:
    peers = fields.pop("peers", ())
    thread = Thread(pid, "MainThread", waiting, 60.0, frames=frames, peer_pids=peers, context_switches=9)
    known = {"parent": 1, "command": "train.py", "state": "S", "age": 99.0, "rss": 1, "busy": 0.0, "main": 10}
    return Process(pid=pid, role=role, threads=(thread, *fields.pop("others", ())), **{**known, **fields})


SLEEP = Waiting("sleep", "a sleep to end", limit=0.1)
LINE = Frame(HERE.file, 5, "wait")


def test_a_stale_lock_file_is_found():
    left = LockFile("/data/index.lock", 99, HERE)
    watched, _ = program("frozen", lock_files=[left])
    watched.scene = Scene((process(10, "main", SLEEP, LINE),), 3.0)
    assert codes(watched)[:1] == ["UJ202"]
    alive = Scene((process(10, "main", SLEEP, LINE), process(99, "child", SLEEP)), 3.0)
    watched.scene = alive
    assert "UJ202" not in codes(watched)


def test_a_single_connection_server_is_found():
    asks = Waiting("socket", "data from a socket to 127.0.0.1:80", fds=(5,))
    serves = Thread(
        11, "Thread-1", Waiting("socket", "data from a socket to 127.0.0.1:9", fds=(6,)), 60.0, peer_pids=(21,)
    )
    idle = process(21, "worker", Waiting("pipe", "a pipe", fds=(3,)), activity=Activity("torch", "idle", number=0))
    stuck = process(22, "worker", asks, LINE, activity=Activity("torch", "sample", "7", 1))
    main = process(10, "main", Waiting("pipe", "a pipe", fds=(4,)), others=(serves,))
    watched, _ = program("frozen")
    watched.scene = Scene((main, idle, stuck), 3.0)
    assert codes(watched)[:1] == ["UJ205"]
    accepted = dataclasses.replace(stuck, threads=(dataclasses.replace(stuck.thread, peer_pids=(10,)),))
    watched.scene = Scene((main, idle, accepted), 3.0)
    assert "UJ205" not in codes(watched)


def test_a_worker_that_ignores_sigterm_is_named():
    leaving = Frame("/usr/lib/python3.11/multiprocessing/util.py", 360, "_exit_function")
    main = process(10, "main", Waiting("child", "a child process to end"), leaving)
    worker = process(21, "worker", SLEEP, parent=10, ignores_sigterm=True, activity=Activity("torch", "idle", number=0))
    watched, loader = program("frozen")
    loader.worker_pids = [21]
    watched.scene = Scene((main, worker), 3.0)
    found = said(watched)[0]
    assert found.rule.code == "UJ211"
    assert "SIGTERM" in found.title


JOINS = Waiting("child", "a child process to end", target="pid 31")


def test_a_child_whose_stdin_stays_open_is_found():
    main = process(10, "main", JOINS, LINE)
    reads = process(
        31, "child", Waiting("pipe", "data from a pipe", fds=(0,)), parent=10, peers=(21,), command="gzip -c"
    )
    worker = process(21, "worker", SLEEP, parent=10, activity=Activity("torch", "idle", number=0))
    watched, _ = program("frozen")
    watched.scene = Scene((main, worker, reads), 3.0)
    found = said(watched)[0]
    assert (found.rule.code, "worker 0" in found.title) == ("UJ214", True)
    own = dataclasses.replace(reads, threads=(dataclasses.replace(reads.thread, peer_pids=(10,)),))
    watched.scene = Scene((main, worker, own), 3.0)
    assert "communicate()" in said(watched)[0].help
    closed = dataclasses.replace(reads, threads=(dataclasses.replace(reads.thread, peer_pids=()),))
    watched.scene = Scene((main, worker, closed), 3.0)
    assert "UJ214" not in codes(watched)


def test_a_child_that_catches_sigterm_is_found(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import signal\nsignal.signal(signal.SIGTERM, stop)\ndef finish(child):\n    child.terminate()\n    child.join()\n"
    )
    main = process(10, "main", JOINS, Frame(str(script), 5, "finish"))
    child = process(31, "child", SLEEP, parent=10, handles_sigterm=True)
    watched, _ = program("frozen")
    watched.scene = Scene((main, child), 3.0)
    found = said(watched)[0]
    assert (found.rule.code, found.location) == ("UJ211", Place(str(script), 2))
    watched.scene = Scene((main, dataclasses.replace(child, handles_sigterm=False)), 3.0)
    assert "UJ211" not in codes(watched)


def test_a_pool_that_consumes_its_whole_input_is_found():
    takes = (Frame("/usr/lib/python3.11/concurrent/futures/_base.py", 600, "map"), LINE)
    main = process(10, "main", Waiting("nothing", "nothing (it is computing)"), *takes)
    busy = dataclasses.replace(main, threads=(dataclasses.replace(main.thread, busy=0.9),))
    watched, _ = program("frozen")
    watched.scene = Scene((busy,), 3.0)
    assert codes(watched)[0] == "UJ208"
    watched.scene = Scene((main,), 3.0)
    assert "UJ208" not in codes(watched)


def test_an_unexplained_freeze_names_its_line():
    watched, _ = program("frozen")
    watched.scene = Scene((process(10, "main", Waiting("signal", "a signal"), LINE),), 3.0)
    (found,) = said(watched)
    assert (found.rule.code, found.confidence) == ("UJ209", Confidence.POSSIBLE)


# -- data -----------------------------------------------------------------------------------------------------------------


def samples(count: int, **fields) -> list[WatchedSample]:
    return [WatchedSample(at, 0, f"{at}", "", **fields) for at in range(count)]


@pytest.mark.parametrize(
    ("drew", "seeded", "found"),
    [
        ({"torch": "a"}, ("random",), ["UJ538"]),
        ({"torch": "a"}, ("random", "torch"), []),  # all of them are seeded
        ({}, ("random",), []),  # nothing is drawn
    ],
)
def test_seeding_a_generator_samples_do_not_use_is_found(drew, seeded, found):
    watched, loader = program()
    loader.epochs[0].samples = samples(20, drew=drew, seeded=seeded, idle={"random": HERE})
    assert codes(watched) == found


def test_a_concatenated_dataset_that_changed_length_is_found():
    watched, loader = program("failed", failures=[failure(type_name="IndexError")])
    loader.description = dataclasses.replace(loader.description, stale=[("dataset.datasets[1]", 220, 181)])
    (found,) = said(watched)
    assert (found.rule.code, found.culprit, found.weight) == ("UJ512", "dataset.datasets[1]", Severity.ERROR)


def ranks(mine: list[int], its: list[int], drawn: int):
    watched, first = program()
    first.description = dataclasses.replace(first.description, records={"rows": mine}, length=len(mine))
    first.epochs[0].indices = list(range(drawn))
    facts = dataclasses.replace(first.description, records={"rows": its})
    second = WatchedLoader(1, 11, facts, HERE, HERE, [WatchedEpoch(0, indices=list(range(drawn)))])
    watched.processes[0].rank = 0
    watched.processes.append(WatchedProcess(11, 1, [second]))
    return watched


def test_ranks_with_the_same_items_in_different_order_are_found():
    assert codes(ranks([1, 2, 3, 4], [4, 3, 2, 1], drawn=2)) == ["UJ521"]
    assert codes(ranks([1, 2, 3, 4], [1, 2, 3, 4], drawn=2)) == []
    assert codes(ranks([1, 2, 3, 4], [5, 6, 7, 8], drawn=2)) == []  # shares of their own
    assert codes(ranks([1, 2, 3, 4], [4, 3, 2, 1], drawn=4)) == []  # each draws all of them


def test_settings_changed_after_workers_started_are_found():
    watched, loader = program()
    loader.description = dataclasses.replace(loader.description, reads=["dataset.epoch"], plain=["dataset.epoch"])
    loader.epochs[:] = [
        WatchedEpoch(
            at,
            hashes={"dataset.epoch": f"{at}"},
            worker_hashes={0: {"dataset.epoch": f"{at}"}},
            changed=["dataset.epoch"],
            done=True,
        )
        for at in range(3)
    ]
    assert codes(watched) == ["UJ516"]
    for epoch in loader.epochs:
        epoch.changed = ()
    assert codes(watched) == []


def labelled(*labels: str, sequential: bool = True):
    watched, loader = program()
    loader.description = dataclasses.replace(loader.description, sampler="SequentialSampler", random=not sequential)
    looked = [WatchedSample(at, 0, f"{at}", f"{at}.{label}") for at, label in enumerate(labels)]
    order = list(range(len(labels))) if sequential else list(range(len(labels)))[::-1]
    loader.epochs = [WatchedEpoch(0, done=True, steps=3, indices=order, samples=looked)]
    return codes(watched)


def test_training_sorted_by_class_is_found():
    assert labelled(*"a" * 12, *"b" * 12) == ["UJ539"]
    assert labelled(*"ab" * 12) == []
    assert labelled(*"a" * 24) == []
    assert labelled(*"a" * 12, *"b" * 12, sequential=False) == []


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (range(40), range(20, 60), ["UJ502"]),
        (range(40), range(40, 80), []),
        ([*range(20)] * 2, [*range(20)] * 2, []),  # the data itself has everything twice
    ],
)
def test_overlapping_worker_shares_are_found(first, second, found):
    watched, loader = program()
    loader.description = dataclasses.replace(loader.description, iterable=True)
    loader.epochs = [WatchedEpoch(0, done=True, loaded=80, signatures={0: list(first), 1: list(second)})]
    assert codes(watched) == found


# -- what cannot cross ----------------------------------------------------------------------------------------------------


def test_a_dataset_that_cannot_be_unpickled_is_named_with_its_line():
    watched, loader = program("failed")
    case = case_of(loader, start_method="spawn")
    case.arguments = (
        WorkerArgument(
            "dataset", unpickle_error="RecursionError: maximum recursion depth exceeded", unpickle_error_place=HERE
        ),
    )
    case.trials = [Trial(Plan(2, "spawn"), "died", 1.0)]
    (found,) = said(watched, case)
    assert (found.rule.code, found.location) == ("UJ101", HERE)
    case.trials = [Trial(Plan(2, "spawn"), "finished", 1.0)]
    assert codes(watched, case) == []


def test_a_batch_that_the_queue_could_not_pickle_is_found():
    lost = LostBatch(0, "batch['images'][7]", "JpegImageFile", "OSError", "image file is truncated", None)
    (found,) = said(program("frozen", lost_batches=[lost])[0])
    assert (found.rule.code, found.culprit) == ("UJ103", "batch['images'][7] (JpegImageFile)")


def test_a_recursion_error_is_explained_by_the_first_caught_error():
    caught = failure(type_name="RecursionError", root="ValueError: too long", root_at=HERE)
    (found,) = said(program("failed", failures=[caught])[0])
    assert (found.rule.code, found.location) == ("UJ508", HERE)


def test_a_worker_that_fails_while_unpickling_is_explained():
    trace = 'File "/usr/lib/python3.12/multiprocessing/spawn.py", line 132, in _main\n  self = reduction.pickle.load(from_parent)'
    ended = failure(stage="end", type_name="RecursionError", worker=-1, index="", trace=trace)
    (found,) = said(program("failed", failures=[ended])[0])
    assert (found.rule.code, found.location) == ("UJ101", HERE)
    assert codes(program("failed", failures=[dataclasses.replace(ended, trace="")])[0]) == []


@pytest.mark.parametrize(
    ("length", "batches", "done", "found"),
    [(33, 5, False, ["UJ540"]), (32, 4, False, []), (33, 3, False, []), (33, 5, True, [])],
)
def test_a_step_that_fails_on_the_last_batch_is_explained(length, batches, done, found):
    ended = failure(stage="end", worker=-1, index="", loader=0)
    watched, loader = program("failed", failures=[ended])
    loader.description = dataclasses.replace(loader.description, length=length, batch_size=8)
    loader.epochs = [WatchedEpoch(0, expected=-(-length // 8), batches=batches, done=done)]
    assert codes(watched) == found
