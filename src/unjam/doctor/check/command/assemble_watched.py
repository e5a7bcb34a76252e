"""Builds the facts about a watched program from the event logs of its processes."""

from __future__ import annotations

from typing import Any

from unjam.doctor.check.trial.event_log import read
from unjam.doctor.facts.faults import (
    Deed,
    Ended,
    LeftHeld,
    LimitSet,
    LockFile,
    LostBatch,
    Resource,
    RewrittenFile,
    Seeded,
    ShrunkFile,
    WatchedFailure,
    WrittenFile,
)
from unjam.doctor.facts.loader_description import LoaderDescription
from unjam.doctor.facts.recording import decode
from unjam.doctor.facts.trial import Place
from unjam.doctor.facts.watched import (
    Moment,
    Saved,
    Synchronised,
    Transfers,
    WatchedEpoch,
    WatchedLoader,
    WatchedProcess,
    WatchedSample,
)

# events about what happened beside the samples
_BESIDE = {
    "deed", "left", "ended", "limit", "seeded", "written", "rewritten", "exclusive", "shrunk", "lost", "asked", "mapped",
}  # fmt: skip


def assemble_watched(folder: str) -> list[WatchedProcess]:
    """The processes that the logs describe, with their loaders and epochs."""
    records = read(folder)
    found: list[WatchedProcess] = []
    seeds: list[tuple[int, float, WatchedEpoch, WatchedLoader]] = []
    workers: list[tuple[int, list[dict[str, Any]]]] = []
    for pid, events in records.items():
        if any(event.get("worker", -1) >= 0 and (event["k"] == "hello" or "base" in event) for event in events):
            workers.append((pid, events))
        else:
            found.append(_process(pid, events, seeds))
    for pid, events in workers:
        _add_worker(pid, events, seeds, found)
    for process in found:
        process.loaders = [one for one in process.loaders if one.epochs]
    return sorted(found, key=lambda one: (one.rank if one.rank is not None else -1, one.pid))


def _process(  # noqa: PLR0915 - a match over every event
    pid: int, events: list[dict[str, Any]], seeds: list[tuple[int, float, WatchedEpoch, WatchedLoader]]
) -> WatchedProcess:
    process = WatchedProcess(pid, 0, None, "")
    loaders: dict[int, WatchedLoader] = {}
    inline: WatchedEpoch | None = None

    def epoch_of(event: dict[str, Any]) -> WatchedEpoch | None:
        loader = loaders.get(event.get("loader", 0))
        return next((one for one in loader.epochs if one.number == event.get("e")), None) if loader else None

    for event in events:
        match event["k"]:
            case "process":
                process.parent, process.rank, process.script = event["parent"], event["rank"], event["script"]
            case "loader":
                made = Place(event["made_file"], event["made_line"]) if event.get("made_file") else None
                loaders[event["loader"]] = WatchedLoader(
                    event["loader"], pid, decode(event["about"], LoaderDescription), made, _place(event)
                )
            case "begin":
                loader = loaders.get(event["loader"])
                if loader is None:
                    loader = loaders[event["loader"]] = WatchedLoader(
                        event["loader"], pid, LoaderDescription(), None, _place(event)
                    )
                epoch = WatchedEpoch(
                    event["e"], event.get("expected"), _place(event), event.get("held", {}), event.get("folder", ""), event["t"]
                )  # fmt: skip
                loader.epochs.append(epoch)
                if not loader.workers:
                    inline = epoch
            case "seed":
                known = epoch_of(event)
                loader = loaders.get(event["loader"])
                if known is not None:
                    known.seed = event["seed"]
                if known is not None and loader is not None and loader.workers:
                    seeds.append((event["seed"], event["t"], known, loader))
            case "got":
                known = epoch_of(event)
                if known is not None:
                    known.batches, known.steps = max(known.batches, event["n"]), event["steps"]
                    known.waited, known.first, known.seconds = event["waited"], event["first"], event["s"]
                    known.sampling = event.get("sampling", 0.0)
            case "moment":
                known = epoch_of(event)
                if known is not None:
                    known.moments.append(_moment(event))
            case "epoch":
                known = epoch_of(event)
                if known is not None:
                    _finish(known, event)
                    if process.rank is None:
                        process.rank = event.get("rank")
            case kind if kind in _BESIDE:
                _add_fault(process, event, pid)
            case "rank_asked" if (asked := _place(event)) is not None:
                process.rank_asked.append(asked)
            case "saved":
                process.saves.append(
                    Saved(
                        event["optimizer"],
                        frozenset(event["numbers"]),
                        tuple((one[0], one[1], one[2], one[3]) for one in event["passes"]),
                        _place(event),
                    )
                )
            case "transfers" | "synchronised":
                _add_device_event(process, event)
            case "failed" | "end":
                if event.get("type"):
                    process.failures.append(_failure(event, event.get("stage", "end")))
            case "sample" | "fetcher" | "loaded" | "fetched" if inline is not None:
                _add_samples(inline, event)
    process.loaders = list(loaders.values())
    return process


