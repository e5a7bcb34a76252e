"""What a saved state of a loader must look like.

A state comes from a checkpoint: it may be damaged, of another program, or made by somebody else. Each
field is checked when it is loaded, so that nothing fails later, and the error names the field. A
checksum tells that all fields are still as they were saved: one that is possible but wrong would
repeat samples, or leave some out, without a word.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from unjam.errors import CannotResumeError
from unjam.system import random_state

VERSION = 1
GLOBAL = "global "  # before the name of a global generator
MOST_WORKERS = 4096
_MOST = 1 << 63
_Check = Callable[[Any], str]  # what is wrong with a value; empty: nothing


def checked(saved: Any) -> dict[str, Any]:
    """Return the state if it is one of `state_dict()`; raise CannotResumeError if not."""
    if not isinstance(saved, Mapping):
        raise CannotResumeError(f"a saved state is a dict, not a {type(saved).__name__}")
    version = saved.get("unjam")
    if type(version) is not int or version != VERSION:
        keys = ", ".join(map(str, list(saved)[:4]))
        told = f"version {_kind(version)}" if "unjam" in saved else f"its keys are {keys}"
        raise CannotResumeError(
            f"this is no state of an unjam.DataLoader of this version ({told}); load the state that its state_dict() returned"
        )
    found = {name: saved[name] for name in (*_ALWAYS, *_WITHIN_EPOCH, *_OPTIONAL) if name in saved}
    _check_fields("", found, _ALWAYS)
    if not found["finished"]:
        _check_fields("", found, _WITHIN_EPOCH)
        done, ahead = found["position"], found["ahead"]
        if any(one <= done for one in ahead) or len(set(ahead)) != len(ahead):
            raise _damaged("ahead", f"it has batches that are not beyond position {done}")
        if found["batches"] > done + len(ahead):
            raise _damaged(
                "batches", f"{found['batches']} is more than the {done + len(ahead)} batches that are done with"
            )
    for name, check in _OPTIONAL.items():
        if name in found:
            _check_fields("", found, {name: check})
    for number, mark in found.get("workers", {}).items():
        _check_mark(f"workers.{number}", mark)
    found = {"unjam": version, **found}
    if saved.get("checksum") != fields_checksum(found):
        raise _damaged("checksum", "other fields have changed since it was saved")
    return {**found, "checksum": saved["checksum"]}


def fields_checksum(state: Mapping[str, Any]) -> int:
    """The checksum of all fields of ours; states of datasets and samplers may be of any kind."""
    ours = {name: value for name, value in state.items() if name not in ("sampler", "workers", "checksum")}
    marks = {
        number: {name: value for name, value in mark.items() if name not in ("dataset", "iterator")}
        for number, mark in state.get("workers", {}).items()
    }
    return zlib.crc32(json.dumps([ours, marks], sort_keys=True).encode())


def _check_mark(path: str, mark: Any) -> None:
    if not isinstance(mark, Mapping):
        raise _damaged(path, f"a dict is needed, not {_kind(mark)}")
    _check_fields(path, mark, _MARK)
    if "start" in mark:
        _check_fields(path, mark, {"start": _global_states})
    if mark["told"] > mark["yielded"]:
        raise _damaged(f"{path}.told", f"{mark['told']} is more than the {mark['yielded']} samples that were given")


def _check_fields(path: str, found: Mapping[str, Any], checks: Mapping[str, _Check]) -> None:
    for name, check in checks.items():
        full = f"{path}.{name}" if path else name
        if name not in found:
            raise _damaged(full, "it is missing")
        problem = check(found[name])
        if problem:
            raise _damaged(full, problem)


def _damaged(field: str, problem: str) -> CannotResumeError:
    return CannotResumeError(f"the saved state is damaged, field {field!r}: {problem}")


def _kind(value: Any) -> str:
    return f"{value!r}" if value is None or isinstance(value, (bool, int, float)) else f"a {type(value).__name__}"


# -- checks ----------------------------------------------------------------------------------------------


def _whole(least: int, most: int) -> _Check:
    def check(value: Any) -> str:
        if type(value) is not int:
            return f"a whole number is needed, not {_kind(value)}"
        return "" if least <= value < most else f"{value} is not between {least} and {most - 1}"

    return check


def _flag(value: Any) -> str:
    return "" if type(value) is bool else f"True or False is needed, not {_kind(value)}"


def _maybe(check: _Check) -> _Check:
    return lambda value: "" if value is None else check(value)


def _rank(value: Any) -> str:
    is_pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(type(one) is int for one in value)
    return "" if is_pair and 0 <= value[0] < value[1] else "a rank and the number of ranks are needed"


def _numbers(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return f"a list of numbers is needed, not {_kind(value)}"
    count = _whole(0, _MOST)
    return next((problem for one in value if (problem := count(one))), "")


def _texts(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"a dict is needed, not {_kind(value)}"
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str):
            return f"{name!r}: the state of a generator is text"
    return ""


def _states(value: Any) -> str:
    """The states of generators by path; those of objects are checked when the objects are known."""
    problem = _texts(value) or ("" if f"{GLOBAL}torch" in value else f"{GLOBAL}torch is missing")
    if problem:
        return problem
    for path, text in value.items():
        if problem := _state_in(path.removeprefix(GLOBAL) if path.startswith(GLOBAL) else "", text):
            return f"{path}: {problem}"
    return ""


def _state_in(name: str, text: str) -> str:
    """What is wrong with the state of a generator. name: of a global one."""
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
    return next((f"{name}: {problem}" for name, text in value.items() if (problem := _state_in(name or "?", text))), "")


def _sampler(value: Any) -> str:
    if not isinstance(value, Mapping) or "state" not in value or type(value.get("ended")) is not bool:
        return "it has no state of a sampler"
    return ""


def _epochs(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"a dict is needed, not {_kind(value)}"
    return next((problem for one in value.values() if (problem := _whole(-_MOST, _MOST)(one))), "")


def _marks(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"a dict is needed, not {_kind(value)}"
    return next((f"{name!r:.40} is no worker" for name in value if not _is_worker(name)), "")


def _is_worker(name: Any) -> bool:
    """Whether a key is the number of a worker, written as `str` writes it."""
    is_number = isinstance(name, str) and name.isascii() and name.isdecimal() and len(name) <= len(str(MOST_WORKERS))
    return is_number and str(int(name)) == name and int(name) < MOST_WORKERS


_ALWAYS: dict[str, _Check] = {
    "epoch": _whole(0, _MOST), "finished": _flag, "batches": _whole(0, _MOST), "num_workers": _whole(0, MOST_WORKERS),
    "keeps_workers": _flag, "seed": _whole(0, _MOST), "sample_seed": _maybe(_whole(0, _MOST)),
    "rank": _rank, "begin": _states,
}  # fmt: skip
_WITHIN_EPOCH: dict[str, _Check] = {
    "generators": _generators, "position": _whole(0, _MOST), "ahead": _numbers, "drawn": _whole(0, 1 << 32),
    "seeded": _flag, "drew": _flag, "begun": _whole(0, _MOST), "last_worker": _whole(-1, MOST_WORKERS),
}  # fmt: skip
_OPTIONAL: dict[str, _Check] = {"sampler": _sampler, "set_epoch": _epochs, "workers": _marks}
_MARK: dict[str, _Check] = {
    "yielded": _whole(0, _MOST), "told": _whole(0, _MOST), "last": _whole(0, 1 << 32), "ended": _flag, "random": _global_states,
}  # fmt: skip
