"""Pickles each kind of object for a worker, see NOTE [ By value ]."""

from __future__ import annotations

import ctypes
import functools
import io
import os
import pickle
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import context as mp_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.multiprocessing import reductions

from unjam.loader.ship import unpickling
from unjam.loader.ship.reachable_modules import MAIN, file_of, imports_of, runs_code, uses_globals
from unjam.loader.ship.shared_maps import SharedMaps
from unjam.loader.transport import packing, unpacking
from unjam.shared.buffer import Buffer, reduce_to_content
from unjam.shared.per_worker import PerWorker, by_value
from unjam.system.memory import address_of
from unjam.system.owned_fd import OwnedFd
from unjam.system.torch_private import PipeWrapper

# Buffers are aligned to this; buffers smaller than this stay in the stream.
ALIGNMENT = 64
_LOCK_TYPES = (type(threading.Lock()), type(threading.RLock()))
_CONNECTIONS = (socket.socket, Connection)


class Call:
    """An object that is unpickled as the result of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> Any:
        return self._reduced


class CannotPickle(Exception):
    """An object has a meaning in this process only. The message starts with "it"."""


class ShippingPickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle ships no types
    """Pickles an object by value and collects its buffers, descriptors and modules.

    See NOTE [ By value ].
    """

    # whether the process that rebuilds the object can import the program's own modules
    imports_own = True

    def __init__(self, file: io.BytesIO, maps: SharedMaps | None = None) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        self.fds: list[OwnedFd] = []
        # names of the modules of everything that was pickled
        self.modules: set[str] = set()
        # a method of the program's own code that runs when the object is rebuilt; empty: none
        self.runs = ""
        # ids of the pickled sockets and pipes, which the worker will share with this process
        self.connections: set[int] = set()
        self.maps = maps or SharedMaps()
        self._known: dict[type, Any] = {}
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=self._keep)

    def let_go(self) -> None:
        """Free what was collected: a pickler refers to itself and lives until the next gc run."""
        self.buffers, self.fds = [], []
        self.clear_memo()

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if not raw.readonly:
            self.refuse_shared(address_of(raw), raw.nbytes)
        if raw.nbytes < ALIGNMENT:
            return True
        self.buffers.append(buffer)
        return False

    def refuse_shared(self, address: int, nbytes: int) -> None:
        """Raise if other processes can write to this memory, rather than copy it silently."""
        if self.maps.writable_shared(address):
            raise CannotPickle(
                f"it holds {nbytes} bytes of memory that is shared between processes; a worker would get a copy"
            )

    def shared(self, address: int, nbytes: int) -> Call | None:
        """Return a handle to memory that other processes can write to, if we can send one."""
        found = self.maps.descriptor(address)
        return None if found is None else Call(unpickling.shared_bytes, self.inherit(found[0]), found[1], nbytes)

    def inherit(self, fd: int) -> int:
        """Send a descriptor along; return its position among the payload's descriptors."""
        self.fds.append(OwnedFd(os.dup(fd)))
        return len(self.fds) - 1

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for every object that is not of a builtin type."""
        kind = type(obj)
        try:
            reduce = self._known[kind]
        except KeyError:
            reduce = self._known[kind] = self._reducer_for(kind)
        if reduce is not None:
            reduced = reduce(self, obj)
            if reduced is not NotImplemented:
                return reduced
        reduced = super().reducer_override(obj)
        return _bind_to_module(obj, reduced) if self.imports_own and kind is types.FunctionType else reduced

    def _reducer_for(self, kind: type) -> Callable[[ShippingPickler, Any], Any] | None:
        """Return the reducer for a type, and note which module the worker will need."""
        self.modules.add(kind.__module__)
        self.runs = self.runs or runs_code(kind)
        for kinds, reduce in _reducers():
            if issubclass(kind, kinds):
                return reduce
        shared = _multiprocessing_reducer(kind)
        if shared is None:
            return None

        def reduce_shared(pickler: ShippingPickler, obj: Any) -> Any:
            if isinstance(obj, _CONNECTIONS):
                pickler.connections.add(id(obj))
            return shared(obj)

        return reduce_shared


class TravellingPickler(ShippingPickler):
    """Pickles for another machine, which shares nothing with this process and may lack the program's own modules."""

    imports_own = False

    def reducer_override(self, obj: Any) -> Any:
        """Pickle what `unjam.share` shares by its content, and everything else as for a worker."""
        return reduce_to_content(obj) if isinstance(obj, Buffer) else super().reducer_override(obj)

    def inherit(self, fd: int) -> int:
        """Refuse: a descriptor means nothing on another machine."""
        del fd
        raise CannotPickle(
            "it shares memory or an open handle with this process, which is not possible on another machine"
        )


class ContainerPickler(ShippingPickler):
    """Writes a number in place of some containers, found by identity.

    This is slower, because pickle calls `persistent_id` for every object.
    """

    def __init__(self, file: io.BytesIO, numbers: Mapping[int, int]) -> None:
        self._numbers = numbers
        super().__init__(file)

    def persistent_id(self, obj: Any) -> Any:
        """Return the number of a container, if it has one."""
        return self._numbers.get(id(obj))


