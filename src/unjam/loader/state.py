"""What unjam keeps for a loader: its statistics, what it sent to its workers, the best size so far.

Our own loader keeps it in one private attribute. For torch's loaders we keep it outside the object,
so that printing, comparing or pickling the loader shows no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unjam.loader.driver.auto_size import AutoSizer
from unjam.loader.driver.epoch_progress import EpochProgress
from unjam.loader.driver.recorder import Recorder
from unjam.loader.options import LoaderOptions
from unjam.loader.pool.pool_request import PayloadCache
from unjam.system.by_identity import ByIdentity


@dataclass(slots=True)
class LoaderState:
    """A loader's state.

    sizer: chooses the number of workers if that is "auto". progress: what the latest iterator has delivered.
    pending: a saved state that the next iterator resumes from. epoch: how many epochs were started.
    sample_seed: the seed of the samples' random numbers, with `rng="sample"`.
    """

    recorder: Recorder
    sizer: AutoSizer | None = None
    payloads: PayloadCache = field(default_factory=PayloadCache)
    progress: EpochProgress | None = None
    pending: dict[str, Any] | None = None
    epoch: int = 0
    sample_seed: int | None = None

    @classmethod
    def new(cls, options: LoaderOptions, dataset: Any, sizer: AutoSizer | None) -> LoaderState:
        """Return the state of a new loader."""
        name = type(dataset).__qualname__
        return cls(Recorder(options.log_path, options.max_errors, name, profile=options.profile), sizer)


_attached: ByIdentity[tuple[LoaderOptions, LoaderState]] = ByIdentity()


def attach(loader: Any, options: LoaderOptions, state: LoaderState) -> None:
    """Attach options and state to one of torch's own loaders."""
    _attached.put(loader, (options, state))


def attached(loader: Any) -> bool:
    """Return whether `attach` was called for this loader."""
    return _attached.get(loader) is not None


def own_of(loader: Any) -> tuple[LoaderOptions, LoaderState]:
    """Return the options and the state of our own loader, or of one of torch's that was attached."""
    known = _attached.get(loader)
    return known if known is not None else (LoaderOptions.of(loader), loader._state)  # noqa: SLF001 - one of ours


def recorder_of(loader: Any) -> Recorder | None:
    """Return the recorder of our own or an attached loader; None for any other."""
    known = _attached.get(loader)
    state = known[1] if known is not None else getattr(loader, "_state", None)
    return state.recorder if isinstance(state, LoaderState) else None
