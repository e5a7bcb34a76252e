"""Saves a loader's state as plain data and resumes from it.

NOTE [ Exact resume ]

Order. A sampler yields the same indices again if the random generators that it draws from are in the
same states. So we save those states as of the start of the epoch, and the number of batches that the
consumer has received. A resumed epoch restores the generators, iterates the sampler again and skips that
many batches of indices, without loading any samples. A checksum of the indices shows whether they are
the same. If the sampler has `state_dict()`, we restore its own state instead.

Samples. A worker's generators continue from their states after the worker's last batch that the consumer
received; these states arrive with the batch (`WorkerPosition`). With `rng="sample"` or `num_workers="auto"`,
random numbers depend on the sample or batch only, so nothing needs to be saved. An iterable dataset
resumes from its own state, or is read again up to the same sample.

The program's generators. torch's loaders draw the order of each epoch from torch's global generator,
and without workers the samples draw from all three. So the first `iter()` of a resumed run restores the
global generators to their states as of `state_dict()`. If the program has already done that itself,
nothing changes.
"""

from __future__ import annotations

import array
import copy
import itertools
import warnings
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from unjam.errors import CannotResumeError, UnjamWarning
from unjam.loader.checkpoint.saved_state import GLOBAL, VERSION, checked, fields_checksum
from unjam.loader.driver.epoch_progress import EpochProgress, checksum
from unjam.loader.driver.index_source import MOST_SPARES
from unjam.loader.options import AutoWorkers
from unjam.loader.state import LoaderState, own_of
from unjam.loader.worker.job import indices_of
from unjam.loader.worker.progress import as_plain, from_plain, is_stateful
from unjam.loader.worker.sample_random import batch_seed
from unjam.system import random_state
from unjam.system.object_graph import attributes

