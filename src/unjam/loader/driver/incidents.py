"""Turns the death or silence of a worker into an incident, a log message or an error.

The engine decides and the driver acts; neither has texts. This file writes the texts and applies the
policy to samples that killed a worker.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from unjam.errors import LoaderTimeoutError, SampleTimeoutError, UnjamError, WorkerDiedError
from unjam.loader.driver import describe_worker
from unjam.loader.driver.on_error import OnErrorPolicy, error_of
from unjam.loader.driver.recorder import Recorder
from unjam.loader.driver.settings import DriverSettings
from unjam.loader.engine import actions as act
from unjam.loader.engine import events as ev
from unjam.loader.engine.actions import Reason
from unjam.loader.engine.config import Config
from unjam.loader.engine.policy import Decision
from unjam.loader.pool.batch_result import BatchReport, BatchResult, FailedBatch
from unjam.loader.pool.protocol import Pool
from unjam.loader.transport.status_page import Stage
from unjam.loader.worker.job import SINGLY, SampleFailure
from unjam.loader.worker.messages import BatchRequest
from unjam.system.logs import log

if TYPE_CHECKING:
    from unjam.loader.failures.incident import Incident


class Incidents:
    """Reports what happens to the workers of one pool."""

    def __init__(
        self,
        pool: Pool,
        config: Config,
        on_error: OnErrorPolicy,
        recorder: Recorder,
        settings: DriverSettings,
    ) -> None:
        self._pool = pool
        self._iterable = config.iterable
        self._on_error = on_error
        self._recorder = recorder
        self._timeout = settings.timeout
        self._sample_timeout = settings.sample_timeout
        self.unready: dict[int, BatchResult] = {}
        # by worker: the incident of its last exit
        self._exit_incidents: dict[int, Incident] = {}
        # by worker, if we killed it because its sample took too long: batch, position and incident
        self._overdue: dict[int, tuple[int, int, Incident]] = {}

    # -- exits -------------------------------------------------------------------------------------

    def corrected_cause(self, event: ev.Death) -> ev.Death:
        """Return the death with its true cause: no sample is overdue if the worker moved on before we killed it."""
        batch, position, _ = self._overdue.get(event.worker, (event.batch, event.position, None))
        if event.cause is ev.Cause.OVERDUE and (batch, position) == (event.batch, event.position):
            return event
        self._overdue.pop(event.worker, None)
        return dataclasses.replace(event, cause=ev.Cause.STOPPED) if event.cause is ev.Cause.OVERDUE else event

    def death(self, event: ev.Death, decided: list[act.Action], work: dict[int, BatchRequest]) -> None:
        """Record a death, after the engine has decided what to do about it."""
        last_exit = self._pool.last_exit(event.worker)
        if last_exit is None or last_exit.said_goodbye:
            return
        restarted = any(isinstance(action, act.Start) and action.worker == event.worker for action in decided)
        shrunk = any(isinstance(action, act.Shrink) for action in decided)
        given_up = any(isinstance(action, act.GiveUp) for action in decided)
        decision = "restart" if restarted else "shrink" if shrunk else "raise" if given_up else ""
        on = None if event.batch is None else work.get(event.batch)
        about = describe_worker.current_sample(last_exit.heartbeat, on, iterable=self._iterable)
        incident = describe_worker.exit_incident(last_exit, about, decision=decision, dataset=self._recorder.dataset)
        if event.cause is ev.Cause.STOPPED and last_exit.stop_reason in _STOPPED:
            why = _STOPPED[last_exit.stop_reason]
            incident = dataclasses.replace(incident, what=f"{incident.what}; unjam killed it because {why}")
        self._exit_incidents[event.worker] = incident
        if not any(isinstance(action, (act.AskPolicy, act.GiveUp)) for action in decided):
            self._overdue.pop(event.worker, None)
        if restarted:
            self._recorder.restarted()
        if event.cause is not ev.Cause.OVERDUE:
            # a sample that took too long is recorded once, with the decision of the policy
            self._recorder.incident(incident)
            if restarted:
                self._recorder.say("death", "%s; a new worker will load its batches again", incident.what)

    def death_error(self, outcome: act.GiveUp) -> UnjamError:
        """Return what to raise when the epoch cannot continue."""
        incident = self._exit_incidents.get(outcome.worker)
        if incident is None:
            return WorkerDiedError(f"a worker is gone; {outcome.reason.value}")
        if outcome.worker in self._overdue:
            _, _, overdue = self._overdue.pop(outcome.worker)
            self._recorder.write(dataclasses.replace(overdue, decision="raise"))
            return self._timeout_error(overdue, f"; {outcome.reason.value}")
        return self._died_error(incident, outcome.reason)

    def _died_error(self, incident: Incident, reason: Reason) -> WorkerDiedError:
        first, *rest = describe_worker.lines(incident).splitlines()
        known = reason in _HELP and not (
            reason is Reason.DIED_REPEATEDLY and self._on_error.policy.always is not Decision.RAISE
        )
        help_line = f"help: {_HELP[reason]}" if known else None
        shown = "\n".join([f"{first}; {reason.value}", *rest, *([help_line] if help_line else [])])
        problem = WorkerDiedError(shown)
        problem.incident = incident
        return problem

    def shrunk(self, worker: int, left: int) -> None:
        """Warn that the OOM killer killed a worker and that the others share its work."""
        incident = self._exit_incidents.get(worker)
        what = incident.what if incident is not None else f"the OOM killer killed worker {worker}"
        self._recorder.say("memory", "%s; it will not be replaced (workers left: %d)", what, left)

    def setup_error(self, worker: int) -> tuple[BaseException, bool]:
        """Return what a worker raised before its first sample, and whether it was rebuilding the dataset."""
        result = self.unready.pop(worker)
        error = error_of(result.report.failures()[-1])
        if not result.while_loading:
            self._recorder.failed(error)
        raised = error.exception
        if isinstance(raised, StopIteration):  # it would silently end the epoch
            raised = RuntimeError(f"worker {worker} raised StopIteration before its first sample")
            raised.__cause__ = error.exception
        return raised, result.while_loading

    # -- silence -----------------------------------------------------------------------------------

    def confirm_overdue(self, event: ev.Overdue, work: BatchRequest | None) -> bool:
        """Record where an overdue sample is; return False if its worker has moved on."""
        before = self._pool.heartbeat(event.worker)
        if before is None or event.worker in self._overdue:
            return False
        incident = self._stalled_incident(event.worker, work, "timeout")
        if self._pool.heartbeat(event.worker) != before:
            return False
        position = before.position if before.stage is Stage.GETITEM else -1
        self._overdue[event.worker] = (before.batch, position, incident)
        self._recorder.incident(incident, write=False)  # logged with the decision
        return True

    def warn(self, worker: int, work: BatchRequest | None) -> None:
        """Warn that no batch has come for a long time, and explain why."""
        incident = self._stalled_incident(worker, work, "silence")
        self._recorder.incident(incident)
        log.warning("no progress: %s", describe_worker.lines(incident))

    def resume_worker(self, worker: int) -> None:
        """Resume a suspended worker, and report it."""
        from unjam.loader.failures.incident import Incident  # noqa: PLC0415 - only when something fails

        pid = self._pool.pid(worker)
        what = f"worker {worker} (pid {pid}) was suspended (SIGSTOP)"
        self._pool.continue_worker(worker)
        self._recorder.incident(
            Incident("suspended", what, decision="continue", worker=worker, pid=pid, dataset=self._recorder.dataset)
        )
        self._recorder.say("suspended", "%s; unjam resumed it", what)

    def timed_out(self, oldest: tuple[int, BatchRequest] | None) -> LoaderTimeoutError:
        """Return the error for the user's `timeout`, with what the oldest batch waits for."""
        text = f"DataLoader timed out after {self._timeout:g} seconds"
        if oldest is None:
            return LoaderTimeoutError(text)
        incident = self._stalled_incident(*oldest, "silence")
        self._recorder.incident(incident)
        problem = LoaderTimeoutError(f"{text}: {describe_worker.lines(incident)}")
        problem.incident = incident
        return problem

    def _stalled_incident(self, worker: int, work: BatchRequest | None, kind: str) -> Incident:
        return describe_worker.stall_incident(
            self._pool, worker, work, iterable=self._iterable, kind=kind, dataset=self._recorder.dataset
        )

    def _timeout_error(self, incident: Incident, more: str = "") -> SampleTimeoutError:
        problem = SampleTimeoutError(
            f"a sample exceeded sample_timeout={self._sample_timeout:g}{more}: {describe_worker.lines(incident)}"
        )
        problem.incident = incident
        return problem

    # -- policy ------------------------------------------------------------------------------------

    def ask_policy(self, action: act.AskPolicy, work: BatchRequest) -> FailedBatch | None:
        """Ask the policy about a sample that killed its worker.

        Return None to make the batch again, or what replaces it.
        """
        last_exit = self._pool.last_exit(action.worker)
        in_getitem = last_exit is not None and last_exit.heartbeat.stage is Stage.GETITEM
        several = len(work.indices) > 1
        _, _, overdue = self._overdue.pop(action.worker, (-1, -1, None))
        if action.position < 0 and in_getitem and several and -1 not in work.decisions:
            # the dataset loads whole batches; loading samples one by one shows which one it is
            work.decisions[-1] = SINGLY
            if overdue is not None:
                self._recorder.write(dataclasses.replace(overdue, decision="retry"))
            return None
        failed = self._failure(action, work, overdue)
        decision = self._on_error.decide(work.batch, failed)
        failed.decision = decision
        if overdue is not None and decision is Decision.RETRY:
            self._recorder.write(dataclasses.replace(overdue, decision="retry"))
        if decision is Decision.RAISE:
            return FailedBatch(BatchReport(packed_failures=[failed]), raises=True)
        if decision is Decision.RETRY:
            return None
        if action.position < 0:
            failed.decision = Decision.SKIP
            return FailedBatch(BatchReport(packed_failures=[failed]), raises=False)
        work.decisions[action.position] = decision.value
        self._on_error.leave_out(work.batch, failed)
        return None

    def _last_exit_incident(self, worker: int) -> Incident:
        from unjam.loader.failures.incident import Incident  # noqa: PLC0415 - only when something fails

        gone = Incident("death", f"worker {worker} is gone", worker=worker, dataset=self._recorder.dataset)
        return self._exit_incidents.get(worker, gone)

    def _failure(self, action: act.AskPolicy, work: BatchRequest, overdue: Incident | None) -> SampleFailure:
        problem: UnjamError
        if action.reason is Reason.OVERDUE and overdue is not None:
            problem = self._timeout_error(overdue)
        else:
            problem = self._died_error(self._last_exit_incident(action.worker), action.reason)
        incident: Any = problem.incident
        one_sample = 0 <= action.position < len(work.indices)
        return SampleFailure(
            position=action.position,
            index=work.indices[action.position] if one_sample else None,
            batch=work.number,
            worker=action.worker,
            stage=incident.stage or "getitem",
            seconds=incident.seconds,
            exception=problem,
            tries=action.deaths,
            indices=() if one_sample else work.indices,
            pid=incident.pid,
        )


# why unjam killed a worker although no sample is to blame
_STOPPED = {
    Reason.SUSPENDED: "it did not resume",
    Reason.FORGOTTEN: "a request or a result was lost between it and the training process",
    Reason.OVERDUE: "a sample exceeded sample_timeout (it was completed just before the kill)",
}
_HELP = {
    Reason.CANNOT_REPLAY: "with a map-style dataset, on_error='skip' leaves the sample out",
    Reason.DIED: "on_worker_death='restart' lets a new worker load the lost batches again",
    Reason.TOO_MANY_DEATHS: "check `dmesg` and the scheduler's log: something outside the program may be killing the workers",
    Reason.KILLED_FOR_MEMORY: "use fewer workers, a smaller prefetch_factor, or a machine with more memory",
    Reason.DIED_REPEATEDLY: "on_error='skip' leaves out samples that kill their worker",
    Reason.NEVER_READY: "num_workers=0 runs the same setup in this process, where a debugger can step through it",
}
