"""Programs that need a machine of their own: a small /dev/shm."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path


def check_with_small_shm(program: Path, size: str):
    """`unjam check` in a mount namespace with a small /dev/shm; what the JSON says, as a Diagnosis looks."""
    out = program.with_suffix(".json")
    check = [sys.executable, "-m", "unjam", "check", "--budget", "25", "--json", str(out), str(program)]
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", *check], capture_output=True, text=True, timeout=100
    )
    assert out.exists(), done.stderr
    said = json.loads(out.read_text())
    findings = [types.SimpleNamespace(**{**f, "rule": types.SimpleNamespace(code=f["code"])}) for f in said["findings"]]
    return types.SimpleNamespace(
        findings=findings,
        serious=[f for f in findings if f.severity != "note"],
        trials=said["trials"],
        cases=said["loaders"],
    )
