"""The summary of a run: as text, as an HTML page, as JSON."""

from __future__ import annotations

import json
import os
from html import escape

from unjam.doctor.facts.run import LoaderRun
from unjam.doctor.facts.timeline import run_timeline
from unjam.doctor.report.page import Cell, HtmlPage, profile, table
from unjam.doctor.report.profile import profile_lines
from unjam.doctor.rules.advice import Advice, Judged, WaitCause
from unjam.units import count, duration

SCHEMA = 1


def text(judged: Judged) -> str:
    """Return a few lines for the end of the program's output."""
    run = judged.run
    who = f"unjam, rank {run.rank}" if run.rank else "unjam"
    share = run.total_wait / run.seconds if run.seconds else 0.0
    lines = [
        f"-- {who}: {duration(run.seconds)}, of which training waited {duration(run.total_wait)} ({share:.0%}) for data --"
    ]
    for loader, causes in judged.loaders:
        if loader.batches or loader.failures:
            lines += _loader(loader, causes)
            lines += [f"    {line}" for line in profile_lines(loader.profile)]
    if any(loader.in_helper_thread for loader in run.loaders):
        lines.append("  batches are fetched by helper threads, so the training's own waiting time is unknown")
    if run.ended:
        lines.append(f"  the program ended with {run.ended}")
    if judged.advice:
        lines.append("  what would help most:")
        lines += [f"    {number}. {_change(advice)}" for number, advice in enumerate(judged.advice, 1)]
    elif share < 0.1 and not run.ended and not any(loader.in_helper_thread for loader in run.loaders):
        lines.append("  data loading is not the bottleneck")
    return "\n".join(lines)


def _change(advice: Advice) -> str:
    saved = f"; saves up to {duration(advice.saves)}" if advice.saves >= 0.05 else ""
    more = f" [{advice.code}]" if advice.code else ""
    return f"{advice.words}{saved}{more}"


def _loader(loader: LoaderRun, causes: tuple[WaitCause, ...]) -> list[str]:
    how = count(loader.workers, "worker") if loader.workers else "no workers"
    watched = f"; torch's own iterator, {loader.note}" if loader.driver == "torch" else ""
    done = f"{count(loader.samples, 'sample')} in {count(loader.batches, 'batch', 'batches')}, {count(loader.epochs, 'epoch')}"
    lines = [f"  {loader.label}: {done}, {how}{watched}"]
    if causes:
        who = "a helper thread waited" if loader.in_helper_thread else "waited"
        lines.append(
            f"    {who} {duration(loader.total_wait)}: "
            + "; ".join(f"{duration(cause.seconds)} {cause.words}" for cause in causes[:4])
        )
    if loader.auto:
        lines.append(f"    auto: {loader.auto}")
    if loader.device:
        lines.append(f"    device: {loader.device}")
    for name, workers, batches, size in loader.nodes:
        sent = f", {size / 1e6:,.1f} MB over the network" if size else ""
        lines.append(f"    node {name}: {count(workers, 'worker')}, {count(batches, 'batch', 'batches')}{sent}")
    if loader.does_not_pay:
        lines.append(f"    workers on the cluster do not pay off: {loader.does_not_pay}")
    if loader.failed or loader.failures:
        words = [
            f"{failure.count} with {failure.words}" + (f" ({_samples(failure.samples)})" if failure.samples else "")
            for failure in loader.failures[:3]
        ]
        lines.append(f"    failed samples: {'; '.join(words)}")
    if loader.restarts or loader.incidents:
        kinds = ", ".join(f"{kind} {number}" for kind, number in loader.incidents.items())
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
            "waited": round(run.total_wait, 3),
            "ended": run.ended,
            "loaders": [
                {
                    "label": loader.label,
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
                    "waited": round(loader.total_wait, 4),
                    "trained": round(loader.trained, 4),
                    "step": loader.step,
                    "waited_for": [{"seconds": round(one.seconds, 4), "cause": one.words} for one in causes],
                    "slowest": [
                        {"sample": sample, "seconds": round(seconds, 4), "worker": worker, "file": file}
                        for sample, seconds, worker, file in _slowest(loader)
                    ],
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
                for loader, causes in judged.loaders
            ],
            "advice": [{"change": one.words, "saves": round(one.saves, 3), "code": one.code} for one in judged.advice],
        },
        indent=2,
    )


def _slowest(loader: LoaderRun) -> tuple[tuple[str, float, str, str], ...]:
    picture = run_timeline(loader)
    return picture.slow if picture is not None else ()


def page(judged: Judged, version: str) -> str:
    """Return one self-contained HTML page."""
    run = judged.run
    name = os.path.basename(run.command.split()[0]) if run.command else ""
    found = HtmlPage(f"unjam run {name}", version)
    if judged.advice:
        found.heading("What would help most")
        found.add(f"<ol>{''.join(f'<li>{escape(_change(one))}</li>' for one in judged.advice)}</ol>")
    for loader, causes in judged.loaders:
        _section(found, loader, causes)
    found.environment({"command": run.command, "processors": str(run.cpus), "ended with": run.ended or "no error"})
    ended = f'<section class="card error"><h3>ended with {escape(run.ended)}</h3></section>' if run.ended else ""
    rank = f", rank {run.rank}" if run.rank else ""
    return found.html(
        f"{duration(run.seconds)}, of which training waited {duration(run.total_wait)} for data",
        f'<p class="soft"><code>{escape(run.command)}</code>{rank}</p>',
        ended,
        "" if judged.advice else "<p>No change would save much time.</p>",
    )


def _section(found: HtmlPage, loader: LoaderRun, causes: tuple[WaitCause, ...]) -> None:
    found.heading(loader.label)
    found.add(*(f"<p>{escape(line.strip())}</p>" for line in _loader(loader, ())))
    if causes:
        rows: list[list[Cell]] = [[one.words, (duration(one.seconds), one.seconds)] for one in causes]
        found.add("<h3>What training waited for</h3>", table(("waited", "time"), rows))
    if loader.failures:
        cells: list[list[Cell]] = [
            [(str(one.count), float(one.count)), one.words, one.samples, one.decision] for one in loader.failures
        ]
        found.add("<h3>Failures</h3>", table(("count", "failure", "samples", "handled by"), cells, sortable=True))
    profile(found, loader.profile, loader.label)
    found.picture(run_timeline(loader), loader.label)
    start = min((one.asked for one in loader.waits), default=0)
    waits: list[list[Cell]] = [
        [f"at {duration((one.asked - start) / 1e9)}", (duration(one.seconds), one.seconds)]
        for one in sorted(loader.waits, key=lambda wait: -wait.seconds)[:5]
    ]
    if waits:
        found.add(
            f"<details><summary>Longest waits</summary>{table(('after the first request', 'waited'), waits)}</details>"
        )
