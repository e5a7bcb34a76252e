"""All facts of an examination as JSON, and a short summary in Markdown to read or to attach to a question.

Secrets were masked earlier: a Diagnosis has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from unjam.doctor.facts.recording import record
from unjam.doctor.facts.source import line_of
from unjam.doctor.facts.trial import Place
from unjam.doctor.report.diagnosis import Diagnosis
from unjam.doctor.report.text import loader_line
from unjam.units import count, duration

MOST_OUTPUT, AROUND = 3000, 3


def as_json(diagnosis: Diagnosis, version: str) -> str:
    """Return all facts: the program as it ran, every loader with its trials, the processes of a frozen program."""
    return json.dumps(
        {
            **record(diagnosis.watched, diagnosis.cases),
            "unjam": version,
            "target": diagnosis.target,
            "findings": [finding.as_dict() for finding in diagnosis.findings],
            "environment": diagnosis.environment,
            "untried": diagnosis.untried,
        },
        indent=1,
    )


def brief(diagnosis: Diagnosis, version: str) -> str:
    """Return a short summary."""
    return "\n".join(_brief(diagnosis, version)) + "\n"


def _brief(diagnosis: Diagnosis, version: str) -> Iterator[str]:
    yield f"# unjam check {diagnosis.target}"
    yield ""
    yield f"unjam {version}; " + ", ".join(f"{name} {value}" for name, value in diagnosis.environment.items())
    watched = diagnosis.watched
    if watched is not None:
        yield f"\nThe program was watched for {duration(watched.seconds)}: {watched.outcome}, {count(len(watched.processes), 'process', 'processes')}."
    for number, case in enumerate(diagnosis.cases, 1):
        yield f"{number}. {loader_line(case)}"
    for finding in diagnosis.findings:
        yield f"\n## {finding.rule.code}: {finding.title}\n"
        yield f"{finding.confidence.value}; {finding.culprit}"
        yield from (f"- {line}" for line in finding.evidence)
        yield f"- help: {finding.help}"
        if finding.location is not None:
            yield from _source(finding.location)
    if not diagnosis.findings:
        yield "\nNothing was found."
    if diagnosis.trials:
        yield "\n## Trials\n\n| loader | tried | what happened | took |\n|---|---|---|---|"
        yield from (
            f"| {row.loader + 1} | {row.changed} | {row.outcome} | {duration(row.seconds)} |"
            for row in diagnosis.trials
        )
    for failure in (watched.failures if watched is not None else [])[:4]:
        yield f"\n## {failure.type_name} ({failure.stage})\n\n```text\n{failure.trace[-MOST_OUTPUT:].rstrip()}\n```"
        yield from (f"- reachable: {one.path} ({one.kind} {one.target})" for one in failure.reach)
    scene = watched.scene if watched is not None else None
    for process in scene.processes if scene is not None else ():
        yield f"\n## {process.name}\n"
        for thread in process.threads:
            yield f"- thread {thread.name or thread.tid}: {thread.waiting.phrase}" + (
                f", at {thread.place}" if thread.place else ""
            )
    if watched is not None and watched.output.strip():
        yield f"\n## End of the output\n\n```text\n{watched.output[-MOST_OUTPUT:].rstrip()}\n```"


def _source(place: Place) -> Iterator[str]:
    """The lines around a line."""
    around = [Place(place.file, line) for line in range(max(1, place.line - AROUND), place.line + AROUND + 1)]
    yield "\n```python"
    for one in around:
        yield f"{'>' if one.line == place.line else ' '} {one.line:4} {line_of(one)}"
    yield "```"
