"""A sample computes without returning.

What happened: one sample keeps the processor busy and does not return, with workers or without,
while the other samples are quick.

Why: a loop never ends for this input (a retry without a limit, a search that finds nothing, a
parser that does not advance), or the cost grows very fast with the input's size.

How to confirm: with `num_workers=0` the same sample computes at the same lines.

How to fix: put a limit on the loop at the named line; look at this sample's input. unjam's
`sample_timeout=` ends such a sample.

Limits: the doctor cannot prove that the sample never ends. It did not end within the given number
of seconds, while the other samples took far less.
"""

from __future__ import annotations

from unjam.doctor.explanation import Words
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.scene import Scene
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import StuckProcess
from unjam.doctor.mechanisms.waits import InputTakenWhole
from unjam.doctor.proof import AGREES, SUGGESTED, Severity
from unjam.doctor.queries import scenes
from unjam.doctor.queries.trials import describe_worker, mean_seconds, stuck_processes
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count, duration

RULE = Rule("UJ208", "sample-never-returns", symptom="frozen")


def words(one: InputTakenWhole) -> Words:
    """Say which call consumes its whole input first."""
    return Words(
        f"{one.who} does not get past {one.place}: {one.pool}.map consumes its whole input first, which is endless or very long",
        "submit a bounded number of tasks at a time (submit() and a deque of futures)"
        if one.pool == "Executor"
        else "use imap(), and limit how far it runs ahead",
    )


LONG = 15.0  # seconds of computing in a program that was watched, while nothing was loaded


def detect(case: Case) -> Finding | None:
    """Find a stuck process that uses the processor."""
    found = [
        (base, stuck)
        for base, stuck in stuck_processes(case)
        if stuck.busy and stuck.stage in ("sample", "made", "collate")
    ]
    if not found:
        return None
    fresh = any(t.plan.fresh and t.outcome == "hung" for t in case.trials)
    base, stuck = found[0]
    alone = any(trial is case.alone for trial, _ in found)
    if stuck.native and not fresh and case.forked and not alone:
        return None  # UJ203: probably a native pool that spins after the fork
    usual = mean_seconds(case.alone) or mean_seconds(case.as_is)
    if case.loader.iterable and stuck.index == "#0" and any(one.worker != stuck.worker for one in base.samples):
        return _empty_share(case, stuck)
    return Finding(
        RULE,
        f"{describe_worker(stuck)} computes and does not return",
        f"sample {stuck.index} at {stuck.place}" if stuck.index else f"{stuck.place}",
        (
            f"busy for {duration(stuck.seconds)} at {quoted(stuck.place)}",
            f"the other samples take {duration(usual)}" if usual else "",
            "the same without workers" if alone and case.loader.num_workers else "",
        ),
        AGREES if alone else SUGGESTED,
        f"put a limit on the loop at {stuck.place}, and look at sample {stuck.index or '?'}",
        stuck.place,
    )


def _empty_share(case: Case, stuck: StuckProcess) -> Finding:
    """Report a worker of a stream that loops without a first sample, while other workers deliver."""
    name, workers = case.loader.dataset, case.loader.num_workers
    return Finding(
        RULE,
        f"{describe_worker(stuck)} loops at {stuck.place} without a first sample, while other workers deliver: its share of {name} may be empty",
        f"{name}.__iter__ at {stuck.place}",
        (
            f"busy for {duration(stuck.seconds)} at {quoted(stuck.place)}",
            f"the stream is divided among {count(workers, 'worker')}",
        ),
        AGREES,
        f"return from __iter__ when the worker's share is empty, and use no more workers than there are shards ({workers} now)",
        stuck.place,
    )


def detect_live(scene: Scene) -> Finding | None:
    """Find a process that computed in one sample during the whole observation while the training waited."""
    for process in scene.processes:
        thread = process.threads[0] if process.threads else None
        if thread is None or process.ended or process.activity.stage not in scenes.WORK or not thread.computes:
            continue
        main = scene.main_of(process)
        waits = process is main or main.activity.stage in ("waits", "stopping")
        if not process.same_sample or scene.seconds < scenes.IN_DOUBT or not waits:
            continue
        blocked = scenes.BlockedProcess(scene, process, thread)
        silent = max(process.silent or 0.0, scene.seconds, scene.quiet)
        for_long = silent >= 60 or scene.quiet >= LONG
        place = scenes.most_frequent_line(thread)
        return Finding(
            RULE,
            f"{blocked.who} has computed for at least {duration(silent)} without finishing",
            f"{blocked.worker} at {place}",
            (
                f"at {quoted(place)}, using {thread.busy:.0%} of a processor",
                "an observation from outside cannot show whether it will end; if a later one shows the same, it probably will not",
                *scenes.consequence(scene, blocked),
            ),
            AGREES if for_long else SUGGESTED,
            f"check the loop around {place}: what ends it for this sample?"
            + ("; timeout= in the loader turns the freeze into an error" if process.role == "worker" else ""),
            place,
            severity=Severity.ERROR if for_long else Severity.WARNING,
        )
    return None
