"""Hashes of samples, equal for equal content, and the size of a batch in bytes."""

from __future__ import annotations

import hashlib
import numbers
import pickle
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

# a larger buffer is hashed at 8 places, this many bytes in total
MOST_BYTES = 1 << 20
MOST_LEAVES = 64
SHOWN_LEAVES = 16
SIGNED_LEAVES = 8


# set if arrays may be in files that were truncated: reading them would kill the process
unreadable: list[bool] = []


def digest(sample: Any) -> tuple[str, str]:
    """Return the hash of the content, and the short hashes of its first leaves, joined by dots."""
    leaves: list[str] = []
    try:
        _walk(sample, leaves, 0)
    except Exception as error:  # noqa: BLE001 - user objects can raise anything
        leaves.append(type(error).__name__)
    whole = hashlib.blake2b("".join(leaves).encode(), digest_size=8).hexdigest()
    return whole, ".".join(leaf[:8] for leaf in leaves[:SHOWN_LEAVES])


def signature(sample: Any) -> int:
    """A cheap hash of a sample: of its first leaves, and of an array's shape and first values."""
    leaves: list[str] = []
    _sign(sample, leaves, 0)
    return zlib.crc32("|".join(leaves).encode())


def _sign(part: Any, leaves: list[str], depth: int) -> None:
    if len(leaves) >= SIGNED_LEAVES or depth > 3:
        return
    if isinstance(part, Mapping):
        for one in list(part.values())[:SIGNED_LEAVES]:
            _sign(one, leaves, depth + 1)
    elif isinstance(part, Sequence) and not isinstance(part, (str, bytes, bytearray)):
        for one in part[:SIGNED_LEAVES]:
            _sign(one, leaves, depth + 1)
    elif hasattr(part, "reshape") and hasattr(part, "tolist"):
        leaves.append(f"{tuple(part.shape)}{part.reshape(-1)[:SIGNED_LEAVES].tolist()}")
    elif isinstance(part, (str, bytes, numbers.Number)):
        leaves.append(repr(part[:200] if isinstance(part, (str, bytes)) else part))


def _walk(part: Any, leaves: list[str], depth: int) -> None:
    if len(leaves) >= MOST_LEAVES or depth > 8:
        return
    if isinstance(part, Mapping):
        for key in part:
            leaves.append(_hash(repr(key).encode()))
            _walk(part[key], leaves, depth + 1)
    elif isinstance(part, Sequence) and not isinstance(part, (str, bytes, bytearray)):
        leaves.append(_hash(b"%d" % len(part)))
        for one in part[:MOST_LEAVES]:
            _walk(one, leaves, depth + 1)
    else:
        leaves.append(_leaf(part))


def _leaf(leaf: Any) -> str:
    if isinstance(leaf, (str, bool, numbers.Number)) or leaf is None:
        return _hash(repr(leaf).encode())
    if isinstance(leaf, (bytes, bytearray, memoryview)):
        return _hash(bytes(leaf[:MOST_BYTES]))
    kind = type(leaf).__module__.partition(".")[0]
    if unreadable and kind in ("torch", "numpy"):
        return _hash(b"unreadable")
    if kind == "torch" and hasattr(leaf, "untyped_storage"):
        import torch  # noqa: PLC0415 - the program has imported it

        tensor = leaf.detach()
        if tensor.is_sparse or tensor.is_quantized or tensor.is_nested:
            return _hash(repr(tensor).encode())
        data = tensor.to("cpu").contiguous().view(torch.uint8) if tensor.dim() else tensor.cpu().reshape(1)
        return _buffer(data.contiguous().view(torch.uint8).numpy(), f"{tensor.dtype}{tuple(tensor.shape)}")
    if kind == "numpy" and hasattr(leaf, "dtype"):
        import numpy as np  # noqa: PLC0415 - as above

        array = np.asarray(leaf)
        if array.dtype.hasobject:
            return _hash(repr(array.tolist()).encode())
        return _buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8), f"{array.dtype}{array.shape}")
    if callable(getattr(leaf, "tobytes", None)):
        return _hash(leaf.tobytes()[:MOST_BYTES])
    try:
        return _hash(pickle.dumps(leaf))
    except Exception:  # noqa: BLE001 - not picklable: only its type counts
        return _hash(type(leaf).__qualname__.encode())


def _buffer(flat: Any, kind: str) -> str:
    state = hashlib.blake2b(kind.encode(), digest_size=8)
    flat = flat.reshape(-1)
    if flat.nbytes <= MOST_BYTES:
        state.update(memoryview(flat))
    else:
        piece = MOST_BYTES // 8
        step = (flat.nbytes - piece) // 7
        for place in range(8):
            state.update(memoryview(flat[place * step : place * step + piece]))
    return state.hexdigest()


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def weigh(batch: Any) -> tuple[int, int, int]:
    """Return a batch's bytes in tensors, its number of tensors, and the bytes of their storages."""
    tensors: list[Any] = []
    _tensors(batch, tensors, 0)
    storages = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        except Exception:  # noqa: BLE001, S112 - sparse and nested tensors have none
            continue
    return sum(t.nbytes for t in tensors), len(tensors), sum(storages.values())


def _tensors(part: Any, found: list[Any], depth: int) -> None:
    if depth > 8 or len(found) > 10_000:
        return
    if hasattr(part, "untyped_storage") and hasattr(part, "nbytes"):
        found.append(part)
    elif isinstance(part, Mapping):
        for value in part.values():
            _tensors(value, found, depth + 1)
    elif isinstance(part, (list, tuple)):
        for value in part:
            _tensors(value, found, depth + 1)
    elif hasattr(part, "__dict__") and not callable(part):
        for value in list(vars(part).values())[:200]:
            _tensors(value, found, depth + 1)