def _add_fault(process: WatchedProcess, event: dict[str, Any], pid: int) -> None:
    """Add what happened beside the samples."""
    place, at, worker = _place(event), event["t"], event.get("worker", -1)
    match event["k"]:
        case "deed":
            process.deeds.append(Deed(event["done"], event["path"], place, at, worker, pid))
        case "left":
            process.left.append(
                LeftHeld(event["path"], event["kind"], event["i"], worker, pid, place, event["raised"], at)
            )
        case "ended":
            process.ended.append(Ended(event["what"], event["name"], pid, event["type"], event["message"], place, at))
        case "limit":
            process.limits.append(LimitSet(event["name"], event["value"], place))
        case "seeded" if place is not None:
            process.seeded.append(Seeded(event["what"], place, pid, worker, at))
        case "written":
            process.written.append(WrittenFile(event["path"], pid, worker, place))
        case "lost":
            process.lost.append(
                LostBatch(worker, event["path"], event["kind"], event["type"], event.get("message", ""), place)
            )
        case "mapped":
            process.mapped += event["paths"]
        case "asked":
            process.asked.setdefault(event["target"], []).append(pid)
        case "shrunk":
            process.shrunk.append(ShrunkFile(event["path"], event["mapped"], event["size"], place, event["whole"]))
        case "exclusive":
            process.exclusive.append(LockFile(event["path"], pid, place))
        case "rewritten":
            process.rewritten.append(RewrittenFile(event["path"], pid, worker, place, event["locks"], event["read"]))


def _add_device_event(process: WatchedProcess, event: dict[str, Any]) -> None:
    place = Place(event["file"], event["line"])
    if event["k"] == "synchronised":
        process.synchronised[place] = Synchronised(place, event["count"], event["s"], event["idle"])
        return
    process.transfers[place] = Transfers(
        place,
        event["count"],
        event["bytes"],
        event["s"],
        event["pinned"],
        event["dtype"],
        event["small"],
        event.get("from_pinned", 0.0),
        event.get("from_pageable", 0.0),
    )


def _finish(epoch: WatchedEpoch, event: dict[str, Any]) -> None:
    epoch.over, epoch.ended = True, event["t"]
    for name in (
        "done",
        "batches",
        "draws",
        "indices",
        "order",
        "waited",
        "first",
        "sampling",
        "optimizer",
        "steps",
        "grad",
        "unused",
        "changed",
    ):
        setattr(epoch, name, event.get(name, getattr(epoch, name)))
    epoch.seconds = event["s"]
    epoch.resources = {k: event[k] for k in ("descriptors", "files", "threads", "memory", "children") if k in event}


def _add_samples(epoch: WatchedEpoch, event: dict[str, Any]) -> None:
    worker = event.get("worker", -1)
    match event["k"]:
        case "sample":
            epoch.samples.append(
                WatchedSample(
                    event["i"],
                    worker,
                    event["d"],
                    event.get("l", ""),
                    event.get("drew", {}),
                    event["s"],
                    event.get("read", 0),
                    event.get("size", 0),
                    tuple(event.get("files", ())),
                    tuple(event.get("seeded", ())),
                    {name: Place(*at) for name, at in event.get("idle", {}).items()},
                )
            )
        case "moment":
            epoch.moments.append(_moment(event))
        case "fetcher":
            epoch.worker_held[worker] = event.get("held", {})
        case "fetched":
            epoch.worker_left[worker] = event.get("held", {})
        case "loaded":
            epoch.loaded += event.get("n", 0)
            if "q" in event:
                epoch.signatures.setdefault(worker, []).extend(event["q"])
            epoch.loading += event.get("s", 0.0)
            epoch.collating += event.get("c", 0.0)
            if event.get("max", 0.0) > epoch.slowest[0]:
                epoch.slowest = (event["max"], event.get("i", ""))


def _add_worker(
    pid: int,
    events: list[dict[str, Any]],
    seeds: list[tuple[int, float, WatchedEpoch, WatchedLoader]],
    processes: list[WatchedProcess],
) -> None:
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
    for event in events:
        if event["k"] == "failed":
            failure = _failure(event, event["stage"], home.number if home else 0)
            (owner or processes[0]).failures.append(failure) if processes else None
        elif event["k"] in _BESIDE:
            _add_fault(owner or processes[0], event, pid) if processes else None
        elif home is not None and "e" in event:
            known = next((one for one in home.epochs if one.number == start + event["e"]), None)
            if known is not None:
                _add_samples(known, event)


def _failure(event: dict[str, Any], stage: str, loader: int = 0) -> WatchedFailure:
    return WatchedFailure(
        stage, event["type"], event.get("message", ""), event.get("trace", ""), _place(event), event.get("i", ""),
        event.get("worker", -1), event.get("loader", loader), event.get("e", -1), event["t"], event.get("pid", 0),
        event.get("errno", 0), event.get("filename", ""), event.get("thread", ""), event.get("unpickled", ""),
        event.get("context", ""), tuple(_resource(one) for one in event.get("reach", ())),
        tuple(event.get("files", ())), event.get("root", ""), Place(*event["root_at"]) if event.get("root_at") else None,
        event.get("limits", {}), tuple((one[0], one[1]) for one in event.get("full", ())),
    )  # fmt: skip


def _moment(event: dict[str, Any]) -> Moment:
    held = {path: (one[0], one[1], one[2]) for path, one in event.get("held", {}).items()}
    return Moment(event["worker"], event["n"], event.get("memory", 0), event.get("descriptors", 0), held, _place(event))


def _resource(known: dict[str, Any]) -> Resource:
    return Resource(known["path"], known["kind"], known["target"], known["inherited"], _place(known))


def _place(event: dict[str, Any]) -> Place | None:
    return Place(event["file"], event["line"]) if event.get("file") else None
