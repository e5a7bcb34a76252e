"""Recorded facts of programs: what an examination saw, kept as text, so that the judgement can be tested without running anything.

    run_corpus.py --record tests/recorded [PROGRAM…]

writes them anew. Paths are kept as names in braces: the program's folder, Python's, that of installed packages.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

from unjam.doctor.facts.case import Case
from unjam.doctor.facts.program_facts import ProgramFacts
from unjam.doctor.facts.recording import replay

FOLDER = Path(__file__).parent / "recorded"
CORPUS = Path(__file__).parent / "corpus"
MOST_BYTES = 150_000


def _places() -> dict[str, str]:
    found = {"site": sysconfig.get_path("purelib"), "python": sysconfig.get_path("stdlib")}
    found |= {"environment": sys.prefix, "base": sys.base_prefix}  # after the folders in them
    return {"unjam": str(Path(__file__).parents[1] / "src" / "unjam"), **found}


def keep(evidence: str, program: str, folder: str, target: Path) -> None:
    """Write the facts of one program, if they are small enough."""
    stored = json.loads(evidence)
    facts = {name: stored[name] for name in ("schema", "program", "loaders")}
    text = json.dumps(facts, separators=(",", ":"))
    for name, path in {"corpus": folder, **_places()}.items():
        text = text.replace(json.dumps(path)[1:-1], f"{{{name}}}")
    if len(text) <= MOST_BYTES:
        (target / f"{Path(program).stem}.json").write_text(text.replace('},{"', '},\n{"') + "\n")


def facts_of(path: Path) -> tuple[ProgramFacts | None, list[Case]]:
    """The facts of a recording, with the paths of this machine."""
    text = path.read_text()
    for name, place in {"corpus": str(CORPUS), **_places()}.items():
        text = text.replace(f"{{{name}}}", json.dumps(place)[1:-1])
    return replay(json.loads(text))
