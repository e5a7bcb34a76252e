"""What a worker does about a sample that failed: raise, skip, replace or retry, as the policy says.

A failure is described where it happened, with the exception as it is, and travels with its batch: a batch that has to
be made again because its worker died does not report anything twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

from unjam.engine.deadlines import RETRY_FIRST, RETRY_MOST
from unjam.engine.policy import Decision, Policy
from unjam.errors import place
from unjam.transport.page import SINCE, STOP, Stage
from unjam.worker.blaming import among, explained, looks, named_in_traceback, type_of
from unjam.worker.exceptions import add_notes, record, twin
from unjam.worker.job import Emptied, Failed, Interrupted, Job, Surrender
from unjam.worker.spec import own_random_numbers

# other samples that are tried in the place of one that failed
MOST_REPLACEMENTS = 8
# how often the samples of one batch are put together anew, with others in the place of those that do not fit
MOST_ROUNDS = 64
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


class Mender:
    """Applies a policy to the failures of one worker."""

    def __init__(self, policy: Policy, identity: Identity, dataset: Any, around: Surroundings, *, plain: bool) -> None:
        self._policy = policy
        self._me = identity
        self._dataset = dataset
        self._around = around
        # whether batches are put together by torch's own function, whose rules are known
        self._plain = plain
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

    # -- a batch -----------------------------------------------------------------------------------------------------

    def cannot_collate(
        self, job: Job, data: list[Any], error: BaseException, collate: Callable[[list[Any]], Any]
    ) -> Any:
        """The samples could not be put together: go on with those that can be, if the policy allows."""
        if self.only_raises and not self._plain:
            self.whole(job, "collate", error, looks(job, data, iterable=self._me.iterable))
        return self._without_the_odd(job, data, error, collate)

    def _without_the_odd(
        self, job: Job, data: list[Any], error: BaseException, collate: Callable[[list[Any]], Any]
    ) -> Any:
        """The samples do not fit together: find who is different, and go on without."""
        from unjam.evidence import oddness  # noqa: PLC0415 - only when something fails

        if self._me.inline and not isinstance(error, Exception):
            raise error
        tried: dict[int, Failed] = {}
        for _ in range(MOST_ROUNDS + self._policy.retries):
            # somebody else's function may have changed the samples before it failed: load them again
            with own_random_numbers():
                fresh = self._plain or self._loaded_again(job, data)
                odd = oddness.find(data, collate, strict=self._plain, fresh=fresh)
            if not odd:
                self.whole(job, "collate", error)
                raise Emptied
            places = job.kept(len(data))
            for one in reversed(odd):
                position = places[one.place]
                words = one.words([f"sample {job.index_at(at)!r}" for at in places], self._me.iterable)
                shown = explained(error, words) if self._plain else error
                index, tries = job.index_at(position), tried[position].tries + 1 if position in tried else 1
                failed = self._describe(
                    job, "collate", shown, position=position, index=index, tries=tries, extra=(words,)
                )
                decision = self._decide(job, failed, error)
                if decision is Decision.RAISE or (decision is Decision.RETRY and self._me.iterable):
                    self._surrender(job, failed)
                if decision is Decision.RETRY:
                    tried[position] = failed
                    self._pause(job, position, tries)
                    with contextlib.suppress(Exception):  # as odd as before, then
                        data[one.place] = self._dataset[index]
                    continue
                tried.pop(position, None)
                del data[one.place]
                if decision is Decision.REPLACE and not self._me.iterable:
                    earlier = next((known for known in job.failures if known.position == position), None)
                    if earlier is not None:
                        # what took its place does not fit either: another one has to
                        job.failures.remove(earlier)
                        job.rejected.append(failed.index)
                        failed = earlier
                    self._replace_in_place(job, failed, data, one.place)
                else:
                    self._note(job, failed, Decision.SKIP)
                    job.absent.add(position)
            if not data:
                raise Emptied
            self._around.start_over()
            self._around.beat(Stage.COLLATE, job.batch)
            try:
                batch = collate(data)
            except BaseException as again:  # noqa: BLE001 - user code; decided above
                error = again
                continue
            for cured in tried.values():
                self._note(job, cured, Decision.RETRY)
            return batch
        self.whole(job, "collate", error)
        raise Emptied

    def _loaded_again(self, job: Job, data: list[Any]) -> bool:
        if self._me.iterable:
            return False
        try:
            data[:] = [self._dataset[job.index_at(position)] for position in job.kept(len(data))]
        except Exception:  # noqa: BLE001 - user code; the samples stay as they are
            return False
        return True

    def _replace_in_place(self, job: Job, failed: Failed, data: list[Any], place_in_data: int) -> None:
        found: list[Any] = []
        self._replace(job, failed, found, lambda index: self._dataset[index])
        data[place_in_data:place_in_data] = found

    def cannot_load(self, job: Job, error: BaseException) -> None:
        """The dataset failed to give all samples at once: raise `Surrender`, or note that the batch is left out."""
        position, words = named_in_traceback(error, self._dataset, job)
        if position < 0 or not self.only_raises:
            self.whole(job, "getitem", error, words)
            return
        self._surrender(job, self._describe(job, "getitem", error, position=position, index=job.index_at(position)))

    def whole(self, job: Job, stage: str, error: BaseException, extra: tuple[str, ...] = ()) -> None:
        """The batch as a whole failed and no sample can be named: raise `Surrender`, or note that it is left out."""
        failed = self._describe(job, stage, error, extra=extra)
        if self._decide(job, failed, error) in (Decision.RAISE, Decision.RETRY):
            self._surrender(job, failed)
        self._note(job, failed, Decision.SKIP)

    def name_one(self, job: Job, error: BaseException) -> NoReturn:
        """The dataset failed to give all samples at once, and one of them failed alone: the same way?"""
        culprit = job.failures[-1]
        if culprit.exception is not None and type_of(culprit.exception) != type_of(error):
            job.failures[-1] = self._describe(job, "getitem", error)
            job.failures[-1].decision = Decision.RAISE
        raise Surrender

    def not_alone(self, job: Job, error: BaseException) -> None:
        """The dataset failed to give all samples at once, but each alone is there or was dealt with."""
        if job.failures:
            return
        failed = self._describe(job, "getitem", error)
        failed.note = "each of its samples could be loaded alone"
        if self._decide(job, failed, error) is Decision.RAISE:
            self._surrender(job, failed)
        self._note(job, failed, Decision.RETRY)

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
        from unjam.evidence import keys  # noqa: PLC0415 - only when something fails

        return keys.key_of(self._dataset, failed.index)

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
