"""The device has nothing to do while the training's thread loads the next batch.

What happened: a line of the training loop (`.item()`, `.cpu()`, `if loss > ...`, `print(loss)`) waits
until the device has done all its work. Only then the same thread loads the next batch, and the device
is idle for so long.

Why: work for a device is queued; the thread goes on at once. A loader without workers can so load a
batch while the device computes. A line that needs a number of the device ends that: loading and
computing take turns.

How to confirm: add up the losses on the device (`total += loss.detach()`) and ask for the sum once at
the end of the epoch; or set `num_workers`.

How to fix: `num_workers=2` or more: workers load in any case. And ask the device for numbers every
hundred steps, not in each.

Limits: needs a CUDA device. Loaders with workers load while the thread waits, so that such a line
costs them little; nothing is said about them. Waits inside of operations (`nonzero`, masks) are not seen.
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


def detect_program(watched: ProgramFacts, cases: list[Case]) -> list[Finding]:
    """Find the line that waits longest."""
    del cases
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
            return [
                Finding(
                    RULE,
                    f"the device is idle while the next batch is loaded: {worst.idle / spent:.0%} of the time",
                    quoted(worst.place),
                    (
                        f"this line waited for the device {worst.count} times, {duration(worst.seconds / worst.count)} each",
                        f"after that the same thread loaded for {duration(worst.idle / batches)}; the device had no work then",
                        f"up to {duration(min(worst.seconds, worst.idle))} of {duration(spent)} could be saved",
                    ),
                    AGREES,
                    "load in workers (num_workers=2 or more), or ask the device for numbers less often",
                    worst.place,
                )
            ]
    return []


_PROGRAM = (
    "import time, torch\n"
    "from torch.utils.data import DataLoader, Dataset\n"
    "# stands for a machine with an accelerator: it computes 10 ms for each step, and `item` waits for that\n"
    "busy_until = 0.0\n"
    "class Stream:\n"
    "    def synchronize(self):\n"
    "        pass\n"
    "    def query(self):\n"
    "        return time.monotonic() >= busy_until\n"
    "plain = torch.Tensor.item\n"
    "def item(self):\n"
    "    if not self.is_meta:\n"
    "        return plain(self)\n"
    "    time.sleep(max(0.0, busy_until - time.monotonic()))\n"
    "    return 0.0\n"
    "torch.cuda.is_available = torch.cuda.is_initialized = lambda: True\n"
    "torch.cuda.Stream, torch.cuda.current_stream, torch.Tensor.item = Stream, lambda device=None: Stream(), item\n"
    "class Slow(Dataset):\n"
    "    def __len__(self):\n"
    "        return 64\n"
    "    def __getitem__(self, index):\n"
    "        time.sleep(0.003)\n"
    "        return torch.zeros(4)\n"
    "model = torch.nn.Linear(4, 4)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
    "total = 0.0\n"
    "for epoch in range(2):\n"
    "    for x in DataLoader(Slow(), batch_size=4):\n"
    "        model(x).mean().backward()\n"
    "        optimizer.step()\n"
    "        busy_until = max(busy_until, time.monotonic()) + 0.01\n"
    "        loss = torch.zeros((), device='meta')\n"
    "        {each}\n"
    "    {once}\n"
)
