"""The global random generators of Python, numpy and torch: their states as bytes, and whether they changed.

NOTE [ Whether a generator was used ]

A worker tells its parent the generators' states after each batch. To ask all three for their states
takes longer than to load a small sample (numpy's alone 0.1 ms), and most datasets use none of them. So we read the memory
of the generators, which takes microseconds: numpy publishes the address of its words, and those of
Python's follow the object's head. We trust what we find only if it shows what the generator itself
returns, in this very process. Without it we ask the generator each time.
"""

from __future__ import annotations

import array
import base64
import ctypes
import functools
import json
import random
import struct
import sys
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

NAMES = ("torch", "python", "numpy")
_WORDS = 624
_LONGEST = 1 << 20  # more than any state takes, as bytes or as text
_NORMAL = struct.Struct("<?d")  # whether a second normal number is waiting, and which
_TORCHS_PLACE = struct.Struct("=8xi4xQ")  # how many words are left, and which comes next
_WAITING = struct.Struct("@i4xd")  # the same in numpy's memory


def capture(names: Iterable[str] = NAMES) -> dict[str, bytes]:
    """Return the states of these generators; numpy's only if numpy is loaded."""
    found = {name: _CAPTURE[name]() for name in names}
    return {name: state for name, state in found.items() if state}


def restore(states: Mapping[str, bytes]) -> None:
    """Put generators back into these states."""
    for name, state in states.items():
        _RESTORE[name](state)


class Changes:
    """Tells which global generators were used since the last call. See NOTE [ Whether a generator was used ]."""

    def __init__(self) -> None:
        self._python = _python_memory()
        self._seen: dict[str, bytes] = {}
        self.names()

    def names(self) -> list[str]:
        """Return the names of the generators that changed."""
        changed = []
        for name, state in (("torch", _torch_state()), ("python", self._python_now()), ("numpy", _numpy_state())):
            if state and self._seen.get(name, state) != state:
                changed.append(name)
            self._seen[name] = state
        return changed

    def states(self) -> dict[str, bytes]:
        """Return the new states of the generators that changed."""
        changed = self.names()
        return {name: _CAPTURE["python"]() if name == "python" else self._seen[name] for name in changed}

    def _python_now(self) -> bytes:
        if self._python is None:
            return _python_state()
        return bytes(self._python) + _packed(random._inst.gauss_next)  # type: ignore[attr-defined]  # noqa: SLF001


def as_text(state: bytes) -> str:
    """Return a state as text, for a checkpoint."""
    return base64.b64encode(zlib.compress(state, 1)).decode("ascii")


def from_text(text: str) -> bytes:
    """Read what `as_text` wrote; ValueError if it is something else."""
    if len(text) > _LONGEST:
        raise ValueError("it is too long for the state of a generator")
    try:
        reader = zlib.decompressobj()
        state = reader.decompress(base64.b64decode(text, validate=True), _LONGEST)
    except zlib.error as error:
        raise ValueError(f"it cannot be decompressed ({error})") from error
    if not reader.eof:
        raise ValueError("it is not complete, or too long for the state of a generator")
    return state


def check(name: str, state: bytes) -> None:
    """Raise ValueError unless this is a state of the global generator with this name."""
    if name == "torch":
        _check_torch(state)
    elif name in ("python", "numpy"):
        _check_words(state, position=-1 if name == "python" else 0)
    else:
        raise ValueError(f"there is no generator {name!r}")


def check_for(generator: Any, state: bytes) -> None:
    """Raise ValueError unless this is a state for a generator object."""
    if isinstance(generator, torch.Generator):
        _check_torch(state, generator.device)
    elif isinstance(generator, random.Random):
        _check_words(state, position=-1)
    elif hasattr(generator, "bit_generator"):
        try:
            given = json.loads(state)
        except (ValueError, RecursionError) as error:
            raise ValueError("it is no state of numpy's generator") from error
        _check_alike(given, json.loads(state_of(generator)))
        try:
            type(generator.bit_generator)().state = given  # numpy checks the numbers
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"it is no state of this generator ({error})") from error
    else:
        _check_words(state, position=0)


def _check_torch(state: bytes, device: Any = "cpu") -> None:
    try:
        torch.Generator(device).set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError("it is no state of torch's generator") from error
    if torch.device(device).type == "cpu":
        left, following = _TORCHS_PLACE.unpack_from(state)
        # torch checks each of them, and reads beyond its words if they do not belong together
        if left + following != _WORDS + 1 and (left, following) != (1, 0):
            raise ValueError(f"its position {following} does not belong to the {left} words that are left")


def _check_words(state: bytes, *, position: int) -> None:
    """Python's and numpy's generators read at the position without a check of their own."""
    if len(state) != 4 * (_WORDS + 1) + _NORMAL.size:
        raise ValueError(f"it has {len(state)} bytes, not {4 * (_WORDS + 1) + _NORMAL.size}")
    at = array.array("I", state[: 4 * (_WORDS + 1)])[position]
    if at > _WORDS:
        raise ValueError(f"its position {at} is not within its {_WORDS} words")


def _check_alike(given: Any, known: Any) -> None:
    """Check that a state has the form of another one, and that positions are within their tables."""
    if isinstance(known, dict):
        if not isinstance(given, dict) or given.keys() != known.keys():
            raise ValueError("it is no state of this generator")
        for key in known:
            _check_alike(given[key], known[key])
        for key, table in (("pos", "key"), ("buffer_pos", "buffer")):
            if key in given and table in given and not 0 <= given[key] <= len(given[table]):
                raise ValueError(f"its position {given[key]} is not within its {len(given[table])} words")
    elif isinstance(known, list):
        if not isinstance(given, list) or len(given) != len(known) or not all(type(one) is int for one in given):
            raise ValueError("it is no state of this generator")
    elif type(given) is not type(known) or (isinstance(known, str) and given != known):
        raise ValueError("it is no state of this generator")


