"""Mechanisms that explain slow loading: each finds its cause, and leaves a program without it alone."""

from __future__ import annotations

import dataclasses

import pytest

from test_mechanisms import HERE, program
from test_program_mechanisms import case_of, codes
from unjam.doctor.facts.case import Part
from unjam.doctor.facts.object_state import ObjectState
from unjam.doctor.facts.program_facts import ObservedLine, ProcessObservations, WatchedEpoch
from unjam.doctor.facts.trial import Place, Plan, Sample, Trial

pytestmark = pytest.mark.static


@pytest.mark.parametrize(("waits", "found"), [("lock", ["UJ602", "UJ612"]), ("nothing", ["UJ612"])])
def test_workers_waiting_for_one_lock_are_found(waits, found):
    watched, loader = program()
    loader.worker_pids = [21, 22]
    loader.epochs[0] = WatchedEpoch(0, seconds=25, waited=20, loaded=100, loading=20)
    line = ObservedLine(Place(__file__, 1), "sample", waits, 10)
    watched.observations = tuple(ProcessObservations(pid, 60, {waits: 40}, {}, (line,), 10) for pid in (21, 22))
    case = case_of(loader)
    lock = '"""Mechanisms that explain'.partition(" ")[2]  # a word of the line
    case.parts = (Part(f"dataset.{lock.partition(' ')[0]}", "lock", "Lock", HERE, ObjectState(between_processes=True)),)
    assert codes(watched, case) == found


def stream(each: float, alone: float = 0.01, workers: tuple[int, ...] = (0, 1)):
    """A stream of two workers whose samples cost so many seconds of a processor, with and without workers."""
    watched, loader = program()
    loader.description = dataclasses.replace(loader.description, iterable=True)
    loader.epochs = [WatchedEpoch(0, seconds=10.0, waited=8.0, loaded=40, loading=4.0)]
    case = case_of(loader, num_workers=2, iterable=True)
    case.trials = [
        Trial(Plan(2, "fork"), "finished", 1.0, samples=made(workers, each)),
        Trial(Plan(0, tolerant=True), "finished", 1.0, samples=made((-1,), alone)),
    ]
    return codes(watched, case)


def made(workers: tuple[int, ...], used: float) -> tuple[Sample, ...]:
    return tuple(Sample(f"#{at}", worker, 0, used, "", cpu_seconds=used) for at in range(20) for worker in workers)


def test_a_stream_every_worker_produces_in_full_is_found():
    assert "UJ613" in stream(each=0.02)
    assert "UJ613" not in stream(each=0.011)
    assert "UJ613" not in stream(each=0.0002, alone=0.0001)


def test_a_stream_with_only_one_productive_worker_is_found():
    assert "UJ615" in stream(each=0.01, workers=(0,))
    assert "UJ615" not in stream(each=0.01)


@pytest.mark.parametrize(("sampling", "found"), [(4.0, ["UJ614"]), (0.5, [])])
def test_a_slow_sampler_is_found(sampling, found):
    watched, loader = program()
    loader.description = dataclasses.replace(loader.description, sampler="ByLength")
    loader.epochs[0] = WatchedEpoch(0, seconds=10.0, waited=0.1, sampling=sampling)
    assert codes(watched) == found


@pytest.mark.parametrize(("proxies", "found"), [(["dataset.replace"], ["UJ608", "UJ612"]), ([], ["UJ612"])])
def test_reads_through_a_manager_are_found(proxies, found, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("value = self.replace[index]\n")
    watched, loader = program()
    loader.worker_pids = [21]
    loader.description = dataclasses.replace(loader.description, proxies=proxies)
    loader.epochs[0] = WatchedEpoch(0, seconds=25, waited=20, loaded=100, loading=20)
    watched.observations = (
        ProcessObservations(
            21, 60, {"socket": 40}, {}, (ObservedLine(Place(str(script), 1), "sample", "socket", 30),), 30
        ),
    )
    assert codes(watched, case_of(loader)) == found


@pytest.mark.parametrize(("stage", "found"), [("waits", ["UJ612", "UJ616"]), ("elsewhere", ["UJ612"])])
def test_training_that_computes_while_waiting_is_found(stage, found):
    watched, loader = program()
    loader.epochs[0] = WatchedEpoch(0, seconds=10, waited=6, loaded=100, loading=2)
    watched.observations = (
        ProcessObservations(
            loader.pid, 100, {"nothing": 60, "pipe": 40}, {}, (ObservedLine(HERE, stage, "nothing", 9),), 9
        ),
    )
    assert sorted(codes(watched)) == found
