"""The same small programs on torch's DataLoader and on unjam's, side by side."""

from __future__ import annotations

import os
import platform

import torch
from rich.console import Console
from rich.table import Table
from runner import Outcome, run

ROWS = [
    ("an exception of a class created at run time", "strange_exception", {"limit": 15}),
    ("a worker is killed", "killed_worker", {}),
    ("10 of 1,000 samples are damaged", "bad_samples", {}),
    ("one sample never returns", "stuck_sample", {"limit": 15}),
    ("a lambda in the dataset, no fork", "lambda_without_fork", {}),
    ("batches of 64 MB, /dev/shm of 64 MB", "small_shm", {"small_shm": True}),
    ("ulimit -n 128, 1,000 batches kept", "few_descriptors", {}),
    ("400 MB array, 4 workers, no fork", "large_array", {}),
    ("64 images of 150 KB, 1 worker", "transport_speed", {}),
]


def cell(outcome: Outcome) -> str:
    mark = "[green]✓[/green]" if outcome.ok else "[red]✗[/red]"
    return f"{mark} {outcome.text.replace('[', chr(92) + '[')}"


def main() -> None:
    console = Console()
    console.print(
        f"[dim]{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}[/dim]"
    )
    table = Table(show_lines=True)
    for column in ("program", "torch.utils.data.DataLoader", "unjam.DataLoader"):
        table.add_column(column, overflow="fold")
    with console.status("") as status:
        for title, program, options in ROWS:
            cells = []
            for loader in ("torch", "unjam"):
                status.update(f"{title}: {loader}")
                # without fork, torch uses spawn; unjam does not fork by default
                arguments = ["spawn"] if (program, loader) == ("large_array", "torch") else []
                cells.append(cell(run(program, loader, *arguments, **options)))
            table.add_row(title, *cells)
    console.print(table)
    console.print("Each program is in examples/programs; run one with: python examples/programs/NAME.py torch|unjam")


if __name__ == "__main__":
    main()
