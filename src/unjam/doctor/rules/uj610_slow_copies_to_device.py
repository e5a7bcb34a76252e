"""Copies from pageable memory to the device block the training thread.

What happened: the training loop copies batches from pageable memory to the accelerator. The thread
that should queue the next work for the device is blocked while the copy runs.

Why: a device can read only pinned memory directly. From other memory the driver copies in pieces,
in the calling thread; `non_blocking=True` does not change that. Sending values that fit into bytes
as floats multiplies the amount of data by four.

How to confirm: time `batch.to(device)` with and without `pin_memory()` before it.

How to fix: use `pin_memory=True` and `.to(device, non_blocking=True)`; or `unjam.DataLoader(...,
device="cuda")`, which sends batches in advance, directly from the workers' memory. Send bytes and
convert them on the device (`on_device`).

Limits: needs a CUDA device. Only tensors of 256 KiB and more are counted, and only in the main
thread.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.source import quoted
from unjam.doctor.proof import AGREES, OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration, size

RULE = Rule("UJ610", "slow-copies-to-device", Severity.WARNING)
# a share of the loading and training time below which it does not matter, and how much faster pinned memory must be
SHARE, FASTER = 0.05, 2.0
FEWEST = 5


def detect_program(watched: ProgramFacts, cases: list[Case]) -> Finding | None:
    """Find the copy that takes the most time."""
    for process in watched.processes:
        spent = sum(epoch.seconds for loader in process.loaders for epoch in loader.epochs)
        found = [
            one
            for one in process.device_copies.values()
            if one.count >= FEWEST and (not one.pinned or one.fits_in_bytes)
        ]
        for one in sorted(found, key=lambda one: -one.seconds):
            faster = one.from_pageable / one.from_pinned if one.from_pinned else 0.0
            slow = spent > 0 and not one.pinned and one.seconds > SHARE * spent and faster > FASTER
            if slow or one.fits_in_bytes:
                return Finding(
                    RULE,
                    f"copying batches to the device blocks the training thread: {one.seconds / spent:.0%} of the time"
                    if slow
                    else "batches are sent to the device as float numbers that fit into bytes",
                    quoted(one.place),
                    (
                        f"{one.count} copies of {size(one.nbytes / one.count)}, {duration(one.seconds / one.count)} each",
                        f"from pinned memory the same copy blocks the thread for only {1 / faster:.0%} of that time (measured here)"
                        if slow
                        else "",
                        f"the {one.dtype.removeprefix('torch.')} numbers fit into bytes: at most a quarter of the data would be sent"
                        if one.fits_in_bytes
                        else "",
                    ),
                    OBSERVED if slow else AGREES,
                    'use pin_memory=True and .to(device, non_blocking=True), or unjam.DataLoader(..., device="cuda")'
                    if slow
                    else 'let the dataset return uint8, and convert on the device: unjam.DataLoader(..., device="cuda", on_device=...)',
                    one.place,
                    severity=None if slow else Severity.NOTE,
                )
    return None
