"""Describes a worker in words: how it ended, or what it is doing and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unjam.errors import place
from unjam.loader.pool.protocol import Pool, WorkerExit
from unjam.loader.transport.status_page import Heartbeat, Stage
from unjam.loader.worker.messages import BatchRequest
from unjam.system import exits

if TYPE_CHECKING:
    from unjam.loader.failures.incident import Incident

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
class CurrentSample:
    """The sample that a worker is or was loading, as far as known. `index` is None for an iterable."""

    index: Any
    batch: int | None
    yielded: int | None
    indices: tuple[Any, ...]

    def words(self, worker: int) -> str:
        """Return text such as `sample 37 (batch 4, worker 1)`."""
        return place(self.index, self.batch, worker, yielded=self.yielded, indices=self.indices)


def current_sample(heartbeat: Heartbeat, request: BatchRequest | None, *, iterable: bool) -> CurrentSample:
    """Return the sample that a heartbeat refers to."""
    if request is None or heartbeat.batch != request.batch:
        return CurrentSample(None, None, None, ())
    if iterable:
        return CurrentSample(None, request.number, heartbeat.yielded if heartbeat.stage is Stage.GETITEM else None, ())
    indices = request.indices
    if heartbeat.stage in (Stage.GETITEM, Stage.RETRYING, Stage.ASKING) and 0 <= heartbeat.position < len(indices):
        return CurrentSample(indices[heartbeat.position], request.number, None, ())
    return CurrentSample(None, request.number, None, indices)


def doing(heartbeat: Heartbeat, about: CurrentSample, worker: int) -> str:
    """Describe what a worker is or was doing."""
    me = f"(worker {worker})"
    return {
        Stage.STARTING: f"starting {me}",
        Stage.LOADING: f"loading the dataset {me}",
        Stage.INIT: f"running worker_init_fn or the dataset's __iter__ {me}",
        Stage.IDLE: f"waiting for work {me}",
        Stage.GETITEM: f"loading {about.words(worker)}",
        Stage.COLLATE: f"collating {about.words(worker)}",
        Stage.PICKLE: f"packing {about.words(worker)}",
        Stage.SEND: f"sending {about.words(worker)}",
        Stage.LEAVING: f"exiting {me}",
        Stage.ASKING: f"waiting for on_error to decide about {about.words(worker)}",
        Stage.RETRYING: f"waiting to retry {about.words(worker)}",
    }[heartbeat.stage]


def exit_incident(last_exit: WorkerExit, about: CurrentSample, *, decision: str, dataset: str) -> Incident:
    """Return the incident for a worker that exited."""
    from unjam.loader.failures.incident import Incident, plain  # noqa: PLC0415 - only when something fails

    end = exits.decode(last_exit.code)
    heartbeat = last_exit.heartbeat
    killed_for = f"was killed by the OOM killer ({last_exit.memory})" if last_exit.memory else end.words
    if last_exit.node_lost:
        killed_for = f"was lost with its node ({last_exit.node_lost})"
    at = f" on node {last_exit.node}" if last_exit.node else ""
    what = f"DataLoader worker (pid {last_exit.pid}{at}) {killed_for} while {doing(heartbeat, about, last_exit.worker)}"
    return Incident(
        kind="death",
        what=what,
        decision=decision,
        sample=plain(about.index),
        batch=about.batch,
        samples=tuple(map(plain, about.indices)),
        yielded=about.yielded,
        worker=last_exit.worker,
        pid=last_exit.pid,
        stage=_STAGE_NAMES.get(heartbeat.stage, ""),
        seconds=round(heartbeat.seconds(), 3),
        exit_code=last_exit.code,
        signal=end.signal,
        memory=last_exit.memory,
        stack=_stack(last_exit.stack),
        dataset=dataset,
    )


def stall_incident(
    pool: Pool, worker: int, request: BatchRequest | None, *, iterable: bool, kind: str, dataset: str
) -> Incident:
    """Return the incident for a live worker that sends no batch, with its stack."""
    from unjam.loader.failures.incident import Incident, plain  # noqa: PLC0415 - only when something fails

    heartbeat, pid = pool.heartbeat(worker), pool.pid(worker)
    if heartbeat is None or pid is None:
        return Incident(kind=kind, what=f"worker {worker} is being replaced", worker=worker, dataset=dataset)
    about = current_sample(heartbeat, request, iterable=iterable)
    # Look before we take the stack: its signal wakes the worker for a moment.
    seen = pool.waits_for(worker)
    stack = "" if seen.kind == "suspended" else _stack(pool.stack(worker))
    seconds = heartbeat.seconds()
    return Incident(
        kind=kind,
        what=f"process {pid} has been {doing(heartbeat, about, worker)} for {seconds:.1f} s",
        sample=plain(about.index),
        batch=about.batch,
        samples=tuple(map(plain, about.indices)),
        yielded=about.yielded,
        worker=worker,
        pid=pid,
        stage=_STAGE_NAMES.get(heartbeat.stage, ""),
        seconds=round(seconds, 3),
        stack=stack,
        waits_for=seen.words,
        note="" if stack else "its stack could not be read",
        dataset=dataset,
    )


def lines(incident: Incident) -> str:
    """Return an incident as text: what happened, then the evidence."""
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
    from unjam.system import stacks  # noqa: PLC0415 - only when something fails

    stack = stacks.main_stack(text)
    return "" if stack is None else "\n".join(stacks.user_part(stack).lines())
