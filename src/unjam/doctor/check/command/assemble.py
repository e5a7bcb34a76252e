"""Builds a Trial from the event logs of its processes and from what was observed from outside."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

from unjam.doctor.check.command.trial_watch import TrialObservation
from unjam.doctor.check.event_log import read
from unjam.doctor.check.trial.line_sampler import hottest
from unjam.doctor.facts.recording import decode
from unjam.doctor.facts.trial import (
    Batch,
    DatasetChanges,
    Plan,
    ProcessEnd,
    Raised,
    Sample,
    StuckProcess,
    SyncObject,
    Trial,
    UnsendablePart,
    WorkerMemory,
)
from unjam.system import stacks
from unjam.system.exits import decode as exit_of
from unjam.system.proc_files import read_end, read_text
from unjam.system.stacks import Frame

MOST_OUTPUT = 6000
_FACTS: dict[str, Any] = {kind.__name__: kind for kind in (Batch, DatasetChanges, WorkerMemory, Raised, UnsendablePart)}


def assemble(plan: Plan, folder: str, seen: TrialObservation) -> Trial:
    """The Trial that the files in a folder describe."""
    builder = _TrialBuilder(plan, folder, seen)
    for pid, events in read(folder).items():
        builder.add_events(pid, events)
    return builder.trial()


class _TrialBuilder:
    def __init__(self, plan: Plan, folder: str, seen: TrialObservation) -> None:
        self._plan, self._folder, self._seen = plan, folder, seen
        self._samples: list[Sample] = []
        self._bad: list[Raised] = []
        self._batches: list[Batch] = []
        self._memory: list[WorkerMemory] = []
        self._states: dict[tuple[int, int, str], str] = {}
        self._epochs: list[float] = []
        self._starts: list[float] = []
        self._more: dict[str, Any] = {}  # further fields of the Trial
        self._again: dict[str, str] = {}
        self._again_seconds: dict[str, float] = {}
        self._collate_drew: set[str] = set()
        self._dropped: list[int] = []
        self._workers: dict[int, int] = {}
        self._open: dict[int, tuple[str, str]] = {}  # pid -> its last (stage, sample)
        self._completed: set[int] = set()
        self._last: Raised | None = None
        self._end = ""
        self._note = ""
        self._codes: dict[int, int] = {}

    def add_events(self, pid: int, events: list[dict[str, Any]]) -> None:  # noqa: PLR0915 - a match over every event
        """Add the events of one process, in order."""
        worker, index = -1, ""
        self._open[pid] = ("start", "")
        changed: set[str] = set()
        for event in events:
            match event["k"]:
                case "hello":
                    worker = self._workers[pid] = event["worker"]
                case "made" | "init" | "collate" | "ready":
                    self._open[pid] = (event["k"], "")
                case "start":
                    index = event["i"]
                    self._open[pid] = ("sample", index)
                case "done":
                    self._open[pid] = ("batch", index)
                    self._samples.append(self._sample(event, worker))
                case "changed":
                    changed |= set(event["i"])
                    self._more["alias"] = event["alias"]
                case "twice":
                    self._again[event["i"]] = event["d"]
                    self._again_seconds[event["i"]] = event["s"]
                case "collated":
                    self._open[pid] = ("sent", index)
                    self._collate_drew |= set(event.get("drew", ()))
                case "fact":
                    self._add_fact(event, pid, index)
                case "states":
                    for name, state in event["states"].items():
                        self._states[worker, event["epoch"], name] = state
                case "epoch":
                    self._open[pid] = ("start", "")
                case "started":
                    self._starts.append(event["s"])
                    self._open[pid] = ("wait", "")
                case "over":
                    if "batches" in event:
                        self._epochs.append(event["s"])
                case "cut" | "finished":
                    self._end = "cut" if self._end == "cut" else event["k"]
                case "completed":
                    self._completed.add(pid)
                case "codes":
                    self._codes = {int(worker): code for worker, code in event["codes"].items()}
                case "refused":
                    self._end, self._note = "refused", event["note"]
                case "overwritten":
                    self._more["overwritten"] = event["alias"]
                case "moved":
                    self._more["moved"] = tuple((fd, file) for fd, file in event["files"])
                case "dropped":
                    self._dropped.append(event["count"])
        if changed:
            self._samples = [
                replace(s, changed=True) if s.worker == worker and s.index in changed else s for s in self._samples
            ]

    def _sample(self, event: dict[str, Any], worker: int) -> Sample:
        return Sample(
            event["i"], worker, event["e"], event["s"], event.get("d", ""), event.get("l", ""), none=event.get("none", False),
            drew=tuple(event.get("drew", ())), at=event["t"], shape=event.get("shape", ""), swallowed=event.get("swallowed", ""),
            unseeded=event.get("n", False), cpu_seconds=event.get("u", 0.0), file=event.get("f", ""),
        )  # fmt: skip

    def _add_fact(self, event: dict[str, Any], pid: int, index: str) -> None:
        match decode(event["fact"], _FACTS[event["type"]]):
            case Raised(stage="consumer") as raised:
                self._last = raised
            case Raised() as raised:
                self._bad.append(raised)
                self._open[pid] = ("sent", index)
            case Batch() as batch:
                self._batches.append(batch)
            case WorkerMemory() as memory:
                self._memory.append(memory)
            case UnsendablePart() as unsendable:
                self._more.setdefault("unsendable", unsendable)
            case DatasetChanges() as changes:
                self._more["dataset_changes"] = changes

    def trial(self) -> Trial:
        """The result, after all events were added."""
        seen = self._seen
        ends = self._ends()
        stuck = tuple(map(self._stuck, seen.reports))
        outcome = self._end
        if outcome != "refused":
            if self._last is not None:
                outcome = "died" if ends and any(e.worker >= 0 for e in ends) else "raised"
            if seen.outcome in ("hung", "memory") and not any(self._workers.get(pid) == -1 for pid in self._completed):
                outcome = seen.outcome
            elif seen.outcome == "late" and not self._last:
                outcome = "cut" if self._batches or self._samples else "hung"
            elif not outcome:
                outcome = "died"
        return Trial(
            self._plan, outcome, seen.seconds, self._last, tuple(self._bad), tuple(self._samples), tuple(self._batches),
            tuple(self._epochs), tuple(self._starts), stuck, ends, tuple(self._memory), self._states,
            second_digests=self._again, second_seconds=self._again_seconds, collate_drew=frozenset(self._collate_drew),
            dropped=tuple(self._dropped), waits=dict(seen.waits),
            waited_on={target: len(pids) for target, pids in seen.waited_on.items()},
            peak={self._workers.get(pid, -2): size for pid, size in seen.peak.items()},
            threads=seen.native_threads, oom_kills=seen.killed,
            output=read_end(f"{self._folder}/output", MOST_OUTPUT), note=self._note, lines=hottest(self._folder),
            lock_waits=(seen.waits["lock"] + seen.waits["file lock"]) / max(1, seen.waits.total()), **self._more,
        )  # fmt: skip

    def _ends(self) -> tuple[ProcessEnd, ...]:
        """The trial's main process if it ended before the trial, and workers with a bad exit code."""
        found = []
        code = self._seen.code
        main = next((pid for pid, worker in self._workers.items() if worker == -1), 0)
        if not self._seen.outcome and code is not None and main not in self._completed and main:
            found.append(self._end_of(main, code))
        found += [self._end_of(pid, code) for pid, code in self._codes.items() if pid in self._workers]
        return tuple(found)

    def _end_of(self, pid: int, code: int) -> ProcessEnd:
        stack = stacks.main_stack(read_text(f"{self._folder}/{pid}.stack"))
        decoded = exit_of(code)
        stage, index = self._open.get(pid, ("", ""))
        killed = decoded.signal == "SIGKILL" and self._seen.killed > 0
        return ProcessEnd(
            pid, self._workers.get(pid, -1), code, decoded.signal or "", index if stage == "sample" else "",
            _inside(stack.frames) if stack else (), killed,
        )  # fmt: skip

    def _stuck(self, report: dict[str, Any]) -> StuckProcess:
        pid, own = report["pid"], report["own"]
        stage, index = self._open.get(pid, ("", ""))
        frames = _inside(tuple(Frame(*frame) for frame in own.get("frames", ())) or tuple(report["frames"]))
        syncs = decode(own.get("syncs", []), tuple[SyncObject, ...])
        return StuckProcess(
            pid, self._workers.get(pid, -1), index if stage == "sample" else "", stage, report["waits"], report["words"], frames,
            report["native"], syncs, tuple(own.get("threads", ())), tuple(report["libraries"]), self._seen.seconds, report["busy"],
        )  # fmt: skip


_CHECK = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DOCTORS = (os.path.join(_CHECK, "trial", ""), os.path.join(_CHECK, "target", ""))


def _inside(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The program's own frames: those inside of the doctor's."""
    return tuple(itertools.takewhile(lambda frame: not frame.file.startswith(_DOCTORS), frames))
