"""Builds the facts about a watched program from the event logs of its processes."""

from __future__ import annotations

import typing
from dataclasses import replace
from typing import Any

from unjam.doctor.check.event_log import read
from unjam.doctor.facts.faults import WatchedFailure
from unjam.doctor.facts.loader_description import LoaderDescription
from unjam.doctor.facts.program_facts import ResourceUsage, WatchedEpoch, WatchedLoader, WatchedProcess, WatchedSample
from unjam.doctor.facts.recording import decode
from unjam.doctor.facts.trial import Place

_EPOCH_FACTS: dict[str, Any] = {kind.__name__: kind for kind in (ResourceUsage, WatchedSample)}
# the name of a type of facts -> the type, and the field of a process that holds them: in a list, or by their line
_PROCESS_FACTS: dict[str, tuple[Any, str]] = {
    getattr(kinds[-1], "__name__", ""): (kinds[-1], name)
    for name, hint in typing.get_type_hints(WatchedProcess).items()
    if (kinds := typing.get_args(hint))
}
# fields of the event "epoch" that are fields of a WatchedEpoch, too
_EPOCH_FIELDS = (
    "done", "batches", "draws", "indices", "order", "waited", "first", "sampling", "optimizer", "steps", "grad", "unused",
    "changed",
)  # fmt: skip
Seed = tuple[int, float, WatchedEpoch, WatchedLoader]


def assemble_watched(folder: str) -> list[WatchedProcess]:
    """The processes that the logs describe, with their loaders and epochs."""
    found: list[WatchedProcess] = []
    seeds: list[Seed] = []
    workers: list[tuple[int, list[dict[str, Any]]]] = []
    for pid, events in read(folder).items():
        if any(event.get("worker", -1) >= 0 and (event["k"] == "hello" or "base" in event) for event in events):
            workers.append((pid, events))
        else:
            found.append(_process(pid, events, seeds))
    for pid, events in workers:
        _add_worker(pid, events, seeds, found)
    for process in found:
        process.loaders = [loader for loader in process.loaders if loader.epochs]
        tell_apart(process.loaders)
    return sorted(found, key=lambda process: (process.rank if process.rank is not None else -1, process.pid))


def tell_apart(loaders: list[WatchedLoader]) -> None:
    """Add the line that iterates it to the name of a loader, if loaders with this name are iterated at several lines."""
    places: dict[str, set[str]] = {}
    for one in loaders:
        places.setdefault(one.name, set()).add(str(one.place or ""))
    for one in loaders:
        if len(places[one.name]) > 1 and one.place:
            one.distinction = f"iterated at {one.place}"


def _process(pid: int, events: list[dict[str, Any]], seeds: list[Seed]) -> WatchedProcess:
    process = WatchedProcess(pid, None)
    loaders: dict[int, WatchedLoader] = {}
    inline: WatchedEpoch | None = None  # the last epoch without workers
    for event in events:
        loader = loaders.get(event.get("loader", 0))
        epoch = next((one for one in loader.epochs if one.number == event.get("e")), None) if loader else None
        match event["k"]:
            case "process":
                process.rank = event["rank"]
            case "loader":
                made, about = decode(event.get("made"), Place | None), decode(event["about"], LoaderDescription)
                loaders[event["loader"]] = WatchedLoader(event["loader"], pid, about, made, _place(event))
            case "begin":
                if loader is None:
                    loader = WatchedLoader(event["loader"], pid, LoaderDescription(), None, _place(event))
                    loaders[event["loader"]] = loader
                epoch = WatchedEpoch(
                    event["e"], event.get("expected"), _place(event), event.get("hashes", {}), event.get("folder", ""), event["t"]
                )  # fmt: skip
                loader.epochs.append(epoch)
                if not loader.workers:
                    inline = epoch
            case "seed" if loader is not None and epoch is not None:
                epoch.seed = event["seed"]
                if loader.workers:
                    seeds.append((event["seed"], event["t"], epoch, loader))
            case "got" if epoch is not None:
                epoch.batches, epoch.steps = max(epoch.batches, event["n"]), event["steps"]
                epoch.waited, epoch.first, epoch.seconds = event["waited"], event["first"], event["s"]
                epoch.sampling = event.get("sampling", 0.0)
            case "epoch" if epoch is not None:
                _finish(epoch, event)
                if process.rank is None:
                    process.rank = event.get("rank")
            case "rank_asked" if (asked := _place(event)) is not None:
                process.early_rank_reads.append(asked)
            case "fact" if event["type"] == ResourceUsage.__name__:
                if epoch is not None:
                    _add_to_epoch(epoch, event)
            case "fact" | "mapped" | "used_connection" if event.get("type") not in _EPOCH_FACTS:
                _add_to_process(process, event, pid)
            case "fact" | "fetcher" | "loaded" | "fetched" if inline is not None:
                _add_to_epoch(inline, event)
    process.loaders = list(loaders.values())
    return process


