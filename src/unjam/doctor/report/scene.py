"""A running program on a terminal: its processes, what each does, and the conclusion."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table

from unjam.doctor.facts.scene import Process, Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.queries.scenes import waited
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.report.terminal import escape
from unjam.doctor.report.text import show_finding
from unjam.units import count, duration, near, size

_STAGES = {
    "start": "starts", "init": "in worker_init_fn", "made": "in iter(dataset)", "idle": "idle: waiting for work",
    "collate": "in the collate function", "send": "sends a batch", "end": "ends", "task": "works",
    "waits": "waits for a batch", "starting": "starts its workers", "stopping": "stops its workers",
}  # fmt: skip
_MOST_ROWS = 32
_MANY = 8


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print the processes, the findings and the conclusion."""
    scene = diagnosis.scene
    assert scene is not None
    console.print(f"[dim]{escape(diagnosis.target)}[/dim]")
    console.print(_table(scene))
    console.print(f"[dim]{escape(_limits(scene))}[/dim]")
    console.print()
    if scene.refused:
        console.print(f"[yellow]stacks cannot be read: {escape(scene.refused)}[/yellow]")
        if scene.remedy:
            console.print(f"[yellow]to allow it: {escape(scene.remedy)}[/yellow]")
        console.print()
    for finding in diagnosis.findings:
        show_finding(finding, console)
    if diagnosis.findings:
        console.print(f"[dim]{_took(diagnosis)}[/dim]")
    else:
        console.print(f"[bold]{escape(verdict(diagnosis))}[/bold]")


def _took(diagnosis: Diagnosis) -> str:
    return f"{duration(diagnosis.seconds)}; nothing was stopped, signalled or changed"


def verdict(diagnosis: Diagnosis) -> str:
    """Return the conclusion as one line."""
    scene = diagnosis.scene
    assert scene is not None
    took = f"({_took(diagnosis)})"
    shown = diagnosis.serious or diagnosis.findings
    if shown:
        return f"{shown[0].title} {took}"
    main = scene.mains[0] if scene.mains else None
    if main is None or not main.threads:
        return f"no Python process to examine {took}"
    place = main.thread.place
    where = f" at {quoted(place)}" if place else ""
    if scene.refused:
        return f"nothing appears to be stuck, as far as /proc shows {took}"
    if main.thread.computes:
        gpu = "; a wait for a GPU looks the same from outside" if main.gpu else ""
        return f"not frozen: the main process computes{where}{gpu} {took}"
    if main.thread.waiting.kind == "sleep":
        left = f", {duration(main.thread.waiting.limit)} left" if main.thread.waiting.limit is not None else ""
        return f"not frozen: the main process sleeps{where}{left} {took}"
    return f"apparently not frozen: the main process {doing_words(main)}{where} {took}"


def _table(scene: Scene) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("pid", "who", "does", "at", "for", "cpu", "memory"):
        table.add_column(name, overflow="fold", justify="right" if name in ("pid", "for", "cpu", "memory") else "left")
    shown, hidden = _rows(scene)
    for one in shown[:_MOST_ROWS]:
        place = one.thread.place if one.threads else None
        rested = waited(one.thread, scene) if one.threads and not one.thread.computes and not one.ended else None
        table.add_row(
            str(one.pid),
            escape(_who(one)),
            escape(doing_words(one)),
            escape(f"{near(place.file)}:{place.line}" if place else ""),
            duration(rested) if rested is not None and rested >= 1 else "",
            f"{one.busy:.0%}",
            size(one.rss),
        )
    if hidden:
        table.add_row("", f"  {hidden} more", "idle: waiting for work", "", "", "", "")
    if len(shown) > _MOST_ROWS:
        table.add_row("", f"  {len(shown) - _MOST_ROWS} more", "", "", "", "", "")
    return table


def _rows(scene: Scene) -> tuple[list[Process], int]:
    """Return the processes to show, and how many idle workers are hidden because there are many."""
    many = len(scene.workers()) > _MANY
    found: list[Process] = []
    hidden = 0
    for main in scene.mains:
        found.append(main)
        for one in scene.processes:
            if one.main != main.pid or one is main or one.role == "helper":
                continue
            if many and one.role == "worker" and one.activity.stage == "idle" and not one.ended:
                hidden += 1
            else:
                found.append(one)
    return found + [
        one for one in scene.processes if one not in found and one.role in ("main", "worker") and not hidden
    ], hidden


def _limits(scene: Scene) -> str:
    """Return the limits of the machine, and what is left of them."""
    words = [f"{count(scene.cpus, 'processor')}"]
    if scene.memory_left is not None:
        words.append(f"{size(scene.memory_left)} of memory available")
    if scene.shm[1]:
        words.append(f"/dev/shm {size(scene.shm[0])} free of {size(scene.shm[1])}")
    most = max(scene.processes, key=lambda one: one.open_files / max(one.most_files, 1), default=None)
    if most is not None and most.most_files:
        words.append(f"descriptors {most.open_files} of {most.most_files:,}")
    if scene.kills:
        words.append(f"processes killed by the OOM killer: {scene.kills}")
    return "; ".join(words)


def _who(one: Process) -> str:
    if one.role == "worker":
        return f"  worker {one.activity.number}" if one.activity.number >= 0 else "  worker"
    if one.role == "main":
        return f"rank {one.rank}" if one.rank else "main"
    return f"    {one.command[:40]}"


def doing_words(one: Process) -> str:
    """Return what a process does, in a few words."""
    if one.ended:
        return "dead"
    if not one.threads:
        return ""
    wait = one.thread.waiting
    if wait.kind == "suspended":
        return "suspended"
    sample = f"in sample {one.activity.index}" if one.activity.index else "in the dataset"
    stage = sample if one.activity.stage == "sample" else _STAGES.get(one.activity.stage, "")
    if one.activity.stage in ("idle", "waits"):
        return stage
    state = "computes" if one.thread.computes else wait.phrase
    return f"{stage}, {state}" if stage else state


def as_dict(scene: Scene) -> dict[str, Any]:
    """Return all facts, for `--dump`."""
    return dataclasses.asdict(scene)
