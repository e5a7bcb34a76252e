"""Runs a program so that the user's files stay as they are, in the best way that this system allows.

    view        every write goes to a layer in memory           NOTE [ The view ]
    refused     Python's writes go to a scratch folder, and     NOTE [ Redirected files ]
                the kernel refuses all others (Landlock)
    redirected  Python's writes go to a scratch folder;
                nothing stops native code
    real        no protection: only if the user asked for it

The doctor makes a folder `base`. The program, and each trial of it, gets a name. `base/shared` is the
real folder for all of them. Where files are redirected, `base/shared/tmp` is the program's folder for
temporary files, so that native code can use them too; a trial finds there again what the program has
removed since the snapshot.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from unjam.system.children import reap
from unjam.system.isolation import landlock, redirect, refusals, renames, view
from unjam.system.isolation.mounts import CannotIsolate

VIEW, REFUSED, REDIRECTED, REAL = "view", "refused", "redirected", "real"
PROGRAM = "program"
_RECORD, _SCRATCH, _TEMPORARY, _REFUSALS, _FULL = "files.json", "scratch", "tmp", "refusals", "full"
# written to, but nothing can be made there; shared memory is made by native code, and cannot be redirected
_DEVICES = ["/dev", "/proc", "/sys/fs/cgroup"]
_SHARED_MEMORY = "/dev/shm"
# so many of the user's files are opened to see whether a view lets them be written
MOST_TRIED = 64
# seconds after which a way counts as impossible: a mounted file system may not answer
LONGEST_PROBE = 20


@dataclass
class ProgramFiles:
    """How the files of one program are protected, and what that does not cover."""

    base: str
    way: str
    reason: str = ""  # why it is not the better way
    not_covered: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # writes of native code, by path

    @property
    def shared(self) -> str:
        """The folder that is the real one for every process of the program."""
        return f"{self.base}/{view.SHARED}"

    def description(self) -> str:
        """What the user should know about the protection; "" if nothing that the program writes persists."""
        because = f" ({self.reason})" if self.reason else ""
        listed = ", ".join(self.not_covered[:8])
        if self.way == VIEW:
            said = [f"read-only for the program, because too large to copy: {listed}"] if listed else []
            if full := self.full():
                said.append(f"the program {full_words(full)}, so an error about a full disk may come from unjam")
            return "; ".join(said)
        if self.way == REAL:
            return f"cannot isolate the program's file writes{because}: they change your files, as --watch allows"
        redirected = f"cannot isolate the program's file writes{because}: Python's own go to a scratch folder"
        if self.way == REFUSED:
            told = f"{redirected}, and the kernel refuses all others"
            named = ", ".join(self.refused[:8]) + (" …" if len(self.refused) > 8 else "")
            return f"{told}; refused: {named}" if named else told
        return f"{redirected}, but a native library can still change your files"

    @property
    def is_risky(self) -> bool:
        """Whether the program may change the user's files."""
        return self.way in (REDIRECTED, REAL)

    @classmethod
    def choose(cls, base: str, *, may_be_real: bool = False) -> ProgramFiles:
        """Find the best way by trying it in a child process."""
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
        """Write this down for the processes of the program."""
        with open(f"{self.shared}/{_RECORD}", "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def load(cls, shared: str) -> ProgramFiles:
        """What the doctor, or the program's first process, has written down."""
        with open(f"{shared}/{_RECORD}", encoding="utf-8") as file:
            return cls(**json.load(file))

    def environment(self) -> dict[str, str]:
        """Variables for the program."""
        if self.way == VIEW:
            return {redirect.VARIABLE: f"{redirect.IN_VIEW}\n{view.original(self.base)}"}
        if self.way == REAL:
            return {}
        temporary = f"{self.shared}/{_TEMPORARY}"
        os.makedirs(temporary, 0o700, exist_ok=True)
        scratch = f"{self.shared}/{_SCRATCH}/{PROGRAM}"
        return {redirect.VARIABLE: f"{scratch}\n{self.shared}", "TMPDIR": temporary, "PYTHONDONTWRITEBYTECODE": "1"}

    def enter(self, name: str = PROGRAM, copy: str = "", folder: str = "") -> None:
        """Protect the files from this process, for good. copy: a `snapshot` to begin with."""
        if self.way == VIEW:
            self.not_covered = view.enter(self.base, name, copy, folder)
            renames.install(view.original(self.base))
            return
        if self.way in (REFUSED, REDIRECTED):
            scratch = f"{self.shared}/{_SCRATCH}/{name}"
            if copy:
                shutil.copytree(copy, scratch, symlinks=True)
                _link_missing(f"{copy}.{_TEMPORARY}", f"{self.shared}/{_TEMPORARY}")
            redirect.use(scratch, self.shared)
            if self.way == REFUSED:
                self._refuse_writes(name)

    def _refuse_writes(self, name: str) -> None:
        if name == PROGRAM:  # trials inherit it
            with contextlib.suppress(OSError):  # then nobody names what is refused
                refusals.send_to(f"{self.shared}/{_REFUSALS}")
            landlock.refuse_writes_outside([self.base, _SHARED_MEMORY], _DEVICES)

    def listen(self) -> refusals.Refusals | None:
        """In the doctor, before the program starts: name the writes that are refused, where any are."""
        if self.way != REFUSED:
            return None
        allowed = [self.base, _SHARED_MEMORY, *_DEVICES]
        return refusals.Refusals(f"{self.shared}/{_REFUSALS}", allowed, [_SHARED_MEMORY])

    def note_if_full(self, pid: int = 0) -> None:
        """Write down that the program's changes have used up the memory that they may use.

        pid: of a process of the program; without it, this process is one.
        """
        root = f"/proc/{pid}/root" if pid else ""
        if self.way == VIEW and (room := view.room_if_full(root + self.base, PROGRAM)):
            with contextlib.suppress(OSError), open(f"{self.shared}/{_FULL}", "w", encoding="ascii") as file:
                file.write(str(room))

    def full(self) -> int:
        """How many bytes the program's changes may use, if they have used them up; 0 if not."""
        try:
            with open(f"{self.shared}/{_FULL}", encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def snapshot(self, name: str) -> str:
        """Copy the program's changes as they are now; "" if there is no room for the copy."""
        if self.way == VIEW:
            return view.snapshot(self.base, PROGRAM, name)
        if self.way in (REFUSED, REDIRECTED):
            copy = f"{self.shared}/{_SCRATCH}/{name}.copy"
            try:
                shutil.copytree(f"{self.shared}/{_SCRATCH}/{PROGRAM}", copy, symlinks=True)
                _link_missing(f"{self.shared}/{_TEMPORARY}", f"{copy}.{_TEMPORARY}")
            except (OSError, shutil.Error):
                shutil.rmtree(copy, ignore_errors=True)
                return ""
            return copy
        return ""


def full_words(room: int) -> str:
    """That somebody wrote more than a view holds, without the subject."""
    return f"wrote more than the {room >> 20} MB that unjam keeps of its changes in memory"


def _link_missing(source: str, target: str) -> None:
    """Give a folder those files of another one that it does not have. They cost no space, and outlast their removal."""
    for folder, _, names in os.walk(source):
        into = target + folder[len(source) :]
        os.makedirs(into, 0o700, exist_ok=True)
        for name in names:
            with contextlib.suppress(OSError):
                os.link(os.path.join(folder, name), os.path.join(into, name), follow_symlinks=False)


def _try_view(base: str) -> None:
    """Enter a view, and see whether files that this user may write can be written in it."""
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
    """Run an action in a fork; why it failed, or nothing."""
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
    poller = select.poll()
    poller.register(read, select.POLLIN)
    with open(read, "rb") as pipe:
        if poller.poll(LONGEST_PROBE * 1000):
            reason = pipe.read().decode("utf-8", "replace")
        else:
            reason = f"it takes longer than {LONGEST_PROBE} s"
            os.kill(pid, signal.SIGKILL)
    reap(pid, 1.0)
    return reason
