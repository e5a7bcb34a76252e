"""A Diagnosis as one HTML page."""

from __future__ import annotations

from html import escape

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.timeline import trial_timeline
from unjam.doctor.report import catalogue, scene
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.report.page import Cell, HtmlPage, profile, table
from unjam.doctor.report.text import loader_line, verdict
from unjam.doctor.rules import BY_CODE
from unjam.doctor.rules.rule import Finding
from unjam.units import duration, near


def render(diagnosis: Diagnosis, version: str) -> str:
    """Return the page."""
    command = "why" if diagnosis.scene else "check"
    page = HtmlPage(f"unjam {command} {diagnosis.target}", version)
    if diagnosis.findings:
        page.heading("Findings")
    page.add(*(_finding(finding) for finding in diagnosis.findings))
    _processes(page, diagnosis)
    _trials(page, diagnosis)
    for case in diagnosis.cases:
        trial = case.as_is or case.alone
        if trial is not None:
            page.picture(trial_timeline(trial), f"{_name(case)}, {trial.plan}")
    for one in diagnosis.measured:
        profile(page, one.profile, str(one.setting))
    page.environment(_environment(diagnosis))
    return page.html(
        scene.verdict(diagnosis) if diagnosis.scene else verdict(diagnosis),
        f'<p class="soft">unjam {command} {escape(diagnosis.target)}</p>',
        *(f'<p class="soft">{escape(loader_line(case))}</p>' for case in diagnosis.cases),
    )


def _name(case: Case) -> str:
    at = f" at {case.loader.made_at}" if case.loader.made_at else ""
    return f"{case.loader.kind} over {case.loader.dataset}{at}"


def _finding(finding: Finding) -> str:
    where = (
        f"<p><code>{escape(near(finding.location.file))}:{finding.location.line}</code></p>" if finding.location else ""
    )
    evidence = "".join(f"<li>{escape(line)}</li>" for line in finding.evidence)
    diff = "".join(
        f'<span class="{"add" if line.startswith("+") else "del" if line.startswith("-") else ""}">{escape(line)}</span>\n'
        for line in finding.diff.splitlines()
    )
    more = escape(catalogue.explanation(BY_CODE[finding.rule.code]))
    return (
        f'<section class="card {finding.weight.value}"><h3><b>{finding.weight.value} {finding.rule.code}</b> '
        f"{escape(finding.title)}</h3>{where}<ul>{evidence}</ul>"
        f'<p><span class="word {finding.confidence.value}">{finding.confidence.value}</span></p>'
        f"<p><b>help:</b> {escape(finding.help)}</p>{f'<pre>{diff}</pre>' if diff else ''}"
        f"<details><summary>what {finding.rule.code} means</summary><pre>{more}</pre></details></section>"
    )


def _processes(page: HtmlPage, diagnosis: Diagnosis) -> None:
    seen = diagnosis.scene
    if seen is None:
        return
    if seen.refused:
        page.add(f"<p>stacks cannot be read: {escape(seen.refused)}; {escape(seen.remedy)}</p>")
    rows = "".join(
        f"<tr><td>{one.pid}</td><td>{escape(one.name)}</td><td>{escape(scene.doing_words(one))}</td>"
        f"<td><details><summary>{escape(str(one.thread.place or 'stack'))}</summary><pre>"
        f'{escape(chr(10).join(str(frame) for frame in one.thread.frames))}</pre></details></td><td class="number">'
        f"{one.busy:.0%}</td></tr>"
        for one in seen.processes
        if one.threads and one.role != "helper"
    )
    page.heading("Processes")
    head = "<tr><th>pid</th><th>who</th><th>does</th><th>at</th><th>cpu</th></tr>"
    page.add(f'<div class="scroll"><table>{head}{rows}</table></div>')


def _trials(page: HtmlPage, diagnosis: Diagnosis) -> None:
    if not diagnosis.trials:
        return
    page.heading("What was tried")
    rows: list[list[Cell]] = [
        [_name(diagnosis.cases[row.loader]), row.changed, row.outcome, (duration(row.seconds), row.seconds)]
        for row in diagnosis.trials
    ]
    page.add(table(("loader", "tried", "what happened", "took"), rows))
    if diagnosis.untried:
        page.add(
            f'<p class="soft">not tried for lack of time: {escape("; ".join(diagnosis.untried))} (raise --budget)</p>'
        )


def _environment(diagnosis: Diagnosis) -> dict[str, str]:
    known = dict(diagnosis.environment)
    if diagnosis.cases:
        process_facts = diagnosis.cases[0].process_facts
        known |= {
            "torch": process_facts.torch,
            "processors": str(process_facts.cpus),
            "free memory": f"{(process_facts.memory or 0) / 1e9:.1f} GB",
            "/dev/shm free": f"{(process_facts.shm_free or 0) / 1e9:.1f} GB",
            "descriptors": f"{process_facts.descriptors:,}",
        }
    return known
