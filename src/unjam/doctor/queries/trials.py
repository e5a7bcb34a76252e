"""Queries on a case: one loader and its trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from unjam.doctor.facts import exception_line
from unjam.doctor.facts.case import Case
from unjam.doctor.facts.source import quoted
from unjam.doctor.facts.trial import Plan, ProcessEnd, Raised, Sample, StuckProcess, SyncObject, Trial
from unjam.doctor.proof import AGREES, Basis, Toggle

MOST_LEFT_OUT = 200


def names(samples: Iterable[str], most: int = 5) -> str:
    """List the first few sample indices, each once, and how many more there are."""
    known = list(dict.fromkeys(samples))
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


# -- frozen ------------------------------------------------------------------------------------------------------------


def stuck_processes(case: Case) -> list[tuple[Trial, StuckProcess]]:
    """List the processes stuck while loading samples; the trial with workers comes first."""
    found = []
    for trial in (case.as_is, case.first_alone):
        if trial is not None and trial.outcome == "hung":
            found += [(trial, stuck) for stuck in trial.stuck if stuck.stage in ("sample", "init", "made", "collate")]
    return found


def describe_worker(stuck: StuckProcess) -> str:
    """Say which worker is stuck, and in which sample or stage."""
    return worker_words(stuck.worker, stuck.stage, stuck.index)


def worker_words(worker: int, stage: str, index: str) -> str:
    """Say which worker it is, and in which sample or stage."""
    who = f"worker {worker}" if worker >= 0 else "loading without workers"
    if stage == "sample" and index:
        return f"{who} in sample {index}"
    if stage == "sampler":
        return "the main process in the sampler"
    stages = {"init": " in worker_init_fn", "made": " in iter(dataset)", "collate": " in the collate function"}
    return "the program" if stage == "wait" else f"{who}{stages.get(stage, '')}"


def waits_for(stuck: StuckProcess, *kinds: str) -> SyncObject | None:
    """Return the first object of these kinds (lock, queue, future) that the stuck line names."""
    return next((sync for sync in stuck.syncs if sync.state.kind in kinds), None)


def blocked_lock(case: Case, stuck: StuckProcess) -> SyncObject | None:
    """Return the lock that a stuck line waits for.

    A lock that is part of the dataset goes first: its path says more than that of an inner lock.
    """
    if stuck.native or stuck.waits not in ("lock", "unknown", "nothing"):
        return None
    locks = [sync for sync in stuck.syncs if sync.state.kind == "lock" and sync.state.locked]
    others = [
        s
        for s in stuck.syncs
        if s.state.kind in ("queue", "future", "executor", "event", "thread", "condition", "barrier")
    ]
    known = [lock for lock in locks if case.part(lock.path) is not None]
    return (known or locks)[0] if locks and not others else None


# -- ended -------------------------------------------------------------------------------------------------------------


def dead_processes(case: Case) -> list[tuple[Trial, ProcessEnd]]:
    """List the processes that died, workers first, without those that unjam's own code ended."""
    found = []
    for trial in (case.as_is, case.compared, case.alone):
        if trial is not None:
            found += [(trial, end) for end in trial.ends if not end.by_our_own]
    return found


def basis_without_samples(case: Case, indices: Iterable[str]) -> Basis:
    """The basis for blaming these samples: the others load without them."""
    left_out = tuple(dict.fromkeys(index for index in indices if index and not index.startswith("#")))
    base = case.as_is or case.alone
    if not left_out or len(left_out) > MOST_LEFT_OUT or base is None or case.loader.iterable:
        return AGREES
    return Toggle(base.plan, (base.plan.changed(without=left_out),))


# -- raised ------------------------------------------------------------------------------------------------------------


def first_line(raised: Raised) -> str:
    """Return the first line of an exception message, which may be empty."""
    return exception_line.first_line(raised.message)


def bad_samples(trial: Trial | None, *stages: str) -> list[Raised]:
    """List the exceptions of a trial at these stages."""
    return [bad for bad in trial.bad if bad.stage in stages] if trial is not None else []


def only_in_workers(case: Case) -> Raised | None:
    """Return an exception that loading raises only with workers."""
    for trial in (case.as_is, case.compared):
        for bad in trial.bad if trial else ():
            alone = {b.type_name for b in case.alone.bad} if case.alone else set()
            if bad.type_name not in alone and bad.stage in ("sample", "collate", "made"):
                return bad
    return None


def exception_naming_its_process(case: Case) -> Raised | None:
    """Return a sample's exception that contains the pid of its process, with workers and without.

    So the sample needs something that the main process created under its own pid.
    """
    alone = {bad.index: bad for bad in bad_samples(case.alone, "sample") if bad.names_process}
    for bad in bad_samples(case.as_is, "sample"):
        other = alone.get(bad.index)
        if other is not None and bad.names_process and bad.process != other.process:
            return bad
    return None


