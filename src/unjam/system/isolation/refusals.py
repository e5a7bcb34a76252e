"""Records the writes that are refused, and refuses the changes that Landlock cannot refuse.

A seccomp filter sends the system calls that change files to another process before the kernel executes
them. The process that becomes the program calls `send_to`; `Refusals` answers in the doctor. A call in an
allowed folder continues. A call elsewhere is recorded, and then the kernel refuses it by Landlock. What
Landlock cannot refuse is refused here: changes of mode, owner, times or attributes, and changes of files
in an allowed folder that existed before the program started.

The path is read from memory that the program can still change, so this stops mistakes, not attacks. If
the doctor has ended, such calls fail.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import posixpath
import select
import socket
import stat
import struct
import threading
from dataclasses import dataclass

from unjam.system.owned_fd import OwnedFd
from unjam.system.private_files import own_folder
from unjam.system.system_calls import peek

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SET_FILTER, _NEW_LISTENER = 1, 8
_NO_NEW_PRIVILEGES = 38
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
# to set the attributes that chattr shows
_FLAG_REQUESTS = (0x40086602, 0x40046602, 0x401C5820)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_EPERM = 1
MOST_NAMED = 50
CREATED = "made"
_LONGEST_PATH = 4096


@dataclass(frozen=True, slots=True)
class _Call:
    """A system call: where its path, folder and flags are among the arguments.

    over: where the path is that a rename replaces. is_status: Landlock, or an old version of it, does not cover the call.
    path: -1 if the file is the descriptor `folder`. requests: the values of the second argument that make a change.
    """

    name: str
    path: int
    folder: int = -1
    flags: int = -1
    over: int = -1
    is_status: bool = False
    requests: tuple[int, ...] = ()


def _calls() -> dict[int, _Call]:
    new = {
        "openat": (257, 56), "unlinkat": (263, 35), "mkdirat": (258, 34), "mknodat": (259, 33), "symlinkat": (266, 36),
        "renameat": (264, 38), "renameat2": (316, 276), "linkat": (265, 37), "truncate": (76, 45), "fchmodat": (268, 53),
        "fchownat": (260, 54), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
        "removexattr": (197, 14), "lremovexattr": (198, 15), "fchmodat2": (452, 452), "setxattrat": (463, 463),
        "removexattrat": (466, 466), "file_setattr": (469, 469),
    }  # fmt: skip
    open_files = {
        "fchmod": (91, 52),
        "fchown": (93, 55),
        "fsetxattr": (190, 7),
        "fremovexattr": (199, 16),
        "ioctl": (16, 29),
    }
    old = {
        "open": 2, "creat": 85, "unlink": 87, "rmdir": 84, "mkdir": 83, "mknod": 133, "symlink": 88, "rename": 82,
        "link": 86, "chmod": 90, "chown": 92, "lchown": 94, "utime": 132, "utimes": 235, "futimesat": 261,
    }  # fmt: skip
    status = {
        "fchmodat", "fchmodat2", "fchownat", "utimensat", "setxattr", "lsetxattr", "removexattr", "lremovexattr", "chmod",
        "chown", "lchown", "utime", "utimes", "futimesat", "truncate", "setxattrat", "removexattrat", "file_setattr",
    }  # fmt: skip
    second = {"symlink": 1, "link": 1}  # the path that is created
    machine = platform.machine()
    found = {}
    for name, numbers in new.items():
        has_folder = name.endswith(("at", "at2")) or name == "file_setattr"
        path, folder = (1, 0) if has_folder else (0, -1)
        if name == "symlinkat":
            path, folder = 2, 1
        elif name == "linkat":
            path, folder = 3, 2
        flags = 2 if name == "openat" else -1
        over = 3 if name.startswith("rename") else -1
        found[numbers[machine == "aarch64"]] = _Call(name, path, folder, flags, over, name in status)
    for name, numbers in open_files.items():
        requests = _FLAG_REQUESTS if name == "ioctl" else ()
        found[numbers[machine == "aarch64"]] = _Call(name, -1, 0, is_status=True, requests=requests)
    if machine == "x86_64":
        for name, number in old.items():
            flags, over = 1 if name == "open" else -1, 1 if name == "rename" else -1
            found[number] = _Call(name, second.get(name, 0), -1, flags, over, name in status)
    return found


def send_to(path: str) -> None:
    """Send this process's file changes, and those of its children, to the `Refusals` that listens at this path."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as connection:
        with own_folder(posixpath.dirname(path)) as folder:
            connection.connect(f"{folder}/{posixpath.basename(path)}")
        socket.send_fds(connection, [b"listener"], [OwnedFd(_install())])


def _install() -> int:
    machine = platform.machine()
    if machine not in _SECCOMP:
        raise OSError(f"not supported on {machine}")
    code = _program(_ARCHITECTURE[machine])
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    fd = libc.syscall(ctypes.c_long(_SECCOMP[machine]), _SET_FILTER, _NEW_LISTENER, ctypes.c_char_p(program))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(fd)


