"""Messages between two processes: one socket pair, frames of a message and raw bytes.

A message is an instance of a dataclass. Both sides know the class by its number in the
channel's language. We send that number and the fields, because sending the class name would cost as
much as all the rest.

No method blocks without a time limit. The reader drops an incomplete frame, which a process leaves
if it is killed while sending.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import functools
import os
import pickle
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from unjam.deadlines import Deadline

_HEADER = struct.Struct("<IQHB")
_CHUNK = 1 << 16
# stands for the descriptors of a frame that could not be received
_LOST = -1
# data up to this size is sent with its header, in one call
_SMALL = 1 << 14
# descriptors that one call may send; the kernel's own limit is 253
MOST_FDS = 200
_ANCILLARY = socket.CMSG_SPACE(MOST_FDS * struct.calcsize("i"))
# programs that this process starts must not inherit the descriptors that it receives
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


# metadata of a field that stays in this process; such fields come last and have defaults
NOT_SENT = {"sent": False}


@functools.cache
def sent_fields(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a message that are sent."""
    return tuple(part.name for part in dataclasses.fields(kind) if part.metadata.get("sent", True))


def _nothing(_: object) -> tuple[()]:
    return ()


class ChannelClosed(ConnectionError):
    """The other side is gone."""


@dataclass(slots=True)
class Frame:
    """One transmission: a message with its bytes and descriptors. `fds_lost`: some could not be received."""

    message: Any
    data: bytes
    fds: list[int] = field(default_factory=list)
    fds_lost: bool = False
    event: Any = None  # what the reader made of the message

    def close(self) -> None:
        """Close the descriptors that the reader did not take."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class Channel:
    """One end of a channel. Not thread-safe: only one thread may use it at a time."""

    def __init__(self, sock: socket.socket, language: Sequence[type]) -> None:
        sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._socket = sock
        self._fileno = sock.fileno()
        self._language = language
        self._numbers = {kind: number for number, kind in enumerate(language)}
        self._fields = [attrgetter(*names) if (names := sent_fields(kind)) else _nothing for kind in language]
        self._space = bytearray(_CHUNK)
        self._inbox = bytearray()
        self.arrived: deque[Frame] = deque()
        self._fds: deque[int] = deque()
        self._outbox: deque[tuple[memoryview, array.array[int] | None, list[int]]] = deque()
        self.closed = False

    def fileno(self) -> int:
        """Return the descriptor for `poll`; also valid to unregister after close."""
        return self._fileno

    # -- sending -----------------------------------------------------------------------------------------------------

    def post(self, message: object, data: bytes | memoryview = b"", fds: Sequence[int] = ()) -> None:
        """Queue a message and send what the socket takes now. Duplicates descriptors until sent."""
        number = self._numbers[type(message)]
        body = pickle.dumps(self._fields[number](message), pickle.HIGHEST_PROTOCOL)
        head = _HEADER.pack(len(body), len(data), len(fds), number) + body
        if len(data) <= _SMALL:
            head, data = head + data, b""
        copies: list[int] = []
        try:
            copies.extend(map(os.dup, fds))
        except OSError:
            for copy in copies:
                os.close(copy)
            raise
        view = memoryview(head)
        while len(copies) > MOST_FDS:
            # one byte of the frame carries each full group of descriptors
            group, copies = copies[:MOST_FDS], copies[MOST_FDS:]
            self._outbox.append((view[:1], array.array("i", group), group))
            view = view[1:]
        self._outbox.append((view, array.array("i", copies) if copies else None, copies))
        if data:
            self._outbox.append((memoryview(data), None, []))
        self.flush()

    def flush(self) -> bool:
        """Send what the socket takes now; return whether everything is sent."""
        while self._outbox:
            view, ancillary, copies = self._outbox[0]
            try:
                if ancillary is not None:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ancillary)]
                    sent = self._socket.sendmsg([view], rights)
                else:
                    sent = self._socket.send(view)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                self.close()
                raise ChannelClosed(str(error)) from error
            while copies:
                os.close(copies.pop())
            if sent == len(view):
                self._outbox.popleft()
            else:
                self._outbox[0] = (view[sent:], None, [])
        return True

    @property
    def unsent(self) -> bool:
        """Whether bytes still wait to be sent."""
        return bool(self._outbox)

    def deliver(self, message: object, within: Deadline, fds: Sequence[int] = ()) -> None:
        """Send a whole message; raise `ChannelClosed` if it is not read in time."""
        self.post(message, fds=fds)
        until = time.monotonic() + within.seconds
        while not self.flush():
            if not self.poll(until - time.monotonic(), write=True) and time.monotonic() >= until:
                raise ChannelClosed(f"the other side did not read for {within.seconds:g} s")

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Add every complete message to `arrived`; return whether anything came.

        Sets `closed` at the end of the stream.
        """
        came = False
        while not self.closed:
            try:
                count, ancillary, flags, _ = self._socket.recvmsg_into((self._space,), _ANCILLARY, _CLOSE_ON_EXEC)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.closed = True
                break
            if ancillary or flags & socket.MSG_CTRUNC:
                self._collect(ancillary, flags)
            if not count:
                self.closed = True
            came = came or count > 0
            self._inbox += memoryview(self._space)[:count]
            if count < _CHUNK:
                break
        self._parse()
        return came

    def _collect(self, ancillary: list[tuple[int, int, bytes]], flags: int) -> None:
        received: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                received += fds
        if flags & socket.MSG_CTRUNC:
            # This process had no room for all descriptors of a frame: that frame gets none, and the next ones theirs.
            for fd in received:
                os.close(fd)
            self._fds.append(_LOST)
        else:
            self._fds.extend(received)

    def _parse(self) -> None:
        inbox, at = self._inbox, 0
        while len(inbox) - at >= _HEADER.size:
            body, data, fds, number = _HEADER.unpack_from(inbox, at)
            start = at + _HEADER.size
            end = start + body + data
            if len(inbox) < end:
                break
            with memoryview(inbox) as view:
                fields = pickle.loads(view[start : start + body])
                rest = bytes(view[start + body : end]) if data else b""
            taken = self._take(fds) if fds else []
            self.arrived.append(Frame(self._message(number, fields), rest, taken, fds_lost=len(taken) < fds))
            at = end
        if at:
            del inbox[:at]

    def _take(self, count: int) -> list[int]:
        """Return the descriptors of a frame, or none if a group of them is lost."""
        taken: list[int] = []
        lost = False
        for left in range(count, 0, -MOST_FDS):
            if self._fds and self._fds[0] == _LOST:
                self._fds.popleft()
                lost = True
            else:
                taken += [self._fds.popleft() for _ in range(min(left, MOST_FDS, len(self._fds)))]
        while lost and taken:
            os.close(taken.pop())
        return taken

    def _message(self, number: int, fields: Any) -> Any:
        kind = self._language[number]
        names = sent_fields(kind)
        if len(names) == 1:
            return kind(fields)
        return kind(*fields)

    def poll(self, seconds: float, *, write: bool = False) -> bool:
        """Wait until the channel can be read (or written), at most `seconds`."""
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT if write else select.POLLIN)
        return bool(poller.poll(max(0, int(seconds * 1000))))

    def forget(self) -> None:
        """Close only this process's copy of the socket, in a process forked from the owner."""
        self.closed = True
        self._socket.close()

    def close(self) -> None:
        """Close this end and every queued descriptor; the other side sees the end of the stream."""
        self.closed = True
        for _, _, copies in self._outbox:
            for copy in copies:
                os.close(copy)
        self._outbox.clear()
        while self._fds:
            fd = self._fds.popleft()
            if fd != _LOST:
                os.close(fd)
        while self.arrived:
            self.arrived.popleft().close()
        with contextlib.suppress(OSError):
            # Other processes may hold copies of this socket: shutdown affects them, close does not.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair of sockets; programs that this process starts inherit neither."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
