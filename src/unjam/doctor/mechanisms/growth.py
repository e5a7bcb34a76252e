"""Growth: a process uses more memory or descriptors with every batch, and which container keeps them."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from unjam.doctor.explanation import Explanation, Knowledge
from unjam.doctor.facts.program_facts import ResourceUsage, WatchedLoader
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.source_places import filled_at
from unjam.doctor.proof import AGREES, SUGGESTED
from unjam.doctor.queries import failures
from unjam.units import size

# the fewest measurements to compare, after a first quarter in which caches fill; and for a process that ran out of descriptors
FEWEST, FEWEST_LEFT = 8, 2
LEAST = {"memory": 100_000_000, "descriptors": 60}
GRAPH, SHARED = 1, 2  # as in ResourceUsage.containers
_STEADY = 0.8  # the share of the steps that must be increases


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingUse(Explanation):
    """what: "memory" or "open descriptors". where: which process. graph: what is kept includes the autograd graph of a training step."""

    what: str
    where: str
    kept: str
    graph: bool
    ran_out: bool
    first: str
    last: str


def explain(known: Knowledge) -> Iterator[Explanation]:
    """Find a process of a loader whose memory or descriptors keep growing."""
    for loader in known.watched.loaders:
        main = [one for epoch in loader.epochs for one in epoch.usage if one.worker < 0]
        for name, least in LEAST.items():
            ran_out = name == "descriptors" and _ran_out(known)
            if _grows([getattr(one, name) for one in main], least, FEWEST_LEFT if ran_out else FEWEST):
                yield _explanation(loader, name, main, "the training process", ran_out=ran_out)
                return
        for worker in range(loader.workers):
            mine = [one for epoch in loader.epochs for one in epoch.usage if one.worker == worker]
            if _grows([one.descriptors for one in mine], LEAST["descriptors"] // 2):
                yield _explanation(loader, "descriptors", mine, f"worker {worker}")
                return


def _grows(values: list[int], least: int, fewest: int = FEWEST) -> bool:
    if fewest == FEWEST_LEFT:  # it ran out of them, perhaps after few measurements
        return len(values) >= fewest and values[-1] - values[0] >= least
    later = values[len(values) // 4 :]
    if len(later) < fewest or later[-1] - later[0] < least:
        return False
    steps = [after - before for before, after in itertools.pairwise(later)]
    half = later[len(later) // 2]
    # the second half must grow like the first: a cache that fills up slows down
    return sum(step > 0 for step in steps) >= _STEADY * len(steps) and later[-1] - half > 0.6 * (half - later[0])


def _ran_out(known: Knowledge) -> bool:
    failure = failures.fatal_failure(known)
    return failure is not None and failures.has_errno(failure, errno.EMFILE)


def _explanation(
    loader: WatchedLoader, name: str, moments: list[ResourceUsage], where: str, *, ran_out: bool = False
) -> GrowingUse:
    later = moments[len(moments) // 4 :]
    values = [getattr(one, name) for one in later]
    shown = [size(one) if name == "memory" else f"{one:,}" for one in (values[0], values[-1])]
    kept, graph = _keeper(later, name)
    graphs = ", and its items keep the autograd graph of each step" if graph else ""
    opened = later[-1].opened if name == "descriptors" else None
    files = [one.file for one in (loader.place, loader.made) if one is not None]
    place = filled_at(files, kept.rpartition(".")[2]) if kept else opened
    what = "memory" if name == "memory" else "open descriptors"
    return GrowingUse(
        culprit=kept or (f"files opened at {opened}" if opened else where),
        place=place or loader.place,
        because=(
            f"{what} of {where}: {shown[0]} after {later[0].batches:,} batches of {loader.name}, {shown[1]} after {later[-1].batches:,}",
            f"{kept} grows at the same time{graphs}" if kept else "",
            f"filled at {quoted(place)}" if kept and place else "",
            f"opened most often at {quoted(opened)}" if opened and not kept else "",
        ),
        basis=AGREES if kept or opened else SUGGESTED,
        what=what,
        where=where,
        kept=kept,
        graph=graph,
        ran_out=ran_out,
        first=shown[0],
        last=shown[1],
        accounts_for=("raised", "start") if ran_out else (),
    )


def _keeper(moments: list[ResourceUsage], name: str) -> tuple[str, bool]:
    """The container that grew by most bytes, or the attribute that keeps a graph; and whether graphs are kept.

    Of descriptors, those that tensors in shared memory keep open.
    """
    first, last = moments[0].containers, moments[-1].containers
    grown = {
        path: (now[0] - first.get(path, (0, 0, 0))[0]) * max(now[1], 64) * (1000 if now[2] & GRAPH else 1)
        for path, now in last.items()
        if now[0] > first.get(path, (0, 0, 0))[0] + 3 and (name == "memory" or now[2] & SHARED)
    }
    if grown and (name != "memory" or max(grown.values()) > 10_000):
        path = max(grown, key=lambda one: grown[one])
        return path, bool(last[path][2] & GRAPH)
    if name != "memory":
        return "", False
    # a variable holds the graph of the current step; an attribute keeps it longer
    kept = next((path for path, now in last.items() if now[2] & GRAPH and "." in path and path in first), "")
    return kept, bool(kept)
