"""Which process holds the other end of a pipe or socket, or a lock on a file."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import struct
from collections import defaultdict
from functools import cached_property

from unjam.system.owned_fd import OwnedFd
from unjam.system.proc_files import descriptor_flags, descriptor_target, descriptors, is_number, read_text, tcp_sockets

_ACCESS = 3  # mask for a descriptor's flags: 0 reads, 1 writes, 2 both
_SOCK_DIAG, _BY_FAMILY, _SHOW_PEER, _PEER = 4, 20, 4, 2


class Owners:
    """The descriptors of all visible processes, read once from /proc."""

    def __init__(self) -> None:
        self._networks: dict[int, tuple[dict[str, tuple[str, str]], dict[tuple[str, str], str]]] = {}

    @cached_property
    def _by_target(self) -> dict[str, list[tuple[int, int]]]:
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for name in os.listdir("/proc"):
            if not is_number(name):
                continue
            for fd, target in descriptors(name).items():
                if target.startswith(("pipe:", "socket:")):
                    found[target].append((int(name), fd))
        return found

    def other_end(self, pid: int, fd: int) -> list[int] | None:
        """The processes that hold the other end of a local pipe or socket.

        None: the descriptor is something else, or the other end is unknown.
        """
        target = descriptor_target(fd, pid)
        if target.startswith("pipe:"):
            return self._pipe(pid, fd, target)
        if target.startswith("socket:"):
            peer = self._unix_peers.get(target[8:-1]) or self._tcp_peer(pid, target[8:-1])
            return sorted({one for one, _ in self._by_target.get(f"socket:[{peer}]", [])}) if peer else None
        return None

    def _pipe(self, pid: int, fd: int, target: str) -> list[int]:
        mine = _access(pid, fd)
        return sorted(
            {one for one, its in self._by_target[target] if _access(one, its) in ((1, 2) if mine == 0 else (0, 2))}
        )

    def incoming(self, pid: int, others: set[int]) -> list[int]:
        """Descriptors of pipes that a process reads and that one of the others can write to."""
        found = []
        for target, ends in self._by_target.items():
            mine = [fd for one, fd in ends if one == pid and _access(one, fd) == 0]
            if mine and target.startswith("pipe:") and any(one in others and _access(one, fd) == 1 for one, fd in ends):
                found.append(mine[0])
        return found

    def connected(self, pid: int) -> set[int]:
        """The other processes of this machine that a process has socket connections with."""
        sockets = [ends for target, ends in self._by_target.items() if target.startswith("socket:")]
        mine = [fd for ends in sockets for one, fd in ends if one == pid]
        return {other for fd in mine for other in self.other_end(pid, fd) or () if other != pid}

    def holders(self, target: str) -> list[int]:
        """The processes that have a descriptor of this pipe or socket."""
        return sorted({one for one, _ in self._by_target.get(target, [])})

    def _tcp_peer(self, pid: int, inode: str) -> str | None:
        """The inode of the socket at the other end of a connection within this machine."""
        rows, by_ends = self._connections(pid)
        mine = rows.get(inode)
        if mine is None:
            return None
        other = by_ends.get((mine[1], mine[0]), "0")
        return other if other != "0" else None

    def _connections(self, pid: int) -> tuple[dict[str, tuple[str, str]], dict[tuple[str, str], str]]:
        """Inode to its two addresses, and back, in the network namespace of a process."""
        network = 0
        with contextlib.suppress(OSError):
            network = os.stat(f"/proc/{pid}/ns/net").st_ino
        known = self._networks.get(network)
        if known is None:
            rows = {row[9]: (row[1], row[2]) for row, _ in tcp_sockets(pid)}
            known = self._networks[network] = (rows, {ends: inode for inode, ends in rows.items()})
        return known

    @cached_property
    def _unix_peers(self) -> dict[str, str]:
        """Inode to inode of connected Unix sockets, from the kernel interface that `ss` uses."""
        found: dict[str, str] = {}
        try:
            with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as link:
                link.settimeout(0.5)
                request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_PEER, 0, 0)
                link.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, 0x301, 1, 0) + request)
                buffer = bytearray(1 << 18)
                while self._take(bytes(memoryview(buffer)[: link.recv_into(buffer)]), found):
                    pass
        except OSError:
            pass
        return found

    @staticmethod
    def _take(data: bytes, found: dict[str, str]) -> bool:
        at = 0
        while at + 16 <= len(data):
            length, kind = struct.unpack_from("=IH", data, at)
            if kind != _BY_FAMILY or length < 32:
                return False
            inode = struct.unpack_from("=I", data, at + 20)[0]
            inner = at + 32
            while inner + 4 <= at + length:
                size, what = struct.unpack_from("=HH", data, inner)
                if what == _PEER and size >= 8:
                    found[str(inode)] = str(struct.unpack_from("=I", data, inner + 4)[0])
                inner += max(4, (size + 3) & ~3)
            at += (length + 3) & ~3
        return True


@functools.cache
def pipes_record_writes() -> bool:
    """Whether this kernel records when a pipe was last written; Linux 6.15 and later do not."""
    reader, writer = map(OwnedFd, os.pipe())
    before = os.fstat(reader).st_mtime_ns
    select.select([], [], [], 0.02)
    os.write(writer, b"x")
    return os.fstat(reader).st_mtime_ns > before


def _access(pid: int, fd: int) -> int:
    return descriptor_flags(fd, pid, unknown=os.O_RDWR) & _ACCESS


def file_lock_holder(pid: int) -> int | None:
    """The process that holds the file lock that `pid` waits for."""
    holders: dict[str, int] = {}
    for line in read_text("/proc/locks").splitlines():
        words = line.split()
        if len(words) > 6 and words[1] == "->":
            if words[5] == str(pid):
                return holders.get(words[0])
        elif len(words) > 5 and is_number(words[4]):  # an open file description lock has the process number -1
            holders[words[0]] = int(words[4])
    return None


def file_lock_holders(pid: int, fd: int) -> list[int]:
    """The processes that hold a lock on the file behind a descriptor."""
    try:
        inode = os.stat(f"/proc/{pid}/fd/{fd}").st_ino
    except OSError:
        return []
    found = []
    for line in read_text("/proc/locks").splitlines():
        words = line.split()
        own = len(words) > 5 and words[1] != "->" and is_number(words[4]) and words[4] != str(pid)
        if own and words[5].rpartition(":")[2] == str(inode):
            found.append(int(words[4]))
    return found
