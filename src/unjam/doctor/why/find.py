"""`unjam why`: finds a running program, observes it, and lets the rules explain why it is stuck."""

from __future__ import annotations

import os
import sys
import time

from unjam.doctor.judge import live_findings
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.why.families import Family, families, families_of
from unjam.doctor.why.observe import observe
from unjam.system.masking import without_secrets
from unjam.system.process_table import is_kernel_thread


class CannotLook(Exception):
    """There is no program to observe; the message says why."""


def find(pid: int | None) -> list[Family]:
    """Return the program of this process; without a pid, all that look like a training."""
    if not sys.platform.startswith("linux"):
        raise CannotLook("`unjam why` needs /proc, which only Linux has; use `py-spy dump --pid PID` here")
    if pid is None:
        return families()
    if is_kernel_thread(pid):
        raise CannotLook(f"process {pid} is a kernel thread, not a program")
    if pid == os.getpid():
        raise CannotLook(f"process {pid} is unjam itself")
    found = families_of(pid)
    if not found:
        raise CannotLook(f"there is no process {pid}")
    if found[0].root.state in ("Z", "X"):
        raise CannotLook(
            f"process {pid} has ended; its parent process {found[0].root.parent} has not collected its exit code yet"
        )
    return found


def why(family: Family, seconds: float = 0.0) -> Diagnosis:
    """Observe a program and return what blocks it."""
    began = time.monotonic()
    scene = observe(family, seconds)
    diagnosis = Diagnosis(
        f"pid {family.mains[0].pid}: {family.mains[0].line}",
        live_findings(scene),
        [],
        [],
        time.monotonic() - began,
        environment={"refused": scene.refused, "remedy": scene.remedy} if scene.refused else {},
        scene=scene,
    )
    return without_secrets(diagnosis)
