"""The training's thread copies batches to the device, and waits for that.

What happened: batches go from ordinary memory to the accelerator in the training loop. The thread
that should give the device its next work is held as long as the copy takes.

Why: a device reads only pinned memory by itself. From any other memory the driver copies piece by
piece, in the calling thread; `non_blocking=True` changes nothing about that. Float numbers that were
bytes before take four times the way.

How to confirm: time `batch.to(device)` with and without `pin_memory()` before it.

How to fix: `pin_memory=True` and `.to(device, non_blocking=True)`; or `unjam.DataLoader(...,
device="cuda")`, which sends batches ahead, straight from the workers' memory. Send bytes and convert
them on the device (`on_device`).

Limits: needs a CUDA device. Only tensors of 256 KiB and more are counted, and only in the main thread.
"""

from __future__ import annotations

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import DeviceCopies, ProgramFacts
from unjam.doctor.facts.source import quoted
from unjam.doctor.mechanisms.trials import size
from unjam.doctor.proof import AGREES, OBSERVED, Severity
from unjam.doctor.rules.rule import Finding, Rule
from unjam.units import duration

RULE = Rule("UJ610", "slow-way-to-the-device", Severity.WARNING)
# a share of the loading and training time below which it does not matter, and how much faster pinned memory must be
SHARE, FASTER = 0.05, 2.0
FEWEST = 5


def detect_program(watched: ProgramFacts, cases: list[Case]) -> list[Finding]:
    """Find the line that costs most."""
    del cases
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
                return [_finding(one, spent, faster, slow=slow)]
    return []


def _finding(one: DeviceCopies, spent: float, faster: float, *, slow: bool) -> Finding:
    each = one.seconds / one.count
    told = f"{one.count} copies of {size(one.nbytes / one.count)}, {duration(each)} each"
    wide = f"the {one.dtype.removeprefix('torch.')} numbers fit into bytes: a quarter, or less, would have to be sent"
    return Finding(
        RULE,
        f"batches are copied to the device in the training's thread: {one.seconds / spent:.0%} of the time"
        if slow
        else "batches are sent to the device as float numbers that fit into bytes",
        quoted(one.place),
        (
            told,
            *(
                (f"from pinned memory the same copy holds the thread {faster:.0f} times shorter (measured here)",)
                if slow
                else ()
            ),
            *((wide,) if one.fits_in_bytes else ()),
        ),
        OBSERVED if slow else AGREES,
        'pin_memory=True and .to(device, non_blocking=True), or unjam.DataLoader(..., device="cuda")'
        if slow
        else 'let the dataset return uint8, and convert on the device: unjam.DataLoader(..., device="cuda", on_device=...)',
        one.place,
        severity=None if slow else Severity.NOTE,
    )


_PROGRAM = (
    "import time, torch\n"
    "from torch.utils.data import DataLoader, TensorDataset\n"
    "# stands for a machine with an accelerator: a copy from memory that is not pinned holds the thread\n"
    "pinned, plain = set(), torch.Tensor.to\n"
    "def pin(self):\n"
    "    copy = self.clone()\n"
    "    pinned.add(copy.data_ptr())\n"
    "    return copy\n"
    "def to(self, where, *args, **options):\n"
    "    if str(where) not in ('cuda', 'meta'):\n"
    "        return plain(self, where, *args, **options)\n"
    "    time.sleep(0 if self.is_pinned() else 0.01)\n"
    "    return plain(self, 'meta')\n"
    "torch.cuda.is_available, torch.cuda.synchronize = lambda: True, lambda device=None: None\n"
    "torch.Tensor.is_pinned = lambda self: self.data_ptr() in pinned\n"
    "torch.Tensor.pin_memory, torch.Tensor.to = pin, to\n"
    "model = torch.nn.Linear(4, 4)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    "loader = DataLoader(TensorDataset(torch.randn(64, 100_000)), batch_size=4)\n"
    "for epoch in range(2):\n"
    "    for (x,) in loader:\n"
    "        there = x{pin}.to('cuda', non_blocking=True)\n"
    "        model(x[:, :4]).mean().backward()\n"
    "        optimizer.step()\n"
)
