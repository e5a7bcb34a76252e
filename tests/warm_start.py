"""Programs that start without importing torch: forked from a process that has imported it already.

NOTE [ Warm programs ]. A fresh interpreter spends two seconds of processor time on `import torch`, and the fork server of the loader
that it makes spends them again. Most tests of whole programs are not about that. `WarmPopen` is a `subprocess.Popen` whose child is
a fork of one process that has torch, unjam and little else; the child then sets itself up as `python program.py`, `python -c` or
`python -m` would: arguments, environment, folder, `sys.path`, descriptors, `__main__`. The kernel makes it a child of the test's process
(CLONE_PARENT), so signals, exit status and process tree are those of any child. Before the program begins, the child puts a pristine
copy of itself aside, which becomes the fork server if the program starts one.

What differs from a fresh interpreter: torch, numpy and unjam are in `sys.modules`, variables that the interpreter or OpenMP read when they
start are those of the tests' own process. `can_be_warm` says no where a test asks for others, and tests about importing or starting use a
real interpreter.
"""

from __future__ import annotations

import array
import atexit
import builtins
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import multiprocessing.process
import multiprocessing.util
import os
import runpy
import signal
import socket
import subprocess
import sys
import types
from importlib.machinery import SourceFileLoader

PRELOADED = (
    *("numpy", "torch", "torch.utils.data", "torch.multiprocessing", "rich.console", "unjam.cli"),
    *(
        "unjam.loader.dataloader",
        "unjam.loader.pool.templates",
        "unjam.loader.pool.process_pool",
        "unjam.loader.worker.main",
    ),
    *(
        "unjam.doctor.check.command.check",
        "unjam.doctor.report.text",
        "unjam.doctor.report.html",
        "unjam.doctor.why.find",
    ),
)
# read once, when the interpreter or a library starts
FIXED_VARIABLES = ("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "LD_PRELOAD")
CLONE_PARENT, SYS_CLONE = 0x8000, {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
MOST_DESCRIPTORS = 16
LONGEST = 1 << 20


def can_be_warm(arguments: list[str], env: dict[str, str] | None) -> bool:
    """Whether a command line of this interpreter means the same in a fork."""
    words = without_flags(arguments)
    known = os.environ if env is None else env
    return (
        SYS_CLONE is not None
        and arguments[0] == sys.executable
        and bool(words)
        and (words[0] in ("-c", "-m") or words[0][0] != "-")
        and all(known.get(name) == os.environ.get(name) for name in FIXED_VARIABLES)
    )


def without_flags(arguments: list[str]) -> list[str]:
    """What follows the interpreter and those of its flags that this one has too."""
    same = subprocess._args_from_interpreter_flags()
    return arguments[1 + len(same) if arguments[1 : 1 + len(same)] == same else 1 :]


class WarmPopen(subprocess.Popen):
    """Like Popen. `source`: the socket of the process that forks."""

    def __init__(self, source: socket.socket, arguments: list[str], **options) -> None:
        self._source = source
        super().__init__(arguments, **options)

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, _info, _flags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, _signals, gid, gids, uid, umask, start_new_session,
        *_group,
    ) -> None:  # fmt: skip
        assert preexec_fn is None
        assert uid is None
        assert not shell
        standard = [own if theirs < 0 else theirs for own, theirs in enumerate((p2cread, c2pwrite, errwrite))]
        request = described(args, cwd or ".", os.environ if env is None else env, pass_fds, session=start_new_session)
        try:
            self.pid = self._fork(request, _rights([*standard, *pass_fds]))
        finally:
            self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        self._child_created = True

    def _fork(self, request: bytes, rights: list) -> int:
        return forked(self._source, request, rights)


def described(arguments, folder, environment, kept, *, session=False, lends=True) -> bytes:
    """What a new process should become. `lends`: see `lend_a_server`."""
    request = {"arguments": list(map(os.fspath, arguments)), "folder": os.path.abspath(folder), "session": session}
    return json.dumps({**request, "environment": dict(environment), "kept": list(kept), "lends": lends}).encode()


def forked(source: socket.socket, request: bytes, rights: list) -> int:
    source.sendmsg([request], rights)
    answer = source.recv(100)
    assert answer, "the process that forks programs is gone"
    return int(answer)


def spawnv_passfds(path, arguments, kept) -> int:
    """multiprocessing's own way to start an interpreter, for its spawned children and its fork server."""
    arguments, kept = [os.fsdecode(one) for one in arguments], sorted(map(int, kept))
    if "spawn_main" not in arguments[-2] and "multiprocessing.forkserver" not in arguments[-1]:
        return _spawnv_passfds(path, arguments, kept)
    words = [arguments[0], *without_flags(arguments)]
    request = described(words, ".", os.environ, kept, lends=False)
    return forked(warm_interpreter(), request, _rights([0, 1, 2, *kept]))


_spawnv_passfds = multiprocessing.util.spawnv_passfds


def _rights(fds: list[int]):
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


@functools.cache
def warm_interpreter() -> socket.socket:
    """Start the process that forks programs, once; it ends with this one."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
        )
    atexit.register(_end, mine, process)
    _processes.append(process)
    return mine


def interpreter_pid() -> int | None:
    return _processes[0].pid if _processes else None


_processes: list[subprocess.Popen] = []


def _end(source: socket.socket, process: subprocess.Popen) -> None:
    source.close()
    process.wait(30)


# -- in the process that forks -----------------------------------------------------------------------------------------


class Request:
    """What a new process should become, and its descriptors."""

    def __init__(self, source: socket.socket) -> None:
        data, control, _, _ = source.recvmsg(LONGEST, socket.CMSG_SPACE(4 * MOST_DESCRIPTORS))
        self.ended = not data
        fds = array.array("i")
        for _, _, part in control:
            fds.frombytes(part)
        self.fds = list(fds)
        vars(self).update(json.loads(data) if data else {})

    def settle(self) -> None:
        """Take the session, descriptors, folder and environment that were asked for."""
        if self.session:
            os.setsid()
        wanted = dict(zip([0, 1, 2, *self.kept], self.fds, strict=True))
        spare = max([*wanted, *self.fds]) + 1
        moved = {number: spare + at for at, number in enumerate(wanted)}
        for number, fd in wanted.items():
            os.dup2(fd, moved[number], inheritable=False)
        for number in wanted:
            os.dup2(moved[number], number, inheritable=True)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        keep_only(set(wanted))


def keep_only(wanted: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(name))


def clone(flags: int) -> int:
    """Fork; with CLONE_PARENT the child is a child of our parent."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid = ctypes.PyDLL(None).syscall(SYS_CLONE, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid


def end_threads() -> None:
    """Have libraries end their idle threads, as they do before any fork of libc's; our own clone would leave them half there."""
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be cloned"


def serve(source: socket.socket) -> Request:
    """Fork for every request. Returns in the children only."""
    while True:
        request = Request(source)
        if request.ended:
            os._exit(0)
        pid = clone(CLONE_PARENT)
        if pid == 0:
            return request
        source.send(str(pid).encode())
        for fd in request.fds:
            os.close(fd)


def lend_a_server() -> None:
    """Put a copy of this process aside; it becomes the fork server when the program starts one."""
    from unjam.loader.pool import fork_server

    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
    pid = os.fork()
    if pid == 0:
        keep_only({theirs.fileno()})
        request = Request(theirs)
        if request.ended:
            os._exit(0)
        # as a process that has just been started with these arguments
        request.settle()
        run(without_flags(request.arguments))
        os._exit(0)
    theirs.close()
    lent = [pid]

    def start(command, **options):
        return Lent(mine, lent.pop(), command, **options) if lent else subprocess.Popen(command, **options)

    fork_server.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": start})


class Lent(WarmPopen):
    """The copy that was put aside, as a child that was just started."""

    def __init__(self, source: socket.socket, pid: int, arguments: list[str], **options) -> None:
        self._lent = pid
        super().__init__(source, arguments, **options)

    def _fork(self, request: bytes, rights: list) -> int:
        with self._source as source:
            source.sendmsg([request], rights)
        return self._lent


def program(arguments: list[str]) -> tuple[types.CodeType, dict]:
    """The code of `python ARGUMENTS`, and the variables of its `__main__`."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    if arguments[0] == "-c":
        sys.argv, sys.path[0:0] = ["-c", *arguments[2:]], [""]
        return compile(arguments[1], "<string>", "exec"), vars(main)
    path = os.path.abspath(arguments[0])
    sys.argv, sys.path[0:0] = list(arguments), [os.path.dirname(path)]
    main.__file__, main.__loader__, main.__cached__ = path, SourceFileLoader("__main__", path), None
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True), vars(main)


class Replaced(BaseException):
    """The program replaces itself (exec) by another one of this interpreter."""


def replace(path: str, arguments: list[str], environment: dict[str, str]) -> None:
    if not can_be_warm(arguments, environment):
        _execve(path, arguments, environment)
    os.environ.clear()
    os.environ.update(environment)
    raise Replaced(without_flags(arguments))


_execve = os.execve
_path: list[str] = []


def run(arguments: list[str]) -> None:
    """Be `python ARGUMENTS`."""
    sys.path[:] = [os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one] + _path
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()
    if any(os.path.exists(f"{folder}/sitecustomize.py") for folder in sys.path):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    if arguments[0] == "-m":
        sys.argv, sys.path[0:0] = [arguments[1], *arguments[2:]], [os.getcwd()]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    code, variables = program(arguments)
    exec(code, variables)


def run_to_the_end(arguments: list[str]) -> None:
    while arguments:
        following = []
        try:
            run(arguments)
        except Replaced as replaced:
            following = replaced.args[0]
        arguments = following


def without_us(kind, error, trace) -> None:
    """Print an uncaught exception without the frames of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def wait_for_a_program(fd: int) -> list[str]:
    for name in PRELOADED:
        importlib.import_module(name)
    own = [os.path.dirname(os.path.abspath(__file__)), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    _path[:] = [entry for entry in sys.path if entry not in map(os.path.abspath, own)]
    end_threads()
    gc.collect()
    gc.freeze()
    request = serve(socket.socket(fileno=fd))
    request.settle()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.excepthook, os.execve = without_us, replace
    sys.modules["numpy"].random.seed()
    if request.lends:
        lend_a_server()
    return without_flags(request.arguments)


if __name__ == "__main__":
    run_to_the_end(wait_for_a_program(int(sys.argv[1])))
