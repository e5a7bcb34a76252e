"""The summary of a run: as text, as an HTML page, as JSON."""

from __future__ import annotations

import json
import os
from html import escape

from unjam.doctor.facts.run import LoaderRun
from unjam.doctor.facts.timeline import run_timeline
from unjam.doctor.mechanisms.trials import count
from unjam.doctor.report.page import Cell, HtmlPage, profile, table
from unjam.doctor.report.profile import profile_lines
from unjam.doctor.rules.advice import Advice, Fault, Judged, longest_waits
from unjam.units import duration

SCHEMA = 1


def text(judged: Judged) -> str:
    """Return a few lines for the end of the program's output."""
    run = judged.run
    who = f"unjam, rank {run.rank}" if run.rank else "unjam"
    share = run.lost / run.seconds if run.seconds else 0.0
    lines = [
        f"-- {who}: {duration(run.seconds)}, of which the training waited {duration(run.lost)} ({share:.0%}) for data --"
    ]
    for loader, faults in judged.faults:
        if loader.batches or loader.failures:
            lines += _loader(loader, faults)
            lines += [f"    {line}" for line in profile_lines(loader.profile)]
    if any(loader.aside for loader in run.loaders):
        lines.append("  helper threads take the batches; how long the training waited for them is not known")
    if run.ended:
        lines.append(f"  the program ended with {run.ended}")
    if judged.advice:
        lines.append("  what would help most:")
        lines += [f"    {number}. {_change(advice)}" for number, advice in enumerate(judged.advice, 1)]
    elif share < 0.1 and not run.ended and not any(loader.aside for loader in run.loaders):
        lines.append("  the data loading does not hold this training")
    return "\n".join(lines)


def _change(advice: Advice) -> str:
    saved = f"; saves up to {duration(advice.saves)}" if advice.saves >= 0.05 else ""
    more = f" [{advice.code}]" if advice.code else ""
    return f"{advice.words}{saved}{more}"


def _loader(loader: LoaderRun, faults: tuple[Fault, ...]) -> list[str]:
    place = f" at {loader.place}" if loader.place else ""
    how = count(loader.workers, "worker") if loader.workers else "no workers"
    watched = f"; torch's own iterator, {loader.note}" if loader.driver == "torch" else ""
    done = f"{count(loader.samples, 'sample')} in {count(loader.batches, 'batch', 'batches')}, {count(loader.epochs, 'epoch')}"
    lines = [f"  {loader.name}{place}: {done}, {how}{watched}"]
    if faults:
        who = "a helper thread waited" if loader.aside else "waited"
        lines.append(
            f"    {who} {duration(loader.lost)}: "
            + ", ".join(f"{duration(fault.seconds)} {fault.words}" for fault in faults[:4])
        )
    if loader.auto:
        lines.append(f"    auto: {loader.auto}")
    if loader.device:
        lines.append(f"    device: {loader.device}")
    for name, workers, batches, size in loader.nodes:
        sent = f", {size / 1e6:,.1f} MB over the network" if size else ""
        lines.append(f"    node {name}: {count(workers, 'worker')}, {count(batches, 'batch', 'batches')}{sent}")
    if loader.does_not_pay:
        lines.append(f"    workers on the cluster do not pay: {loader.does_not_pay}")
    if loader.failed or loader.failures:
        words = [
            f"{failure.count} {failure.words}" + (f" ({_samples(failure.samples)})" if failure.samples else "")
            for failure in loader.failures[:3]
        ]
        lines.append(f"    failed: {'; '.join(words)}")
    if loader.restarts or loader.incidents:
        kinds = ", ".join(f"{number} {kind}" for kind, number in loader.incidents.items())
        lines.append(f"    incidents: {kinds}; {count(loader.restarts, 'worker')} replaced")
    return lines


def _samples(names: str) -> str:
    return f"samples {names}" if "," in names else f"sample {names}"


