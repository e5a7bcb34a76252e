"""A pool with some workers on this machine and others on a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from unjam.loader.cluster.cluster_pool import ClusterPool
from unjam.loader.engine import events as ev
from unjam.loader.engine.actions import Reason
from unjam.loader.pool.process_pool import ProcessPool
from unjam.loader.pool.protocol import Pool, PoolEvent, WorkerExit
from unjam.loader.pool.worker_reports import WorkerReports
from unjam.loader.transport.status_page import Heartbeat, Stage
from unjam.loader.worker.messages import BatchRequest
from unjam.loader.worker.progress import WorkerPosition
from unjam.system.waiting import Waiting


class MixedPool(Pool):
    """Workers below `first_remote` belong to `local`, the others to `remote`. Each worker's pool does the work."""

    def __init__(self, local: ProcessPool, remote: ClusterPool, first_remote: int, reports: WorkerReports) -> None:
        self._local, self._remote, self._first, self._reports = local, remote, first_remote, reports
        # both pools append to one queue, so that events keep their order
        self.arrivals: deque[PoolEvent] = local.arrivals
        remote.arrivals = local.arrivals
        self.processes: list[Any] = local.processes
        self.made_in = 0
        self.closed = False
        local.wake_on(remote.wake_fd)
        reports.set_worker_count("here", first_remote)

    def _of(self, worker: int) -> Pool:
        return self._local if worker < self._first else self._remote

    def start(self, workers: list[int], positions: Mapping[int, WorkerPosition]) -> None:
        """Start each worker in its pool."""
        for pool in (self._local, self._remote):
            own = [worker for worker in workers if self._of(worker) is pool]
            if own:
                pool.start(own, positions)

    def begin_epoch(self, shared_seed: int | None, epoch: int) -> None:
        """Tell both pools."""
        self._local.begin_epoch(shared_seed, epoch)
        self._remote.begin_epoch(shared_seed, epoch)

    def wait(self, seconds: float) -> None:
        """Wait for both: a message from the cluster wakes the local pool."""
        seconds = self._remote.collect(seconds)
        known = len(self.arrivals)
        self._local.wait(seconds)
        for event in list(self.arrivals)[known:]:
            if isinstance(event, ev.Result) and event.result is not None:
                self._reports.count_batch("here", event.result.report)
        self._remote.collect()

    def started_in(self) -> int:
        """Return when the first worker of either pool was ready."""
        return self.made_in + min(filter(None, (self._local.started_in(), self._remote.started_in())), default=0)

    def memory(self) -> tuple[int, int]:
        """Add what the pools hold."""
        (mapped, used), (mapped_there, used_there) = self._local.memory(), self._remote.memory()
        return mapped + mapped_there, used + used_there

    def held(self) -> int:
        """Add what the consumer holds of each."""
        return self._local.held() + self._remote.held()

    def close(self) -> None:
        """Close both, also after Ctrl-C in between. The agents come first: they take longer."""
        self.closed = True
        try:
            self._remote.close_links()
            self._local.close()
        finally:
            self._remote.close()

    def sample_stack(self, turn: int) -> tuple[Stage, str] | None:
        """Sample a worker of this machine."""
        return self._local.sample_stack(turn)

    # -- one worker --------------------------------------------------------------------------------

    @override
    def send(self, worker: int, request: BatchRequest) -> None:
        self._of(worker).send(worker, request)

    @override
    def stop(self, worker: int, reason: Reason) -> None:
        self._of(worker).stop(worker, reason)

    @override
    def answer(self, worker: int, decision: str) -> None:
        self._of(worker).answer(worker, decision)

    @override
    def continue_worker(self, worker: int) -> None:
        self._of(worker).continue_worker(worker)

    @override
    def last_exit(self, worker: int) -> WorkerExit | None:
        return self._of(worker).last_exit(worker)

    @override
    def heartbeat(self, worker: int) -> Heartbeat | None:
        return self._of(worker).heartbeat(worker)

    @override
    def pid(self, worker: int) -> int | None:
        return self._of(worker).pid(worker)

    @override
    def suspended(self, worker: int) -> bool:
        return self._of(worker).suspended(worker)

    @override
    def stack(self, worker: int) -> str:
        return self._of(worker).stack(worker)

    @override
    def waits_for(self, worker: int) -> Waiting:
        return self._of(worker).waits_for(worker)

    @override
    def is_here(self, worker: int) -> bool:
        return worker < self._first
