"""Runs a program without changing the user's files, with the best isolation that this system allows.

    view        every write goes to a layer in memory           NOTE [ The view ]
    refused     Python's writes go to a scratch folder, and     NOTE [ Redirected files ]
                the kernel refuses all others (Landlock)
    redirected  Python's writes go to a scratch folder;
                nothing stops native code
    real        no isolation: only if the user asked for it

The doctor creates a folder `base`. The program, and each trial of it, gets a name. `base/shared` is the
same real folder for all of them. Where files are redirected, `base/shared/tmp` is the program's folder for
temporary files, so that native code can use them, too; a trial finds there the files that the program has
removed since the snapshot.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from unjam.system.children import reap
from unjam.system.isolation import landlock, redirect, refusals, renames, view
from unjam.system.isolation.mounts import CannotIsolate
from unjam.system.owned_fd import readable
from unjam.system.proc_files import read_text

VIEW, REFUSED, REDIRECTED, REAL = "view", "refused", "redirected", "real"
PROGRAM = "program"
_RECORD, _SCRATCH, _TEMPORARY, _REFUSALS, _FULL = "files.json", "scratch", "tmp", "refusals", "full"
# can be written to, but nothing can be created there; native code creates shared memory, which cannot be redirected
_DEVICES = ["/dev", "/proc", "/sys/fs/cgroup"]
_SHARED_MEMORY = "/dev/shm"
# how many of the user's files we open to check whether they are writable in a view
MOST_TRIED = 64
# seconds after which an isolation counts as impossible: a mounted file system may not answer
LONGEST_PROBE = 20


@dataclass
class ProgramFiles:
    """How the files of one program are isolated, and what the isolation does not cover."""

    base: str
    isolation: str
    reason: str = ""  # why a better isolation is not possible
    not_covered: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # writes of native code, by path

    @property
    def shared(self) -> str:
        """The folder that is not isolated: every process of the program sees the same one."""
        return f"{self.base}/{view.SHARED}"

    def description(self) -> str:
        """What the user should know about the isolation; "" if nothing that the program writes persists."""
        because = f" ({self.reason})" if self.reason else ""
        listed = ", ".join(self.not_covered[:8])
        if self.isolation == VIEW:
            parts = [f"read-only for the program, because too large to copy: {listed}"] if listed else []
            if full := self.full():
                parts.append(f"the program {full_text(full)}, so an error about a full disk may come from unjam")
            return "; ".join(parts)
        if self.isolation == REAL:
            return f"the program's file writes are not isolated{because}: they change your files, because you passed --watch"
        redirected = f"cannot isolate the program's file writes completely{because}: writes of Python code go to a scratch folder"
        if self.isolation == REFUSED:
            text = f"{redirected}, and the kernel refuses all others"
            named = ", ".join(self.refused[:8]) + (" …" if len(self.refused) > 8 else "")
            return f"{text}; refused: {named}" if named else text
        return f"{redirected}, but a native library can still change your files"

    @property
    def is_risky(self) -> bool:
        """Whether the program may change the user's files."""
        return self.isolation in (REDIRECTED, REAL)

    @classmethod
    def choose(cls, base: str, *, may_be_real: bool = False) -> ProgramFiles:
        """Find the best isolation by trying it in a child process."""
        os.makedirs(f"{base}/{view.SHARED}", 0o700, exist_ok=True)
        reason = _in_child(lambda: _try_view(base))
        shutil.rmtree(f"{base}/mounts", ignore_errors=True)
        if not reason:
            return cls(base, VIEW)
        if may_be_real:
            return cls(base, REAL, reason)
        if landlock.version() and not _in_child(lambda: landlock.refuse_writes_outside([base], _DEVICES)):
            return cls(base, REFUSED, reason)
        return cls(base, REDIRECTED, reason)

    def save(self) -> None:
        """Store this for the processes of the program."""
        with open(f"{self.shared}/{_RECORD}", "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def load(cls, shared: str) -> ProgramFiles:
        """Load what the doctor, or the program's first process, has stored."""
        with open(f"{shared}/{_RECORD}", encoding="utf-8") as file:
            return cls(**json.load(file))

    def environment(self) -> dict[str, str]:
        """Variables for the program."""
        if self.isolation == VIEW:
            return {redirect.VARIABLE: f"{redirect.IN_VIEW}\n{view.original(self.base)}"}
        if self.isolation == REAL:
            return {}
        temporary = f"{self.shared}/{_TEMPORARY}"
        os.makedirs(temporary, 0o700, exist_ok=True)
        scratch = f"{self.shared}/{_SCRATCH}/{PROGRAM}"
        return {redirect.VARIABLE: f"{scratch}\n{self.shared}", "TMPDIR": temporary, "PYTHONDONTWRITEBYTECODE": "1"}

    def enter(self, name: str = PROGRAM, copy: str = "", folder: str = "") -> None:
        """Isolate this process permanently. copy: a `snapshot` to start with."""
        if self.isolation == VIEW:
            self.not_covered = view.enter(self.base, name, copy, folder)
            renames.install(view.original(self.base))
            return
        if self.isolation in (REFUSED, REDIRECTED):
            scratch = f"{self.shared}/{_SCRATCH}/{name}"
            if copy:
                shutil.copytree(copy, scratch, symlinks=True)
                _link_missing(f"{copy}.{_TEMPORARY}", f"{self.shared}/{_TEMPORARY}")
            redirect.use(scratch, self.shared)
            if self.isolation == REFUSED and name == PROGRAM:  # trials inherit it
                with contextlib.suppress(OSError):  # then the refused paths are not recorded
                    refusals.send_to(f"{self.shared}/{_REFUSALS}")
                landlock.refuse_writes_outside([self.base, _SHARED_MEMORY], _DEVICES)

    def listen(self) -> refusals.Refusals | None:
        """In the doctor, before the program starts: record the writes that are refused, where the kernel refuses any."""
        if self.isolation != REFUSED:
            return None
        allowed = [self.base, _SHARED_MEMORY, *_DEVICES]
        return refusals.Refusals(f"{self.shared}/{_REFUSALS}", allowed, [_SHARED_MEMORY])

    def note_if_full(self, pid: int = 0) -> None:
        """Record it if the program's changes have used up the memory that they may use.

        pid: a process of the program; by default this one.
        """
        root = f"/proc/{pid}/root" if pid else ""
        if self.isolation == VIEW and (room := view.room_if_full(root + self.base, PROGRAM)):
            with contextlib.suppress(OSError), open(f"{self.shared}/{_FULL}", "w", encoding="ascii") as file:
                file.write(str(room))

    def full(self) -> int:
        """The bytes that the program's changes may use, if they have used them up; otherwise 0."""
        text = read_text(f"{self.shared}/{_FULL}")
        return int(text) if text.isdecimal() else 0

    def snapshot(self, name: str) -> str:
        """Copy the program's present changes; return "" if there is no room for the copy."""
        if self.isolation == VIEW:
            return view.snapshot(self.base, PROGRAM, name)
        if self.isolation in (REFUSED, REDIRECTED):
            copy = f"{self.shared}/{_SCRATCH}/{name}.copy"
            try:
                shutil.copytree(f"{self.shared}/{_SCRATCH}/{PROGRAM}", copy, symlinks=True)
                _link_missing(f"{self.shared}/{_TEMPORARY}", f"{copy}.{_TEMPORARY}")
            except (OSError, shutil.Error):
                shutil.rmtree(copy, ignore_errors=True)
                return ""
            return copy
        return ""


def full_text(room: int) -> str:
    """The message, without its subject, that a program wrote more than a view can hold."""
    return f"wrote more than {room >> 20} MB, the most that unjam can keep in memory"


def _link_missing(source: str, target: str) -> None:
    """Link the files that a folder lacks from another one. Links take no space, and keep files that are removed later."""
    for folder, _, names in os.walk(source):
        into = target + folder[len(source) :]
        os.makedirs(into, 0o700, exist_ok=True)
        for name in names:
            with contextlib.suppress(OSError):
                os.link(os.path.join(folder, name), os.path.join(into, name), follow_symlinks=False)


def _try_view(base: str) -> None:
    """Enter a view, and check that the files that this user may write are writable in it."""
    here = os.getcwd()
    writable = []
    for entry in sorted(os.scandir(here), key=lambda one: one.name)[:MOST_TRIED]:
        with contextlib.suppress(OSError):
            if entry.is_file(follow_symlinks=False) and os.access(entry.path, os.W_OK):
                writable.append(entry.path)
    makes = os.access(here, os.W_OK)
    view.enter(base, "probe")
    for path in writable:
        status = os.lstat(path)
        if status.st_size <= view.MOST_COPIED:  # the first write copies it
            os.close(os.open(path, os.O_WRONLY))
    if makes:
        with tempfile.TemporaryFile(dir=here):
            pass


def _in_child(action: Callable[[], object]) -> str:
    """Run an action in a fork; return why it failed, or ""."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        reason = ""
        try:
            os.close(read)
            action()
        except (CannotIsolate, OSError) as error:
            reason = str(error) or type(error).__name__
        except BaseException as error:  # noqa: BLE001 - the child must end here
            reason = f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(OSError):
                os.write(write, reason.encode("utf-8", "backslashreplace")[:4000])
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        if readable(read, LONGEST_PROBE):
            reason = pipe.read().decode("utf-8", "replace")
        else:
            reason = f"it takes longer than {LONGEST_PROBE} s"
            os.kill(pid, signal.SIGKILL)
    reap(pid, 1.0)
    return reason