def _multiprocessing_reducer(kind: type) -> Callable[[Any], Any] | None:
    """Return multiprocessing's own reducer (connections, sockets, shared values), if any."""
    if kind.__module__ in ("builtins", "functools"):
        return None
    reduce: Callable[[Any], Any] | None = ForkingPickler._extra_reducers.get(kind)  # type: ignore[attr-defined] # noqa: SLF001
    return reduce


def _bind_to_module(function: types.FunctionType, reduced: Any) -> Any:
    """Bind a function sent by value to its module's variables, if a worker can import it.

    Otherwise cloudpickle would give a lambda or local function copies of those variables.
    """
    if not isinstance(reduced, tuple) or len(reduced) != 6 or not isinstance(reduced[1][0], types.CodeType):
        return reduced  # it is pickled by name
    make, (code, _, *rest), (attributes, slots), *unused, restore = reduced
    name = function.__globals__.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) and name not in MAIN else None
    importable = file_of(module) and getattr(module, "__spec__", None) is not None
    if not importable or vars(module) is not function.__globals__ or not uses_globals(code, function.__globals__):
        return reduced
    namespace = Call(unpickling.namespace_of, str(name))  # it imports the module
    return make, (code, namespace, *rest), (attributes, {**slots, "__globals__": {}}), *unused, restore


def _note_module(pickler: ShippingPickler, obj: Any) -> Any:
    """Note the module of a class or function, or a module itself."""
    if isinstance(obj, types.ModuleType):
        pickler.modules.add(obj.__name__)
    elif isinstance(obj.__module__, str):
        pickler.modules.add(obj.__module__)
        if obj.__module__ in MAIN and isinstance(obj, types.FunctionType):
            pickler.modules.update(imports_of(obj.__code__, ""))
    return NotImplemented


def _reduce_tensor(_: ShippingPickler, tensor: torch.Tensor) -> Any:
    if tensor.device.type not in ("cpu", "meta"):
        return reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise CannotPickle("it is a tensor that requires grad and is the result of a computation; call .detach() on it")
    if type(tensor) is torch.Tensor and tensor.layout in packing.SPARSE_PARTS and tensor.device.type == "cpu":
        return packing.reduce_sparse(tensor)
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return NotImplemented
    if tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return NotImplemented
    # torch's own reduction of a plain tensor fails for the newest dtypes, except in torch.save.
    place = (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return unpickling.tensor_of, (tensor.untyped_storage(), tensor.dtype, *place, tensor.requires_grad)


def _reduce_storage(pickler: ShippingPickler, storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "cpu":
        return NotImplemented
    if storage.nbytes() == 0:
        return torch.UntypedStorage, (0,)
    if storage.is_shared():
        return reductions.reduce_storage(storage)
    shared = pickler.shared(storage.data_ptr(), storage.nbytes())
    if shared is not None:
        return unpickling.storage_of, (shared,)
    raw: Any = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
    raw.storage = storage
    return unpickling.storage_of, (pickle.PickleBuffer(raw),)


def _reduce_typed(_: ShippingPickler, storage: torch.storage.TypedStorage) -> Any:
    return unpacking.rebuild_typed, (storage._untyped_storage, storage.dtype)  # noqa: SLF001 - the public accessor warns


def _reduce_lock(_: ShippingPickler, lock: Any) -> Any:
    # Always unlocked: nothing in the worker could release it.
    is_plain = isinstance(lock, _LOCK_TYPES[0])
    return (threading.Lock if is_plain else threading.RLock), ()


def _reduce_semaphore(_: ShippingPickler, lock: Any) -> Any:
    """Refuse locks of the fork context: they have no name that another process could open.

    Older Pythons would send the address instead.
    """
    if lock._semlock.name is None:  # noqa: SLF001 - no public way to ask
        raise CannotPickle("it was created in the fork context, so only forked children of this process can use it")
    return NotImplemented


def _reduce_local(_: ShippingPickler, local: threading.local) -> Any:
    if type(local) is not threading.local:
        return NotImplemented
    return threading.local, (), dict(local.__dict__)


def _reduce_file(_: ShippingPickler, file: Any) -> Any:
    name, mode = getattr(file, "name", None), getattr(file, "mode", "")
    if file.closed or not isinstance(name, (str, bytes, os.PathLike)) or "r" not in mode or "+" in mode:
        return NotImplemented
    try:
        here, there = os.fstat(file.fileno()), os.stat(name)
        position = file.tell()
    except (OSError, io.UnsupportedOperation):
        return NotImplemented
    if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
        return NotImplemented
    text = (file.encoding, file.errors) if isinstance(file, io.TextIOWrapper) else None
    if text is not None and _has_carriage_returns(name):
        return NotImplemented  # its newline mode is unknown; cloudpickle sends what it reads
    unbuffered = isinstance(file, io.FileIO)
    return unpickling.reopen, (os.path.abspath(os.fsdecode(name)), text, unbuffered, position)


def _has_carriage_returns(name: Any) -> bool:
    with open(name, "rb") as file:
        return b"\r" in file.read(1 << 16)


def _reduce_pipe(_: ShippingPickler, wrapper: Any) -> Any:
    # torch's wrapper pickles datapipes with plain pickle; our pickler can do more.
    return type(wrapper), (wrapper._datapipe,)  # noqa: SLF001 - the argument of the wrapper's constructor


def _reduce_array(pickler: ShippingPickler, array: Any) -> Any:
    """Send a memory map as its file, and overlapping windows as the memory below them."""
    address = array.__array_interface__["data"][0]
    base = array
    while base is not None and getattr(base, "_mmap", None) is None:
        base = getattr(base, "base", None)
    forward = min(array.strides, default=0) >= 0
    filename = getattr(base, "filename", None)
    # A map in mode "c" may have private changes, and another file may now have the name.
    if filename is not None and forward and base.mode != "c" and pickler.maps.is_file(address, filename):
        while isinstance(base.base, type(base)):
            base = base.base
        shift = address - base.__array_interface__["data"][0]
        mode = "r+" if base.mode == "w+" else base.mode
        place = (os.path.abspath(filename), mode, base.offset + shift)
        return unpickling.memmap_of, (*place, type(array), array.dtype, array.shape, array.strides)
    can_move = array.size and not array.dtype.hasobject and forward and type(array).__module__ == "numpy"
    span = array.itemsize + sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True))
    if array.nbytes and array.flags.writeable:
        shared = pickler.shared(address, span) if can_move else None
        if shared is not None:
            return unpickling.windows_of, (shared, array.dtype, array.shape, array.strides)
        pickler.refuse_shared(address, array.nbytes)
    if not can_move:
        return NotImplemented
    if span >= array.nbytes:
        return NotImplemented
    raw: Any = (ctypes.c_ubyte * span).from_address(address)
    raw.array = array
    return unpickling.windows_of, (pickle.PickleBuffer(raw), array.dtype, array.shape, array.strides)


