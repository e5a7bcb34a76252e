"""The options that torch's DataLoader does not have. This is the only place that defines them.

`DataLoader`'s signature and docstring, the checks, `unjam run`'s flags and `UNJAM_OPTIONS` are made
from this class.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from unjam.errors import SampleError
from unjam.loader.engine.policy import Decision, Policy
from unjam.loader.pool_spec import COMMAND_TEXT, OPTION_TEXT, PoolSpec, parse_pool

if TYPE_CHECKING:
    import torch

Rng = Literal["worker", "sample"]
OnWorkerDeath = Literal["restart", "raise"]
OnError = Literal["raise", "skip", "replace", "retry"] | Callable[[SampleError], str]

_WORDS = tuple(decision.value for decision in Decision)


class OptionKeywords(TypedDict, total=False):
    """The options as type checkers and editors see them; a test compares their names and types with `LoaderOptions`."""

    on_error: OnError
    retries: int
    max_errors: float | None
    error_log: str | os.PathLike[str] | None
    sample_timeout: float | None
    warn_after: float | None
    on_worker_death: OnWorkerDeath
    max_restarts: int
    worker_threads: int | None
    memory_budget: int | None
    rng: Rng
    snapshot_every_n_steps: int
    device: torch.device | str | int | None
    on_device: Callable[[Any], Any] | None
    pool: PoolSpec | str | None
    profile: bool


class AutoWorkers(int):
    """A number of workers that the loader chose and may change. A new loader chooses again."""

    __slots__ = ()


def _option(default: Any, parse: Callable[[str], Any] | None, text: str, flag: str = "") -> Any:
    """Define an option.

    `parse`: reads it from the command line, None if it cannot be given there. `text`: for the docstring. `flag`: help of its flag, if
    the text's first clause does not fit.
    """
    return dataclasses.field(default=default, metadata={"parse": parse, "text": text, "flag": flag})


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message that names the known word that is most like `word`; else an empty text."""
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """The value of each option. The constructor checks them."""

    on_error: OnError = _option(
        "raise",
        str,
        'what to do when a sample fails: "raise" (default); "skip" (the batch gets smaller); "replace" (with another sample of '
        'the batch, or a recent one); "retry" (up to `retries` times, doubling the pause each time, then raise); or a function that gets a '
        "`SampleError` and returns one of these words. It is called in the training process.",
        "What to do when a sample fails: raise, skip, replace or retry.",
    )
    retries: int = _option(3, int, 'how many times a failed sample is retried if `on_error` is, or returns, "retry".')
    max_errors: float | None = _option(
        None,
        lambda text: float(text) if "." in text else int(text),
        "how many samples may be skipped or replaced per epoch: a count, or, as a float, a fraction of the epoch.",
    )
    error_log: str | os.PathLike[str] | None = _option(
        None,
        os.path.abspath,
        "a file to which each failure is appended as one line of JSON; `unjam errors FILE` shows it.",
    )
    sample_timeout: float | None = _option(
        None,
        float,
        "how many seconds one sample may take. After that, its worker is stopped and replaced, and `on_error` decides what happens "
        "to the sample. Requires workers: a sample loaded in the training process cannot be interrupted.",
        "How many seconds one sample may take.",
    )
    warn_after: float | None = _option(
        30.0,
        float,
        "seconds without a batch after which the log shows what the worker responsible for the next batch is doing, with its stack; "
        "None: never.",
        "Seconds without a batch after which the log shows what the worker responsible for the next one is doing.",
    )
    on_worker_death: OnWorkerDeath = _option(
        "restart",
        str,
        '"restart" (default: a new worker loads the lost batches again) or "raise".',
        "What to do when a worker dies: restart (a new worker loads the lost batches again) or raise.",
    )
    max_restarts: int = _option(1000, int, "how many workers may be replaced per epoch.")
    worker_threads: int | None = _option(
        1, int, "compute threads per worker, for torch, BLAS, OpenMP and OpenCV; None: leave their settings unchanged."
    )
    memory_budget: int | None = _option(
        None,
        int,
        "the maximum size of all prefetched batches in bytes; by default a quarter of the available memory. It can reduce how many "
        "batches are prefetched, but never changes which worker makes which batch.",
    )
    rng: Rng = _option(
        "worker",
        str,
        'what random numbers depend on: "worker" (default; exactly as in torch) or "sample": before each sample, the generators of '
        "Python, numpy and torch are seeded with the seed, the epoch and the index, so samples do not depend on the number of "
        "workers.",
        "What random numbers depend on: worker (as in torch) or sample (the same with any number of workers).",
    )
    snapshot_every_n_steps: int = _option(
        1,
        int,
        "how often the state of a dataset with `state_dict()` is saved: at every n-th batch of a worker. A resumed run "
        "reads the samples after the last saved state again.",
    )
    device: torch.device | str | int | None = _option(
        None,
        str,
        'an accelerator (`"cuda"`, `"cuda:1"`, `"xpu"`, a `torch.device`) to which batches are copied before the training asks for '
        'them, directly from the workers\' memory. None or `"cpu"`: batches stay in main memory.',
        "An accelerator to which batches are copied before the training asks for them: cuda, cuda:1.",
    )
    on_device: Callable[[Any], Any] | None = _option(
        None,
        None,
        "a function that is applied to each batch on the device, in the copy stream: casts, normalisation, mixup. The training "
        "receives its result. Requires `device`.",
    )
    pool: PoolSpec | str | None = _option(None, str, OPTION_TEXT, COMMAND_TEXT)
    profile: bool = _option(
        False,  # noqa: FBT003 - the default
        {"True": True, "False": False}.__getitem__,
        "measure which transforms and which lines take the most time; `statistics().profile` has the result.",
    )

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError for an invalid value."""
        if not callable(self.on_error) and self.on_error not in _WORDS:
            raise ValueError(
                f"on_error should be one of {', '.join(_WORDS)} or a function, but got on_error={self.on_error!r}"
            )
        _check_whole_number("retries", self.retries, least=0)
        _check_whole_number("max_restarts", self.max_restarts, least=0)
        if self.max_errors is not None:
            _check_max_errors(self.max_errors)
        for name in ("sample_timeout", "warn_after"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
                raise ValueError(f"{name} should be a positive number of seconds or None, but got {name}={value!r}")
        if self.on_worker_death not in ("restart", "raise"):
            raise ValueError(
                f"on_worker_death should be 'restart' or 'raise', but got on_worker_death={self.on_worker_death!r}"
            )
        if self.worker_threads is not None:
            _check_whole_number("worker_threads", self.worker_threads, least=1)
        if self.rng not in ("worker", "sample"):
            raise ValueError(f"rng should be 'worker' or 'sample', but got rng={self.rng!r}")
        _check_whole_number("snapshot_every_n_steps", self.snapshot_every_n_steps, least=0)
        if self.on_device is not None and not callable(self.on_device):
            raise TypeError(f"on_device should be a function or None, but got on_device={self.on_device!r}")
        self.target_device  # noqa: B018 - raises if the device is not one
        if self.on_device is not None and self.device is None:
            raise ValueError('on_device needs device=..., for example "cuda", or "cpu" to run it in this process')
        parse_pool(self.pool)
        if self.memory_budget is not None:
            _check_whole_number("memory_budget", self.memory_budget, least=1)
        if not isinstance(self.profile, bool):
            raise TypeError(f"profile should be True or False, but got profile={self.profile!r}")

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any], others: Iterable[str] = ()) -> LoaderOptions:
        """Make options from keywords; raise TypeError, with a suggestion, for an unknown name.

        others: names of further options that the caller has.
        """
        unknown = next((name for name in keywords if name not in DEFAULTS), None)
        if unknown is not None:
            hint = suggestion(unknown, [*DEFAULTS, *others])
            raise TypeError(f"DataLoader.__init__() got an unexpected keyword argument {unknown!r}{hint}")
        given = cls(**keywords)
        # checked only at construction, because the program may change directory later
        folder = os.path.dirname(given.log_path or "")
        if given.error_log is not None and not os.path.isdir(folder):
            raise FileNotFoundError(f"error_log={os.fspath(given.error_log)!r}: the folder {folder} does not exist")
        return given

    @classmethod
    def of(cls, loader: Any) -> LoaderOptions:
        """Return a loader's present options: the user may have changed an attribute."""
        return cls(**{name: getattr(loader, name) for name in DEFAULTS})

    def as_dict(self) -> dict[str, Any]:
        """Return the options by name, in order."""
        return {name: getattr(self, name) for name in DEFAULTS}

    @property
    def policy(self) -> Policy:
        """`on_error` and `retries`, as a worker needs them."""
        return Policy(None if callable(self.on_error) else Decision(self.on_error), self.retries)

    @property
    def on_error_function(self) -> Callable[[SampleError], Any] | None:
        """The user's `on_error`, if it is a function."""
        return self.on_error if callable(self.on_error) else None

    @property
    def target_device(self) -> torch.device | None:
        """The accelerator that `device` means; None for none or the CPU. Nothing is run on it."""
        if self.device is None:
            return None
        import torch  # noqa: PLC0415 - commands that load nothing need not wait for it

        if isinstance(self.device, bool) or not isinstance(self.device, (str, int, torch.device)):
            raise TypeError(f"device should be a torch.device or its name, but got device={self.device!r}")
        try:
            found = torch.device("cuda", self.device) if isinstance(self.device, int) else torch.device(self.device)
        except RuntimeError as error:
            raise ValueError(f"device={self.device!r} is not a torch device") from error
        return None if found.type == "cpu" else found

    @property
    def pool_spec(self) -> PoolSpec:
        """What `pool` means."""
        return parse_pool(self.pool)

    @property
    def log_path(self) -> str | None:
        """`error_log` as an absolute path."""
        return None if self.error_log is None else os.path.abspath(os.fspath(self.error_log))


