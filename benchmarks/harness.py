"""Helpers for benchmarks: interleaved rounds, medians, a table headed by the machine."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

import torch


def machine() -> str:
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def interleave(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Run all contenders alternately, `rounds` times each; return the median result of each."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seen[name].append(run())
    return {name: statistics.median(values) for name, values in seen.items()}


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def table(title: str, columns: list[str], rows: list[list[str]], notes: str = "") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=max(100, Console().width))
    view = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        view.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        view.add_row(*row)
    console.print(f"[dim]{machine()}[/dim]")
    console.print(view)
    if notes:
        console.print(f"[dim]{notes}[/dim]")


def verdict(value: float, goal: float, *, at_least: bool = True) -> str:
    """A ratio with its goal."""
    met = value >= goal if at_least else value <= goal
    return f"{value:.2f} {'✓' if met else '✗'} ({'≥' if at_least else '≤'} {goal:g})"
