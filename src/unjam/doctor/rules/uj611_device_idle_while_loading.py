"""The device is idle while the training thread loads the next batch.

What happened: a line of the training loop (`.item()`, `.cpu()`, `if loss > ...`, `print(loss)`) waits
until the device has finished all its work. Only then does the same thread load the next batch, and
the device is idle during that time.

Why: work for a device is queued, and the thread continues at once. A loader without workers can
therefore load a batch while the device computes. A line that needs a value from the device prevents
this: loading and computing alternate.

How to confirm: add up the losses on the device (`total += loss.detach()`) and read the sum once at
the end of the epoch; or set `num_workers`.

How to fix: use `num_workers=2` or more: workers load in any case. And read values from the device
every hundred steps, not in each step.

Limits: needs a CUDA device. Loaders with workers are not reported: they load while the thread
waits, so such a line costs them little. Waits inside operations (`nonzero`, masks) are not detected.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import AGREES, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ611", "device-idle-while-loading", Severity.WARNING)
# the share of the time that could be saved, and of the steps that must wait
SHARE, OFTEN = 0.1, 0.5
FEWEST = 5


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find the line that waits longest for the device."""
    for process in watched.processes:
        trained = [loader for loader in process.loaders if loader.trains]
        if not trained or any(loader.workers for loader in trained):
            continue
        epochs = [epoch for loader in trained for epoch in loader.epochs]
        spent, batches = sum(epoch.seconds for epoch in epochs), sum(epoch.batches for epoch in epochs)
        found = [one for one in process.device_waits.values() if one.count >= max(FEWEST, OFTEN * batches)]
        worst = max(found, key=lambda one: one.seconds, default=None)
        # without the wait, the thread would load while the device computes: the shorter of the two would be saved
        if worst is not None and spent and min(worst.seconds, worst.idle) > SHARE * spent:
            return Finding(
                RULE,
                f"the device is idle while the next batch is loaded: {worst.idle / spent:.0%} of the time",
                quoted(worst.place),
                (
                    f"this line waited for the device {worst.count} times, {duration(worst.seconds / worst.count)} each",
                    f"after that the same thread loaded for {duration(worst.idle / batches)}; the device had no work then",
                    f"up to {duration(min(worst.seconds, worst.idle))} of {duration(spent)} could be saved",
                ),
                AGREES,
                "load in workers (num_workers=2 or more), or read values from the device less often",
                worst.place,
            )
    return None