def _add_to_process(process: WatchedProcess, event: dict[str, Any], pid: int, loader: int = 0) -> None:
    """Add an event that belongs to no epoch. loader: the number of the loader whose worker recorded it."""
    if event["k"] == "mapped":
        process.mapped_files += event["paths"]
    elif event["k"] == "used_connection":
        process.used_connections.setdefault(event["target"], []).append(pid)
    elif event["type"] in _PROCESS_FACTS:
        kind, name = _PROCESS_FACTS[event["type"]]
        fact, kept = decode(event["fact"], kind), getattr(process, name)
        if isinstance(fact, WatchedFailure):
            fact = replace(fact, loader=fact.loader or loader)
        if isinstance(kept, dict):
            kept[fact.place] = fact
        else:
            kept.append(fact)


def _finish(epoch: WatchedEpoch, event: dict[str, Any]) -> None:
    epoch.over, epoch.ended, epoch.seconds = True, event["t"], event["s"]
    for name in _EPOCH_FIELDS:
        setattr(epoch, name, event.get(name, getattr(epoch, name)))
    epoch.resources = {k: event[k] for k in ("files", "threads", "memory", "children") if k in event}


def _add_to_epoch(epoch: WatchedEpoch, event: dict[str, Any]) -> None:
    worker = event.get("worker", -1)
    match event["k"]:
        case "fact" if event["type"] in _EPOCH_FACTS:
            fact = decode(event["fact"], _EPOCH_FACTS[event["type"]])
            (epoch.usage if isinstance(fact, ResourceUsage) else epoch.samples).append(fact)
        case "fetcher":
            epoch.worker_hashes[worker] = event.get("hashes", {})
        case "fetched":
            epoch.worker_end_hashes[worker] = event.get("hashes", {})
        case "loaded":
            epoch.loaded += event.get("n", 0)
            if "q" in event:
                epoch.signatures.setdefault(worker, []).extend(event["q"])
            epoch.loading += event.get("s", 0.0)


def _add_worker(pid: int, events: list[dict[str, Any]], seeds: list[Seed], processes: list[WatchedProcess]) -> None:
    """Add a worker's events to the epochs of its loader, found by the seed that torch gave it."""
    first = next((event for event in events if event["k"] == "fetcher" and "base" in event), None)
    home: WatchedLoader | None = None
    start = 0
    if first is not None:
        fits = [one for one in seeds if one[0] == first["base"] and one[1] <= first["t"]]
        # ranks may have the same seed: a worker belongs to the process that started it, where that is known
        parent = next((event["parent"] for event in events if event["k"] == "process"), 0)
        fits = [one for one in fits if one[3].pid == parent] or fits
        if fits:
            _, _, epoch, home = max(fits, key=lambda one: one[1])
            start = epoch.number
            home.worker_pids.append(pid)
    owner = next((one for one in processes if home is not None and one.pid == home.pid), None)
    owner = owner or (processes[0] if processes else None)
    for event in events:
        if event["k"] in ("fact", "mapped", "used_connection") and event.get("type") not in _EPOCH_FACTS:
            if owner is not None:
                _add_to_process(owner, event, pid, home.number if home else 0)
        elif home is not None and "e" in event:
            known = next((one for one in home.epochs if one.number == start + event["e"]), None)
            if known is not None:
                _add_to_epoch(known, event)


def _place(event: dict[str, Any]) -> Place | None:
    place: Place | None = decode(event.get("place"), Place | None)
    return place