def _reduce_archive(_: ShippingPickler, archive: Any) -> Any:
    """Let every worker open an `.npz` again, like any other file."""
    name = archive.zip.filename if archive.zip is not None else None
    if not isinstance(name, str) or not os.path.isfile(name):
        return NotImplemented
    options = {"allow_pickle": archive.allow_pickle, "max_header_size": getattr(archive, "max_header_size", 10_000)}
    return functools.partial(np.load, **options), (os.path.abspath(name),)


def _reduce_cached(_: ShippingPickler, function: Any) -> Any:
    """Send an lru_cache function of `__main__` or a local one by value and wrap it again.

    Pickle would send it by name, which a worker cannot find.
    """
    if function.__module__ not in MAIN and "<locals>" not in function.__qualname__:
        return NotImplemented
    return unpickling.cached_of, (function.__wrapped__, function.cache_parameters())


def _reduce_handle(_: ShippingPickler, handle: PerWorker) -> Any:
    """Send a `per_worker` function of `__main__` by value: a worker does not have its name."""
    by_name = handle.__reduce__()
    return by_value(handle) if isinstance(by_name, str) and handle.__module__ in MAIN else by_name


@functools.cache
def _reducers() -> tuple[tuple[Any, Callable[[ShippingPickler, Any], Any]], ...]:
    reducers: list[tuple[Any, Callable[[ShippingPickler, Any], Any]]] = [
        ((type, types.FunctionType, types.ModuleType), _note_module),
        (torch.Tensor, _reduce_tensor),
        (torch.UntypedStorage, _reduce_storage),
        (torch.storage.TypedStorage, _reduce_typed),
        (_LOCK_TYPES, _reduce_lock),
        (threading.local, _reduce_local),
        ((io.BufferedReader, io.TextIOWrapper, io.FileIO), _reduce_file),
        (functools._lru_cache_wrapper, _reduce_cached),  # noqa: SLF001 - the type has no public name
        (PerWorker, _reduce_handle),
        (PipeWrapper, _reduce_pipe),
        (np.ndarray, _reduce_array),
        (np.lib.npyio.NpzFile, _reduce_archive),
    ]
    try:
        from multiprocessing import synchronize  # noqa: PLC0415 - not every system has semaphores
    except ImportError:
        pass
    else:
        reducers.append((synchronize.SemLock, _reduce_semaphore))
    return tuple(reducers)


# -- multiprocessing's own objects -------------------------------------------------------------------------------------


@contextmanager
def as_if_spawning(pickler: ShippingPickler) -> Iterator[None]:
    """Let locks, queues and shared tensors pickle themselves as for a spawned process."""
    before = mp_context.get_spawning_popen()
    mp_context.set_spawning_popen(_Inheriting(pickler))  # type: ignore[arg-type] # the two methods it needs
    try:
        yield
    finally:
        mp_context.set_spawning_popen(before)


class _Inheriting:
    """The methods of multiprocessing's Popen that its reductions use."""

    DupFd = unpickling.Inherited

    def __init__(self, pickler: ShippingPickler) -> None:
        self._pickler = pickler

    def duplicate_for_child(self, fd: int) -> int:
        return self._pickler.inherit(fd)
