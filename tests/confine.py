"""Runs a command as another user, or where the kernel refuses mounts, as Docker's default profile does.

    python confine.py [--user NUMBER] [--no-mounts] [--no-landlock] -- COMMAND…

The interpreter and the checkout may lie where the other user cannot go (/root, mode 700). So the command
gets mounts of its own, in which the folders above them are open to everyone.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import platform
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[1]
_NEW_MOUNTS = 0x00020000
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12
_REFUSED_CALLS = {
    "x86_64": (0xC000003E, [272, 165, 308, 155]),
    "aarch64": (0xC00000B7, [97, 40, 268, 41]),
}  # unshare, mount, setns, pivot_root
_NEW_MOUNT_CALLS = [428, 429, 430, 442]  # open_tree, move_mount, fsopen, mount_setattr
_LANDLOCK_CALLS = [444, 445, 446]


def command(words, *, user=0, mounts=True, landlock=True) -> list[str]:
    """The command line that runs `words` so."""
    options = [f"--user={user}"] if user else []
    options += [] if mounts else ["--no-mounts"]
    options += [] if landlock else ["--no-landlock"]
    return [sys.executable, __file__, *options, "--", *map(str, words)]


def _call(function, *arguments) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _open_the_way(libc) -> None:
    """Let everyone reach the interpreter and the checkout."""
    needed = {Path(sys.base_prefix), Path(sys.prefix), PROJECT}
    closed: dict[Path, list[Path]] = {}
    for path in needed:
        for above in reversed(path.parents):
            if not above.stat().st_mode & 0o001:
                closed.setdefault(above, []).append(path)
                break
    if not closed:
        return
    libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)
    _call(libc.unshare, _NEW_MOUNTS)
    _call(libc.mount, None, b"/", None, _RECURSIVE | _PRIVATE, None)
    for above, inner in closed.items():
        aside = [tempfile.mkdtemp() for _ in inner]
        for path, place in zip(inner, aside, strict=True):
            _call(libc.mount, bytes(path), place.encode(), None, _BIND, None)
        _call(libc.mount, b"tmpfs", bytes(above), b"tmpfs", 0, b"mode=0755,size=1m")
        for path, place in zip(inner, aside, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            _call(libc.mount, place.encode(), bytes(path), None, _BIND, None)
            _call(libc.umount2, place.encode(), 2)
            os.rmdir(place)


def _refuse(libc, numbers: list[int]) -> None:
    """These system calls fail with EPERM from now on."""

    def one(code: int, value: int, if_true: int = 0) -> bytes:
        return struct.pack("HBBI", code, if_true, 0, value)

    code = one(0x20, 0)
    for place, number in enumerate(numbers):
        code += one(0x15, number, len(numbers) - place)
    code += one(0x06, 0x7FFF0000) + one(0x06, 0x00050001)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    _call(libc.prctl, 38, 1, 0, 0, 0)
    _call(libc.prctl, 22, 2, ctypes.c_char_p(program), 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--user", type=int, default=0)
    parser.add_argument("--no-mounts", action="store_true")
    parser.add_argument("--no-landlock", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    libc = ctypes.CDLL(None, use_errno=True)
    if options.user:
        _open_the_way(libc)
        os.setgroups([])
        os.setresgid(*[options.user] * 3)
        os.setresuid(*[options.user] * 3)
    _, old = _REFUSED_CALLS[platform.machine()]
    refused = [*old, *_NEW_MOUNT_CALLS] if options.no_mounts else []
    refused += _LANDLOCK_CALLS if options.no_landlock else []
    if refused:
        _refuse(libc, refused)
    os.execvp(options.command[0], options.command)


@functools.cache
def can_become(user: int) -> str:
    """Why a test cannot run a program as this user, or nothing."""
    if os.geteuid():
        return "becoming another user needs root: run the suite as root to try it"
    done = subprocess.run(
        command([sys.executable, "-c", "import unjam"], user=user), capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else f"another user cannot run Python here: {done.stderr.strip()[-300:]}"


if __name__ == "__main__":
    main()