# -- any generator object ------------------------------------------------------------------------------


def state_of(generator: Any) -> bytes:
    """Return the state of a generator object; empty if it is none."""
    if isinstance(generator, torch.Generator):
        return _tensor_bytes(generator.get_state())
    if isinstance(generator, random.Random) and not isinstance(generator, random.SystemRandom):
        return _of_python(generator)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return b""
    if isinstance(generator, numpy.random.RandomState):
        return _of_numpy(generator)
    if isinstance(generator, numpy.random.Generator):
        return json.dumps(generator.bit_generator.state, default=lambda one: one.tolist()).encode()
    return b""


def set_state(generator: Any, state: bytes) -> None:
    """Put a generator object into a state of `state_of`."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        _to_python(generator, state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = json.loads(state)
    else:
        _to_numpy(generator, state)


def _packed(normal: float | None) -> bytes:
    return _NORMAL.pack(normal is not None, normal or 0.0)


# -- torch ---------------------------------------------------------------------------------------------


def _tensor_bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())  # numpy may be missing, and takes longer


def _torch_state() -> bytes:
    return _tensor_bytes(torch.default_generator.get_state())


def _set_torch(state: bytes) -> None:
    torch.default_generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


# -- Python --------------------------------------------------------------------------------------------


def _of_python(generator: random.Random) -> bytes:
    _, words, normal = generator.getstate()
    return array.array("I", words).tobytes() + _packed(normal)


def _to_python(generator: random.Random, state: bytes) -> None:
    words = array.array("I", state[: 4 * (_WORDS + 1)])
    waiting, normal = _NORMAL.unpack(state[4 * (_WORDS + 1) :])
    generator.setstate((3, tuple(words), normal if waiting else None))


def _python_state() -> bytes:
    return _of_python(random._inst)  # noqa: SLF001 - the module's own generator


def _set_python(state: bytes) -> None:
    _to_python(random._inst, state)  # noqa: SLF001 - as above


def _python_memory() -> Any:
    """The memory of Python's generator: the position, then the words. None if it is not where we expect it."""
    if sys.implementation.name != "cpython":
        return None
    owner = random._inst  # noqa: SLF001 - as above
    if type(owner).__sizeof__(owner) < object.__basicsize__ + 4 * (_WORDS + 1):
        return None
    memory = (ctypes.c_char * (4 * (_WORDS + 1))).from_address(id(owner) + object.__basicsize__)
    found = array.array("I", bytes(memory))
    words = owner.getstate()[1]
    return memoryview(memory).cast("B") if (*found[1:], found[0]) == words else None


# -- numpy ---------------------------------------------------------------------------------------------


def _singleton() -> Any:
    numpy = sys.modules.get("numpy")
    kind = getattr(getattr(numpy, "random", None), "mtrand", None)
    return getattr(kind, "_rand", None)


def _of_numpy(generator: Any) -> bytes:
    bits = generator._bit_generator  # noqa: SLF001 - it has no public name before numpy 1.24
    if type(bits).__name__ != "MT19937":
        return b""
    kind: Any = type(generator)
    place = _normal_place(kind)
    if place is None:
        return _asked_of_numpy(generator)
    words = ctypes.string_at(bits.ctypes.state_address, 4 * (_WORDS + 1))
    waiting, normal = _WAITING.unpack(ctypes.string_at(id(generator) + place, _WAITING.size))
    return words[-4:] + words[:-4] + _packed(normal if waiting else None)


def _asked_of_numpy(generator: Any) -> bytes:
    state = generator.get_state(legacy=False)
    words, position = state["state"]["key"], state["state"]["pos"]
    found = array.array("I", [position, *words.tolist()])
    return found.tobytes() + _packed(state["gauss"] if state["has_gauss"] else None)


@functools.cache
def _normal_place(kind: Any) -> int | None:
    """Where in a generator of numpy the second normal number is. None if it is not where we expect it."""
    if sys.implementation.name != "cpython":
        return None
    one = kind(5)
    probes = []
    for waiting, normal in ((1, 0.5772156649015329), (0, 0.0), (1, -2.718281828459045)):
        one.set_state(("MT19937", [7] * _WORDS, 11, waiting, normal))
        memory = ctypes.string_at(id(one), kind.__basicsize__)
        probes.append((_asked_of_numpy(one), memory, _WAITING.pack(waiting, normal)))
    for place in range(object.__basicsize__, kind.__basicsize__ - _WAITING.size + 1, 8):
        if all(memory[place : place + _WAITING.size] == packed for _, memory, packed in probes):
            words = ctypes.string_at(one._bit_generator.ctypes.state_address, 4 * (_WORDS + 1))  # noqa: SLF001 - as above
            return place if probes[-1][0].startswith(words[-4:] + words[:-4]) else None
    return None


def _to_numpy(generator: Any, state: bytes) -> None:
    words = array.array("I", state[: 4 * (_WORDS + 1)])
    waiting, normal = _NORMAL.unpack(state[4 * (_WORDS + 1) :])
    generator.set_state(("MT19937", words[1:], words[0], int(waiting), normal))


def _numpy_state() -> bytes:
    generator = _singleton()
    return b"" if generator is None else _of_numpy(generator)


def _set_numpy(state: bytes) -> None:
    import numpy as np  # noqa: PLC0415 - optional; the state was taken where it was loaded

    _to_numpy(np.random.mtrand._rand, state)  # noqa: SLF001 - the module's own generator


_CAPTURE = {"torch": _torch_state, "python": _python_state, "numpy": _numpy_state}
_RESTORE = {"torch": _set_torch, "python": _set_python, "numpy": _set_numpy}
