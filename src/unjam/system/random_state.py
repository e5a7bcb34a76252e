"""The global random generators of Python, numpy and torch: their states as bytes, and whether they changed.

NOTE [ Whether a generator was used ]

A worker sends the generators' states to its parent after each batch. Getting all three states through
the public functions takes longer than loading a small sample (0.1 ms for numpy alone), and most datasets
use no generator. So we read the memory of the generators, which takes microseconds: numpy publishes the
address of its words, and Python's words follow the object header. Each process first compares that memory
with what the generator itself returns. If they differ, it uses the public functions.
"""

from __future__ import annotations

import array
import base64
import contextlib
import ctypes
import functools
import json
import random
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

NAMES = ("torch", "python", "numpy")
_WORDS = 624
_LONGEST = 1 << 20  # longer than any state, as bytes or as text
_NORMAL = struct.Struct("<?d")  # whether the generator keeps a second normal number, and that number
_TORCH_POSITION = struct.Struct("=8xi4xQ")  # how many words are left, and which comes next
_NUMPY_NORMAL = struct.Struct("@i4xd")  # as _NORMAL, in numpy's memory


def capture(names: Iterable[str] = NAMES) -> dict[str, bytes]:
    """Return the states of these generators; numpy's only if numpy is loaded."""
    found = {name: _global_state(name) for name in names}
    return {name: state for name, state in found.items() if state}


def restore(states: Mapping[str, bytes]) -> None:
    """Put generators back into these states."""
    for name, state in states.items():
        if name == "numpy":
            import numpy.random  # noqa: PLC0415, F401 - optional; the state comes from a process that had loaded it
        set_state(_global(name), state)


@contextlib.contextmanager
def isolated_random_state() -> Iterator[None]:
    """Restore, on exit, the random generators that torch seeds."""
    before = capture()
    try:
        yield
    finally:
        restore(before)


class Changes:
    """Tells which global generators were used since the last call. See NOTE [ Whether a generator was used ]."""

    def __init__(self) -> None:
        self._python_memory = _python_memory()
        self._seen: dict[str, bytes] = {}
        self.names()

    def names(self) -> list[str]:
        """Return the names of the generators that changed."""
        changed = []
        for name in NAMES:
            state = self._python_now() if name == "python" else _global_state(name)
            if state and self._seen.get(name, state) != state:
                changed.append(name)
            self._seen[name] = state
        return changed

    def states(self) -> dict[str, bytes]:
        """Return the new states of the generators that changed."""
        changed = self.names()
        return {name: _global_state(name) if name == "python" else self._seen[name] for name in changed}

    def _python_now(self) -> bytes:
        if self._python_memory is None:
            return _global_state("python")
        return bytes(self._python_memory) + _packed(_global("python").gauss_next)


def as_text(state: bytes) -> str:
    """Return a state as text, for a checkpoint."""
    return base64.b64encode(zlib.compress(state, 1)).decode("ascii")


def from_text(text: str) -> bytes:
    """Read what `as_text` wrote; ValueError if it is something else."""
    if len(text) > _LONGEST:
        raise ValueError("too long for the state of a generator")
    try:
        reader = zlib.decompressobj()
        state = reader.decompress(base64.b64decode(text, validate=True), _LONGEST)
    except zlib.error as error:
        raise ValueError(f"cannot be decompressed ({error})") from error
    if not reader.eof:
        raise ValueError("incomplete, or too long for the state of a generator")
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
            raise ValueError("this is not a state of numpy's generator") from error
        _check_alike(given, json.loads(state_of(generator)))
        try:
            type(generator.bit_generator)().state = given  # numpy checks the numbers
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"this is not a state of this generator ({error})") from error
    else:
        _check_words(state, position=0)


def _check_torch(state: bytes, device: Any = "cpu") -> None:
    try:
        torch.Generator(device).set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError("this is not a state of torch's generator") from error
    if torch.device(device).type == "cpu":
        left, following = _TORCH_POSITION.unpack_from(state)
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
            raise ValueError("this is not a state of this generator")
        for key in known:
            _check_alike(given[key], known[key])
        for key, table in (("pos", "key"), ("buffer_pos", "buffer")):
            if key in given and table in given and not 0 <= given[key] <= len(given[table]):
                raise ValueError(f"its position {given[key]} is not within its {len(given[table])} words")
    elif isinstance(known, list):
        if not isinstance(given, list) or len(given) != len(known) or not all(type(one) is int for one in given):
            raise ValueError("this is not a state of this generator")
    elif type(given) is not type(known) or (isinstance(known, str) and given != known):
        raise ValueError("this is not a state of this generator")


