"""The drop-in `DataLoader`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
import time
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler, SequentialSampler
from typing_extensions import Unpack

from unjam.errors import CannotResumeError, SampleError
from unjam.loader import options as own_options
from unjam.loader.checkpoint import resume
from unjam.loader.driver.auto_size import AutoSizer, first_size
from unjam.loader.options import AutoWorkers, LoaderOptions, OptionKeywords
from unjam.loader.pool import fork_server
from unjam.loader.pool_spec import parse_pool
from unjam.loader.ship.worker_info_use import asks_for_its_worker
from unjam.loader.state import LoaderState, attach, own_of
from unjam.loader.worker.sample_random import replay_sample
from unjam.statistics import Statistics
from unjam.system import torch_private
from unjam.system.logs import log

if TYPE_CHECKING:
    from unjam.loader.failures.incident import Incident

T_co = TypeVar("T_co", covariant=True)

# whether we have warned that this torch lacks something
_warned: list[bool] = []

_TORCHS_OPTIONS = tuple(inspect.signature(torch.utils.data.DataLoader.__init__).parameters)[1:]


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """`torch.utils.data.DataLoader` with another iterator: the same arguments, the same batches.

    Workers are started by a fork server unless `multiprocessing_context` is given. Batches are passed
    in reused shared memory. unjam adds these options:

    num_workers: as in torch, or "auto": as many workers and prefetched batches as the training needs
        and the machine allows, measured and adjusted during the training. Random numbers then depend on
        the batch, so batches do not depend on the number of workers. For an iterable, the number changes
        only between epochs, and stays 1 unless its code calls `get_worker_info()`.
        `statistics().auto` shows the chosen numbers and the reasons.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,  # noqa: FBT001 - torch's position
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,  # noqa: FBT001, FBT002 - torch's position
        drop_last: bool = False,  # noqa: FBT001, FBT002 - torch's position
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        **options: Unpack[OptionKeywords],
    ) -> None:
        own = LoaderOptions.from_keywords(options, others=_TORCHS_OPTIONS)
        _check_workers(num_workers)
        if num_workers == "auto" or isinstance(num_workers, AutoWorkers):
            num_workers = AutoWorkers(first_size(dataset, iterable=isinstance(dataset, IterableDataset)))
        vars(self)["pool"] = own.pool  # torch's constructor asks whether there are too many workers for this machine
        if prefetch_factor is None and num_workers and not isinstance(num_workers, AutoWorkers):
            prefetch_factor = own.pool_spec.prefetch_factor
        newer = {"in_order": in_order} if "in_order" in _TORCHS_OPTIONS else {}
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **newer,
        )
        self.in_order = in_order
        vars(self).update(own.as_dict())
        sizer = _sizer(self, num_workers, prefetch_factor) if isinstance(num_workers, AutoWorkers) else None
        self._state = LoaderState.new(own, dataset, sizer)
        if "accelerate" in sys.modules:
            from unjam.loader.frameworks import watch_accelerate  # noqa: PLC0415 - only if accelerate is used

            watch_accelerate(DataLoader)
        if own.pool_spec.count(self.num_workers)[0] and self.multiprocessing_context is None:
            # the server imports torch while the program builds its model
            fork_server.start_early()

    def __repr__(self) -> str:
        """Return the dataset and the arguments that are not the defaults."""
        try:
            return self._words()
        except Exception:  # noqa: BLE001 - its __init__ was not called, or an option was changed to a wrong value
            return object.__repr__(self)

    def _words(self) -> str:
        parts = [_described(self.dataset)]
        if self.batch_size is None and self.batch_sampler is not None:
            parts.append(f"batch_sampler={_described(self.batch_sampler)}")
        else:
            parts.append(f"batch_size={self.batch_size}")
            if isinstance(self.sampler, RandomSampler):
                parts.append("shuffle=True")
            elif not isinstance(self.sampler, SequentialSampler) and not isinstance(self.dataset, IterableDataset):
                parts.append(f"sampler={_described(self.sampler)}")
        parts.append(f"num_workers={self.num_workers if self._state.sizer is None else 'auto'!r}")
        parts += [f"{name}=True" for name in ("pin_memory", "drop_last", "persistent_workers") if getattr(self, name)]
        own = LoaderOptions.of(self).as_dict()
        parts += [f"{name}={_named(value)}" for name, value in own.items() if value != own_options.DEFAULTS[name]]
        return f"{type(self).__name__}({', '.join(parts)})"

    def check_worker_number_rationality(self) -> None:
        """Warn if there are more workers than processors; only those on this machine count."""
        if parse_pool(vars(self).get("pool")).count(self.num_workers)[0]:
            super().check_worker_number_rationality()

    @property
    def errors(self) -> tuple[SampleError, ...]:
        """The last thousand failures, oldest first; the error log has all of them."""
        return tuple(self._state.recorder.errors)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The last thousand incidents: workers that died, took too long or were suspended."""
        return tuple(self._state.recorder.incidents)

    def statistics(self) -> Statistics:
        """Return what this loader has done so far, in all epochs; readable when printed."""
        payloads = self._state.payloads
        return dataclasses.replace(
            self._state.recorder.statistics(),
            rebuilt=payloads.templates.reason,
            reread_samples=payloads.reports.reread_samples,
            reread_seconds=payloads.reports.reread_seconds,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return this loader's position, so that another run can resume exactly there with `load_state_dict`.

        Only batches that the program has received count, not prefetched ones. Plain data, some kilobytes.
        """
        if not can_open(self):
            raise CannotResumeError(
                "cannot save a state: this loader uses torch's own iterator, which does not record what it delivered"
            )
        return resume.state_dict(self, self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict()` returned: the next `iter()` yields the batches that were not delivered yet.

        For a map-style dataset the number of workers may differ now; for an iterable it must be the same.
        """
        resume.load_state_dict(self, self._state, state_dict)
        if state_dict and self._iterator is not None:
            iterator, self._iterator = self._iterator, None
            getattr(iterator, "_shutdown_workers", lambda: None)()

    def replay(self, index: Any, epoch: int | None = None) -> Any:
        """Load one sample again in this process, without `collate_fn`; for example, a failing one under a debugger.

        With `rng="sample"` it gets the random numbers of that epoch (counted from 1; None: the current one).
        """
        seed = self._state.sample_seed if own_of(self)[0].rng == "sample" else None
        return replay_sample(self.dataset, index, seed, self._state.epoch if epoch is None else epoch)

    def _get_iterator(self) -> Any:
        if not can_open(self):
            return super()._get_iterator()
        return open_iterator(self)

    def __getstate__(self) -> dict[str, Any]:
        # an iterator belongs to this process; a copy of the loader has its own iterator and record
        return {**vars(self), "_iterator": None, "_state": copy.deepcopy(self._state)}


def _check_workers(number: Any) -> None:
    """Raise if this is not a number of workers; torch's own error would not name the option."""
    if isinstance(number, str) and number != "auto":
        raise ValueError(
            f'num_workers should be a number or "auto", but got {number!r}{own_options.suggestion(number.lower(), ["auto"])}'
        )
    if not isinstance(number, str) and not hasattr(type(number), "__index__"):
        raise TypeError(f'num_workers should be a number or "auto", but got {number!r}')


def _described(one: Any) -> str:
    """Return an object's class and, if it has one, its length."""
    try:
        return f"<{type(one).__name__} of {len(one):,}>"
    except Exception:  # noqa: BLE001 - user code; it may have no length
        return f"<{type(one).__name__}>"


def _named(value: Any) -> str:
    """Return a function's name, or another value's repr."""
    return value.__qualname__ if isinstance(value, types.FunctionType) else repr(value)


def _complete(kind: type[DataLoader[Any]]) -> None:
    """Add unjam's options to the signature and docstring, where people and frameworks look."""
    plain = inspect.signature(kind.__init__)
    torchs = [one for one in plain.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    signature = plain.replace(parameters=[*torchs, *own_options.parameters()])
    kind.__init__.__signature__ = signature  # type: ignore[attr-defined] # functions may have one
    kind.__doc__ = (kind.__doc__ or "").rstrip() + "\n" + own_options.documentation() + "\n    "


_complete(DataLoader)


def _sizer(loader: torch.utils.data.DataLoader[Any], start: int, depth: int | None = None) -> AutoSizer | None:
    resizes = not isinstance(loader.dataset, IterableDataset)
    if not resizes and not isinstance(loader, DataLoader):
        return None
    return AutoSizer(
        resizes_within_epoch=resizes,
        start=start,
        depth=depth,
        single=not resizes and not asks_for_its_worker(loader.dataset),
    )


def can_open(loader: torch.utils.data.DataLoader[Any]) -> bool:
    """Whether unjam's iterator works here. If not, we use torch's own and warn once."""
    if loader.num_workers and sys.platform == "win32":
        return False  # descriptors cannot be passed there
    lacks = torch_private.missing()
    if lacks and not _warned:
        _warned.append(True)
        named = ", ".join(lacks[:3])
        log.warning(
            "torch %s has no %s: using torch's own iterator, without unjam's features", torch.__version__, named
        )
    return not lacks


def open_iterator(loader: torch.utils.data.DataLoader[Any]) -> Any:
    """Return an iterator for one of unjam's loaders, or for one of torch's that was taken over."""
    begun = time.monotonic_ns()
    from unjam.loader import iterator  # noqa: PLC0415 - not needed before the first epoch

    options, state = own_of(loader)
    if options.pool_spec.count(loader.num_workers)[1] == 0 and state.sizer is None:
        return iterator.InlineIterator(loader)
    return iterator.WorkersIterator(loader, begun)


def attach_unjam(
    loader: torch.utils.data.DataLoader[Any],
    options: LoaderOptions,
    *,
    auto: bool = False,
    sizer: AutoSizer | None = None,
) -> LoaderState:
    """Attach to one of torch's own loaders what unjam's iterator needs; the object is not changed.

    `auto`: choose the number of workers as with `num_workers="auto"`, but not for an iterable.
    `sizer`: of an earlier loader, which already knows the best size.
    """
    if auto and sizer is None:
        sizer = _sizer(loader, first_size(loader.dataset, iterable=False))
    state = LoaderState.new(options, loader.dataset, sizer)
    attach(loader, options, state)
    return state
