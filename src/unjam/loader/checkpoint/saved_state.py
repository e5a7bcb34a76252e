"""Checks a loader's saved state.

A state comes from a checkpoint: it may be damaged, or another program may have written it. We check each
field when the state is loaded, so that nothing fails later, and the error names the field. A checksum
shows whether a field has changed since it was saved: a valid but wrong value would silently repeat or
skip samples.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from unjam.errors import CannotResumeError
from unjam.system import random_state

VERSION = 1
GLOBAL = "global "  # prefix of the name of a global generator
MAX_WORKERS = 4096
_LIMIT = 1 << 63
_Check = Callable[[Any], str]  # returns what is wrong with a value; empty: nothing


def checked(saved: Any) -> dict[str, Any]:
    """Return the state if `state_dict()` made it; otherwise raise CannotResumeError."""
    if not isinstance(saved, Mapping):
        raise CannotResumeError(f"a saved state must be a dict, not a {type(saved).__name__}")
    version = saved.get("unjam")
    if type(version) is not int or version != VERSION:
        keys = ", ".join(map(str, list(saved)[:4]))
        found = f"version {_kind(version)}" if "unjam" in saved else f"its keys are {keys}"
        raise CannotResumeError(
            f"not a state saved by this version of unjam.DataLoader ({found}); load what its state_dict() returned"
        )
    state = {name: saved[name] for name in (*_ALWAYS, *_WITHIN_EPOCH, *_OPTIONAL) if name in saved}
    _check_fields("", state, _ALWAYS)
    if not state["finished"]:
        _check_fields("", state, _WITHIN_EPOCH)
        position, ahead = state["position"], state["finished_ahead"]
        if any(one <= position for one in ahead) or len(set(ahead)) != len(ahead):
            raise _damaged("finished_ahead", f"some batches are not after position {position}")
        completed = position + len(ahead)
        if state["batches"] > completed:
            raise _damaged("batches", f"{state['batches']} is more than the {completed} completed batches")
    _check_fields("", state, {name: check for name, check in _OPTIONAL.items() if name in state})
    for number, worker_position in state.get("workers", {}).items():
        _check_worker_position(f"workers.{number}", worker_position)
    state = {"unjam": version, **state}
    if saved.get("checksum") != fields_checksum(state):
        raise _damaged("checksum", "other fields have changed since it was saved")
    return {**state, "checksum": saved["checksum"]}


def fields_checksum(state: Mapping[str, Any]) -> int:
    """Return the checksum of all our fields; states of datasets and samplers may be of any type."""
    ours = {name: value for name, value in state.items() if name not in ("sampler", "workers", "checksum")}
    positions = {
        number: {name: value for name, value in position.items() if name not in ("dataset", "iterator")}
        for number, position in state.get("workers", {}).items()
    }
    return zlib.crc32(json.dumps([ours, positions], sort_keys=True).encode())


def _check_worker_position(path: str, position: Any) -> None:
    if not isinstance(position, Mapping):
        raise _damaged(path, f"it must be a dict, not {_kind(position)}")
    _check_fields(path, position, _POSITION)
    if "start" in position:
        _check_fields(path, position, {"start": _global_states})
    if position["state_at"] > position["yielded"]:
        raise _damaged(
            f"{path}.state_at", f"{position['state_at']} is more than the {position['yielded']} yielded samples"
        )


def _check_fields(path: str, state: Mapping[str, Any], checks: Mapping[str, _Check]) -> None:
    for name, check in checks.items():
        full = f"{path}.{name}" if path else name
        if name not in state:
            raise _damaged(full, "it is missing")
        problem = check(state[name])
        if problem:
            raise _damaged(full, problem)


def _damaged(field: str, problem: str) -> CannotResumeError:
    return CannotResumeError(f"the saved state is damaged, field {field!r}: {problem}")


def _kind(value: Any) -> str:
    return f"{value!r}" if value is None or isinstance(value, (bool, int, float)) else f"a {type(value).__name__}"


# -- checks ----------------------------------------------------------------------------------------------


def _integer(least: int, most: int) -> _Check:
    def check(value: Any) -> str:
        if type(value) is not int:
            return f"it must be an integer, not {_kind(value)}"
        return "" if least <= value < most else f"{value} is not between {least} and {most - 1}"

    return check


def _flag(value: Any) -> str:
    return "" if type(value) is bool else f"it must be True or False, not {_kind(value)}"


def _maybe(check: _Check) -> _Check:
    return lambda value: "" if value is None else check(value)


def _rank(value: Any) -> str:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(one) is int for one in value)
    return "" if is_pair and 0 <= value[0] < value[1] else "it must be a rank and the number of ranks"


def _numbers(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return f"it must be a list of integers, not {_kind(value)}"
    check = _integer(0, _LIMIT)
    return next((problem for one in value if (problem := check(one))), "")


def _texts(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"it must be a dict, not {_kind(value)}"
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            return f"{name!r}: the state of a generator must be text"
    return ""


def _states(value: Any) -> str:
    """Check generators' states by path; those of generator objects are checked once the objects are known."""
    problem = _texts(value) or ("" if f"{GLOBAL}torch" in value else f"{GLOBAL}torch is missing")
    if problem:
        return problem
    for path, text in value.items():
        if problem := _generator_problem(path.removeprefix(GLOBAL) if path.startswith(GLOBAL) else "", text):
            return f"{path}: {problem}"
    return ""