def _program(architecture: int) -> bytes:
    """The filter: notify for the listed calls, and for an open only if its flags permit writing."""

    def one(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, if_false, value)

    load, equal, any_bit, give = 0x20, 0x15, 0x45, 0x06
    parts = [one(load, 4), one(equal, architecture, 1, 0), one(give, _ALLOW), one(load, 0)]
    for number, call in _calls().items():
        if call.requests:
            many = len(call.requests)
            parts += [one(equal, number, 0, many + 3), one(load, 16 + 8)]
            parts += [one(equal, value, many - place) for place, value in enumerate(call.requests)]
            parts += [one(give, _ALLOW), one(give, _NOTIFY)]
        elif call.flags < 0:
            parts += [one(equal, number, 0, 1), one(give, _NOTIFY)]
        else:
            # the lower half of an argument, on a machine that stores it first
            parts += [one(equal, number, 0, 4), one(load, 16 + 8 * call.flags), one(any_bit, _WRITES, 0, 1)]
            parts += [one(give, _NOTIFY), one(give, _ALLOW)]
    return b"".join([*parts, one(give, _ALLOW)])


class Refusals:
    """Answers the calls of one program, in a thread, until `close`. named: what was refused.

    allowed: folders in which calls continue. kept: folders among them whose present entries must not change.
    """

    def __init__(self, path: str, allowed: list[str], kept: list[str]) -> None:
        self._kept_in = [folder for folder in kept if os.path.isdir(folder)]
        self._kept = [f"{folder}/{name}" for folder in self._kept_in for name in os.listdir(folder)]
        self._created: set[str] = set()
        self._record = os.open(f"{posixpath.dirname(path)}/{CREATED}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # in a folder that only this user can enter
        with own_folder(posixpath.dirname(path)) as folder:  # a long path does not fit into an address
            self._socket.bind(f"{folder}/{posixpath.basename(path)}")
        self._listener, self._allowed = -1, allowed
        self._calls = _calls()
        self.named: dict[str, str] = {}  # by path: the call
        self._read, self._write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="unjam-refusals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        with contextlib.suppress(OSError):
            os.write(self._write, b"x")
        self._thread.join(1.0)
        self._socket.close()
        for fd in (self._listener, self._read, self._write, self._record):
            if fd >= 0:
                os.close(fd)

    def _serve(self) -> None:
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        poller.register(self._read, select.POLLIN)
        while True:
            ready = dict(poller.poll(60_000))
            if self._read in ready or ready.get(self._listener, 0) & (select.POLLHUP | select.POLLERR):
                return  # `close` was called, or the last process of the program has ended
            with contextlib.suppress(OSError):
                if self._listener in ready:
                    self._answer()
                elif ready:
                    _, fds, _, _ = socket.recv_fds(self._socket, 16, 1)
                    self._listener = fds[0]
                    poller.unregister(self._socket)
                    poller.register(self._listener, select.POLLIN)

    def _answer(self) -> None:
        request = bytearray(80)
        fcntl.ioctl(self._listener, _RECEIVE, request)
        key, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", request)
        call = self._calls.get(number)
        error = 0
        if call is not None:
            for path in self._paths(pid, call, arguments):
                is_kept = _is_within(path, self._kept)
                if is_kept or not self._is_allowed(path):
                    if len(self.named) < MOST_NAMED:
                        self.named.setdefault(path, call.name)
                    error = -_EPERM if call.is_status or is_kept else error
                elif path not in self._created and _is_within(path, self._kept_in):
                    self._created.add(path)
                    os.write(self._record, os.fsencode(path) + b"\0")
        reply = struct.pack("=QqiI", key, 0, error, 0 if error else _CONTINUE)
        fcntl.ioctl(self._listener, _SEND, reply)

    def _paths(self, pid: int, call: _Call, arguments: list[int]) -> list[str]:
        found = [self._path(pid, arguments, call.path, call.folder)]
        if call.over >= 0:
            found.append(self._path(pid, arguments, call.over, call.over - 1 if call.folder >= 0 else -1))
        return [path for path in found if path]

    def _path(self, pid: int, arguments: list[int], at: int, folder_at: int) -> str:
        """The absolute path in the arguments of a call; empty if it cannot be read."""
        text = _text_at(pid, arguments[at]) if at >= 0 else ""
        if text.startswith("/"):
            return posixpath.normpath(text)
        folder = ctypes.c_int(arguments[folder_at]).value if folder_at >= 0 else -100
        try:
            if not text and folder_at >= 0 and folder >= 0:
                return os.readlink(f"/proc/{pid}/fd/{folder}")  # the descriptor itself
            base = os.readlink(f"/proc/{pid}/cwd" if folder < 0 else f"/proc/{pid}/fd/{folder}")
        except OSError:
            return ""
        return posixpath.normpath(posixpath.join(base, text)) if text else ""

    def _is_allowed(self, path: str) -> bool:
        if path.startswith("/proc/self/fd/") or not path.startswith("/") or path.endswith(" (deleted)"):
            return True  # an open descriptor, whose own path was checked; a pipe, socket or file without a name
        return _is_within(path, self._allowed)


def remove_created(folder: str) -> None:
    """Remove the files that a program created in kept folders and left there. folder: of its `Refusals`.

    The program cannot remove them once the doctor no longer answers its calls.
    """
    try:
        with open(f"{folder}/{CREATED}", "rb") as file:
            created = file.read().split(b"\0")
    except OSError:
        return
    for path in created:
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                os.unlink(path)


def _is_within(path: str, folders: list[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in folders)


def _text_at(pid: int, address: int) -> str:
    """A path in the memory of another process; empty if it cannot be read."""
    return os.fsdecode(peek(pid, address, _LONGEST_PATH).partition(b"\0")[0])
