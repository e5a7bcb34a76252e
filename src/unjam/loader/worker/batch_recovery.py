"""What a worker does about a batch that failed as a whole: its samples do not fit together, or all were to come at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

from unjam.loader.engine.policy import Decision, Policy
from unjam.loader.transport.status_page import Stage
from unjam.loader.worker.batch_culprit import explained, looks, named_in_traceback, type_of
from unjam.loader.worker.job import Emptied, Failed, Job, Surrender
from unjam.loader.worker.sample_recovery import Identity, SampleMender, Surroundings
from unjam.loader.worker.spec import own_random_numbers

# how often the samples of one batch are put together anew, with others in the place of those that do not fit
MOST_ROUNDS = 64


class Mender(SampleMender):
    """Applies a policy to the failures of one worker.

    `tolerant`: where batches are put together by torch's own function, whose rules are known, that function without our checks.
    """

    def __init__(
        self,
        policy: Policy,
        identity: Identity,
        dataset: Any,
        around: Surroundings,
        *,
        tolerant: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(policy, identity, dataset, around)
        self._plain = tolerant is not None
        self._tolerant = tolerant

    def cannot_collate(
        self, job: Job, data: list[Any], error: BaseException, collate: Callable[[list[Any]], Any]
    ) -> Any:
        """The samples could not be put together: go on with those that can be, if the policy allows."""
        if self.only_raises and self._tolerant is None:
            self.whole(job, "collate", error, looks(job, data, iterable=self._me.iterable))
        if self.only_raises and self._tolerant is not None:
            with contextlib.suppress(Exception):  # then torch cannot do it either
                self._around.start_over()
                batch = self._tolerant(data)
                words = "; ".join(looks(job, data, iterable=self._me.iterable)) or "they are not alike"
                said = f"{error.args[0]}: {words}; torch puts them together without a word, and so it was done"
                self._around.mention(said)
                return batch
        return self._without_the_odd(job, data, error, collate)

    def _without_the_odd(
        self, job: Job, data: list[Any], error: BaseException, collate: Callable[[list[Any]], Any]
    ) -> Any:
        """The samples do not fit together: find who is different, and go on without."""
        from unjam.loader import outlier  # noqa: PLC0415 - only when something fails

        if self._me.inline and not isinstance(error, Exception):
            raise error
        tried: dict[int, Failed] = {}
        for _ in range(MOST_ROUNDS + self._policy.retries):
            # somebody else's function may have changed the samples before it failed: load them again
            with own_random_numbers():
                fresh = self._plain or self._loaded_again(job, data)
                odd = outlier.find(data, collate, strict=self._plain, fresh=fresh)
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
