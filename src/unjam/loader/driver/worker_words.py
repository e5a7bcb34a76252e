"""What is known of a worker, in words: how it ended, or what it is doing and why that takes so long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unjam.errors import place
from unjam.loader.incident import Incident, plain
from unjam.loader.pool.protocol import Ending, Pool, Work
from unjam.loader.transport.status_page import Beat, Stage
from unjam.system import exits, stacks, waiting

_STAGE_NAMES = {
    Stage.STARTING: "init",
    Stage.LOADING: "init",
    Stage.INIT: "init",
    Stage.GETITEM: "getitem",
    Stage.RETRYING: "getitem",
    Stage.ASKING: "getitem",
    Stage.COLLATE: "collate",
    Stage.PICKLE: "pickle",
    Stage.SEND: "pickle",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """The sample that a worker is or was on, as far as the parent knows: `index` None for an iterable."""

    index: Any
    batch: int | None
    yielded: int | None
    indices: tuple[Any, ...]

    def words(self, worker: int) -> str:
        """`sample 37 (batch 4, worker 1)`."""
        return place(self.index, self.batch, worker, yielded=self.yielded, indices=self.indices)


def subject(beat: Beat, work: Work | None, *, iterable: bool) -> Subject:
    """From a heartbeat to a sample."""
    if work is None or beat.batch != work.batch:
        return Subject(None, None, None, ())
    if iterable:
        return Subject(None, work.number, beat.yielded if beat.stage is Stage.GETITEM else None, ())
    indices = work.indices
    if beat.stage in (Stage.GETITEM, Stage.RETRYING, Stage.ASKING) and 0 <= beat.position < len(indices):
        return Subject(indices[beat.position], work.number, None, ())
    return Subject(None, work.number, None, indices)


def doing(beat: Beat, about: Subject, worker: int) -> str:
    """What a worker is or was at."""
    me = f"(worker {worker})"
    return {
        Stage.STARTING: f"starting {me}",
        Stage.LOADING: f"loading the dataset {me}",
        Stage.INIT: f"in worker_init_fn or the dataset's __iter__ {me}",
        Stage.IDLE: f"waiting for work {me}",
        Stage.GETITEM: f"on {about.words(worker)}",
        Stage.COLLATE: f"collating {about.words(worker)}",
        Stage.PICKLE: f"packing {about.words(worker)}",
        Stage.SEND: f"sending {about.words(worker)}",
        Stage.LEAVING: f"leaving {me}",
        Stage.ASKING: f"waiting for on_error to decide about {about.words(worker)}",
        Stage.RETRYING: f"pausing before another try at {about.words(worker)}",
    }[beat.stage]


def story(ending: Ending, about: Subject, *, decision: str, dataset: str) -> Incident:
    """A worker's end."""
    end = exits.decode(ending.code)
    beat = ending.beat
    killed_for = f"killed for memory ({ending.memory})" if ending.memory else end.words
    what = f"DataLoader worker (pid {ending.pid}) {killed_for}, {doing(beat, about, ending.worker)}"
    return Incident(
        kind="death",
        what=what,
        decision=decision,
        sample=plain(about.index),
        batch=about.batch,
        samples=tuple(map(plain, about.indices)),
        yielded=about.yielded,
        worker=ending.worker,
        pid=ending.pid,
        stage=_STAGE_NAMES.get(beat.stage, ""),
        seconds=round(beat.seconds(), 3),
        exit_code=ending.code,
        signal=end.signal,
        memory=ending.memory,
        stack=_stack(ending.stack),
        dataset=dataset,
    )


def stillness(pool: Pool, worker: int, work: Work | None, *, iterable: bool, kind: str, dataset: str) -> Incident:
    """A worker that lives and gives no batch: what it is at, for how long, its stack and what it waits for."""
    beat, pid = pool.beat(worker), pool.pid(worker)
    if beat is None or pid is None:
        return Incident(kind=kind, what=f"worker {worker} is being replaced", worker=worker, dataset=dataset)
    about = subject(beat, work, iterable=iterable)
    # before the stack is taken: the signal that asks for it wakes the worker for a moment
    seen = waiting.look(pid)
    stack = "" if seen.kind == "suspended" else _stack(pool.stack(worker))
    seconds = beat.seconds()
    return Incident(
        kind=kind,
        what=f"for {seconds:.1f} s, process {pid} has been {doing(beat, about, worker)}",
        sample=plain(about.index),
        batch=about.batch,
        samples=tuple(map(plain, about.indices)),
        yielded=about.yielded,
        worker=worker,
        pid=pid,
        stage=_STAGE_NAMES.get(beat.stage, ""),
        seconds=round(seconds, 3),
        stack=stack,
        waits_for=seen.words,
        note="" if stack else "its stack could not be taken",
        dataset=dataset,
    )


def lines(incident: Incident) -> str:
    """An incident's evidence, below its first line."""
    shown = [incident.what]
    if incident.waits_for:
        shown.append(f"  it waits for {incident.waits_for}")
    if incident.note:
        shown.append(f"  {incident.note}")
    if incident.stack:
        shown.append("  its Python stack, innermost call first:")
        shown += [f"    {line}" for line in incident.stack.splitlines()]
    return "\n".join(shown)


def _stack(text: str) -> str:
    stack = stacks.main_stack(text)
    return "" if stack is None else "\n".join(stacks.user_part(stack).lines())