_FIELDS = dataclasses.fields(LoaderOptions)
DEFAULTS: dict[str, Any] = {one.name: one.default for one in _FIELDS}
# the options that can be given on a command line or in a variable
COMMAND_LINE_OPTIONS = {one.name: one.default for one in _FIELDS if one.metadata["parse"] is not None}


def parse_option(name: str, text: str) -> Any:
    """Parse an option from the command line.

    Raise KeyError for an unknown name, ValueError for an invalid value.
    """
    parse = {one.name: one.metadata["parse"] for one in _FIELDS if one.name in COMMAND_LINE_OPTIONS}[name]
    try:
        return parse(text)
    except KeyError:
        raise ValueError(text) from None


def option_help(name: str) -> str:
    """Return one line about an option, for its flag's help."""
    known = {one.name: one.metadata for one in _FIELDS}[name]
    if known["flag"]:
        return str(known["flag"])
    text: str = known["text"]
    first = text.replace("`", "").partition(" (default)")[0].partition(";")[0].rstrip(".")
    return first[:1].upper() + first[1:] + "."


def documentation() -> str:
    """Return every option with its text, for a docstring."""
    wrap = textwrap.TextWrapper(width=112, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "\n".join(wrap.fill(f"{one.name}: {one.metadata['text']}") for one in _FIELDS)


def parameters() -> list[inspect.Parameter]:
    """Return the options as keyword parameters of a signature."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(one.name, kind, default=one.default, annotation=one.type) for one in _FIELDS]


def _check_whole_number(name: str, value: Any, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} should be a whole number of at least {least}, but got {name}={value!r}")


def _check_max_errors(value: Any) -> None:
    if isinstance(value, float) and 0 <= value <= 1:
        return
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return
    raise ValueError(
        f"max_errors should be a count (10) or a fraction of the epoch (0.01), but got max_errors={value!r}"
    )
