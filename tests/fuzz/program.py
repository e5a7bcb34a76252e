"""What a program is: frozen plain data, to and from JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Failure:
    """An exception that the user's code raises: where, of which kind, at which index or batch."""

    place: str  # getitem, len, iter, sampler, collate, init
    kind: str
    at: int


@dataclass(frozen=True)
class Data:
    """A dataset."""

    kind: str  # map, bulk, iterable, uneven, iterdatapipe, mapdatapipe
    where: str  # module, local, script: how its class is defined
    length: int
    structure: str
    leaves: tuple[str, ...]
    size: str  # small, medium, large: of the leaves that have a size
    noisy: bool = False  # samples draw random numbers and name their worker
    ragged: str = ""  # one sample that does not fit: shape, dtype, keys, none, kind
    lambdas: bool = False  # the dataset holds a lambda
    extra: str = ""  # something else that the dataset holds


@dataclass(frozen=True)
class Loader:
    """The arguments of one DataLoader."""

    data: Data
    batch_size: int | None = 1
    shuffle: bool | None = None
    sampler: str = ""
    batch_sampler: str = ""
    drop_last: bool = False
    workers: int = 0
    method: str | None = None
    persistent: bool = False
    prefetch: int | None = None
    timeout: float = 0
    collate: str = ""
    init: str = ""
    generator: int | None = None
    in_order: bool = True
    pin_memory: bool = False
    failure: Failure | None = None


@dataclass(frozen=True)
class Action:
    """Something done with a loader.

    `hold` says what the consumer keeps of the batches: none, some, all, part. `write` says that it writes into them.
    """

    kind: str
    loader: int = 0
    count: int = 0
    hold: str = "none"
    write: bool = False


@dataclass(frozen=True)
class Program:
    """Loaders, and what is done with them."""

    seed: int
    loaders: tuple[Loader, ...]
    actions: tuple[Action, ...]

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Program:
        """The program that `to_json` wrote."""
        return _program(json.loads(text))

    def to_python(self) -> str:
        """An expression that makes the program, without what is left at its default."""
        return _expression(self)


def _program(plain: dict[str, Any]) -> Program:
    loaders = tuple(_loader(one) for one in plain["loaders"])
    return Program(plain["seed"], loaders, tuple(Action(**one) for one in plain["actions"]))


def _loader(plain: dict[str, Any]) -> Loader:
    data = Data(**{**plain["data"], "leaves": tuple(plain["data"]["leaves"])})
    failure = Failure(**plain["failure"]) if plain["failure"] else None
    return Loader(**{**plain, "data": data, "failure": failure})


def _expression(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        fields = [
            f"{field.name}={_expression(getattr(value, field.name))}"
            for field in dataclasses.fields(value)
            if getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, tuple):
        return f"({''.join(_expression(one) + ', ' for one in value)})"
    return repr(value)
