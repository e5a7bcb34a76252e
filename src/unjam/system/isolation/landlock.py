"""Landlock: a process permanently gives up the right to change files; it needs no privileges.

The restriction holds for this process and its children. Reading is not restricted. Landlock cannot
restrict changes of mode, owner, times or attributes; kernels before 6.2 do not restrict truncate(2) either.
"""

from __future__ import annotations

import ctypes
import os

from unjam.system.owned_fd import OwnedFd

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38
_WRITE_FILE = 1 << 1
_CHANGES_IN_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and make entries of every kind
_REFER, _TRUNCATE = 1 << 13, 1 << 14


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The version of the kernel's Landlock: 0 means none, 3 that truncate(2) is restricted too."""
    if os.uname().sysname != "Linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(
        0, int(libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))
    )


def refuse_writes_outside(folders: list[str], existing: list[str]) -> None:
    """Allow this process to change files only in `folders`, and to write to what is in `existing`.

    `existing` is for devices and the kernel's files: entries there can be written to but not created.
    """
    known = version()
    if not known:
        raise OSError("Landlock is not available")
    handled = _WRITE_FILE | _CHANGES_IN_FOLDERS | (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.c_uint64(handled)
    created = libc.syscall(
        ctypes.c_long(_CREATE_RULESET), ctypes.byref(attributes), ctypes.c_size_t(8), ctypes.c_uint32(0)
    )
    ruleset = OwnedFd(_checked(created))
    for path in folders:
        _allow(libc, ruleset, path, handled)
    for path in existing:
        _allow(libc, ruleset, path, _WRITE_FILE | (_TRUNCATE if known >= 3 else 0))
    _checked(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint32(0)))


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        at = OwnedFd(os.open(path, os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return  # not on this machine
    rule = _PathBeneath(rights, at)
    _checked(
        libc.syscall(
            ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    )  # fmt: skip


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
