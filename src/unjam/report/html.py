"""A Diagnosis as one page: no network, no script; every word from the user's program is escaped."""

from __future__ import annotations

from html import escape

from unjam.evidence.case import Case
from unjam.evidence.trial import Trial
from unjam.report import catalogue, plots, scene
from unjam.report.diagnosis import Diagnosis
from unjam.report.text import loader_line, near, verdict
from unjam.rules import BY_CODE
from unjam.rules.rule import Finding

PAGE_STYLE = """
:root{--ink:#1b1f24;--paper:#fff;--soft:#57606a;--line:#d0d7de;--card:#f6f8fa;--error:#b3261e;--warning:#8a5a00;--note:#0b5cad;
--ok:#1a7f37;--bar:#5b8def}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--soft:#9198a1;--line:#30363d;--card:#151b23;--error:#ff8278;
--warning:#e3b341;--note:#79c0ff;--ok:#56d364;--bar:#5b8def}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1000px;padding:24px 16px 60px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:32px 0 8px}
code,pre{font:13px/1.45 ui-monospace,monospace}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:8px 0}p{margin:6px 0}
.soft{color:var(--soft)}.card{background:var(--card);border:1px solid var(--line);border-left-width:5px;border-radius:6px;
padding:12px 16px;margin:12px 0;overflow-wrap:anywhere}.error{border-left-color:var(--error)}.warning{border-left-color:var(--warning)}
.note{border-left-color:var(--note)}.card h3{margin:0 0 6px;font-size:16px}.error h3 b{color:var(--error)}
.warning h3 b{color:var(--warning)}.note h3 b{color:var(--note)}.word{border:1px solid var(--line);border-radius:10px;padding:1px 9px;
font-size:13px}.proven{color:var(--ok);border-color:var(--ok)}.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
td,th{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}td:last-child,th:last-child{
text-align:right}svg{width:100%;height:auto;font:12px system-ui,sans-serif}svg text{fill:var(--soft)}.bar{fill:var(--bar)}
.line{fill:none;stroke-width:1.8;stroke:var(--bar)}.c1{stroke:#e0823d}.c2{stroke:#3fa66a}.c3{stroke:#b668c9}.c4{stroke:#c9a227}
.c5{stroke:#d1495b}.add{color:var(--ok)}.del{color:var(--error)}summary{cursor:pointer}:focus-visible{outline:2px solid var(--note)}
@media print{body{max-width:none}.card{break-inside:avoid}details{display:block}}
"""


def render(diagnosis: Diagnosis, version: str) -> str:
    """The page."""
    command = "why" if diagnosis.scene else "check"
    body = [
        f"<h1>{escape(scene.verdict(diagnosis) if diagnosis.scene else verdict(diagnosis))}</h1>",
        f'<p class="soft">unjam {command} {escape(diagnosis.target)}</p>',
        *(f'<p class="soft">{escape(loader_line(case))}</p>' for case in diagnosis.cases),
        *(_finding(finding) for finding in diagnosis.findings),
        _processes(diagnosis),
        _trials(diagnosis),
        *(_pictures(case) for case in diagnosis.cases),
        _environment(diagnosis, version),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,'
        f'initial-scale=1"><title>unjam {command} {escape(diagnosis.target)}</title><style>{PAGE_STYLE}</style></head><body><main>'
        + "\n".join(body)
        + "</main></body></html>"
    )


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


def _processes(diagnosis: Diagnosis) -> str:
    seen = diagnosis.scene
    if seen is None:
        return ""
    refused = f"<p>stacks cannot be read: {escape(seen.refused)}; {escape(seen.remedy)}</p>" if seen.refused else ""
    rows = "".join(
        f"<tr><td>{one.pid}</td><td>{escape(one.name)}</td><td>{escape(scene.doing_words(one))}</td>"
        f"<td><details><summary>{escape(str(one.thread.place or 'stack'))}</summary><pre>"
        f"{escape(chr(10).join(str(frame) for frame in one.thread.frames))}</pre></details></td><td>{one.busy:.0%}</td></tr>"
        for one in seen.processes
        if one.threads and one.role != "helper"
    )
    head = "<tr><th>pid</th><th>who</th><th>does</th><th>at</th><th>cpu</th></tr>"
    return f'{refused}<h2>Processes</h2><div class="scroll"><table>{head}{rows}</table></div>'


def _trials(diagnosis: Diagnosis) -> str:
    rows = "".join(
        f"<tr><td>{escape(row.changed)}</td><td>{escape(row.outcome)}</td><td>{row.seconds:.1f} s</td></tr>"
        for row in diagnosis.trials
    )
    if not rows:
        return ""
    left = f'<p class="soft">no time left for: {escape("; ".join(diagnosis.untried))}</p>' if diagnosis.untried else ""
    return (
        '<h2>What was tried</h2><div class="scroll"><table><thead><tr><th>changed</th><th>what happened</th><th>took</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>{left}"
    )


def _pictures(case: Case) -> str:
    trial = case.as_is or case.alone
    if trial is None:
        return ""
    found = [
        (title, picture)
        for title, picture in (
            ("Timeline", plots.timeline(trial)),
            ("Throughput", plots.throughput(trial)),
            ("Memory of the workers", plots.memory(trial)),
        )
        if picture
    ]
    slow = _slow(trial)
    return (
        "".join(f"<h2>{title}</h2><p class='soft'>{escape(str(trial.plan))}</p>{picture}" for title, picture in found)
        + slow
    )


def _slow(trial: Trial) -> str:
    slowest = sorted(trial.samples, key=lambda s: -s.seconds)[:8]
    if len(slowest) < 2:
        return ""
    rows = "".join(
        f"<tr><td>{escape(s.index)}</td><td>{'main' if s.worker < 0 else s.worker}</td><td>{s.seconds * 1000:.2f} ms</td></tr>"
        for s in slowest
    )
    return (
        '<h2>Slowest samples</h2><div class="scroll"><table><thead><tr><th>sample</th><th>worker</th><th>time</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _environment(diagnosis: Diagnosis, version: str) -> str:
    known = {"unjam": version, **diagnosis.environment}
    if diagnosis.cases:
        world = diagnosis.cases[0].world
        known |= {
            "torch": world.torch,
            "processors": str(world.cpus),
            "free memory": f"{(world.memory or 0) / 1e9:.1f} GB",
            "/dev/shm free": f"{(world.shm_free or 0) / 1e9:.1f} GB",
            "descriptors": f"{world.descriptors:,}",
        }
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in known.items())
    return f'<h2>Environment</h2><div class="scroll"><table><tbody>{rows}</tbody></table></div>'