def as_json(judged: Judged, version: str) -> str:
    """Return the documented JSON object."""
    run = judged.run
    return json.dumps(
        {
            "schema": SCHEMA,
            "unjam": version,
            "command": run.command,
            "pid": run.pid,
            "rank": run.rank,
            "seconds": round(run.seconds, 3),
            "waited": round(run.lost, 3),
            "ended": run.ended,
            "loaders": [
                {
                    "name": loader.name,
                    "file": loader.place.file if loader.place else None,
                    "line": loader.place.line if loader.place else None,
                    "driver": loader.driver,
                    "note": loader.note,
                    "workers": loader.workers,
                    "epochs": loader.epochs,
                    "batches": loader.batches,
                    "samples": loader.samples,
                    "failed": loader.failed,
                    "restarts": loader.restarts,
                    "started": round(loader.started, 4),
                    "own_starts": [round(one, 4) for one in loader.own_starts],
                    "waited": round(loader.waited, 4),
                    "trained": round(loader.trained, 4),
                    "step": loader.step,
                    "faults": [{"seconds": round(fault.seconds, 4), "for": fault.words} for fault in faults],
                    "failures": [
                        {"count": one.count, "what": one.words, "samples": one.samples, "decision": one.decision}
                        for one in loader.failures
                    ],
                    "incidents": dict(loader.incidents),
                    "auto": loader.auto,
                    "device": loader.device,
                    "nodes": [
                        {"node": name, "workers": workers, "batches": batches, "bytes": size}
                        for name, workers, batches, size in loader.nodes
                    ],
                    "does_not_pay": loader.does_not_pay,
                    "profile": loader.profile,
                }
                for loader, faults in judged.faults
            ],
            "advice": [{"change": one.words, "saves": round(one.saves, 3), "code": one.code} for one in judged.advice],
        },
        indent=2,
    )


def page(judged: Judged, version: str) -> str:
    """Return one self-contained HTML page."""
    run = judged.run
    name = os.path.basename(run.command.split()[0]) if run.command else ""
    found = HtmlPage(f"unjam run {name}", version)
    if judged.advice:
        found.heading("What would help most")
        found.add(f"<ol>{''.join(f'<li>{escape(_change(one))}</li>' for one in judged.advice)}</ol>")
    for loader, faults in judged.faults:
        _section(found, loader, faults)
    found.environment({"command": run.command, "processors": str(run.cpus), "ended": run.ended or "well"})
    ended = f'<section class="card error"><h3>ended with {escape(run.ended)}</h3></section>' if run.ended else ""
    rank = f", rank {run.rank}" if run.rank else ""
    return found.html(
        f"{duration(run.seconds)}, of which the training waited {duration(run.lost)} for data",
        f'<p class="soft"><code>{escape(run.command)}</code>{rank}</p>',
        ended,
        "" if judged.advice else "<p>Nothing to change.</p>",
    )


def _section(found: HtmlPage, loader: LoaderRun, faults: tuple[Fault, ...]) -> None:
    found.heading(loader.name)
    found.add(*(f"<p>{escape(line.strip())}</p>" for line in _loader(loader, ())))
    if faults:
        rows: list[list[Cell]] = [[(one.words, None), (f"{duration(one.seconds)}", one.seconds)] for one in faults]
        found.add("<h3>what it waited for</h3>", table(("", "seconds"), rows))
    if loader.failures:
        cells: list[list[Cell]] = [
            [(str(one.count), float(one.count)), (one.words, None), (one.samples, None), (one.decision, None)]
            for one in loader.failures
        ]
        found.add("<h3>failures</h3>", table(("count", "what", "samples", "decision"), cells, sortable=True))
    profile(found, loader)
    found.picture(run_timeline(loader), loader.name)
    waits: list[list[Cell]] = [
        [(f"batch asked for at {duration(one.asked / 1e9)}", None), (f"{duration(one.seconds)}", one.seconds)]
        for one in longest_waits(loader)
    ]
    if waits:
        found.add(f"<details><summary>longest waits</summary>{table(('', 'waited'), waits)}</details>")