def is_memory_error(bad: Raised) -> bool:
    """Whether an exception says that memory ran out."""
    return (
        "MemoryError" in bad.type_name
        or "can't allocate memory" in bad.message
        or "Cannot allocate memory" in bad.message
    )


def out_of_descriptors(bad: Raised) -> bool:
    """Whether an exception says that the process had no descriptors left."""
    return "Too many open files" in bad.message


# -- compared ----------------------------------------------------------------------------------------------------------


def is_determined(case: Case) -> bool:
    """Whether an index always gives the same sample when every known generator has a seed."""
    alone = case.alone
    if alone is None or case.loader.iterable:
        return False
    second = alone.second_digests
    first = {sample.index: sample.digest for sample in alone.samples}
    return bool(second) and all(first.get(index) == digest for index, digest in second.items())


def differing(case: Case, trial: Trial | None) -> list[Sample]:
    """List the samples of a trial that differ from those without workers."""
    alone = case.alone
    if trial is None or alone is None or not is_determined(case):
        return []
    usual = {sample.index: sample.digest for sample in alone.samples if not sample.changed}
    others = [t for t in case.trials if t.plan.workers == 0 and t is not alone and not t.plan.measured]
    if any(s.digest and usual.get(s.index, s.digest) != s.digest for t in others for s in t.samples):
        return []  # the samples differ from run to run, even without workers
    return [s for s in trial.samples if s.digest and not s.unseeded and s.index in usual and usual[s.index] != s.digest]


def mean_seconds(trial: Trial | None) -> float:
    """Return the mean seconds for one sample."""
    samples = [s.seconds for s in trial.samples] if trial else []
    return sum(samples) / len(samples) if samples else 0.0


def basis_with_fork(as_is: Trial | None) -> Basis:
    """The basis for blaming the start method of the workers: forked workers succeed."""
    if as_is is None or as_is.fine:
        return AGREES
    return Toggle(as_is.plan, (as_is.plan.changed(start="fork"),), identified=True)


def basis_without_workers(case: Case) -> Basis:
    """The basis for blaming the workers: the same samples load without them."""
    if case.as_is is None or case.alone is None:
        return AGREES
    return Toggle(case.as_is.plan, (case.alone.plan,))


def basis_correct_with(case: Case, base: Plan, changed: Plan) -> Toggle:
    """The basis for a cause whose removal makes every sample correct."""

    def removes(before: Trial, after: Trial) -> bool:
        wrong = bool(wrong_samples(case, before) or before.bad or not before.fine)
        return wrong and after.fine and not after.bad and not wrong_samples(case, after)

    return Toggle(base, (changed,), removes)


def basis_faster_with(now: Plan, other: Plan, times: float) -> Toggle:
    """The basis for a faster way of loading: both are measured."""
    return Toggle(
        now, (other,), lambda base, changed: changed.rate > times * base.rate > 0, decisive=True, repeat=False
    )


def raised_words(raised: Raised) -> tuple[str, ...]:
    """An exception and its line, as evidence."""
    said = f"{raised.type_name}: {first_line(raised)[:200]}"
    return (said, f"raised at {quoted(raised.place)}") if raised.place else (said,)


def ending_words(trial: Trial) -> str:
    """Say how a trial ended: its exception, or else its outcome."""
    return f"{trial.raised.type_name}: {first_line(trial.raised)[:140]}" if trial.raised else trial.outcome


# -- iterables ---------------------------------------------------------------------------------------------------------


def stable_counts(case: Case, trial: Trial | None) -> Counter[str] | None:
    """Count the samples of a trial's first epoch by the parts that random numbers do not change.

    Returns None where no such part can tell samples apart.
    """
    alone = case.alone
    if trial is None or alone is None:
        return None
    first, second = alone.of_epoch(0), alone.of_epoch(1)
    kept = None
    if second and len(first) == len(second):
        width = max((len(s.leaves.split(".")) for s in first), default=0)
        kept = [at for at in range(width) if _leaf(first, at) == _leaf(second, at)]
        informative = [at for at in kept if len(_leaf(first, at)) > 1]
        if not informative and len(first) > 1:
            return None
    found: Counter[str] = Counter()
    for sample in trial.of_epoch(0):
        leaves = sample.leaves.split(".")
        found[".".join(leaves[at] for at in kept if at < len(leaves)) if kept is not None else sample.digest] += 1
    return found


def wrong_samples(case: Case, trial: Trial | None) -> int:
    """How many samples differ from those without workers; for a stream, how many are missing or repeated."""
    wrong = len({sample.index for sample in differing(case, trial)})
    usual, now = stable_counts(case, case.alone), stable_counts(case, trial)
    whole = all(one is not None and one.epochs for one in (case.alone, trial))
    if case.loader.iterable and usual is not None and now is not None and whole:
        wrong = sum((usual - now).values()) + sum((now - usual).values())
    return wrong


def _leaf(samples: list[Sample], at: int) -> Counter[str]:
    return Counter(leaves[at] if at < len(leaves := s.leaves.split(".")) else "" for s in samples)
