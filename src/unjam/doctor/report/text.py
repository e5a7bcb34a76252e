"""A Diagnosis on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.exception_line import exception_line
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.proof import Severity
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.report.profile import profile_lines
from unjam.doctor.report.terminal import diff_line, escape
from unjam.doctor.rules.rule import Finding
from unjam.units import count, duration, near

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold cyan"}


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print the findings, the most severe first; then the trials."""
    several = len(diagnosis.cases) > 1
    for number, case in enumerate(diagnosis.cases, 1):
        console.print(f"[dim]{f'loader {number}: ' if several else ''}{escape(loader_line(case))}[/dim]")
    if diagnosis.watched is not None:
        console.print(f"[dim]{escape(watched_line(diagnosis.watched))}[/dim]")
    console.print()
    for finding in diagnosis.findings:
        show_finding(finding, console)
    console.print(f"[bold]{escape(verdict(diagnosis))}[/bold]")
    _tried(diagnosis, console)
    for one in diagnosis.measured:
        for line in profile_lines(one.profile):
            console.print(escape(line), soft_wrap=True)


def loader_line(case: Case) -> str:
    """Return a description of the loader in one line."""
    loader = case.loader
    made = f", made at {loader.made_at}" if loader.made_at else ""
    length = f"{loader.length:,} samples" if loader.length is not None else "a stream"
    by = "" if loader.start_method == "unjam" else f" started with {loader.start_method}"
    how = f"{count(loader.num_workers, 'worker')}{by}" if loader.num_workers else "no workers"
    kind = f"unjam.{loader.kind}" if loader.driver == "unjam" and loader.kind == "DataLoader" else loader.kind
    return f"{kind} over {loader.dataset} ({length}), batch_size={loader.batch_size}, {how}{made}"


def watched_line(watched: ProgramFacts) -> str:
    """Return what was seen of the program as it ran, in one line."""
    how = {"ended": "until it ended", "failed": "until it failed", "frozen": "until it froze"}.get(watched.outcome, "")
    loaders = len(watched.loaders)
    epochs = sum(len(one.epochs) for one in watched.loaders)
    many = f", {len(watched.processes)} processes" if len(watched.processes) > 1 else ""
    kept = "; what it wrote is kept" if watched.files_kept else ""
    seen = f"{count(loaders, 'loader')}, {count(epochs, 'epoch')}"
    return f"watched {how or 'for a while'} ({duration(watched.seconds)}{many}): {seen}{kept}"


def verdict(diagnosis: Diagnosis) -> str:
    """Return the conclusion as one line."""
    serious, notes = len(diagnosis.serious), len(diagnosis.findings) - len(diagnosis.serious)
    also = f"; {count(notes, 'note')}" if notes else ""
    stopped = ", stopped early" if diagnosis.stopped else ""
    if not diagnosis.cases and diagnosis.watched is None:
        return f"nothing was examined{stopped}"
    if serious:
        return f"{count(serious, 'problem')} found{also} ({duration(diagnosis.seconds)}{stopped})"
    failed = _failed_elsewhere(diagnosis.watched)
    return f"{failed}nothing found{' in its loaders' if failed else ''}{also} ({duration(diagnosis.seconds)}{stopped})"


def _failed_elsewhere(watched: ProgramFacts | None) -> str:
    """What ended a program whose loaders have no fault."""
    if watched is None or watched.outcome != "failed":
        return ""
    last = next((one for one in reversed(watched.failures) if one.stage == "end"), None)
    if last is None:
        return f"the program failed (exit code {watched.code}); "
    what = exception_line(last.type_name, last.message)
    return f"the program failed: {what}{f' at {near(last.place.file)}:{last.place.line}' if last.place else ''}; "


def show_finding(finding: Finding, console: Console) -> None:
    """Print one finding."""
    colour = _COLOURS[finding.weight]
    console.print(
        f"[{colour}]{finding.weight.value}\\[{finding.rule.code}][/{colour}]: [bold]{escape(finding.title)}[/bold]"
    )
    if finding.location is not None:
        console.print(f"  at {escape(near(finding.location.file))}:{finding.location.line}")
    for line in finding.evidence:
        console.print(f"  {escape(line)}")
    console.print(f"  {finding.confidence.value}")
    console.print(f"help: {escape(finding.help)}")
    for line in finding.diff.splitlines():
        console.print(f"  {diff_line(line)}")
    console.print(f"[dim]more: unjam explain {finding.rule.code}[/dim]")
    console.print()


def _tried(diagnosis: Diagnosis, console: Console) -> None:
    if not diagnosis.trials:
        return
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim", padding=(0, 2, 0, 0))
    several = len(diagnosis.cases) > 1
    if several:
        table.add_column("loader", justify="right")
    table.add_column("tried", overflow="fold")
    table.add_column("what happened", overflow="fold")
    table.add_column("took", justify="right")
    for row in diagnosis.trials:
        cells = escape(row.changed), escape(row.outcome), duration(row.seconds)
        table.add_row(*([str(row.loader + 1)] if several else []), *cells)
    console.print(table)
    if diagnosis.watched is None:
        console.print("[dim]not watched: the program was stopped at its first iter(loader)[/dim]")
    if diagnosis.environment.get("files"):
        console.print(f"[dim]{escape(diagnosis.environment['files'])}[/dim]")
    if diagnosis.untried:
        console.print(
            f"[dim]not tried for lack of time: {escape('; '.join(diagnosis.untried[:4]))} (raise --budget)[/dim]"
        )
