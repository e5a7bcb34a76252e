"""What a worker does about a sample that failed: raise, skip, replace or retry, as the policy says.

A failure is described where it happened, with the exception as it is, and travels with its batch: a batch that has to
be made again because its worker died does not report anything twice.
"""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from unjam.errors import place
from unjam.loader.engine.deadlines import RETRY_FIRST, RETRY_MOST
from unjam.loader.engine.policy import Decision, Policy
from unjam.loader.transport.status_page import SINCE, STOP, Stage
from unjam.loader.worker.batch_culprit import among
from unjam.loader.worker.exceptions import add_notes, record, twin
from unjam.loader.worker.job import Failed, Interrupted, Job, Surrender

# other samples that are tried in the place of one that failed
MOST_REPLACEMENTS = 8
# failures of an iterator without a sample between them, after which it is not asked again
MOST_IN_A_ROW = 100


class Convicted(Exception):
    """The parent has decided about this sample already: it ended its worker."""

    def __init__(self, verdict: str) -> None:
        super().__init__(verdict)
        self.verdict = verdict


class Surroundings(Protocol):
    """What a mender needs of the process that it works in."""

    @property
    def words(self) -> Any:
        """The heartbeat."""

    def beat(self, stage: Stage, batch: int, position: int = -1) -> None:
        """Say what is about to be done."""

    def ask(self, job: Job, failed: Failed) -> Decision:
        """What the user's own function says."""

    def mention(self, text: str) -> None:
        """Tell the user, once, what is no failure."""

    def start_over(self) -> None:
        """Throw away what was made of the batch so far."""


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Who the failures belong to. `inline`: the training process itself, where Ctrl-C and sys.exit() are the user's."""

    worker: int | None
    seed: int
    iterable: bool
    batched: bool
    by_value: bool

    @property
    def inline(self) -> bool:
        """Whether this is no worker."""
        return self.worker is None


