"""Failures, grouped: for the message of an error and for a table in the terminal."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unjam.evidence.incident import Incident

if TYPE_CHECKING:
    from rich.console import Console

MOST_CAUSES = 8
_SURROGATE = re.compile(r"(?<!\\)\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
MOST_SAMPLES = 8
MOST_KEPT = 1000


@dataclass(slots=True)
class Group:
    """Failures that have something in common."""

    name: str
    count: int = 0
    where: Counter[str] = field(default_factory=Counter)
    samples: dict[str, None] = field(default_factory=dict)
    workers: Counter[str] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    first: float = 0.0
    last: float = 0.0

    def add(self, incident: Incident, weight: int) -> None:
        """Count one more, or as many as it has samples."""
        self.count += weight
        if incident.location:
            self.where[incident.location] += 1
        if len(self.samples) < MOST_KEPT:
            self.samples.update(dict.fromkeys(_samples(incident)))
        self.workers["this process" if incident.worker is None else str(incident.worker)] += 1
        self.decisions[incident.decision or "none"] += 1
        self.first = min(self.first or incident.at, incident.at)
        self.last = max(self.last, incident.at)

    @property
    def shown_samples(self) -> str:
        """The first few."""
        return ", ".join(list(self.samples)[:MOST_SAMPLES]) + (" …" if len(self.samples) > MOST_SAMPLES else "")


def by(incidents: Iterable[Incident], what: str) -> list[Group]:
    """Groups, the largest first; `what` is "cause", "sample" or "worker"."""
    groups: dict[str, Group] = {}
    for incident in incidents:
        for name in _names(incident, what):
            weight = 1 if what == "sample" else len(incident.samples) or 1
            groups.setdefault(name, Group(name)).add(incident, weight)
    return sorted(groups.values(), key=lambda group: -group.count)


def summary(incidents: Iterable[Incident]) -> list[str]:
    """The causes, one line each."""
    groups = by(incidents, "cause")
    lines = []
    for group in groups[:MOST_CAUSES]:
        place = f", at {short(group.where.most_common(1)[0][0])}" if group.where else ""
        lines.append(f"  {group.count} x {group.name}{place}; samples {group.shown_samples}")
    if len(groups) > MOST_CAUSES:
        lines.append(f"  and {len(groups) - MOST_CAUSES} causes more")
    return lines


def read(path: str) -> tuple[list[Incident], int]:
    """The incidents in an error log, and how many lines were none. The last line may be half written."""
    incidents, strange = [], 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                incidents.append(Incident.from_json(_printable(line)))
            except (ValueError, TypeError):
                strange += 1
    return incidents, strange


def as_json(incidents: list[Incident]) -> dict[str, Any]:
    """The same groups for a program."""
    return {
        "incidents": len(incidents),
        **{
            f"by_{what}": [
                {
                    "name": group.name,
                    "count": group.count,
                    "where": dict(group.where),
                    "samples": list(group.samples),
                    "workers": dict(group.workers),
                    "decisions": dict(group.decisions),
                }
                for group in by(incidents, what)
            ]
            for what in ("cause", "sample", "worker")
        },
    }


def dumps(incidents: list[Incident]) -> str:
    """`as_json` as text."""
    return json.dumps(as_json(incidents), indent=2, ensure_ascii=False)


def short(location: str) -> str:
    """A path as seen from here, where that is shorter."""
    file, _, line = location.rpartition(":")
    try:
        near = os.path.relpath(file)
    except ValueError:
        return location
    return f"{near if len(near) < len(file) else file}:{line}"


def _printable(line: str) -> str:
    """A file name that is no UTF-8 travels as lone surrogates, which no terminal takes."""
    return _SURROGATE.sub(lambda found: "\\\\" + found[0][1:], line)


def _names(incident: Incident, what: str) -> list[str]:
    if what == "cause":
        return [incident.cause]
    if what == "worker":
        return ["this process" if incident.worker is None else f"worker {incident.worker}"]
    return _samples(incident) or ["no sample"]


def _samples(incident: Incident) -> list[str]:
    if incident.sample is not None:
        return [str(incident.sample)]
    if incident.yielded is not None:
        return [f"number {incident.yielded} of worker {incident.worker}"]
    return [str(sample) for sample in incident.samples]


def show(incidents: list[Incident], strange: int, kinds: list[str], console: Console) -> None:
    """The tables, on a terminal."""
    from rich.table import Table  # noqa: PLC0415 - the loader's own summary does without

    if not incidents:
        console.print("no failures")
    for kind in kinds if incidents else ():
        table = Table(title=f"by {kind}", title_justify="left", box=None, pad_edge=False, expand=False)
        table.add_column("failures", justify="right", no_wrap=True)
        table.add_column(kind, overflow="fold", ratio=3)
        if kind == "cause":
            table.add_column("line", overflow="fold", ratio=2)
        if kind != "sample":
            table.add_column("samples", overflow="fold", ratio=2)
        table.add_column("done", no_wrap=True)
        table.add_column("last", no_wrap=True)
        for group in by(incidents, kind)[:20]:
            row = [str(group.count), group.name]
            if kind == "cause":
                row.append(short(group.where.most_common(1)[0][0]) if group.where else "")
            if kind != "sample":
                row.append(group.shown_samples)
            row.append(", ".join(f"{decision} {count}" for decision, count in group.decisions.most_common()))
            row.append(time.strftime("%m-%d %H:%M:%S", time.localtime(group.last)))
            table.add_row(*row)
        console.print(table)
        console.print()
    if strange:
        console.print(f"{strange} lines could not be read")
