"""The command: random programs on torch's DataLoader and on unjam's, and what differs.

python tests/fuzz/run.py --seconds 600           a fresh seed, which is printed
python tests/fuzz/run.py --seconds 60 --seed 7   the same programs each time, as far as the time reaches
python tests/fuzz/run.py --replay FILE           one program, from a line of JSON
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import warnings

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    warnings.simplefilter("ignore")


def main() -> int:
    """Run; 1 where there are real differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--replay", metavar="FILE")
    parser.add_argument("--stop-at-first", action="store_true")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--save", metavar="FOLDER", help="where programs that differ are written")
    parser.add_argument(
        "--leave-out", nargs="*", default=(), metavar="PLACE", help="no failures there: init, collate, ..."
    )
    options = parser.parse_args()
    from fuzz import processes
    from fuzz.search import Search, report

    processes.prepare_here()
    if options.replay:
        return replay(options.replay)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    search = Search(
        options.seconds,
        stop_at_first=options.stop_at_first,
        verbose=True,
        shrink=not options.no_shrink,
        leave_out=options.leave_out,
    )
    search.run(seed)
    took = time.monotonic() - search.begin
    print(f"\n{search.count} programs in {took:.0f} s, {search.count * 60 / took:.0f} a minute, seed {seed}")
    print(search.coverage)
    print(f"on purpose: {dict(search.on_purpose)}")
    print(f"torch differs from itself: {search.torch_varies}")
    for finding in search.unconfirmed:
        print("\nseen once, not again:", end="")
        report(finding)
    if options.save:
        save(options.save, search.findings.values())
    print(f"real differences: {len(search.findings)}")
    for finding in search.findings.values():
        print(f"  {finding.signature} (program {finding.found_after}, {finding.seconds:.0f} s)")
    return 1 if search.findings else 0


def save(folder: str, findings) -> None:
    """A file for each program that differs."""
    os.makedirs(folder, exist_ok=True)
    for number, finding in enumerate(findings):
        with open(os.path.join(folder, f"{number}.json"), "w") as file:
            file.write(finding.program.to_json())


def replay(path: str) -> int:
    """Run the program of a file, and print both sides and what differs."""
    from fuzz.compare import differences
    from fuzz.intended_differences import explain
    from fuzz.processes import Sides
    from fuzz.program import Program

    with open(path) as file:
        program = Program.from_json(file.read())
    both = Sides()
    try:
        torchs, ours = both.both(program, fresh=True)
    finally:
        both.close()
    print(program.to_python())
    for name, seen in (("torch", torchs), ("unjam", ours)):
        print(f"{name}: {json.dumps(seen)[:4000]}")
    real = 0
    for difference in differences(torchs, ours):
        entry = explain(program, difference, torchs, ours)
        real += entry is None
        print(f"{'REAL' if entry is None else entry.name}: {difference}")
    return 1 if real else 0


if __name__ == "__main__":
    sys.exit(main())