# these draw from torch's generators only
_TORCH_SAMPLERS = (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
_MAX_DEPTH = 4  # of samplers inside samplers
_SKIP_BLOCK = 256  # batches skipped at a time
# fields of a saved state that are those of `EpochProgress`: always, and in the middle of an epoch
_ALWAYS = ("epoch", "finished", "batches", "keeps_workers", "seed")
_WITHIN_EPOCH = ("position", "indices_checksum", "seeded", "sampler_was_asked", "sampler_iterations", "last_worker")


# -- samplers ------------------------------------------------------------------------------------------


def _samplers(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield the loader's samplers and the samplers inside them, outermost first, each with its path."""
    seen: set[int] = set()
    waiting = [("batch_sampler", loader.batch_sampler, 0), ("sampler", loader.sampler, 0)]
    while waiting:
        path, sampler, depth = waiting.pop(0)
        if sampler is None or id(sampler) in seen:
            continue
        seen.add(id(sampler))
        yield path, sampler
        if depth < _MAX_DEPTH:
            inner = (part for part in attributes(sampler, slots=False) if isinstance(part.value, Sampler))
            waiting += [(path + part.path, part.value, depth + 1) for part in inner]


def stateful_sampler(loader: Any) -> Any:
    """Return the outermost sampler that can save its state; None for an iterable."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    return next((one for _, one in _samplers(loader) if is_stateful(one)), None)


def _generators(loader: Any) -> dict[str, Any]:
    """Return the generator objects that the order may depend on, by path."""
    found = {"generator": loader.generator} if loader.generator is not None else {}
    for path, sampler in _samplers(loader):
        for part in attributes(sampler, slots=False):
            if random_state.state_of(part.value) and not any(part.value is known for known in found.values()):
                found[path + part.path] = part.value
    return found


def _workers(loader: Any) -> int:
    """Return how many workers load the samples, here and elsewhere; 0: the training process does."""
    return own_of(loader)[0].pool_spec.count(loader.num_workers)[1]


def _global_names(loader: Any, *, samples: bool = False) -> tuple[str, ...]:
    """Return the global generators that the order may depend on; with `samples`, also samples loaded in this process."""
    streams = isinstance(loader.dataset, IterableDataset)
    if _workers(loader) == 0 and (samples or streams):
        return random_state.NAMES
    own = streams or all(type(one) in _TORCH_SAMPLERS for _, one in _samplers(loader))
    return ("torch",) if own else random_state.NAMES


def begin_states(loader: Any, *, samples: bool = False) -> dict[str, bytes]:
    """Return the states of all generators that the order may depend on."""
    names = _global_names(loader, samples=samples)
    found = {GLOBAL + name: state for name, state in random_state.capture(names).items()}
    return found | {path: random_state.state_of(one) for path, one in _generators(loader).items()}


def _restore_generators(loader: Any, states: Mapping[str, bytes]) -> None:
    known = _generators(loader)
    for path, state in states.items():
        if path.startswith(GLOBAL):
            random_state.restore({path.removeprefix(GLOBAL): state})
        elif path in known:
            random_state.set_state(known[path], state)


# -- the state -----------------------------------------------------------------------------------------


def state_dict(loader: Any, state: LoaderState) -> dict[str, Any]:
    """Return the state of a loader."""
    if state.pending is not None:
        return copy.deepcopy(state.pending)
    now = state.progress or EpochProgress(finished=True)
    found: dict[str, Any] = {
        "unjam": VERSION,
        **{name: getattr(now, name) for name in _ALWAYS},
        "num_workers": now.workers,
        "sample_seed": state.sample_seed,
        "rank": _rank(),
    }
    begin = begin_states(loader, samples=True) if now.finished else now.generators_at_start
    found["generators_at_start"] = {path: random_state.as_text(one) for path, one in begin.items()}
    if not now.finished:
        names = _global_names(loader, samples=True)
        found["generators"] = {name: random_state.as_text(one) for name, one in random_state.capture(names).items()}
        found |= {name: getattr(now, name) for name in _WITHIN_EPOCH}
        found["finished_ahead"] = sorted(now.finished_ahead)
        if now.sampler_state is not None:
            found["sampler"] = copy.deepcopy(now.sampler_state)
    epochs = {path: one.epoch for path, one in _samplers(loader) if _counts_epochs(one)}
    if epochs:
        found["set_epoch"] = epochs
    if not now.finished or now.keeps_workers or not now.workers:
        found["workers"] = {
            str(worker): as_plain(position) for worker, position in sorted(now.worker_positions.items())
        }
    return {**found, "checksum": fields_checksum(found)}


def _rank() -> list[int]:
    """Return this process's rank and the number of ranks."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return [torch.distributed.get_rank(), torch.distributed.get_world_size()]
    return [0, 1]


def _counts_epochs(sampler: Any) -> bool:
    return callable(getattr(sampler, "set_epoch", None)) and type(getattr(sampler, "epoch", None)) is int


def load_state_dict(loader: Any, state: LoaderState, saved: Any) -> None:
    """Store a state that the next iterator resumes from."""
    if isinstance(saved, Mapping) and not saved:
        return
    saved = checked(saved)
    _check_kind(loader, saved)
    for path, generator in _generators(loader).items():
        if path in saved["generators_at_start"]:
            try:
                random_state.check_for(generator, random_state.from_text(saved["generators_at_start"][path]))
            except ValueError as error:
                raise CannotResumeError(
                    f"the saved state is damaged, field 'generators_at_start': {path}: {error}"
                ) from error
    automatic = isinstance(loader.num_workers, AutoWorkers)
    if isinstance(loader.dataset, IterableDataset) and not saved["finished"] and not automatic:
        before, now = saved["num_workers"], _workers(loader)
        if before != now:
            raise CannotResumeError(
                f"this state was saved with num_workers={before}, and each worker reads its own part of the stream; "
                f"it cannot resume with num_workers={now}"
            )
    state.pending = copy.deepcopy(saved)
    for path, sampler in _samplers(loader):
        if path in saved.get("set_epoch", {}) and _counts_epochs(sampler):
            sampler.set_epoch(saved["set_epoch"][path])


def _check_kind(loader: Any, saved: Mapping[str, Any]) -> None:
    """Raise if the state is of another kind of loader: it would silently start over, or in the wrong place."""
    positions = saved.get("workers", {})
    if "sampler" in saved and stateful_sampler(loader) is None:
        raise CannotResumeError(
            "the saved state contains a sampler's state, but this loader has no sampler with load_state_dict()"
        )
    if any("dataset" in position for position in positions.values()) and not is_stateful(loader.dataset):
        raise CannotResumeError(
            "the saved state contains a dataset's state, but this loader's dataset has no load_state_dict()"
        )
    if saved["finished"]:
        return
    yielded = sum(position["yielded"] for position in positions.values())
    streams = isinstance(loader.dataset, IterableDataset)
    if streams and yielded < saved["batches"]:
        raise CannotResumeError(
            "the saved state does not belong to an iterable dataset: field 'workers' lacks each worker's sample count"
        )
    if yielded and not streams:
        raise CannotResumeError("the saved state belongs to an iterable dataset, but this dataset is map-style")


# -- resuming ------------------------------------------------------------------------------------------


class Resumption:
    """How a new iterator starts: with a new epoch, or from a saved state."""

    def __init__(self, loader: Any, state: LoaderState) -> None:
        self._loader, self._state = loader, state
        self._saved = saved = state.pending
        # the saved state, if it was saved in the middle of an epoch
        self._partial = None if saved is None or saved["finished"] else saved
        # the generators' states at the start of the saved epoch
        self._begin: dict[str, bytes] = {}
        self._same_rank = False
        if saved is not None:
            self._begin = {path: random_state.from_text(text) for path, text in saved["generators_at_start"].items()}
            self._same_rank = saved["rank"] == _rank()
            _restore_generators(loader, self._begin)
        self._now = begin_states(loader)

    def workers(self, wanted: int, most: int) -> int:
        """Return how many workers the epoch uses: a resumed stream keeps its number of workers."""
        if self._partial is None:
            return wanted
        had: int = self._partial["num_workers"]
        if had > most:
            raise CannotResumeError(
                f"this state was saved with num_workers={had}, each reading its own part of the stream; "
                f"this machine allows only {most}"
            )
        return had

    def seed(self, torch_seed: int, workers: int, *, by_batch: bool) -> int:
        """Number the epoch, and return torch's base seed for its workers.

        torch_seed: the seed that a new iterator drew. by_batch: random numbers depend on the batch, not on the worker.
        """
        state, saved = self._state, self._saved
        if saved is not None:
            state.epoch, state.sample_seed = saved["epoch"], saved["sample_seed"]
        state.epoch += self._partial is None
        seed = torch_seed
        if saved is not None and (self._partial or saved["keeps_workers"]):
            # with other workers, the same seed would repeat the random numbers of the epoch's first batches
            same = self._same_rank and (by_batch or saved["num_workers"] == workers)
            seed = saved["seed"] if same else batch_seed(saved["seed"] + _rank()[0], saved["epoch"], saved["batches"])
        if state.sample_seed is None:
            state.sample_seed = seed
        return seed

    def start(self, iterator: Any, *, seed: int, sampler_iterations: int, keeps_workers: bool) -> EpochProgress:
        """Return the progress that the epoch starts with; skip what is done in the iterator's sampler."""
        state, saved, workers = self._state, self._saved, iterator._num_workers  # noqa: SLF001 - one of ours
        progress = EpochProgress(
            state.epoch,
            workers=workers,
            seed=seed,
            sampler_iterations=sampler_iterations,
            keeps_workers=keeps_workers,
            generators_at_start=self._now,
        )
        same = saved is not None and self._same_rank and saved["num_workers"] == workers
        if saved is not None and same:
            positions = {int(worker): from_plain(plain) for worker, plain in saved.get("workers", {}).items()}
            progress.worker_positions = (
                positions if self._partial else {n: one.in_next_epoch() for n, one in positions.items()}
            )
        if self._partial is not None:
            saved = self._partial
            for name in ("batches", *_WITHIN_EPOCH):
                setattr(progress, name, saved[name])
            progress.finished_ahead = dict.fromkeys(saved["finished_ahead"], (0, None))
            progress.generators_at_start = self._begin
            progress.last_worker = saved["last_worker"] if same else -1
            progress.sampler_state = saved.get("sampler")
            self._skip_done(iterator, progress)
            if not progress.sampler_was_asked:
                _restore_global_generators(saved["generators"])  # the sampler will draw its order from these states
            iterator._num_yielded = progress.batches  # noqa: SLF001 - torch's own count
        elif saved is not None and saved["keeps_workers"]:  # persistent workers draw no new seed
            progress.seeded, progress.sampler_iterations = False, 1
            progress.generators_at_start = self._begin
            self._skip_done(iterator, progress)
        return progress

    def _skip_done(self, iterator: Any, progress: EpochProgress) -> None:
        """Iterate the sampler again, as the epoch did at its start, and skip the batches that are done."""
        sampler = iterator._index_sampler  # noqa: SLF001 - torch's name
        _restore_generators(self._loader, progress.generators_at_start)
        if progress.sampler_state is not None:
            stateful_sampler(self._loader).load_state_dict(copy.deepcopy(progress.sampler_state["state"]))
            ended = progress.sampler_state["ended"]
            iterator._sampler_iter = iter(()) if ended else iter(sampler)  # noqa: SLF001 - as above
            return
        indices = iter(sampler)
        if progress.seeded:
            torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator)  # the workers' seed
        if progress.sampler_iterations > 1:
            indices = iter(sampler)
        iterator._sampler_iter = indices  # noqa: SLF001 - as above
        if isinstance(self._loader.dataset, IterableDataset):
            return
        if not progress.position and progress.sampler_was_asked:
            # batches were prefetched, so the sampler had already drawn its order when the state was saved
            iterator._sampler_iter = itertools.chain(list(itertools.islice(indices, 1)), indices)  # noqa: SLF001 - as above
            return
        if type(sampler) is BatchSampler and progress.position:
            iterator._sampler_iter, skipped, found, recent = _skip_in_blocks(sampler, progress.position)  # noqa: SLF001 - as above
        else:
            batched = iterator._auto_collation  # noqa: SLF001 - as above
            skipped, found, recent = _skip_one_by_one(indices, progress.position, batched=batched)
        progress.spares = tuple(recent)
        if skipped < progress.position:
            _warn(f"the sampler ended after {skipped} batches, but {progress.position} were delivered before")
        elif found != progress.indices_checksum:
            _warn("the sampler yielded different indices than before, so samples may be missing or repeated")
            progress.indices_checksum = found

    def finish(self) -> None:
        """Restore the program's generators to their states as of `state_dict()`, once the iterator is ready."""
        self._state.pending = None
        if self._partial is not None and self._partial["sampler_was_asked"]:
            _restore_global_generators(self._partial["generators"])


def _restore_global_generators(texts: Mapping[str, str]) -> None:
    random_state.restore({name: random_state.from_text(text) for name, text in texts.items()})


def _skip_one_by_one(indices: Iterator[Any], batches: int, *, batched: bool) -> tuple[int, int, deque[Any]]:
    """Skip batches; return how many there were, their checksum and their last indices."""
    found, recent = 0, deque[Any](maxlen=MOST_SPARES)
    for number in range(batches):
        try:
            one = next(indices)
        except StopIteration:
            return number, found, recent
        skipped = indices_of(one, batched=batched)
        found = checksum(skipped, found)
        recent.extend(skipped)
    return batches, found, recent


def _skip_in_blocks(sampler: BatchSampler, batches: int) -> tuple[Iterator[Any], int, int, deque[Any]]:
    """Skip batches of torch's own BatchSampler, many at a time, by iterating the sampler inside it.

    Return the rest of the batches, how many were skipped, their checksum and their last indices.
    """
    inner, size = iter(sampler.sampler), sampler.batch_size
    skipped = found = 0
    recent = deque[Any](maxlen=MOST_SPARES)
    while skipped < batches:
        wanted = size * min(batches - skipped, _SKIP_BLOCK)
        block = list(itertools.islice(inner, wanted))
        recent.extend(block[-MOST_SPARES:])
        try:
            found = zlib.crc32(array.array("q", block), found)  # as `checksum` does for each batch
        except (TypeError, OverflowError):
            for at in range(0, len(block), size):
                found = checksum(tuple(block[at : at + size]), found)
        skipped += -(-len(block) // size)
        if len(block) < wanted:
            break
    rest = copy.copy(sampler)
    rest.sampler = inner
    return iter(rest), skipped, found, recent


def _warn(text: str) -> None:
    warnings.warn(
        f"{text}; this epoch cannot resume exactly. Seed the sampler, or give it state_dict() and load_state_dict()",
        UnjamWarning,
        stacklevel=2,
    )