def _generator_problem(name: str, text: str) -> str:
    """Return what is wrong with the state of a generator. name: of a global generator; else empty."""
    try:
        state = random_state.from_text(text)
        if name:
            random_state.check(name, state)
    except ValueError as error:
        return str(error)
    return ""


def _generators(value: Any) -> str:
    return _global_states(value) or ("" if "torch" in value else "torch is missing")


def _global_states(value: Any) -> str:
    problem = _texts(value)
    if problem:
        return problem
    return next(
        (f"{name}: {problem}" for name, text in value.items() if (problem := _generator_problem(name or "?", text))), ""
    )


def _sampler(value: Any) -> str:
    if not isinstance(value, Mapping) or "state" not in value or type(value.get("ended")) is not bool:
        return "it is not a sampler's state"
    return ""


def _epochs(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"it must be a dict, not {_kind(value)}"
    return next((problem for one in value.values() if (problem := _integer(-_LIMIT, _LIMIT)(one))), "")


def _positions(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"it must be a dict, not {_kind(value)}"
    return next((f"{name!r:.40} is not a worker" for name in value if not _is_worker(name)), "")


def _is_worker(name: Any) -> bool:
    """Return whether a key is the number of a worker, as `str` writes it."""
    is_number = isinstance(name, str) and name.isascii() and name.isdecimal() and len(name) <= len(str(MAX_WORKERS))
    return is_number and str(int(name)) == name and int(name) < MAX_WORKERS


_ALWAYS: dict[str, _Check] = {
    "epoch": _integer(0, _LIMIT), "finished": _flag, "batches": _integer(0, _LIMIT), "num_workers": _integer(0, MAX_WORKERS),
    "keeps_workers": _flag, "seed": _integer(0, _LIMIT), "sample_seed": _maybe(_integer(0, _LIMIT)),
    "rank": _rank, "generators_at_start": _states,
}  # fmt: skip
_WITHIN_EPOCH: dict[str, _Check] = {
    "generators": _generators, "position": _integer(0, _LIMIT), "finished_ahead": _numbers, "indices_checksum": _integer(0, 1 << 32),
    "seeded": _flag, "sampler_was_asked": _flag, "sampler_iterations": _integer(0, _LIMIT), "last_worker": _integer(-1, MAX_WORKERS),
}  # fmt: skip
_OPTIONAL: dict[str, _Check] = {"sampler": _sampler, "set_epoch": _epochs, "workers": _positions}
_POSITION: dict[str, _Check] = {
    "yielded": _integer(0, _LIMIT), "state_at": _integer(0, _LIMIT), "last": _integer(0, 1 << 32), "ended": _flag, "random": _global_states,
}  # fmt: skip
