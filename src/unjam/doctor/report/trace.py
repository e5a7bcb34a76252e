"""A run as a trace for Perfetto and chrome://tracing.

Each loader has a track for the training, one for each worker, and one for copies to a device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from unjam.doctor.facts.run import LoaderRun, RunFacts, TimedBatch

SCHEMA = 1
MOST_EVENTS = 1_000_000


def chrome(run: RunFacts, version: str) -> str:
    """Return the trace in the JSON object format. As the format requires, `ts` and `dur` are microseconds."""
    moments = [wait.asked for one in run.loaders for wait in one.waits]
    moments += [made.begun for one in run.loaders for made in one.made]
    moments += [copy.begun for one in run.loaders for copy in one.copies]
    start = min(moments, default=0)
    events: list[dict[str, Any]] = []
    for number, loader in enumerate(run.loaders):
        events += _loader(loader, number, run, start)
        if len(events) > MOST_EVENTS:
            break
    cut = len(events) > MOST_EVENTS or any(one.cut for one in run.loaders)
    return json.dumps(
        {
            "traceEvents": events[:MOST_EVENTS],
            "displayTimeUnit": "ms",
            "otherData": {"schema": SCHEMA, "unjam": version, "command": run.command, "rank": run.rank, "cut": cut},
        }
    )


def _loader(loader: LoaderRun, number: int, run: RunFacts, start: int) -> Iterator[dict[str, Any]]:
    process = run.pid * 100 + number
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": loader.label}}
    yield {"ph": "M", "name": "thread_name", "pid": process, "tid": 0, "args": {"name": "training"}}
    last = 0
    for at, wait in enumerate(loader.waits):
        if last and not wait.first:
            yield _slice("train", process, 0, last, wait.asked, start)
        yield _slice("first wait" if wait.first else "wait", process, 0, wait.asked, wait.got, start, batch=at)
        last = wait.got
    workers: dict[int, list[TimedBatch]] = {}
    for made in loader.made:
        workers.setdefault(made.worker, []).append(made)
    for worker, its in sorted(workers.items()):
        label = f"worker {worker}" if worker >= 0 else "in the main process"
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": worker + 2, "args": {"name": label}}
        before = 0
        for made in sorted(its, key=lambda one: one.begun):
            if before and made.begun > before:
                yield _slice("wait", process, worker + 2, before, made.begun, start)
            yield from _batch(made, process, start)
            before = made.done
    if loader.copies:
        track = max(workers, default=0) + 3
        yield {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": "to the device"}}
    for one in loader.copies:
        yield _slice(
            "copy", process, track, one.begun, one.done, start, bytes=one.nbytes, waited_seconds=one.waited / 1e9
        )


def _batch(made: TimedBatch, process: int, start: int) -> Iterator[dict[str, Any]]:
    thread = made.worker + 2
    yield _slice("batch", process, thread, made.begun, made.done, start, samples=made.samples, slowest=made.slowest)
    yield _slice("fetch", process, thread, made.begun, made.collated, start, longest_seconds=made.longest / 1e9)
    before = made.begun
    for stamp in made.stamps:
        yield _slice("sample", process, thread, before, stamp, start)
        before = stamp
    packed = made.packed or made.done
    yield _slice("collate", process, thread, made.collated, packed, start)
    if packed < made.done:
        yield _slice("pack", process, thread, packed, made.done, start)


def _slice(name: str, process: int, thread: int, begun: int, done: int, start: int, **more: Any) -> dict[str, Any]:
    event = {
        "ph": "X", "cat": "unjam", "name": name, "pid": process, "tid": thread, "ts": (begun - start) / 1e3,
        "dur": max(0, done - begun) / 1e3,
    }  # fmt: skip
    return {**event, "args": more} if more else event