# -- generators ----------------------------------------------------------------------------------------


def _global(name: str) -> Any:
    """The global generator with this name; None for numpy's unless numpy is loaded."""
    if name == "torch":
        return torch.default_generator
    if name == "python":
        return random._inst  # noqa: SLF001 - the module's own generator
    mtrand = getattr(getattr(sys.modules.get("numpy"), "random", None), "mtrand", None)
    return getattr(mtrand, "_rand", None)


def _global_state(name: str) -> bytes:
    generator = _global(name)
    return b"" if generator is None else state_of(generator)


def state_of(generator: Any) -> bytes:
    """Return the state of a generator object; empty for any other object."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return ctypes.string_at(state.data_ptr(), state.numel())  # numpy may be missing, and takes longer
    if isinstance(generator, random.Random) and not isinstance(generator, random.SystemRandom):
        _, words, normal = generator.getstate()
        return array.array("I", words).tobytes() + _packed(normal)
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return b""
    if isinstance(generator, numpy.random.RandomState):
        return _numpy_state(generator)
    if isinstance(generator, numpy.random.Generator):
        return json.dumps(generator.bit_generator.state, default=lambda one: one.tolist()).encode()
    return b""


def set_state(generator: Any, state: bytes) -> None:
    """Put a generator object into a state of `state_of`."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        return
    if hasattr(generator, "bit_generator"):
        generator.bit_generator.state = json.loads(state)
        return
    words = array.array("I", state[: 4 * (_WORDS + 1)])
    has_normal, normal = _NORMAL.unpack(state[4 * (_WORDS + 1) :])
    if isinstance(generator, random.Random):
        generator.setstate((3, tuple(words), normal if has_normal else None))
    else:
        generator.set_state(("MT19937", words[1:], words[0], int(has_normal), normal))


def _packed(normal: float | None) -> bytes:
    return _NORMAL.pack(normal is not None, normal or 0.0)


# -- their memory --------------------------------------------------------------------------------------


def _python_memory() -> Any:
    """The memory of Python's generator: the position, then the words. None if it is not where we expect it."""
    if sys.implementation.name != "cpython":
        return None
    owner = _global("python")
    if owner.__sizeof__() < object.__basicsize__ + 4 * (_WORDS + 1):
        return None
    memory = (ctypes.c_char * (4 * (_WORDS + 1))).from_address(id(owner) + object.__basicsize__)
    found = array.array("I", bytes(memory))
    words = owner.getstate()[1]
    return memoryview(memory).cast("B") if (*found[1:], found[0]) == words else None


def _numpy_state(generator: Any) -> bytes:
    bits = generator._bit_generator  # noqa: SLF001 - it has no public name before numpy 1.24
    if type(bits).__name__ != "MT19937":
        return b""
    kind: Any = type(generator)
    place = _normal_place(kind)
    if place is None:
        return _public_numpy_state(generator)
    words = ctypes.string_at(bits.ctypes.state_address, 4 * (_WORDS + 1))
    has_normal, normal = _NUMPY_NORMAL.unpack(ctypes.string_at(id(generator) + place, _NUMPY_NORMAL.size))
    return words[-4:] + words[:-4] + _packed(normal if has_normal else None)


def _public_numpy_state(generator: Any) -> bytes:
    state = generator.get_state(legacy=False)
    words, position = state["state"]["key"], state["state"]["pos"]
    found = array.array("I", [position, *words.tolist()])
    return found.tobytes() + _packed(state["gauss"] if state["has_gauss"] else None)


@functools.cache
def _normal_place(kind: Any) -> int | None:
    """The offset of the second normal number in a numpy generator. None if it is not where we expect it."""
    if sys.implementation.name != "cpython":
        return None
    one = kind(5)
    probes = []
    for has_normal, normal in ((1, 0.5772156649015329), (0, 0.0), (1, -2.718281828459045)):
        one.set_state(("MT19937", [7] * _WORDS, 11, has_normal, normal))
        memory = ctypes.string_at(id(one), kind.__basicsize__)
        probes.append((_public_numpy_state(one), memory, _NUMPY_NORMAL.pack(has_normal, normal)))
    for place in range(object.__basicsize__, kind.__basicsize__ - _NUMPY_NORMAL.size + 1, 8):
        if all(memory[place : place + _NUMPY_NORMAL.size] == packed for _, memory, packed in probes):
            words = ctypes.string_at(one._bit_generator.ctypes.state_address, 4 * (_WORDS + 1))  # noqa: SLF001 - as above
            return place if probes[-1][0].startswith(words[-4:] + words[:-4]) else None
    return None
