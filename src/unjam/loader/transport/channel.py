"""Messages between two processes: one socket pair, frames of a message and raw bytes.

A message is an instance of a frozen dataclass that both sides know by its number in the channel's language; on the wire
it is that number and its fields, because naming the class would cost as much as everything else.

No method blocks without a bound. A frame is complete or it does not exist: a process killed in the middle of sending
leaves bytes that the other side throws away.
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

from unjam.loader.engine.deadlines import Deadline

_HEADER = struct.Struct("<IQBB")
_CHUNK = 1 << 16
# data up to this size is sent with its header, in one call
_SMALL = 1 << 14
# descriptors that one frame may carry; the kernel's own limit is 253
MOST_FDS = 200
_ANCILLARY = socket.CMSG_SPACE(MOST_FDS * struct.calcsize("i"))


@functools.cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(part.name for part in dataclasses.fields(kind))


def _nothing(_: object) -> tuple[()]:
    return ()


class ChannelClosed(ConnectionError):
    """The other side is gone."""


@dataclass(slots=True)
class Envelope:
    """A message with the bytes and descriptors that came with it. `fds_lost`: this process could not take them."""

    message: Any
    data: bytes
    fds: list[int] = field(default_factory=list)
    fds_lost: bool = False
    meant: Any = None  # what its reader has made of it

    def close(self) -> None:
        """Close descriptors nobody took."""
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


class Channel:
    """One end. Not thread-safe: one thread talks through it at a time."""

    def __init__(self, sock: socket.socket, language: Sequence[type]) -> None:
        sock.setblocking(False)  # noqa: FBT003 - the standard library's signature
        self._socket = sock
        self._fileno = sock.fileno()
        self._language = language
        self._numbers = {kind: number for number, kind in enumerate(language)}
        self._fields = [attrgetter(*names) if (names := _field_names(kind)) else _nothing for kind in language]
        self._space = bytearray(_CHUNK)
        self._inbox = bytearray()
        self.arrived: deque[Envelope] = deque()
        self._fds: deque[int] = deque()
        self._fds_lost = False
        self._outbox: deque[tuple[memoryview, array.array[int] | None, list[int]]] = deque()
        self.closed = False

    def fileno(self) -> int:
        """For `poll`; the number stays known after the end, to be unregistered."""
        return self._fileno

    # -- sending -----------------------------------------------------------------------------------------------------

    def post(self, message: object, data: bytes | memoryview = b"", fds: Sequence[int] = ()) -> None:
        """Queue a message and send what the socket takes now. Descriptors are duplicated until they are sent."""
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
        self._outbox.append((memoryview(head), array.array("i", copies) if copies else None, copies))
        if data:
            self._outbox.append((memoryview(data), None, []))
        self.flush()

    def flush(self) -> bool:
        """Send what the socket takes now; return whether everything is gone."""
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
            for copy in copies:
                os.close(copy)
            if sent == len(view):
                self._outbox.popleft()
            else:
                self._outbox[0] = (view[sent:], None, [])
        return True

    @property
    def unsent(self) -> bool:
        """Whether something waits for the other side to read."""
        return bool(self._outbox)

    def deliver(
        self, message: object, within: Deadline, data: bytes | memoryview = b"", fds: Sequence[int] = ()
    ) -> None:
        """Send a message whole; raise `ChannelClosed` if the other side does not take it within the bound."""
        self.post(message, data, fds)
        until = time.monotonic() + within.seconds
        while not self.flush():
            if not self.poll(until - time.monotonic(), write=True) and time.monotonic() >= until:
                raise ChannelClosed(f"the other side did not read for {within.seconds:g} s")

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """Add to `arrived` every message that has come whole; return whether anything came. Sets `closed` at the end."""
        came = False
        while not self.closed:
            try:
                count, ancillary, flags, _ = self._socket.recvmsg_into((self._space,), _ANCILLARY)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.closed = True
                break
            if ancillary or flags:
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
        if flags & socket.MSG_CTRUNC:
            self._fds_lost = True
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds.extend(fds)

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
            taken = [self._fds.popleft() for _ in range(min(fds, len(self._fds)))] if fds else []
            self.arrived.append(Envelope(self._speak(number, fields), rest, taken, fds_lost=len(taken) < fds))
            at = end
        if at:
            del inbox[:at]

    def _speak(self, number: int, fields: Any) -> Any:
        kind = self._language[number]
        names = _field_names(kind)
        if len(names) == 1:
            return kind(fields)
        return kind(*fields)

    def poll(self, seconds: float, *, write: bool = False) -> bool:
        """Wait until the channel can be read (or written), at most `seconds`."""
        poller = select.poll()
        poller.register(self._socket, select.POLLOUT if write else select.POLLIN)
        return bool(poller.poll(max(0, int(seconds * 1000))))

    def forget(self) -> None:
        """Close this process's copy and nothing else: for a process that was forked from the one that owns it."""
        self.closed = True
        self._socket.close()

    def close(self) -> None:
        """Close this end and every descriptor that waits in it; the other side sees the end of the stream."""
        self.closed = True
        for _, _, copies in self._outbox:
            for copy in copies:
                os.close(copy)
        self._outbox.clear()
        while self._fds:
            os.close(self._fds.popleft())
        while self.arrived:
            self.arrived.popleft().close()
        with contextlib.suppress(OSError):
            # other processes may hold copies of this socket: shutdown reaches through them, close does not
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair of sockets, neither inherited by programs that this process runs."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
