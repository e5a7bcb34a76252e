"""Breaks the product in twenty places, one at a time, and shows whether the tests notice: `make mutants`.

    python tests/run_mutants.py [-j 4] [--tree FOLDER] [NUMBER ...]

Each mutant lives in a copy of the tree. The test files that are likely to notice run first; only if they do not, the whole suite
runs. A mutant that nothing notices is printed as SURVIVED, and the exit code is 1 if there is more than one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """One change of one file. `files`: the tests that are likely to notice it."""

    what: str
    path: str
    old: str
    new: str
    files: str


MUTANTS = [
    Mutant(
        "batches are delivered in the wrong order",
        "loader/engine/machine.py",
        "first = min(entries, default=None)",
        "first = max(entries, default=None)",
        "test_engine_simulation test_parity",
    ),
    Mutant(
        "workers take turns in another order than torch's",
        "loader/engine/machine.py",
        "self.turn = (self.turn + 1) % count",
        "self.turn = (self.turn + 2) % count",
        "test_engine_simulation test_parity",
    ),
    Mutant(
        "a sample is blamed one death late",
        "loader/engine/blame.py",
        "elif count < self._enough() and",
        "elif count <= self._enough() and",
        "test_engine_simulation test_fault_matrix",
    ),
    Mutant(
        "what comes from a worker that no longer owes it is taken",
        "loader/engine/machine.py",
        "        if not self.ledger.owes(worker, batch):\n            return []\n        # reinsert",
        "        # reinsert",
        "test_engine_simulation",
    ),
    Mutant(
        "a forked child frees the parent's memory",
        "loader/transport/leases.py",
        "            if os.getpid() != owner_pid:\n                return  # a forked child dropped its copy; the parent still has it\n",
        "",
        "test_forked_worker_compatibility test_transport",
    ),
    Mutant(
        "a slot is filled again while the consumer holds it",
        "loader/transport/slots.py",
        "if slot.shared and not self._page.is_free(slot.number):\n            return False",
        "if False:\n            return False",
        "test_transport",
    ),
    Mutant(
        "strides are lost on the way",
        "loader/transport/packing.py",
        "return unpacking.rebuild_tensor, (offset, dtype, size, stride)",
        "return unpacking.rebuild_tensor, (offset, dtype, size, None)",
        "test_transport test_parity",
    ),
    Mutant(
        "tensors of different dtypes are cast in silence",
        "loader/transport/collating.py",
        '        raise TypeError("tensors of different dtypes in one batch")',
        "        return",
        "test_failures",
    ),
    Mutant(
        "a worker that does not obey is left alone",
        "loader/pool/process_pool.py",
        "                handle.process.kill()\n            wait_for_exits(left, SIGKILL_GRACE.seconds)",
        "                pass\n            wait_for_exits(left, SIGKILL_GRACE.seconds)",
        "test_stopping",
    ),
    Mutant(
        "exit code 0 without a goodbye is no death",
        "loader/pool/worker_exits.py",
        "        handle.said_goodbye,\n",
        "        handle.said_goodbye or handle.process.exitcode == 0,\n",
        "test_fault_matrix",
    ),
    Mutant(
        "a worker that starts again has the random numbers of its first start",
        "loader/worker/main.py",
        "                    if message.seed is not None:",
        "                    if False:",
        "test_resume test_parity test_auto_workers",
    ),
    Mutant(
        "a replacement may be the bad sample itself",
        "loader/worker/sample_recovery.py",
        "if at != position and at not in job.decisions]",
        "]",
        "test_failures test_failure_edge_cases",
    ),
    Mutant(
        "StopIteration of a sample ends the epoch",
        "loader/driver/on_error.py",
        "problem = _stopped(errors[-1]) if stop else errors[-1].exception",
        "problem = errors[-1].exception",
        "test_failures",
    ),
    Mutant(
        "the worker's traceback is lost",
        "loader/worker/exceptions.py",
        "error.__cause__ = RemoteTraceback(self.traceback + shown)",
        "error.__cause__ = None",
        "test_failures",
    ),
    Mutant(
        "memory that is shared is copied in silence",
        "loader/ship/pickler.py",
        "        if self.maps.writable_shared(address):",
        "        if False:",
        "test_dataset_transfer test_forked_worker_compatibility",
    ),
    Mutant(
        "a loaded state begins the epoch after it",
        "loader/checkpoint/resume.py",
        "state.epoch += self._partial is None",
        "state.epoch += 1",
        "test_resume test_resume_property",
    ),
    Mutant(
        "epochs of samplers are not restored",
        "loader/checkpoint/resume.py",
        '            sampler.set_epoch(saved["set_epoch"][path])',
        "            pass",
        "test_resume",
    ),
    Mutant(
        "a rule looks for its cause in the wrong place",
        "doctor/rules/uj505_same_random_numbers.py",
        "    if trial is None or not alike:\n",
        "    if trial is None or len(alike) < 2:\n",
        "test_rules",
    ),
    Mutant(
        "a page shows names as they are",
        "doctor/report/html.py",
        "from html import escape\n",
        "def escape(text):\n    return text\n",
        "test_html_page test_check test_security",
    ),
    Mutant(
        "passwords of addresses stay in reports",
        "system/masking.py",
        "def masked(text: str) -> str:\n",
        "def masked(text: str) -> str:\n    return text\n\n\ndef _masked(text: str) -> str:\n",
        "test_security",
    ),
]


def copy_of(root: Path, folder: Path) -> Path:
    """The tree as it is, with its history, which the choice of rules looks at."""
    tree = folder / "tree"
    skip = shutil.ignore_patterns(".venv", ".matrix", "build", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(root, tree, ignore=skip, symlinks=True)
    return tree


def run(tree: Path, *arguments: str) -> list[str]:
    """Run some tests; those that failed."""
    path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not alone", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = [
        line.split(" - ")[0].split(" ", 1)[1]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    assert failed or done.returncode == 0, f"the tests could not be run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return failed


def likely(tree: Path, mutants: list[Mutant]) -> list[str]:
    names = {name for mutant in mutants for name in mutant.files.split()}
    return [f"tests/{name}.py" for name in sorted(names) if (tree / f"tests/{name}.py").exists()]


def notices(root: Path, mutant: Mutant, known: list[str]) -> str:
    """The first test that fails with this mutant and not without; "" if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of(root, Path(folder))
        path = tree / "src" / "unjam" / mutant.path
        text = path.read_text()
        assert text.count(mutant.old) == 1, (
            f"{mutant.path} has changed: {mutant.old!r} is there {text.count(mutant.old)} times"
        )
        path.write_text(text.replace(mutant.old, mutant.new))
        without = [word for test in known for word in ("--deselect", test)]
        found = run(tree, "-x", *without, *likely(tree, [mutant])) or run(tree, "-x", *without)
        return found[0] if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("-j", type=int, default=1, help="so many mutants at a time")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout, whose tests are tried")
    asked = parser.parse_args()
    chosen = asked.numbers or range(1, len(MUTANTS) + 1)

    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of(asked.tree, Path(folder))
        known = run(tree, *likely(tree, [MUTANTS[number - 1] for number in chosen]))
    print(f"without a mutant, {len(known)} tests fail: {' '.join(known)}", flush=True)

    def one(number: int) -> bool:
        mutant, began = MUTANTS[number - 1], time.monotonic()
        test = notices(asked.tree, mutant, known)
        word = f"found by {test}" if test else "SURVIVED"
        print(f"{number:2} {mutant.what}: {word} ({time.monotonic() - began:.0f} s)", flush=True)
        return bool(test)

    with ThreadPoolExecutor(asked.j) as hands:
        survived = sum(not found for found in hands.map(one, chosen))
    print(f"{len(chosen) - survived} of {len(chosen)} found")
    return int(survived > 1)


if __name__ == "__main__":
    sys.exit(main())
