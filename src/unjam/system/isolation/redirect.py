"""Replaces the functions with which Python programs use files, so that they use redirected files.

See NOTE [ Redirected files ]. `begin` runs at the start of every interpreter of the program. Native
code is not redirected; where the kernel has Landlock, it refuses what native code writes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import pathlib
import posixpath
import shutil
import socket
import stat
import subprocess
import sys
import types
import urllib.parse
from collections.abc import Callable
from types import ModuleType
from typing import Any

from unjam.system.file_owner import HERE
from unjam.system.import_hook import after_import
from unjam.system.isolation import redirected_calls as calls
from unjam.system.isolation import renames
from unjam.system.isolation.redirected_files import RedirectedFiles

# its sitecustomize calls `begin`
SITE = posixpath.join(HERE, "doctor", "run", "site")
# the arguments of Popen up to the environment
_POPENS = (
    "args", "bufsize", "executable", "stdin", "stdout", "stderr", "preexec_fn", "close_fds", "shell", "cwd", "env",
)  # fmt: skip
VARIABLE, IN_VIEW = "UNJAM_FILES", "view"
# a larger database is opened read-only instead of being copied
MOST_COPIED = 1 << 30


_values: list[str] = []  # of the variable, which the program may remove from its environment


def begin() -> None:
    """Redirect the files of this process, or its renames in a view, if its environment says so."""
    first, _, second = os.environ.get(VARIABLE, "").partition("\n")
    if first == IN_VIEW:
        renames.install(second)
    elif first and calls.files is None:
        use(first, second)


def use(scratch: str, real: str) -> None:
    """Redirect files into a scratch folder from now on, in this process and its children.

    real: a folder whose files are not redirected.
    """
    if calls.files is None:
        _install()
    calls.files = RedirectedFiles(scratch, [real])
    _values.append(f"{scratch}\n{real}")
    os.environ[VARIABLE] = _values[-1]


# -- other ways --------------------------------------------------------------------------------------


def _with_address(name: str, *, makes: bool) -> Callable[..., Any]:
    """A method of a socket whose address may be a file."""
    function = getattr(socket.socket, name)

    @functools.wraps(function)
    def replaced(self: socket.socket, address: Any) -> Any:
        text = calls.path_text(address) if self.family == socket.AF_UNIX and address else None
        if calls.files is None or text is None:
            return function(self, address)
        full = calls.files.canonical(text)
        found = calls.place_of_new(text) if makes else calls.files.find(full)
        if found == full:
            return function(self, address)
        folder = calls.original["open"](posixpath.dirname(found), os.O_PATH | os.O_CLOEXEC)
        try:
            return function(self, f"/proc/self/fd/{folder}/{posixpath.basename(found)}")  # a long path does not fit
        finally:
            os.close(folder)

    return replaced


def _after_sqlite(module: ModuleType) -> None:
    connect: Any = module.connect

    @functools.wraps(connect)
    def replaced(database: Any, *args: Any, **kwargs: Any) -> Any:
        text = calls.path_text(database)
        query = ""
        if text is not None and kwargs.get("uri") and text.startswith("file:"):
            address = urllib.parse.urlsplit(text)
            text, query = urllib.parse.unquote(address.path), address.query
        if calls.files is None or not text or text == ":memory:" or "mode=memory" in query:
            return connect(database, *args, **kwargs)
        try:
            full = calls.files.target(text)
            found = calls.files.find(full)
            if found == full and os.path.exists(found) and os.path.getsize(found) > MOST_COPIED:
                query = "mode=ro"
            if "mode=ro" not in query and (os.path.lexists(found) or "mode=rw" not in query.split("&")):
                found = calls.files.make_writable(full, keep=True)
        except OSError as error:
            raise module.OperationalError("unable to open database file") from error
        named = pathlib.Path(found).as_uri() + (f"?{query}" if query else "")
        return connect(named, *args, **{**kwargs, "uri": True})

    for one in (module, sys.modules["sqlite3.dbapi2"]):
        one.connect = replaced  # type: ignore[attr-defined]


def _after_storage(module: ModuleType) -> None:
    """`torch.load(mmap=True)` hands the path to native code."""
    storage = module.UntypedStorage
    from_file = storage.from_file

    def replaced(filename: Any, shared: bool = False, nbytes: int = 0) -> Any:  # noqa: FBT001, FBT002 - its signature
        text = calls.path_text(filename)
        if calls.files is None or text is None:
            return from_file(filename, shared, nbytes)
        return from_file(calls.file_to_open(text, os.O_RDWR | os.O_CREAT if shared else os.O_RDONLY), shared, nbytes)

    storage.from_file = staticmethod(replaced)


def _after_torch(module: ModuleType) -> None:
    begin_writing = getattr(module, "_open_zipfile_writer", None)
    if begin_writing is None:
        return

    def replaced(name_or_buffer: Any) -> Any:
        text = calls.path_text(name_or_buffer)
        if calls.files is None or text is None:
            return begin_writing(name_or_buffer)
        return begin_writing(calls.file_to_open(text, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))

    module._open_zipfile_writer = replaced  # type: ignore[attr-defined] # noqa: SLF001 - it hands the path to native code


def _keep_environment(init: Callable[..., None]) -> Callable[..., None]:
    """Start child processes with the variables that redirect their files, and in the right folder."""

    @functools.wraps(init)
    def replaced(self: Any, *args: Any, **kwargs: Any) -> None:
        if calls.files is not None:
            given = dict(zip(_POPENS, args, strict=False)) | kwargs
            given["env"] = _with_variables(given.get("env"))
            cwd = calls.path_text(given.get("cwd"))
            if cwd is not None:
                given["cwd"] = calls.folder_to_enter(cwd)
            args, kwargs = args[len(_POPENS) :], given
        init(self, *args, **kwargs)

    return replaced


def _with_variables(env: Any) -> dict[Any, Any]:
    """The environment of a child process: this one's, or the one that the program gives, with our variables."""
    given = {os.fsdecode(name): value for name, value in (os.environ if env is None else env).items()}
    folders = [one for one in os.fsdecode(given.get("PYTHONPATH", "")).split(os.pathsep) if one and one != SITE]
    return {**given, VARIABLE: _values[-1], "PYTHONPATH": os.pathsep.join([SITE, *folders])}


