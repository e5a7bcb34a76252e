"""A Diagnosis as JSON and SARIF."""

from __future__ import annotations

import json
import os
from typing import Any

from unjam.doctor.facts.scene import Scene
from unjam.doctor.report.diagnosis import SCHEMA, Diagnosis
from unjam.doctor.report.text import loader_line
from unjam.doctor.rules import RULES
from unjam.units import near


def as_json(diagnosis: Diagnosis, version: str) -> str:
    """Return the documented JSON object; `schema` changes when the meaning of a field changes."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "unjam": version,
            "target": diagnosis.target,
            "found": len(diagnosis.serious),
            "stopped": diagnosis.stopped,
            "seconds": round(diagnosis.seconds, 2),
            "findings": [finding.as_dict() for finding in diagnosis.findings],
            "loaders": [loader_line(case) for case in diagnosis.cases],
            "watched": {"outcome": seen.outcome, "seconds": round(seen.seconds, 2), "processes": len(seen.processes)}
            if (seen := diagnosis.watched) is not None
            else None,
            "trials": [
                {"loader": row.loader, "tried": row.changed, "outcome": row.outcome, "seconds": round(row.seconds, 2)}
                for row in diagnosis.trials
            ],
            "untried": diagnosis.untried,
            "environment": diagnosis.environment,
            **({"processes": _processes(diagnosis.scene)} if diagnosis.scene else {}),
        },
        indent=2,
    )


def not_examined(target: str, problem: str, version: str) -> str:
    """Return the JSON object of a program that could not be examined: it has no findings, and says why."""
    known = {
        "schema": SCHEMA,
        "unjam": version,
        "target": target,
        "found": 0,
        "findings": [],
        "loaders": [],
        "trials": [],
    }
    return json.dumps({**known, "error": problem}, indent=2)


def _processes(scene: Scene) -> list[dict[str, Any]]:
    """Return a summary of the processes; `--dump` writes all facts."""
    return [
        {
            "pid": one.pid,
            "parent": one.parent,
            "role": one.role,
            "rank": one.rank,
            "worker": one.activity.number if one.activity.number >= 0 else None,
            "state": one.state,
            "stage": one.activity.stage,
            "sample": one.activity.index,
            "waits_for": one.thread.waiting.words if one.threads else "",
            "seconds_at_rest": one.thread.rested if one.threads else None,
            "cpu": round(one.busy, 3),
            "memory": one.rss,
            "command": one.command,
            "stack": [str(frame) for frame in one.thread.frames] if one.threads else [],
        }
        for one in scene.processes
    ]


def dumps(values: Any) -> str:
    """Return facts as JSON."""
    return json.dumps(values, indent=1, default=str)


def as_sarif(diagnosis: Diagnosis, version: str) -> str:
    """Return SARIF 2.1.0, which code-review tools read."""
    rules = [
        {
            "id": file.RULE.code,
            "name": file.RULE.name,
            "shortDescription": {"text": file.__doc__.splitlines()[0]},
            "fullDescription": {"text": file.__doc__.strip()},
            "defaultConfiguration": {"level": file.RULE.severity.value},
        }
        for file in RULES
    ]
    results = []
    for finding in diagnosis.findings:
        text = "\n".join([finding.title, *finding.evidence, finding.confidence.value, f"help: {finding.help}"])
        result: dict[str, Any] = {
            "ruleId": finding.rule.code,
            "level": finding.weight.value,
            "message": {"text": text},
            "properties": {"confidence": finding.confidence.value, "culprit": finding.culprit},
        }
        file, line = (finding.location.file, finding.location.line) if finding.location else (diagnosis.target, 1)
        if os.path.isfile(file):
            result["locations"] = [{
                "physicalLocation": {
                    "artifactLocation": {"uri": near(file).replace(os.sep, "/")},
                    "region": {"startLine": line},
                }
            }]  # fmt: skip
        results.append(result)
    return json.dumps(
        {
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{"tool": {"driver": {"name": "unjam", "version": version, "rules": rules}}, "results": results}],
        },
        indent=2,
    )
