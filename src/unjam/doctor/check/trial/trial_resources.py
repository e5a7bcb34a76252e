"""What a trial may lack: the program's servers, the accelerator, and space for files.

A trial runs while the program runs or after it, in another process. A server that the program runs, in
a thread or a child process, may have ended by then, and an accelerator cannot be used in a fork. A trial
that fails or freezes for this reason says nothing about the loader, so it counts as not possible.

The servers are recorded at the capture. A process of a trial records each server that it connects to,
and the doctor checks afterwards whether the server was still running.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass
from typing import Any

from unjam.doctor.check.processes import pause
from unjam.system import process_table
from unjam.system.descriptor_owners import Owners
from unjam.system.isolation import view
from unjam.system.isolation.program_files import full_text
from unjam.system.proc_files import descriptors, read_text, tcp_sockets
from unjam.system.waiting import address_text

NOTES = "needed"
_LISTENS = "0A"
_ACCEPTS = 0x00010000  # a flag in /proc/net/unix
# a running server accepts a connection within this time
ACCEPTS_WITHIN = 0.5


@dataclass(frozen=True, slots=True)
class Server:
    """A listening socket of the program. address: "host:port", or a path; an abstract one begins with "@"."""

    address: str
    inode: str
    pid: int
    born: float  # of the process, because process numbers are reused
    is_connected: bool = False  # the program's main process was connected to it at the capture


def own_servers() -> tuple[Server, ...]:
    """The listening sockets of this process and its descendants."""
    addresses = _listening()
    if not addresses:
        return ()
    table = process_table.all_processes()
    mine, me = _sockets(os.getpid()), os.getpid()
    peers = {address_text(row[2], size) for row, size in tcp_sockets() if row[9] in mine}
    family = [table[me], *process_table.descendants(table, me)]
    connected = Owners().connected(me) if len(family) > 1 else set()
    return tuple(
        Server(addresses[inode], inode, one.pid, one.born, addresses[inode] in peers or one.pid in connected)
        for one in family
        for inode in (mine if one.pid == me else _sockets(one.pid))
        if inode in addresses
    )


def note_connections(folder: str, servers: tuple[Server, ...]) -> None:
    """Record from now on, in this process and its forks, each server that it connects to."""
    if not servers:
        return
    for one in servers:
        if one.is_connected:
            _write(folder, asdict(one))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            for one in servers:
                if _is_at(one.address, arguments[1]):
                    _write(folder, asdict(one))

    sys.addaudithook(hook)


def note_error(folder: str, error: BaseException, *, in_worker: bool) -> None:
    """Record an error that is caused by something that the trial lacks."""
    if not in_worker:
        _note_accelerator(folder, error)
    room = view.room_if_full(os.path.dirname(os.path.dirname(folder)), os.path.basename(folder))
    if room and getattr(error, "errno", None) == errno.ENOSPC:
        _write(folder, {"room": room})


def _note_accelerator(folder: str, error: BaseException) -> None:
    """Record an error of an accelerator that cannot be used in a fork."""
    torch = sys.modules.get("torch")
    trace = error.__traceback__
    while trace is not None and torch is not None:
        name, file = trace.tb_frame.f_code.co_name, trace.tb_frame.f_code.co_filename
        if name == "_lazy_init" and file.startswith(os.path.dirname(torch.__file__ or "")):
            _write(folder, {"accelerator": os.path.basename(os.path.dirname(file))})
            return
        trace = trace.tb_next


def missing(folder: str) -> str:
    """What the processes of a trial needed and lacked, as a message; "" if nothing."""
    for line in dict.fromkeys(read_text(f"{folder}/{NOTES}").splitlines()):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            noted = json.loads(line)
            if "accelerator" in noted:
                return f"it needs {noted['accelerator']}, which cannot be used in a fork of the program"
            if "room" in noted:
                return f"it {full_text(noted['room'])}"
            server = Server(**noted)
            if not _is_served(server):
                return f"it needs the program's own server at {server.address}, which has ended"
    return ""


def _write(folder: str, noted: dict[str, Any]) -> None:
    with contextlib.suppress(OSError), open(f"{folder}/{NOTES}", "a", encoding="utf-8") as file:
        file.write(json.dumps(noted) + "\n")


def _is_served(server: Server) -> bool:
    """Whether the process still has the socket, and accepts the waiting connections."""
    process = process_table.entry(server.pid)
    if process is None or process.born != server.born or server.inode not in _sockets(server.pid):
        return False
    for _ in range(int(ACCEPTS_WITHIN / 0.1)):
        if not _waiting_connections(server):
            return True
        pause(0.1)
    return False


def _waiting_connections(server: Server) -> int:
    """How many connections have not been accepted yet; 0 if unknown."""
    return next((int(row[4].rpartition(":")[2], 16) for row, _ in tcp_sockets(server.pid) if row[9] == server.inode), 0)


def _sockets(pid: int) -> list[str]:
    """The inodes of a process's sockets."""
    return [target[8:-1] for target in descriptors(pid).values() if target.startswith("socket:[")]


def _listening() -> dict[str, str]:
    """The addresses of listening sockets, by inode."""
    found = {row[9]: address_text(row[1], size) for row, size in tcp_sockets() if row[3] == _LISTENS}
    for line in read_text("/proc/self/net/unix").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if len(words) == 8 and int(words[3], 16) & _ACCEPTS:
            found[words[6]] = words[7]
    return found


def _is_at(address: str, given: Any) -> bool:
    """Whether a connection to `given` reaches a server of this machine at an address."""
    if isinstance(given, (str, bytes)):
        path = os.fsdecode(given)
        return address == (f"@{path[1:]}" if path.startswith("\0") else os.path.abspath(path)) or address == path
    if not isinstance(given, tuple) or len(given) < 2:
        return False
    host, port = str(given[0]), str(given[1])
    if address.rpartition(":")[2] != port:
        return False
    try:
        there = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host in ("localhost", socket.gethostname())
    own = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    return there.is_loopback or there.is_unspecified or own.is_unspecified or there == own