def _starting(name: str) -> Callable[..., Any]:
    """A function of os whose third argument is the environment of a program."""
    function = getattr(os, name)

    @functools.wraps(function)
    def replaced(path: Any, argv: Any, env: Any, *args: Any, **kwargs: Any) -> Any:
        return function(path, argv, env if calls.files is None else _with_variables(env), *args, **kwargs)

    return replaced


# -- writes that were not redirected -----------------------------------------------------------------

# by audit event: which of its arguments are paths of files that change
_CHANGED = {
    "open": (0,), "os.remove": (0,), "os.rmdir": (0,), "os.mkdir": (0,), "os.truncate": (0,), "os.rename": (0, 1),
    "os.link": (0, 1), "os.symlink": (1,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "os.setxattr": (0,),
    "os.removexattr": (0,),
}  # fmt: skip
_MAKES = ("os.mkdir", "os.symlink")


def _refuse_others(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse a change that did not come through a replaced function: by `io.FileIO`, or by a saved original."""
    if event == "sqlite3.connect" and calls.files is not None:
        _refuse_database(arguments[0])
    places = _CHANGED.get(event)
    if places is None or calls.files is None or (event == "open" and not arguments[2] & calls.WRITES):
        return
    for place in places:
        path = calls.path_text(arguments[place])
        if path is None:
            continue
        full = posixpath.normpath(posixpath.join(calls.original["getcwd"](), path))
        if calls.files.is_passed_through(full):
            continue
        try:
            mode = calls.original["stat" if event == "open" else "lstat"](full).st_mode
        except OSError:
            is_change = event in _MAKES or (event == "open" and bool(arguments[2] & os.O_CREAT))
        else:
            is_change = stat.S_ISREG(mode) or event != "open"
        if is_change:
            raise _refusal(path)


def _refuse_database(database: Any) -> None:
    """`sqlite3.Connection` opens a database without the function above."""
    text = calls.path_text(database) or ":memory:"
    address = urllib.parse.urlsplit(text) if text.startswith("file:") else None
    path = urllib.parse.unquote(address.path) if address is not None else text
    only_reads = address is not None and ("mode=ro" in address.query or "mode=memory" in address.query)
    if only_reads or path in ("", ":memory:") or calls.files is None:
        return
    if not calls.files.is_passed_through(posixpath.normpath(posixpath.join(calls.original["getcwd"](), path))):
        raise _refusal(path)


def _refusal(path: str) -> PermissionError:
    return PermissionError(errno.EACCES, "refused, because unjam cannot isolate this write", path)


def _replace_references(functions: dict[int, Any]) -> None:
    """Replace functions in all loaded modules, some of which refer to them by names of their own.

    functions: the replacements, by the id of the original.
    """

    def of_function(one: types.FunctionType) -> None:
        if one.__defaults__ and any(id(value) in functions for value in one.__defaults__):
            one.__defaults__ = tuple(functions.get(id(value), value) for value in one.__defaults__)

    def of_space(owner: Any, module: str) -> None:
        for name, value in list(vars(owner).items()):
            if id(value) in functions:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(owner, name, functions[id(value)])
            elif type(value) is types.FunctionType:
                of_function(value)
            elif (
                type(value) is type
                and value.__module__ == module
                and owner is not value
                and isinstance(owner, ModuleType)
            ):
                of_space(value, module)

    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType and not name.startswith("unjam.system.isolation"):
            of_space(module, name)


def _install() -> None:
    sys.dont_write_bytecode = True
    shutil._use_fd_functions = False  # type: ignore[attr-defined] # noqa: SLF001 - rmtree uses paths, then
    replacements = calls.replaced()
    sets = [os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids]
    functions = {id(io.open): calls.io_open, id(io.open_code): calls.open_code}
    for name, function in replacements.items():
        functions[id(calls.original[name])] = function
        for one in sets:
            if calls.original[name] in one:
                one.add(function)
    # os, io, builtins, the import system, and every module that refers to one of the functions
    _replace_references(functions)
    accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps the functions
    if accessor is not None:
        for name, function in {**replacements, "open_code": calls.open_code, "open": calls.io_open}.items():
            if name in vars(accessor):
                setattr(accessor, name, staticmethod(function))
    starting = {name: _starting(name) for name in ("execve", "posix_spawn", "posix_spawnp")}
    _replace_references({id(calls.original[name]): function for name, function in starting.items()})
    for name, makes in (("bind", True), ("connect", False), ("connect_ex", False)):
        setattr(socket.socket, name, _with_address(name, makes=makes))
    subprocess.Popen.__init__ = _keep_environment(subprocess.Popen.__init__)  # type: ignore[method-assign]
    sys.addaudithook(_refuse_others)
    after_import("sqlite3", _after_sqlite)
    after_import("torch.serialization", _after_torch)
    after_import("torch.storage", _after_storage)
