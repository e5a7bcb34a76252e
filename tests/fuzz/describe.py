"""A batch or an exception as plain data that JSON can carry."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import types
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL import Image

from fuzz.parts import Collated


def describe(value):
    """Types, dtypes, shapes, order of dimensions in memory, flags and bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _describe(value, 0)


def _describe(value, depth):
    if depth > 12:
        return "deeper"
    go = lambda part: _describe(part, depth + 1)
    if isinstance(value, torch.Tensor):
        return _tensor(value, go)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return [_name(value), str(value.dtype), value.tobytes().hex(), repr(value)]
    if isinstance(value, Image.Image):
        return [_name(value), value.mode, list(value.size), value.tobytes().hex()]
    if isinstance(value, Collated):
        return [_name(value), go(value.samples), go(value.count)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_name(value), [[field.name, go(getattr(value, field.name))] for field in dataclasses.fields(value)]]
    if isinstance(value, Mapping):
        return [_name(value), [[repr(key), go(part)] for key, part in value.items()]]
    if isinstance(value, (str, bytes, bytearray, range, torch.Size)):
        return [_name(value), _short(repr(value))]
    if isinstance(value, (set, frozenset)):
        return [_name(value), sorted(map(repr, value))]
    if isinstance(value, Sequence):
        return [_name(value), [go(part) for part in value]]
    if isinstance(value, types.FunctionType):
        return [_name(value), value.__qualname__]
    if isinstance(value, BaseException):
        return [_name(value), repr(value.args)]
    return [_name(value), re.sub(r" at 0x[0-9a-f]+", "", repr(value))]


def _name(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _short(text):
    if len(text) <= 80:
        return text
    return f"{text[:40]}... {len(text)} {hashlib.sha1(text.encode('utf-8', 'backslashreplace')).hexdigest()}"


def _tensor(tensor, go):
    facts = {
        "type": _name(tensor),
        "dtype": str(tensor.dtype),
        "layout": str(tensor.layout),
        "grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "device": str(tensor.device),
    }
    if tensor.device.type == "meta":
        return {**facts, "shape": list(tensor.shape)}
    if tensor.is_nested:
        return {**facts, "parts": [go(part.detach()) for part in tensor.detach().unbind()]}
    facts["shape"] = list(tensor.shape)
    if tensor.layout is torch.sparse_coo:
        parts = [tensor.detach()._indices(), tensor.detach()._values()]
        return {**facts, "coalesced": tensor.is_coalesced(), "parts": [go(part) for part in parts]}
    if tensor.layout is not torch.strided:
        plain = tensor.detach()
        return {**facts, "parts": [go(plain.crow_indices()), go(plain.col_indices()), go(plain.values())]}
    if tensor.is_quantized:
        scale = [tensor.q_scale(), tensor.q_zero_point()]
        return {**facts, "scale": scale, "parts": [go(tensor.int_repr())]}
    plain = tensor.detach().as_subclass(torch.Tensor)
    facts["order"] = _order(plain)
    facts["inference"] = plain.is_inference()
    flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
    facts["bytes"] = _bytes(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return facts


def _order(tensor):
    """The strides that a compact copy has: what torch's `empty_like` makes of them; lengths of one say nothing."""
    if tensor.numel() == 0:
        return []
    strides = torch.empty_like(tensor, device="meta").stride()
    return [stride for stride, length in zip(strides, tensor.shape, strict=True) if length != 1]


def _array(array):
    facts = {
        "type": _name(array),
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "writeable": bool(array.flags.writeable),
        "fortran": bool(array.flags.fnc),
    }
    # some bytes of a long double are no part of its value
    if array.dtype.hasobject or array.dtype.char == "g":
        return {**facts, "items": repr(array.tolist())}
    if isinstance(array, np.ma.MaskedArray):
        return {**facts, "items": repr(array.tolist()), "mask": repr(np.asarray(array.mask).tolist())}
    return {**facts, "bytes": _bytes(array.tobytes())}


def _bytes(raw):
    if len(raw) <= 64:
        return raw.hex()
    return f"{raw[:32].hex()}... {len(raw)} {hashlib.sha1(raw).hexdigest()}"


def describe_error(error):
    """Class, its bases, words, arguments, notes and the cause's class."""
    try:
        words = str(error)
    except Exception as broken:
        words = f"<{broken!r}>"
    return {
        "error": type(error).__name__,
        "bases": [base.__name__ for base in type(error).__mro__],
        "words": _plain(words),
        "args": [_plain(repr(one)) for one in error.args],
        "notes": [_plain(note) for note in getattr(error, "__notes__", [])],
        "cause": None if error.__cause__ is None else type(error.__cause__).__name__,
    }


def _plain(text):
    """Without what is different in each process."""
    return re.sub(r"0x[0-9a-f]{6,}", "0x", text)[:6000]
