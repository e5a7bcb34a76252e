"""The workers run out of memory.

What happened: memory ran out while the workers loaded: the system killed a worker, or the doctor
stopped the trial before that could happen.

Why: every worker keeps its own copy of the memory that it touches, and prefetches
`prefetch_factor` batches. Memory grows with the number of workers: one copy of the dataset may fit
where four do not.

How to confirm: multiply one worker's peak by the number of workers and compare that with the free
memory; fewer workers succeed.

How to fix: use fewer workers, a smaller `prefetch_factor`, samples that do not copy what they read,
or mapped data (`numpy.memmap`) instead of loaded data.

Limits: some samples may need more memory than the measured peak.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.trial import Trial
from unjam.doctor.proof import AGREES, Toggle
from unjam.doctor.queries.trials import dead_processes, is_memory_error
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import count, size

RULE = Rule("UJ301", "out-of-memory", symptom="died")


def detect(case: Case) -> Finding | None:
    """Find a trial that ran out of memory, or was stopped before it did."""
    out = [trial for trial in (case.as_is, case.compared, case.alone) if trial is not None and _ran_out(trial)]
    killed = [end for _, end in dead_processes(case) if end.out_of_memory]
    errors = [b for t in (case.as_is, case.alone) if t for b in t.bad if is_memory_error(b)]
    if not out and not killed and not errors:
        return None
    trial = out[0] if out else case.as_is or case.alone
    assert trial is not None
    peaks = {worker: peak for worker, peak in trial.peak.items() if worker >= 0} or trial.peak
    peak = max(peaks.values(), default=0)
    memory = case.process_facts.memory or 0
    fit = max(1, int(memory * 0.8 / peak)) if peak else 1
    free = f", {size(memory)} free" if memory else ""
    fewer = trial.plan.changed(workers=1, prefetch=1) if trial.plan.workers > 1 else None
    where = next((f"sample {b.index} at {b.place}" for b in errors), None) or next(
        (f"sample {e.index}" for e in killed if e.index), None
    )
    return Finding(
        RULE,
        f"memory runs out: {count(case.loader.num_workers, 'worker')} of up to {size(peak)} each{free}",
        where or f"num_workers={case.loader.num_workers}",
        (
            f"the system's out-of-memory killer ended a worker ({killed[0].signal})" if killed else "",
            f"unjam stopped the trial after {count(len(trial.samples), 'sample')}, before the system killed it"
            if trial.outcome == "memory"
            else "",
            *(f"{b.type_name} in sample {b.index}: {b.message[:120]}" for b in errors[:1]),
            f"largest worker: {size(peak)}" + (f"; free memory at the start: {size(memory)}" if memory else ""),
        ),
        Toggle(trial.plan, (fewer,), identified=True) if fewer else AGREES,
        f"num_workers={min(fit, max(1, case.loader.num_workers - 1))} fits here; or load less for each sample in {case.loader.dataset}",
        next((b.place for b in errors if b.place), None) or case.loader.made_at,
    )


def _ran_out(trial: Trial) -> bool:
    return trial.outcome == "memory" or bool(trial.oom_kills and trial.outcome == "died")