class SampleMender:
    """Applies a policy to the samples of one worker that fail; `Mender` adds what is done about whole batches."""

    def __init__(self, policy: Policy, identity: Identity, dataset: Any, around: Surroundings) -> None:
        self._policy = policy
        self._me = identity
        self._dataset = dataset
        self._around = around
        self._in_a_row, self._stuck_at = 0, -1
        # never set: only its bounded waiting is used
        self._pauses = threading.Event()

    @property
    def only_raises(self) -> bool:
        """Whether every failure is raised, whatever it is."""
        return self._policy.always is Decision.RAISE

    # -- one sample --------------------------------------------------------------------------------------------------

    def sample(
        self, job: Job, position: int, index: Any, error: BaseException, data: list[Any], load: Callable[[Any], Any]
    ) -> None:
        """A sample failed: add what takes its place to `data`, or nothing, or raise `Surrender`."""
        if position < 0 or len(data) + len(job.absent) > position:
            raise error  # no sample: the indices themselves raised, after the last one they gave
        tries = 1
        while True:
            failed = self._describe(job, "getitem", error, position=position, index=index, tries=tries)
            match self._decide(job, failed, error):
                case Decision.RAISE:
                    self._surrender(job, failed)
                case Decision.SKIP:
                    self._note(job, failed, Decision.SKIP)
                    job.absent.add(position)
                    return
                case Decision.REPLACE:
                    self._replace(job, failed, data, load)
                    return
                case Decision.RETRY:
                    self._pause(job, position, tries)
                    tries += 1
                    try:
                        data.append(load(index))
                    except BaseException as again:  # noqa: BLE001 - user code; decided above
                        error = again
                        continue
                    self._note(job, failed, Decision.RETRY)
                    return

    def _replace(self, job: Job, failed: Failed, data: list[Any], load: Callable[[Any], Any]) -> None:
        """Another sample of the batch, or else a recent one: never one that the sampler would not give."""
        position = failed.position
        for candidate in self._candidates(job, position):
            self._around.beat(Stage.GETITEM, job.batch, position)
            try:
                data.append(load(candidate))
            except Exception:  # noqa: BLE001 - it fails too; it is reported where it is due itself
                job.rejected.append(candidate)
                continue
            failed.replacement = job.replaced[position] = candidate
            self._note(job, failed, Decision.REPLACE)
            return
        failed.note = "nothing could be found to take its place"
        self._note(job, failed, Decision.SKIP)
        job.absent.add(position)

    def _candidates(self, job: Job, position: int) -> list[Any]:
        """In an order that depends only on the seed and the place, so that a second run replaces alike."""
        dice = random.Random(f"{self._me.seed} {job.number} {position}")  # noqa: S311 - no secret
        mates = [index for at, index in enumerate(job.indices()) if at != position and at not in job.verdicts]
        spares = list(job.spares)
        dice.shuffle(mates)
        dice.shuffle(spares)
        return [index for index in mates + spares if not among(index, job.rejected)][:MOST_REPLACEMENTS]

    # -- a stream ----------------------------------------------------------------------------------------------------

    def stream(self, job: Job, yielded: int, error: BaseException, data: list[Any], iterator: Iterator[Any]) -> bool:
        """An iterable raised; return whether it has ended with that."""
        tries = 1
        while True:
            if self._around.words[STOP]:
                raise Interrupted
            # an iterator may raise for ever: a connection that is gone
            self._in_a_row = self._in_a_row + 1 if yielded == self._stuck_at else 1
            self._stuck_at = yielded
            failed = self._describe(job, "iter", error, yielded=yielded, tries=tries)
            decision = self._decide(job, failed, error)
            if self._in_a_row >= MOST_IN_A_ROW and decision is not Decision.RAISE:
                failed.note = f"it failed {self._in_a_row} times in a row"
                decision = Decision.RAISE
            if decision is Decision.RAISE:
                self._surrender(job, failed)
            if decision is Decision.SKIP:
                self._note(job, failed, Decision.SKIP)
                return False
            if decision is Decision.RETRY:
                self._pause(job, len(data), tries)
            tries += 1
            try:
                data.append(next(iterator))
            except StopIteration:
                if decision is Decision.RETRY:
                    self._surrender(job, failed)
                failed.note = "its iterable ended with that"
                self._note(job, failed, Decision.SKIP)
                return True
            except BaseException as again:  # noqa: BLE001 - user code; decided above
                if decision is Decision.REPLACE:
                    self._note(job, failed, Decision.SKIP)
                error = again
                continue
            self._note(job, failed, decision)
            return False

    # -- inside ------------------------------------------------------------------------------------------------------

    def _decide(self, job: Job, failed: Failed, error: BaseException) -> Decision:
        if isinstance(error, Convicted):
            return Decision(error.verdict)
        if self._me.inline and not isinstance(error, Exception):
            raise error  # Ctrl-C, sys.exit() and their like are the user's own
        decision = self._policy.decide(failed.tries)
        if decision is None:
            decision = self._policy.bounded(self._around.ask(job, failed), failed.tries)
        return decision

    def _describe(
        self,
        job: Job,
        stage: str,
        error: BaseException,
        *,
        position: int = -1,
        index: Any = None,
        tries: int = 1,
        yielded: int | None = None,
        extra: tuple[str, ...] = (),
    ) -> Failed:
        alone = position >= 0 or yielded is not None
        indices = () if alone or self._me.iterable else job.remaining()
        since = self._around.words[SINCE]
        failed = Failed(
            position=position,
            index=None if self._me.iterable else index,
            batch=job.number,
            worker=self._me.worker,
            stage=stage,
            seconds=(time.monotonic_ns() - since) / 1e9 if since else 0.0,
            exception=None,
            tries=tries,
            yielded=yielded,
            indices=indices,
            pid=os.getpid(),
        )
        if isinstance(error, Convicted):
            return failed
        failed.key = self._key_of(failed)
        where = place(failed.index, job.number, self._me.worker, yielded=yielded, indices=indices)
        how = f"in {stage}, {failed.seconds:.2f} s after it began" + (f", try {tries}" if tries > 1 else "")
        notes = (where, *extra, *((f"the dataset calls it {failed.key}",) if failed.key else ()), how)
        failed.exception = self._keep(error, notes)
        return failed

    def _keep(self, error: BaseException, notes: tuple[str, ...]) -> Any:
        if self._me.inline:
            add_notes(error, notes)
            return error
        return record(error, notes, by_value=self._me.by_value)

    def _key_of(self, failed: Failed) -> str | None:
        if self._me.iterable or failed.index is None:
            return None
        from unjam.loader import sample_key  # noqa: PLC0415 - only when something fails

        return sample_key.key_of(self._dataset, failed.index)

    def _note(self, job: Job, failed: Failed, decision: Decision) -> None:
        failed.decision = decision
        if decision is not Decision.RAISE and isinstance(failed.exception, BaseException):
            # the frames of the first hold everything that the failed call held
            failed.exception = twin(failed.exception)
        if failed.index is not None and decision is not Decision.RETRY:
            job.rejected.append(failed.index)
        job.failures.append(failed)

    def _surrender(self, job: Job, failed: Failed) -> NoReturn:
        self._note(job, failed, Decision.RAISE)
        raise Surrender

    def _pause(self, job: Job, position: int, tries: int) -> None:
        """Before another try, longer each time; the parent can end it."""
        around = self._around
        around.beat(Stage.RETRYING, job.batch, position)
        until = time.monotonic() + min(RETRY_FIRST.seconds * 2 ** (tries - 1), RETRY_MOST.seconds)
        while (left := until - time.monotonic()) > 0:
            if around.words[STOP]:
                raise Interrupted
            self._pauses.wait(min(left, RETRY_FIRST.seconds))
        around.beat(Stage.GETITEM, job.batch, position)
