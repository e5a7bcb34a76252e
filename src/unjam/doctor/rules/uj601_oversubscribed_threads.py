"""The workers' native threads oversubscribe the processors.

What happened: the libraries that a sample uses start as many threads as the machine has processors,
in every worker. Together these are many more threads than processors, and the epoch is slower than
with one thread in each worker.

Why: each library assumes that it has the machine to itself. In workers torch limits its own
threads, not those of other libraries (OpenCV, numpy's BLAS, numexpr, Arrow).

How to confirm: the same samples load faster with one native thread in each worker.

How to fix: in `worker_init_fn` call `cv2.setNumThreads(0)` and `threadpoolctl.threadpool_limits(1)`;
or set the variables OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, OPENCV_FOR_THREADS_NUM to 1 before Python
starts. OPENCV_OPENMP_NUM_THREADS has no effect. unjam's own loader limits the threads.

Limits: measured on this machine and under its present load.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.proof import Severity
from unjam.doctor.queries.trials import basis_faster_with
from unjam.doctor.rules.rule import Finding, Rule

RULE = Rule("UJ601", "oversubscribed-threads", Severity.WARNING, symptom="slow")
FASTER = 1.5
# threads of every torch worker: the main thread, the queue's feeder, the server that sends descriptors
USUAL = 3


def detect(case: Case) -> Finding | None:
    """Find more threads than processors, if one thread in each worker is faster."""
    as_is, loader = case.as_is, case.loader
    if as_is is None or not as_is.fine or sum(as_is.waits.values()) < 20:
        return None
    threads = as_is.threads
    if threads <= USUAL or (threads - USUAL + 1) * loader.num_workers <= case.process_facts.cpus:
        return None
    timed = as_is.plan.changed(measured=True, epochs=1, seconds=4.0)
    limited = timed.changed(threads=1)
    if case.tried(timed) is None and threads <= USUAL + 1:
        return None
    before, after = case.rates(timed, limited)
    pools = ", ".join(
        f"{pool['library']} ({pool['threads']})" for pool in case.process_facts.pools if pool["threads"] > 1
    )
    return Finding(
        RULE,
        f"{threads} threads in each of {loader.num_workers} workers on {case.process_facts.cpus} processors: {after / (before or 1):.1f} times "
        "faster with one thread",
        pools or "native thread pools",
        (
            f"unchanged: {before:,.0f} samples/s; with one native thread: {after:,.0f} samples/s",
            f"pools: {pools}" if pools else "",
        ),
        basis_faster_with(timed, limited, FASTER),
        "in worker_init_fn: cv2.setNumThreads(0) and threadpoolctl.threadpool_limits(1)",
        loader.made_at,
    )
