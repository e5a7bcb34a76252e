"""Messages between the training process and the agent of a node: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unjam.loader.engine.actions import Reason
from unjam.loader.engine.events import Death
from unjam.loader.pool.protocol import WorkerExit
from unjam.loader.ship.process_state import ProcessState
from unjam.loader.ship.shipping import Manifest
from unjam.loader.transport.status_page import Heartbeat
from unjam.loader.worker.messages import BatchRequest
from unjam.loader.worker.spec import WorkerSpec


@dataclass(frozen=True, slots=True)
class Shipment:
    """What an agent needs to start workers, without the bytes of the dataset.

    digest: of those bytes. version: of unjam and Python, which must be the same everywhere.
    """

    manifest: Manifest
    digest: str
    modules: frozenset[str]
    own: frozenset[str]
    runs: str
    state: ProcessState
    version: tuple[str, str]


# -- parent to agent ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start workers with these settings."""

    specs: tuple[WorkerSpec, ...]


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Let a worker make a batch."""

    worker: int
    request: BatchRequest


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """A new epoch begins."""

    shared_seed: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Stop a worker."""

    worker: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class AnswerWorker:
    """The answer to a worker's question."""

    worker: int
    decision: str


@dataclass(frozen=True, slots=True)
class ContinueWorker:
    """Continue a worker that something suspended."""

    worker: int


Order = StartWorkers | SendRequest | BeginEpoch | StopWorker | AnswerWorker | ContinueWorker


# -- agent to parent ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromWorker:
    """A message of a worker, with its bytes."""

    worker: int
    message: Any
    data: Any


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker's process has ended."""

    death: Death
    exit: WorkerExit


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A living worker at the time of a reply."""

    pid: int
    heartbeat: Heartbeat
    suspended: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """What happened since the last reply. `now`: the agent's clock. `states`: None if they were sent a moment ago.

    `problem`: why this agent cannot work.
    """

    now: int
    boot_id: str
    events: tuple[FromWorker | WorkerGone, ...] = ()
    states: Mapping[int, WorkerState] | None = None
    problem: str = ""
