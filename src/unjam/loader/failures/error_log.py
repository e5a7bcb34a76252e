"""Groups failures, for an error message and for `unjam errors`."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from unjam.loader.failures.incident import Incident
from unjam.system.masking import without_secrets
from unjam.system.printable import json_text, printable_line
from unjam.units import count, near

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = 1
MAX_CAUSES = 8
MAX_SAMPLES = 8
MAX_KEPT = 1000
MAX_GROUPS = 10_000
MAX_PLACES = 50
MAX_LINE = 4 << 20
KINDS = ("cause", "sample", "worker")


@dataclass(slots=True)
class Group:
    """Failures that have something in common."""

    name: str
    count: int = 0
    where: Counter[str] = field(default_factory=Counter)
    samples: dict[str, None] = field(default_factory=dict)
    workers: Counter[str] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)
    last: float = 0.0

    def add(self, incident: Incident, location: str, samples: list[str], weight: int) -> None:
        """Add an incident, counted `weight` times."""
        self.count += weight
        if location and (len(self.where) < MAX_PLACES or location in self.where):
            self.where[location] += 1
        self.samples.update(dict.fromkeys(samples[: MAX_KEPT - len(self.samples)]))
        worker = "this process" if incident.worker is None else str(incident.worker)
        self.workers[worker if len(self.workers) < MAX_KEPT or worker in self.workers else "others"] += 1
        decision = incident.decision[:40] or "none"
        self.decisions[decision if len(self.decisions) < 8 or decision in self.decisions else "others"] += 1
        self.last = max(self.last, incident.at)

    @property
    def shown_samples(self) -> str:
        """The first few samples."""
        return ", ".join(list(self.samples)[:MAX_SAMPLES]) + (" …" if len(self.samples) > MAX_SAMPLES else "")


class Groups:
    """Counts incidents one at a time; memory is bounded by the number of groups."""

    def __init__(self, incidents: Iterable[Incident] = ()) -> None:
        self.incidents = 0
        self.unreadable = 0  # lines that are not incidents
        self.ungrouped = 0  # incidents in no group, because there are too many groups
        self._groups: dict[str, dict[str, Group]] = {what: {} for what in KINDS}
        for incident in incidents:
            self.add(incident)

    def add(self, incident: Incident) -> None:
        """Count one incident."""
        self.incidents += 1
        location, samples = incident.location[:500], _samples(incident)
        for what, groups in self._groups.items():
            for name in _names(incident, what, samples):
                group = groups.get(name)
                if group is None:
                    if len(groups) >= MAX_GROUPS:
                        self.ungrouped += 1
                        continue
                    group = groups[name] = Group(name)
                if what == "sample":
                    group.add(incident, location, [name], 1)
                else:
                    group.add(incident, location, samples, len(incident.samples) or 1)

    def by(self, what: str) -> list[Group]:
        """Return the groups, largest first; `what` is "cause", "sample" or "worker"."""
        return sorted(self._groups[what].values(), key=lambda group: -group.count)


def summary(incidents: Iterable[Incident]) -> list[str]:
    """Return the causes, one line each."""
    groups = Groups(incidents).by("cause")
    lines = []
    for group in groups[:MAX_CAUSES]:
        place = f", at {short_location(group.where.most_common(1)[0][0])}" if group.where else ""
        lines.append(f"  {group.count} x {group.name}{place}; samples {group.shown_samples}")
    if len(groups) > MAX_CAUSES:
        lines.append(f"  and {len(groups) - MAX_CAUSES} more causes")
    return lines


def read(path: str) -> Groups:
    """Read an error log. Any line may be invalid, e.g. the last one half written."""
    found = Groups()
    for incident in incidents(path):
        if incident is None:
            found.unreadable += 1
        else:
            found.add(without_secrets(incident))
    return found


def incidents(path: str) -> Iterator[Incident | None]:
    """Yield the incident of each line of an error log; None for a line that is not an incident."""
    if stat.S_ISFIFO(os.stat(path).st_mode) and not os.path.realpath(path).startswith("/proc/"):
        raise OSError(errno.EINVAL, "it is a pipe", path)  # opening it would wait for a writer
    with open(path, "rb") as file:
        if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is a device", path)
        for line in _lines(file):
            try:
                yield Incident.from_json(line.decode("utf-8", "replace")) if line is not None else None
            except ValueError:
                yield None


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the non-empty lines; None for a line that is too long."""
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield None
        elif line.strip():
            yield line


def dumps(found: Groups, version: str) -> str:
    """Return the groups as JSON text."""
    data = {
        "schema": SCHEMA,
        "unjam": version,
        "incidents": found.incidents,
        "unreadable": found.unreadable,
        "ungrouped": found.ungrouped,
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
                for group in found.by(what)
            ]
            for what in KINDS
        },
    }
    return json_text(data, indent=2)


def short_location(location: str) -> str:
    """Return the location, with a relative path if the file is in the current folder."""
    file, _, line = location.rpartition(":")
    return f"{near(file)}:{line}" if file else location


def _names(incident: Incident, what: str, samples: list[str]) -> list[str]:
    if what == "cause":
        return [incident.cause]
    if what == "worker":
        return ["this process" if incident.worker is None else f"worker {incident.worker}"]
    return samples or ["no sample"]


def _samples(incident: Incident) -> list[str]:
    if incident.sample is not None:
        return [str(incident.sample)]
    if incident.yielded is not None:
        return [f"number {incident.yielded} of worker {incident.worker}"]
    return [str(sample) for sample in incident.samples]


def show(found: Groups, kinds: Iterable[str], console: Console) -> None:
    """Print the tables to a terminal."""
    from rich.table import Table  # noqa: PLC0415 - the loader's summary does not need rich

    if not found.incidents:
        console.print("no failures")
    for kind in kinds if found.incidents else ():
        table = Table(title=f"by {kind}", title_justify="left", box=None, pad_edge=False, expand=False)
        table.add_column("failures", justify="right", no_wrap=True)
        table.add_column(kind, overflow="fold", ratio=3)
        if kind == "cause":
            table.add_column("line", overflow="fold", ratio=2)
        if kind != "sample":
            table.add_column("samples", overflow="fold", ratio=2)
        table.add_column("decision", no_wrap=True)
        table.add_column("last", no_wrap=True)
        for group in found.by(kind)[:20]:
            row = [str(group.count), printable_line(group.name)]
            if kind == "cause":
                row.append(printable_line(short_location(group.where.most_common(1)[0][0])) if group.where else "")
            if kind != "sample":
                row.append(printable_line(group.shown_samples))
            decisions = ", ".join(f"{decision} {times}" for decision, times in group.decisions.most_common(4))
            row.append(printable_line(decisions))
            row.append(time.strftime("%m-%d %H:%M:%S", time.localtime(group.last)))
            table.add_row(*row)
        console.print(table)
        console.print()
    if found.unreadable:
        console.print(f"{count(found.unreadable, 'line')} could not be read")
    if found.ungrouped:
        missing = count(found.ungrouped, "entry is", "entries are")
        console.print(f"{missing} not in any group: there are more than {MAX_GROUPS:,} groups")
